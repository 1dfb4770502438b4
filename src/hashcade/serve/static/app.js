// Which view is shown is in the address after #: back, forward and links work as everywhere.
import { ask, context, el, emptyState, number, percent, plural, problem, themeButton } from "./dom.js";
import { showClass } from "./classes.js";
import { showSearch } from "./search.js";
import { showTree } from "./tree.js";

const main = document.getElementById("main");
const TAB = { search: "search", item: "search", class: "search", tree: "tree" };

async function loadStats() {
  context.stats = await ask("/v1/stats?classes=false");
  const { index, n_classes: nClasses } = context.stats;
  const parts = [plural(index.n_items, "item")];
  if (nClasses) parts.push(plural(nClasses, "class", "classes"));
  parts.push(`${number(index.n_occupied)} of ${number(index.n_buckets)} buckets in use`);
  if (index.purity !== undefined) parts.push(`${percent(index.purity)} pure`);
  document.getElementById("summary").textContent = parts.join(" · ");
}

function showUnknown(address) {
  main.replaceChildren(el("h1", { tabindex: -1 }, "Page not found"),
    emptyState("Nothing to show", `There is nothing at ${address}.`,
      el("p", {}, "Go to ", el("a", { href: "#/search" }, "the search"), " or ", el("a", { href: "#/tree" }, "the tree"), ".")));
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const showing = { turn: 0 };

async function show() {
  const address = location.hash.replace(/^#\/?/, "");
  const [view, ...rest] = (address || "search").split("/");
  for (const link of document.querySelectorAll("nav a[data-page]")) {
    if (link.dataset.page === TAB[view]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const turn = ++showing.turn;
  const isCurrent = () => turn === showing.turn;
  const argument = decoded(rest.join("/"));
  try {
    const loading = loadStats();
    loading.catch(() => {});  // later on the numbers of a moment ago will do
    context.ready ??= loading;
    if (view !== "tree") await context.ready;  // which asks for its node meanwhile
    if (!isCurrent()) return;
    if (view === "search" && !argument) await showSearch(main, null, isCurrent);
    else if (view === "item" && argument) await showSearch(main, argument, isCurrent);
    else if (view === "class" && argument) await showClass(main, argument, isCurrent);
    else if (view === "tree" && /^(\d+(\/\d+)*)?$/.test(argument)) await showTree(main, argument ? argument.split("/").map(Number) : [], isCurrent);
    else showUnknown(`#/${decoded(address)}`);
  } catch (error) {
    if (isCurrent()) main.replaceChildren(el("h1", { tabindex: -1 }, "This cannot be shown"), problem(error.message));
  }
  const title = main.querySelector("h1")?.textContent;
  document.title = title ? `${title} · hashcade` : "hashcade";
  performance.mark("view");  // read by the test of how long a first view takes
}

themeButton();
addEventListener("hashchange", () => {
  show().then(() => main.querySelector("h1")?.focus());
});
show();
