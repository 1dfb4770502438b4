// Class labels: in words, in colours, and how many there are of each.
import { el, number, percent, plural } from "./dom.js";

// "003.Sooty_Albatross" reads as "Sooty Albatross"; titles show labels as they are.
export function readable(label) {
  if (label === null) return "no label";
  const text = `${label}`;
  return text.replace(/^\d+[._ -]+(?=.*\p{L})/u, "").replaceAll("_", " ").trim() || text;
}

export const classAddress = (label) => `#/class/${encodeURIComponent(label)}`;

// Neighbouring numbers get hues that are far apart, and every label always the same one.
const hash = (text) => [...text].reduce((sum, letter) => (31 * sum + letter.codePointAt(0)) % 65521, 7);
export const hue = (label) => `${((typeof label === "number" ? Math.abs(label) : hash(`${label}`)) * 137.508 + 25) % 360}`;

export function mixBar(classes, total) {
  const rest = total - classes.reduce((sum, { count }) => sum + count, 0);
  return el("span", { class: "bar", "aria-hidden": "true" },
    classes.map(({ label, count }) => el("span", { class: "classcolour", vars: { "--h": hue(label), "--part": count / total } })),
    rest > 0 ? el("span", { class: "rest", vars: { "--part": rest / total } }) : null);
}

// The mix of classes as one bar with a legend: never told by colour alone.
export function classMix(classes, nClasses, total, shown = 5) {
  if (!classes?.length || !total) return null;
  const parts = classes.slice(0, shown);
  const rest = total - parts.reduce((sum, { count }) => sum + count, 0);
  const others = nClasses > parts.length ? plural(nClasses - parts.length, "other") : "no label";
  return el("div", { class: "mix" },
    mixBar(parts, total),
    el("ul", { class: "legend", "aria-label": "Classes" },
      parts.map(({ label, count }) => el("li", { title: `${label}: ${number(count)}` },
        el("span", { class: "dot classcolour", "aria-hidden": "true", vars: { "--h": hue(label) } }),
        el("a", { href: classAddress(label) }, readable(label)), ` ${percent(count / total)}`)),
      rest > 0 ? el("li", {}, el("span", { class: "dot rest", "aria-hidden": "true" }), `${others} ${percent(rest / total)}`) : null));
}
