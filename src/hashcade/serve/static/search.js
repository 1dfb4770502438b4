// The search page: choose a query, see its way through the tree, the buckets and the neighbours.
import { ask, classMix, context, el, fieldList, itemLink, number, percent, plural, problem, say, svg, thumbnail } from "./dom.js";

let seed = 0;
const settings = { n_neighbors: 10, n_probe: 1 };

export async function showSearch(main, itemId, isCurrent) {
  const results = el("section", { class: "results", "aria-label": "Result", "aria-busy": "false" });
  const chooser = await makeChooser(results);
  if (!isCurrent()) return;
  main.replaceChildren(
    el("h1", { tabindex: -1 }, itemId === null ? "Search" : `Neighbours of item ${itemId}`),
    el("div", { class: "columns" }, chooser, results));
  if (itemId === null) results.append(hint());
  else await showItem(results, itemId);
}

function hint() {
  const { index, shape } = context.stats;
  return el("div", { class: "card hint" },
    el("h2", {}, "What you will see"),
    el("p", {}, `A query is hashed level by level: at each of the ${shape.depth} levels it takes one of ${shape.width} slots. ` +
      `The path ends in a bucket, and only the items in there are compared with the query.`),
    el("p", {}, `On average a query is compared with ${number(Math.round(index.expected_candidates))} of ${number(index.n_items)} items, ` +
      `${index.expected_speedup.toFixed(1)} times fewer than all.`));
}

// -- choosing a query ----------------------------------------------------------------------------

async function makeChooser(results) {
  const samples = el("div", { class: "grid" });
  const fill = async () => {
    const told = await ask(`/v1/items?limit=18&seed=${seed}`);
    samples.replaceChildren(...told.items.map((item) => itemLink(item)));
  };
  await fill();
  const isText = context.stats.ids === "str";
  const kind = isText ? { type: "text" } : { type: "number", min: 0, step: 1, inputmode: "numeric" };
  const field = el("input", { id: "item-id", name: "id", required: true, ...kind });
  return el("section", { class: "chooser", "aria-label": "Query" },
    dropZone(results),
    el("form", { class: "row", onsubmit: (event) => { event.preventDefault(); location.hash = `#/item/${encodeURIComponent(field.value)}`; } },
      el("label", { for: "item-id" }, isText ? "Item id" : "Item number"), field, el("button", { type: "submit" }, "Find")),
    el("div", { class: "row" }, el("h2", {}, "Or choose an item"),
      el("button", { type: "button", class: "quiet", onclick: () => { seed += 1; fill(); } }, "Others")),
    samples,
    options());
}

function options() {
  const choice = (name, text, values) => {
    const id = `option-${name}`;
    const list = el("select", { id, onchange: (event) => { settings[name] = Number(event.target.value); repeat(); } },
      values.map((value) => el("option", { value, selected: value === settings[name] }, `${value}`)));
    return el("p", { class: "row" }, el("label", { for: id }, text), list);
  };
  return el("details", { class: "options" }, el("summary", {}, "Options"),
    choice("n_neighbors", "Neighbours", [5, 10, 20, 50]),
    context.stats.model ? choice("n_probe", "Buckets to search", [1, 2, 4, 8]) : null);
}

let repeat = () => {};

function dropZone(results) {
  if (context.stats.model !== "images") {
    const why = context.stats.model === null ? "no model is served" : "the model takes embeddings";
    return el("p", { class: "drop off" }, `Images cannot be uploaded here: ${why}.`);
  }
  const input = el("input", { type: "file", id: "upload", accept: "image/*", class: "unseen" });
  const zone = el("div", { class: "drop" },
    input,
    el("label", { for: "upload" }, el("strong", {}, "Drop an image here"), el("span", {}, "or press to choose a file")));
  const take = (file) => file && showUpload(results, file);
  input.addEventListener("change", () => { take(input.files[0]); input.value = ""; });
  for (const kind of ["dragenter", "dragover"]) {
    zone.addEventListener(kind, (event) => { event.preventDefault(); zone.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
  return zone;
}

// -- asking --------------------------------------------------------------------------------------

const query = (withScores) => {
  const options = new URLSearchParams({ n_neighbors: settings.n_neighbors });
  if (withScores && settings.n_probe > 1) options.set("n_probe", settings.n_probe);
  return options;
};

async function showItem(results, id) {
  const place = encodeURIComponent(id);
  repeat = () => showItem(results, id);
  await shown(results, async () => {
    const item = await ask(`/v1/items/${place}`);
    const told = await ask(`/v1/explain/item/${place}?${query(false)}`);
    const again = settings.n_probe > 1 && told.levels[0].scores !== null;
    return [again ? await ask(`/v1/explain/item/${place}?${query(true)}`) : told, thumbnail(item),
      `Item ${id}` + (item.name === null ? "" : `, ${item.name}`) + (item.label === null ? "" : `, class ${item.label}`),
      item.payload];
  });
}

async function showUpload(results, file) {
  repeat = () => showUpload(results, file);
  document.querySelector("h1").textContent = "Neighbours of your image";
  await shown(results, async () => {
    const told = await ask(`/v1/explain/image?${query(true)}`,
      { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
    return [told, el("img", { class: "thumb", src: URL.createObjectURL(file), alt: "" }), "Your image"];
  });
}

async function shown(results, work) {
  results.setAttribute("aria-busy", "true");
  try {
    const [told, picture, name, payload] = await work();
    results.replaceChildren(...explained(told, picture, name, payload));
    say(`${plural(told.results.length, "neighbour")} found, ${number(told.candidates)} of ${plural(told.n_items, "item")} compared`);
  } catch (error) {
    results.replaceChildren(problem(error.message));
  } finally {
    results.setAttribute("aria-busy", "false");
  }
}

// -- the explanation -----------------------------------------------------------------------------

function explained(told, picture, name, payload) {
  const described = told.results.some((item) => item.name !== null || item.payload !== null);
  const share = told.n_items ? told.candidates / told.n_items : 0;
  return [
    el("div", { class: "card query" }, picture,
      el("div", {},
        el("h2", {}, name),
        el("p", { class: "headline" }, el("strong", {}, number(told.candidates)), ` of ${plural(told.n_items, "item")} compared`,
          el("span", { class: "tag" }, percent(share))),
        el("div", { class: "meter", "aria-hidden": "true" }, el("span", { vars: { "--part": share } })),
        fieldList(Object.entries(payload ?? {})))),
    el("h2", {}, "Path through the levels"),
    path(told),
    el("h2", {}, told.buckets.length === 1 ? "The bucket" : `The ${number(told.buckets.length)} buckets`),
    el("ul", { class: "cards" }, told.buckets.slice(0, 12).map(bucketCard)),
    told.buckets.length > 12 ? el("p", { class: "note" }, `and ${number(told.buckets.length - 12)} more`) : null,
    el("h2", {}, `${plural(told.results.length, "neighbour")}`),
    el("ol", { class: described ? "grid neighbours described" : "grid neighbours" }, told.results.map((item) =>
      el("li", {}, itemLink(item, inDigits(item.distance)), fieldList([["name", item.name], ...Object.entries(item.payload ?? {})])))),
  ].filter(Boolean);
}

function path(told) {
  const root = el("li", { class: "step" },
    el("h3", {}, "All items"), el("p", { class: "below" }, `${plural(told.n_items, "item")}`), narrowing(1));
  return el("ol", { class: "path" }, root, told.levels.map((level) => {
    const slots = level.nodes.map((node) => node.slot);
    const below = level.nodes.reduce((sum, node) => sum + node.n_entries, 0);
    const buckets = level.nodes.reduce((sum, node) => sum + node.n_buckets, 0);
    const first = level.nodes[0];
    const rank = first && first.rank !== null ? (first.rank === 0 ? ", the best of " : `, number ${first.rank + 1} of `) + level.scores.length : "";
    return el("li", { class: "step" },
      el("h3", {}, `Level ${level.level}: ${slots.length === 1 ? "slot" : "slots"} ${slots.slice(0, 8).join(", ")}${slots.length > 8 ? " …" : ""}`),
      el("p", { class: "below" }, `${plural(below, "entry", "entries")} in ${plural(buckets, "bucket")} below`),
      narrowing(below / Math.max(told.n_items, 1)),
      level.scores ? el("figure", {}, scoreBars(level.scores, slots),
        el("figcaption", {}, first && slots.length === 1 ? `score ${inDigits(first.score)}${rank}` : "scores of all slots")) : null);
  }));
}

const narrowing = (share) => el("div", { class: "meter", "aria-hidden": "true" }, el("span", { vars: { "--part": Math.min(1, share) } }));

// What is beyond the range of the numbers comes as null.
function inDigits(value) {
  return value === null ? "beyond range" : value.toPrecision(3);
}

function scoreBars(told, chosen) {
  const finite = told.filter((score) => score !== null);
  const scores = told.map((score) => score === null ? Math.min(0, ...finite) : score);
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

export function bucketCard(bucket) {
  return el("li", { class: "card bucket" },
    el("h3", {}, el("a", { href: `#/tree/${bucket.path.join("/")}` }, `Bucket ${bucket.path.join(" › ")}`),
      bucket.fill ? el("span", { class: "tag" }, "to fill up") : null),
    el("p", {}, `${number(bucket.candidates)} of ${plural(bucket.size, "entry", "entries")} compared`),
    classMix(bucket.classes),
    el("div", { class: "strip" }, bucket.items.map((item) => itemLink(item))));
}
