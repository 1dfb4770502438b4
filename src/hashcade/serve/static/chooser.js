// Ways to choose a query: a class, an item, a vector, an image, or one of some items.
import { ask, context, el, emptyState, number, say } from "./dom.js";
import { addTo, clearFilter, filterForm, filterText, noteFields } from "./filters.js";
import { gridClass, itemTile } from "./items.js";
import { classAddress, readable } from "./labels.js";

export const settings = { n_neighbors: 10, n_probe: 1 };

// `on` has what to do: image(file), vector(numbers), repeat().
export async function makeChooser(on) {
  const samples = el("div", {});
  let seed = 0;
  const fill = async () => {
    const reply = await ask(`/v1/items?${addTo(new URLSearchParams({ limit: 12, seed }))}`);
    noteFields(reply.items);
    samples.replaceChildren(reply.items.length ? el("div", { class: gridClass(reply.items) }, reply.items.map((item) => itemTile(item))) : noItems(reply));
    if (filterText()) say(`${number(reply.n_matching)} of ${number(reply.n_items)} items pass the filter`);
  };
  const { stats } = context;
  const body = el("div", {},
    stats.model === "images" ? imageForm(on.image) : null,
    stats.n_classes ? classForm() : null,
    itemForm(),
    stats.model && stats.item_shape.length === 1 ? vectorForm(on.vector, stats.item_shape[0]) : null,
    filterForm(() => { fill(); on.repeat(); }),
    optionForm(on.repeat),
    el("div", { class: "row" }, el("h2", {}, "Or choose an item"),
      el("button", { type: "button", class: "quiet", onclick: () => { seed += 1; fill(); } }, "Others")),
    samples);
  const box = el("details", { class: "chooser", open: true }, el("summary", {}, "Search for something else"), body);
  await fill();
  return el("section", { "aria-label": "Query" }, box);
}

function noItems(reply) {
  if (reply.n_items > 0) {
    return emptyState("No item passes the filter", `0 of ${number(reply.n_items)} items meet: ${filterText()}.`,
      el("button", { type: "button", onclick: clearFilter }, "Clear the filter"));
  }
  return emptyState("The table is empty", "There is nothing to search in yet.",
    el("p", {}, "Add items with ", el("code", {}, "POST /v1/items"), ", see ", el("a", { href: "/api" }, "API"), "."));
}

const opens = (address) => (event) => { event.preventDefault(); location.hash = address(); };

function classForm() {
  const options = el("datalist", { id: "classes" });
  let turn = 0;
  const suggest = async () => {
    const now = ++turn;
    const reply = await ask(`/v1/classes?${new URLSearchParams({ contains: field.value, limit: 20 })}`);
    if (now !== turn) return;
    options.replaceChildren(...reply.labels.map((label) => el("option", { value: label }, readable(label))));
  };
  const field = el("input", { id: "class-name", list: "classes", required: true, autocomplete: "off", placeholder: "name, or a part of it", oninput: suggest, onfocus: suggest });
  return el("form", { class: "row", onsubmit: opens(() => classAddress(field.value)) },
    el("label", { for: "class-name" }, "Class"), field, options, el("button", { type: "submit" }, "Show"));
}

function itemForm() {
  const isText = context.stats.ids === "str";
  const kind = isText ? { type: "text" } : { type: "number", min: 0, step: 1, inputmode: "numeric" };
  const field = el("input", { id: "item-id", required: true, autocomplete: "off", placeholder: isText ? "id" : "number", ...kind });
  return el("form", { class: "row", onsubmit: opens(() => `#/item/${encodeURIComponent(field.value)}`) },
    el("label", { for: "item-id" }, "Item"), field, el("button", { type: "submit" }, "Find"));
}

function vectorForm(take, size) {
  const field = el("textarea", { id: "vector", rows: 3, required: true, spellcheck: "false", placeholder: "0.12, -0.4, 1e-3 …" });
  const trouble = el("p", { class: "note", id: "vector-note", role: "status" }, `${number(size)} numbers, with commas or spaces between them.`);
  field.setAttribute("aria-describedby", "vector-note");
  const submit = (event) => {
    event.preventDefault();
    const parts = field.value.split(/[\s,;[\]()]+/).filter(Boolean);
    const wrong = parts.find((part) => !Number.isFinite(Number(part)));
    const fits = wrong === undefined && parts.length === size;
    field.setAttribute("aria-invalid", `${!fits}`);
    trouble.classList.toggle("wrong", !fits);
    if (wrong !== undefined) trouble.textContent = `“${wrong.slice(0, 20)}” is not a number.`;
    else trouble.textContent = `${number(parts.length)} of ${number(size)} numbers.`;
    if (fits) take(parts.map(Number));
  };
  return el("details", { class: "box" }, el("summary", {}, "Paste a vector"),
    el("form", { onsubmit: submit }, el("label", { for: "vector", class: "unseen" }, "Vector"), field, trouble,
      el("button", { type: "submit" }, "Search")));
}

function optionForm(repeat) {
  const choice = (name, text, values) => {
    const id = `option-${name}`;
    const list = el("select", { id, onchange: (event) => { settings[name] = Number(event.target.value); repeat(); } },
      values.map((value) => el("option", { value, selected: value === settings[name] }, `${value}`)));
    return el("p", { class: "row" }, el("label", { for: id }, text), list);
  };
  return el("details", { class: "box" }, el("summary", {}, "Options"),
    choice("n_neighbors", "Neighbours", [5, 10, 20, 50]),
    context.stats.model ? choice("n_probe", "Buckets to search", [1, 2, 4, 8]) : null);
}

function imageForm(take) {
  const input = el("input", { type: "file", id: "upload", accept: "image/*", class: "unseen" });
  const zone = el("div", { class: "drop" }, input,
    el("label", { for: "upload" }, el("strong", {}, "Drop an image here"), el("span", {}, "or press to choose a file")));
  input.addEventListener("change", () => { if (input.files[0]) take(input.files[0]); input.value = ""; });
  for (const kind of ["dragenter", "dragover"]) {
    zone.addEventListener(kind, (event) => { event.preventDefault(); zone.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  return zone;
}
