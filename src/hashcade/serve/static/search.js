// The search view: choose a query, see its neighbours, then how they were found.
import { ask, context, el, emptyState, isNarrow, number, percent, plural, postJson, problem, say } from "./dom.js";
import { makeChooser, settings } from "./chooser.js";
import { explanation, meter } from "./explain.js";
import { addTo, clearFilter, currentWhere, filterText } from "./filters.js";
import { describedTile, face, gridClass, inDigits, majority, otherFields } from "./items.js";
import { classAddress, readable } from "./labels.js";

let chooser = null;
let results = null;
let repeat = () => {};

export async function showSearch(main, itemId, isCurrent) {
  chooser ??= await makeChooser({
    image: (file) => showQuery("your image", () => askImage(file)),
    vector: (vector) => showQuery("your vector", () => askVector(vector)),
    repeat: () => repeat(),
  });
  if (!isCurrent()) return;
  const title = await (itemId === null ? "Search" : showItem(itemId, isCurrent));
  if (!isCurrent()) return;
  if (itemId === null) {
    repeat = () => {};
    results = resultSection([hint()]);
  }
  draw(main, title, itemId !== null);
}

function draw(main, title, hasQuery) {
  const box = chooser.firstElementChild;
  box.open = !(hasQuery && isNarrow());
  box.firstElementChild.hidden = !hasQuery;
  main.replaceChildren(el("h1", { tabindex: -1 }, title), el("div", { class: "columns" }, chooser, results));
}

const resultSection = (children) => el("section", { class: "results", "aria-label": "Result" }, children);

function hint() {
  const { index, shape } = context.stats;
  const speedup = index.expected_speedup;
  return el("div", { class: "card empty" },
    el("h2", {}, "What you will see"),
    el("p", {}, `A query is hashed level by level: at each of the ${shape.depth} levels it takes one of ${shape.width} slots. ` +
      `The path ends in a bucket, and only the items in there are compared with the query.`),
    index.n_items ? el("p", {}, `On average a query is compared with ${number(Math.round(index.expected_candidates))} of ${plural(index.n_items, "item")}, ` +
      `${speedup < 100 ? speedup.toFixed(1) : number(Math.round(speedup))} times fewer than all.`) : null,
    el("p", {}, "Choose an item to begin with, or have a look at ", el("a", { href: "#/tree" }, "the tree"), "."));
}

// -- asking --------------------------------------------------------------------------------------

function parameters(withProbe = true) {
  const made = addTo(new URLSearchParams({ n_neighbors: settings.n_neighbors }));
  if (withProbe && settings.n_probe > 1) made.set("n_probe", settings.n_probe);
  return made;
}

async function askItem(id) {
  const place = encodeURIComponent(id);
  const item = await ask(`/v1/items/${place}`);
  let reply = await ask(`/v1/explain/item/${place}?${parameters(false)}`);
  // More buckets can be tried only if the model ranks them for this item.
  if (settings.n_probe > 1 && reply.levels[0].scores !== null) reply = await ask(`/v1/explain/item/${place}?${parameters()}`);
  return { reply, item, name: `Item ${item.id}` };
}

async function askImage(file) {
  const reply = await ask(`/v1/explain/image?${parameters()}`,
    { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
  const picture = el("img", { class: "thumb", src: URL.createObjectURL(file), alt: "", width: 192, height: 192 });
  return { reply, picture, name: "Your image" };
}

async function askVector(vector) {
  const body = { vector, n_neighbors: settings.n_neighbors, n_probe: settings.n_probe, where: currentWhere() };
  return { reply: await postJson("/v1/explain", body), name: "Your vector" };
}

async function showItem(id, isCurrent) {
  const work = () => askItem(id);
  repeat = () => refresh(work);
  try {
    const answer = await work();
    if (isCurrent()) results = resultSection(shown(answer));
    return `Neighbours of item ${id}`;
  } catch (error) {
    if (isCurrent()) results = resultSection([missing(id, error)]);
    return error.status === 404 ? `There is no item ${id}` : `Item ${id} cannot be shown`;
  }
}

function missing(id, error) {
  if (error.status !== 404) return problem(error.message);
  return emptyState("Nothing to show", `The table has ${plural(context.stats.index.n_items, "item")}, none of them with the id ${id}.`,
    el("p", {}, el("a", { href: "#/search" }, "Choose another one")));
}

// A query that has no address of its own.
async function showQuery(what, work) {
  repeat = () => refresh(work);
  results = resultSection([]);
  draw(document.getElementById("main"), `Neighbours of ${what}`, true);
  await refresh(work);
  if (isNarrow()) results.scrollIntoView();
}

async function refresh(work) {
  const into = results;
  into.setAttribute("aria-busy", "true");
  try {
    into.replaceChildren(...shown(await work()));
  } catch (error) {
    into.replaceChildren(problem(error.message));
  } finally {
    into.setAttribute("aria-busy", "false");
  }
}

// -- the answer ----------------------------------------------------------------------------------

function shown({ reply, item = null, picture = null, name }) {
  say(`${plural(reply.results.length, "neighbour")} found, ${number(reply.candidates)} of ${plural(reply.n_items, "item")} compared`);
  return [queryCard(reply, item, picture, name), ...neighbours(reply, item), ...explanation(reply)];
}

function queryCard(reply, item, picture, name) {
  const share = reply.n_items ? reply.candidates / reply.n_items : 0;
  const label = item && item.label !== null
    ? [" · ", el("a", { href: classAddress(item.label), title: `${item.label}` }, readable(item.label))] : [];
  return el("div", { class: "card query" }, item ? face(item) : picture,
    el("div", {},
      el("h2", {}, name, label),
      el("p", { class: "headline" }, el("strong", {}, number(reply.candidates)), ` of ${plural(reply.n_items, "item")} compared`,
        el("span", { class: "tag" }, percent(share))),
      meter(share),
      filterText() ? el("p", { class: "note filtered" }, `Filter: ${filterText()} `,
        el("button", { type: "button", class: "quiet", onclick: clearFilter }, "Clear")) : null,
      item ? otherFields(item) : null));
}

function neighbours(reply, item) {
  const { results: found } = reply;
  if (!found.length) {
    return [currentWhere()
      ? emptyState("No neighbours", "No other item passes the filter.", el("button", { type: "button", onclick: clearFilter }, "Clear the filter"))
      : emptyState("No neighbours", "There is no other item in the buckets of this query.")];
  }
  const labelled = found.some(({ label }) => label !== null);
  const expected = item ? item.label : majority(found);
  const isOther = ({ label }) => labelled && expected !== null && label !== expected;
  const others = found.filter(isOther).length;
  const whose = item ? "the query’s class" : "the most frequent class";
  return [
    el("h2", {}, `${plural(found.length, "neighbour")}`, others ? el("span", { class: "tag" }, `${number(others)} of another class`) : null),
    others ? el("p", { class: "note" }, `Marked with ≠: not of ${whose}, ${readable(expected)}.`) : null,
    el("ol", { class: gridClass(found, "neighbours") }, found.map((result) =>
      el("li", {}, describedTile(result, { note: `distance ${inDigits(result.distance)}`, other: isOther(result) })))),
  ].filter(Boolean);
}
