// Which page is shown is in the address after #: back, forward and links work as everywhere.
import { ask, context, number, percent, problem, themeButton } from "./dom.js";
import { showSearch } from "./search.js";
import { showTree } from "./tree.js";

const main = document.getElementById("main");

async function loadStats() {
  context.stats = await ask("/v1/stats");
  const { index } = context.stats;
  const parts = [`${number(index.n_items)} items`, `${number(index.n_occupied)} of ${number(index.n_buckets)} buckets in use`];
  if (index.purity !== undefined) parts.push(`${percent(index.purity)} pure`);
  document.getElementById("summary").textContent = parts.join(" · ");
}

let shown = 0;

async function show() {
  const [page = "search", ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  for (const link of document.querySelectorAll("nav a[data-page]")) {
    const current = link.dataset.page === (page === "item" ? "search" : page);
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const turn = ++shown;
  const isCurrent = () => turn === shown;
  try {
    await loadStats();
    if (!isCurrent()) return;
    if (page === "tree") await showTree(main, rest.map(Number), isCurrent);
    else await showSearch(main, page === "item" ? decodeURIComponent(rest.join("/")) : null, isCurrent);
  } catch (error) {
    if (isCurrent()) main.replaceChildren(problem(error.message));
  }
}

themeButton();
addEventListener("hashchange", () => {
  show().then(() => main.querySelector("h1")?.focus());
});
show();
