// Small things that every view uses: elements, requests, numbers in words, colours.

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
  const reply = await answer.json().catch(() => ({ error: answer.statusText }));
  if (!answer.ok) throw Object.assign(new Error(reply.error ?? `status ${answer.status}`), { status: answer.status });
  return reply;
}

export const postJson = (path, body) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });

export const number = (value) => value.toLocaleString("en");
export const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value >= 9.95 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
};
export const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

export const context = { stats: null, ready: null };  // ready: a promise of the first stats
export const isNarrow = () => matchMedia("(max-width: 52rem)").matches;

export function say(text) {
  document.getElementById("status").textContent = text;
}

export function problem(text) {
  return el("p", { class: "problem", role: "alert" }, text);
}

// What is shown in the place of something that is not there: why, and what to do.
export function emptyState(title, ...lines) {
  return el("div", { class: "card empty" }, el("h2", {}, title),
    lines.map((line) => typeof line === "string" ? el("p", {}, line) : line));
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
  const stored = localStorage.getItem("hashcade-theme");
  if (stored) document.documentElement.dataset.theme = stored;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("hashcade-theme", document.documentElement.dataset.theme);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();  // the address after # names the view
    document.getElementById("main").focus();
  });
}
