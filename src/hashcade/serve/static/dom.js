// Small things that every page uses: elements, requests, names, colours.

// Make an element. Text goes in as text, never as markup.
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) made.style.setProperty(key, v);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function svg(tag, props = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export async function ask(path, options) {
  const answer = await fetch(path, options);
  const told = await answer.json().catch(() => ({ error: answer.statusText }));
  if (!answer.ok) throw new Error(told.error ?? `status ${answer.status}`);
  return told;
}

export const number = (value) => value.toLocaleString("en");
export const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value >= 9.95 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
};
export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

export const context = { stats: null };
export const labelText = (label) => label === null ? "no label" : `${label}`;

// Neighbouring numbers get hues that are far apart, and every label always the same one.
const hash = (text) => [...text].reduce((sum, letter) => (31 * sum + letter.codePointAt(0)) % 65521, 7);
export const hue = (label) => `${((typeof label === "number" ? Math.abs(label) : hash(labelText(label))) * 137.508 + 25) % 360}`;

export function say(text) {
  document.getElementById("status").textContent = text;
}

export function problem(text) {
  return el("p", { class: "problem", role: "alert" }, text);
}

// An item as a link to its own search: the picture, or its label where there is none.
export function itemLink(item, ...captions) {
  const title = [`Item ${item.id}`, item.name, item.label].filter((part) => part !== null).join(", ");
  return el("a", { class: "item", href: `#/item/${encodeURIComponent(item.id)}`, "aria-label": [title, ...captions].join(", "), title },
    thumbnail(item),
    el("span", { class: "caption" }, item.label === null ? `#${item.id}` : `${item.label}`,
      captions.length ? el("small", {}, captions.join(" · ")) : null));
}

// Pairs of names and values: text as it is, other values as in JSON. A long one is cut, and whole in its title.
export function fieldList(pairs) {
  const present = pairs.filter(([, value]) => value !== null);
  if (!present.length) return null;
  return el("dl", { class: "fields" }, present.map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return el("div", {}, el("dt", {}, name), el("dd", { title: text }, text));
  }));
}

export function thumbnail(item) {
  if (item.picture) return el("img", { src: `/v1/pictures/${encodeURIComponent(item.id)}`, alt: "", loading: "lazy", class: "thumb" });
  return el("span", { class: "thumb nopicture", "aria-hidden": "true", vars: { "--h": hue(item.label ?? item.id) } }, `#${item.id}`);
}

// Classes with their counts, the most frequent first.
export const ordered = (classes) => (classes ?? []).map(({ label, count }) => [label, count]);

export function mixBar(parts, rest, total) {
  return el("span", { class: "bar", "aria-hidden": "true" },
    parts.map(([label, count]) => el("span", { class: "classcolour", vars: { "--h": hue(label), "--part": count / total } })),
    rest ? el("span", { class: "rest", vars: { "--part": rest / total } }) : null);
}

// The mix of classes as one bar with a legend: never told by colour alone.
export function classMix(classes, shown = 5) {
  if (!classes) return null;
  const entries = ordered(classes);
  const total = entries.reduce((sum, entry) => sum + entry[1], 0);
  if (total === 0) return null;
  const rest = entries.slice(shown).reduce((sum, entry) => sum + entry[1], 0);
  const parts = entries.slice(0, shown);
  return el("div", { class: "mix" },
    mixBar(parts, rest, total),
    el("ul", { class: "legend", "aria-label": "Classes" },
      parts.map(([label, count]) => el("li", {},
        el("span", { class: "dot classcolour", "aria-hidden": "true", vars: { "--h": hue(label) } }),
        `${labelText(label)} ${percent(count / total)}`)),
      rest ? el("li", {}, el("span", { class: "dot rest", "aria-hidden": "true" }), `${plural(entries.length - shown, "other")} ${percent(rest / total)}`) : null));
}

export function themeButton() {
  const button = document.getElementById("theme");
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => {
    button.textContent = dark() ? "☀" : "☾";
    button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`);
  };
  const kept = localStorage.getItem("hashcade-theme");
  if (kept) document.documentElement.dataset.theme = kept;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("hashcade-theme", document.documentElement.dataset.theme);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();  // the address after # names the page
    document.getElementById("main").focus();
  });
}
