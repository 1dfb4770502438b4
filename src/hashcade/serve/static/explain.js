// How the neighbours came about: the path through the levels, and the buckets.
import { el, number, plural, svg } from "./dom.js";
import { inDigits, itemTile } from "./items.js";
import { classMix } from "./labels.js";

const SHOWN = 12;  // buckets

export function explanation(reply) {
  const path = [el("h2", {}, "Path through the levels"), pathSteps(reply)];
  if (!reply.buckets.length) {
    if (!reply.results.length) return path;
    return [...path, el("p", { class: "note" }, "All items that pass the filter were compared: they are few, so no bucket was needed.")];
  }
  return [...path,
    el("h2", {}, reply.buckets.length === 1 ? "The bucket" : `The ${number(reply.buckets.length)} buckets`),
    el("ul", { class: "cards" }, reply.buckets.slice(0, SHOWN).map(bucketCard)),
    reply.buckets.length > SHOWN ? el("p", { class: "note" }, `and ${number(reply.buckets.length - SHOWN)} more`) : null,
  ].filter(Boolean);
}

function pathSteps(reply) {
  const root = el("li", { class: "step" },
    el("h3", {}, "All items"), el("p", { class: "below" }, `${plural(reply.n_items, "item")}`), meter(1));
  return el("ol", { class: "path" }, root, reply.levels.map((level) => {
    const slots = level.nodes.map((node) => node.slot);
    const below = level.nodes.reduce((sum, node) => sum + node.n_entries, 0);
    const buckets = level.nodes.reduce((sum, node) => sum + node.n_buckets, 0);
    const first = level.nodes[0];
    const rank = first && first.rank !== null ? (first.rank === 0 ? ", the best of " : `, number ${first.rank + 1} of `) + level.scores.length : "";
    return el("li", { class: "step" },
      el("h3", {}, `Level ${level.level}: ${slots.length === 1 ? "slot" : "slots"} ${slots.slice(0, 8).join(", ")}${slots.length > 8 ? " …" : ""}`),
      el("p", { class: "below" }, `${plural(below, "entry", "entries")} in ${plural(buckets, "bucket")} below`),
      meter(below / Math.max(reply.n_items, 1)),
      level.scores ? el("figure", {}, scoreBars(level.scores, slots),
        el("figcaption", {}, first && slots.length === 1 ? `score ${inDigits(first.score)}${rank}` : "scores of all slots")) : null);
  }));
}

export const meter = (share) => el("div", { class: "meter", "aria-hidden": "true" }, el("span", { vars: { "--part": Math.min(1, share) } }));

function scoreBars(reply, chosen) {
  const finite = reply.filter((score) => score !== null);
  const scores = reply.map((score) => score === null ? Math.min(0, ...finite) : score);
  const low = Math.min(0, ...scores), high = Math.max(0, ...scores);
  const span = high - low || 1;
  const gap = scores.length > 40 ? 0 : 0.15;
  const bars = scores.map((score, slot) => svg("rect", {
    x: slot + gap, width: 1 - 2 * gap, y: 40 * (high - Math.max(score, 0)) / span,
    height: Math.max(0.5, 40 * Math.abs(score) / span), class: chosen.includes(slot) ? "chosen" : "other",
  }));
  return svg("svg", { viewBox: `0 0 ${scores.length} 40`, preserveAspectRatio: "none", role: "img", class: "scores",
    "aria-label": `Scores of ${scores.length} slots; taken: ${chosen.join(", ")}` }, ...bars);
}

function bucketCard(bucket) {
  const pictures = bucket.items.filter((item) => item.picture);
  return el("li", { class: "card bucket" },
    el("h3", {}, el("a", { href: `#/tree/${bucket.path.join("/")}` }, `Bucket ${bucket.path.join(" › ")}`),
      bucket.fill ? el("span", { class: "tag" }, "to fill up") : null),
    el("p", {}, `${number(bucket.candidates)} of ${plural(bucket.size, "entry", "entries")} compared`),
    classMix(bucket.classes, bucket.classes?.length ?? 0, bucket.size),
    pictures.length ? el("div", { class: "strip" }, pictures.map((item) => itemTile(item))) : null);
}
