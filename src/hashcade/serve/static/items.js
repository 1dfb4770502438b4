// Items as tiles: a picture, a text or a number, with a caption below it.
import { el } from "./dom.js";
import { hue, readable } from "./labels.js";

const SIDE = 192;  // pixels of the largest thumbnail that the service hands out
const TEXT_FIELDS = ["text", "title", "sentence", "caption", "description", "summary", "content"];

// The field of the payload that says best what an item is: a usual name, else the longest text.
export function mainField(item) {
  const texts = Object.entries(item.payload ?? {}).filter(([, value]) => typeof value === "string" && value.trim());
  const usual = TEXT_FIELDS.map((name) => texts.find(([field]) => field.toLowerCase() === name)).find(Boolean);
  return usual ?? texts.sort((a, b) => b[1].length - a[1].length)[0] ?? null;
}

const asText = (value) => typeof value === "string" ? value : JSON.stringify(value);
export const inDigits = (value) => value === null ? "beyond range" : value.toPrecision(3);

// Pairs of names and values. A long value is cut, and whole in its title.
function fieldList(pairs) {
  const present = pairs.filter(([, value]) => value !== null);
  if (!present.length) return null;
  return el("dl", { class: "fields" }, present.map(([name, value, whole = value]) =>
    el("div", { title: `${name}: ${asText(whole)}` }, el("dt", {}, name), el("dd", {}, asText(value)))));
}

// The file alone: the folders before it are the same for a whole class, and fill the tile.
const fileName = (path) => path.split("/").filter(Boolean).pop() ?? path;

// Name and payload, without the field that stands in the tile; the id too, if it is text and asked for.
export function otherFields(item, withId = false) {
  const main = item.picture ? null : mainField(item);
  const id = withId && typeof item.id === "string" ? item.id : null;
  const name = item.name ? ["name", fileName(item.name), item.name] : ["name", null];
  return fieldList([["id", id], name, ...Object.entries(item.payload ?? {}).filter(([name]) => name !== main?.[0])]);
}

export function face(item) {
  if (item.picture) {
    return el("img", { class: "thumb", src: `/v1/pictures/${encodeURIComponent(item.id)}`, alt: "", loading: "lazy", width: SIDE, height: SIDE });
  }
  const vars = { "--h": hue(item.label ?? item.id) };
  const main = mainField(item);
  if (main) return el("span", { class: "thumb text", vars }, el("span", {}, main[1]));
  return el("span", { class: "thumb nopicture", "aria-hidden": "true", vars }, `#${item.id}`);
}

// An item as a link to its own search. `other`: it is not of the class that was expected.
export function itemTile(item, { note = null, other = false } = {}) {
  const main = mainField(item);
  const whole = [`Item ${item.id}`, item.name, item.label, other ? "another class" : null, note, main?.[1]]
    .filter((part) => part !== null && part !== undefined).join(", ");
  const kind = [other ? "other" : "", main && !item.picture ? "words" : ""].join(" ");
  const vars = { "--h": hue(item.label ?? item.id) };
  return el("a", { class: `item ${kind}`.trim(), vars, href: `#/item/${encodeURIComponent(item.id)}`, "aria-label": whole, title: whole },
    face(item),
    other ? el("span", { class: "mark" }, "≠ other class") : null,
    el("span", { class: "caption" }, item.label === null ? `#${item.id}` : readable(item.label)),
    note === null ? null : el("small", { class: "note" }, note));
}

// The same with id, name and payload below it.
export const describedTile = (item, options) => el("div", {}, itemTile(item, options), otherFields(item, true));

export const gridClass = (items, more = "") =>
  `grid ${more} ${items.some((item) => !item.picture && mainField(item)) ? "texts" : ""}`.trim();

// The label that most of the items have, or undefined.
export function majority(items) {
  const counts = new Map();
  for (const { label } of items) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0];
}
