// A class: some of its items. A name that is none is answered with those that are like it.
import { ask, el, emptyState, number, plural } from "./dom.js";
import { describedTile, gridClass } from "./items.js";
import { classAddress, readable } from "./labels.js";

const STEP = 48;

// Labels are text or numbers, an address is text: "7" may be either.
const whereLabel = (text) => ({ label: { in: /^-?\d{1,15}$/.test(text) ? [text, Number(text)] : [text] } });

export async function showClass(main, text, isCurrent) {
  const where = JSON.stringify(whereLabel(text));
  const ask48 = (seed) => ask(`/v1/items?${new URLSearchParams({ limit: STEP, seed, where })}`);
  const reply = await ask48(0);
  if (!isCurrent()) return;
  if (!reply.n_matching) {
    await showLike(main, text, isCurrent);
    return;
  }
  const grid = el("div", { class: gridClass(reply.items, "wide") }, reply.items.map((item) => describedTile(item)));
  let seed = 0;
  const others = el("button", { type: "button", class: "quiet", onclick: async () => {
    const more = await ask48(++seed);
    grid.replaceChildren(...more.items.map((item) => describedTile(item)));
  } }, "Others");
  const whole = readable(text) === text ? "" : ` · label ${text}`;
  main.replaceChildren(
    el("h1", { tabindex: -1, title: text }, readable(text)),
    el("div", { class: "row" }, el("p", { class: "note grow" }, `${plural(reply.n_matching, "item")} of this class${whole}` +
      (reply.n_matching > STEP ? ` · ${number(STEP)} of them, drawn at random` : "")), reply.n_matching > STEP ? others : null),
    grid);
}

async function showLike(main, text, isCurrent) {
  const reply = await ask(`/v1/classes?${new URLSearchParams({ contains: text, limit: 60 })}`);
  if (!isCurrent()) return;
  if (reply.n_matching === 1) {
    location.replace(classAddress(reply.labels[0]));
    return;
  }
  const more = reply.n_matching - reply.labels.length;
  main.replaceChildren(
    el("h1", { tabindex: -1 }, reply.n_matching ? `Classes with “${text}”` : `There is no class “${text}”`),
    reply.n_matching
      ? el("ul", { class: "names" }, reply.labels.map((label) =>
        el("li", {}, el("a", { href: classAddress(label), title: `${label}` }, readable(label)))))
      : emptyState("Nothing to show", reply.n_classes ? `None of the ${number(reply.n_classes)} classes has this in its name.` : "The items of this table have no labels.",
        el("p", {}, el("a", { href: "#/search" }, "Search for something else"))),
    more > 0 ? el("p", { class: "note" }, `and ${number(more)} more: type more of the name`) : "");
}
