// A form for filters: field, operator, value, in rows that are joined by "and".
import { el } from "./dom.js";

const OPERATORS = { "=": "is", "!=": "is not", "<": "<", "<=": "≤", ">": ">", ">=": "≥", in: "is one of" };
const conditions = [];  // { field, operator, text }
const seenFields = new Set(["label", "id", "name"]);
const fieldOptions = el("datalist", { id: "filter-fields" });

// 5, true and null are what they are in JSON, "5" in quotes is text, and so is everything else.
function valueOf(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? text : value;
  } catch {
    return text;
  }
}

// The filter as the API takes it, or null. A second test of the same kind on a field is nested.
export function whereOf(rows) {
  const where = {}, rest = [];
  for (const row of rows.filter(({ field }) => field !== "")) {
    const value = row.operator === "in" ? row.text.split(",").map((part) => valueOf(part.trim())) : valueOf(row.text.trim());
    const tests = Object.hasOwn(where, row.field) ? where[row.field] : {};
    if (row.operator in tests) rest.push(row);
    else where[row.field] = { ...tests, [row.operator]: value };
  }
  if (rest.length) where.any = [whereOf(rest)];
  return Object.keys(where).length ? where : null;
}

export const currentWhere = () => whereOf(conditions);
export const filterText = () => conditions.filter(({ field }) => field !== "")
  .map(({ field, operator, text }) => `${field} ${OPERATORS[operator]} ${text}`).join(" and ");
export function addTo(parameters) {
  const where = currentWhere();
  if (where) parameters.set("where", JSON.stringify(where));
  return parameters;
}

// Fields of items that were seen are suggested.
export function noteFields(items) {
  for (const item of items) for (const name of Object.keys(item.payload ?? {})) seenFields.add(name);
  fieldOptions.replaceChildren(...[...seenFields].map((name) => el("option", { value: name })));
}

let changed = () => {};

export function clearFilter() {
  conditions.length = 0;
  changed();
}

export function filterForm(onChange) {
  const rows = el("div", { class: "conditions" });
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); changed(); } });
  const draw = () => {
    rows.replaceChildren(...conditions.map(row));
    clear.hidden = apply.hidden = conditions.length === 0;
  };
  const row = (condition, place) => {
    const write = (name) => (event) => { condition[name] = event.target.value; };
    const n = place + 1;
    return el("fieldset", {}, el("legend", { class: "unseen" }, `Condition ${n}`),
      el("input", { "aria-label": `Field of condition ${n}`, placeholder: "field", list: "filter-fields", value: condition.field, required: true, oninput: write("field") }),
      el("select", { "aria-label": `Operator of condition ${n}`, onchange: write("operator") },
        Object.entries(OPERATORS).map(([value, text]) => el("option", { value, selected: value === condition.operator }, text))),
      el("input", { "aria-label": `Value of condition ${n}`, placeholder: "value", value: condition.text, oninput: write("text") }),
      el("button", { type: "button", class: "quiet", "aria-label": `Remove condition ${n}`, onclick: () => { conditions.splice(place, 1); draw(); changed(); } }, "×"));
  };
  const add = el("button", { type: "button", class: "quiet", onclick: () => {
    conditions.push({ field: "", operator: "=", text: "" });
    draw();
    rows.lastElementChild.querySelector("input").focus();
  } }, "Add a condition");
  const apply = el("button", { type: "submit" }, "Apply");
  const clear = el("button", { type: "button", class: "quiet", onclick: clearFilter }, "Clear");
  form.append(fieldOptions, rows, el("p", { class: "row" }, add, apply, clear));
  const box = el("details", { class: "box", id: "filter" },
    el("summary", {}, "Filter"), el("p", { class: "note" }, "Only items that meet all conditions are shown and found."), form);
  changed = () => { draw(); onChange(); };
  draw();
  return box;
}
