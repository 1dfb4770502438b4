// The tree view: a map or a list of what lies below a node, down to the items of a bucket.
import { ask, context, el, emptyState, isNarrow, number, percent, plural, say } from "./dom.js";
import { describedTile, face, gridClass, mainField } from "./items.js";
import { classMix, hue, mixBar, readable } from "./labels.js";
import { layOut, nextTile, zoomInto } from "./treemap.js";

const MOST_TILES = 150;  // more are too small to see
const STEP = 100;  // rows of a list at a time
const choice = { view: null };  // "map" or "list", once somebody has chosen

export async function showTree(main, path, isCurrent) {
  let node;
  try {
    node = await ask(`/v1/tree?path=${path.join(".")}`);
    await context.ready;
  } catch (error) {
    await context.ready;
    if (error.status !== 422) throw error;
    if (isCurrent()) showMissing(main, path, error);
    return;
  }
  if (!isCurrent()) return;
  const parts = [plural(node.n_entries, "entry", "entries")];
  if (node.bucket === null) parts.push(plural(node.n_buckets, "bucket"));
  if (node.n_classes) parts.push(plural(node.n_classes, "class", "classes"));
  if (node.purity !== null) parts.push(`${percent(node.purity)} pure`);
  main.replaceChildren(
    crumbs(path),
    el("h1", { tabindex: -1 }, title(path, node)),
    el("p", { class: "note" }, parts.join(" · ")),
    classMix(node.classes, node.n_classes, node.n_entries, 8) ?? "");
  if (node.n_entries === 0) main.append(nothingBelow(path));
  else if (node.bucket !== null) await showBucket(main, node);
  else showChildren(main, node);
  say(`${title(path, node)}: ${parts.join(", ")}`);
}

function showMissing(main, path, error) {
  const { width, depth } = context.stats.shape;
  main.replaceChildren(crumbs([]), el("h1", { tabindex: -1 }, `There is no slot ${path.join(" › ")}`),
    emptyState("Nothing to show", `This tree has ${plural(depth, "level")} of ${plural(width, "slot")} each, counted from 0. ${error.message}`,
      el("p", {}, el("a", { href: "#/tree" }, "Go to the root"))));
}

const nothingBelow = (path) => path.length
  ? emptyState("Nothing lies here", "No item has this path. Slots that are free are normal: they are for classes to come.")
  : emptyState("The table is empty", "There is nothing to show before items are added.");

const title = (path, node) => path.length === 0 ? "The tree" : node.bucket !== null ? `Bucket ${path.join(" › ")}` : `Level ${path.length}, slot ${path.at(-1)}`;
const address = (path) => `#/tree/${path.join("/")}`;

function crumbs(path) {
  const links = [["Root", []], ...path.map((slot, level) => [`Slot ${slot}`, path.slice(0, level + 1)])];
  return el("nav", { class: "crumbs", "aria-label": "Path in the tree" }, el("ol", {},
    links.map(([text, to], place) => el("li", {}, place === links.length - 1
      ? el("span", { "aria-current": "location" }, text)
      : el("a", { href: address(to) }, text)))));
}

// -- what lies below -------------------------------------------------------------------------------

function showChildren(main, node) {
  const children = [...node.children].sort((a, b) => b.n_entries - a.n_entries);
  const below = el("div", {});
  const views = { map: "Map", list: "List" };
  const buttons = Object.entries(views).map(([name, text]) =>
    el("button", { type: "button", class: "quiet", "data-view": name, onclick: () => { choice.view = name; draw(); } }, text));
  const draw = () => {
    const view = choice.view ?? (isNarrow() ? "list" : "map");
    for (const button of buttons) button.setAttribute("aria-pressed", `${button.dataset.view === view}`);
    below.replaceChildren(...(view === "map" ? mapView(node, children, () => buttons[1].click()) : listView(node, children)));
  };
  main.append(el("div", { class: "row views", role: "group", "aria-label": "Show as" }, buttons), below);
  draw();
}

// What a slot is called: its classes, until they make up nine tenths of it, three at most.
function nameOf(child) {
  const classes = child.classes ?? [];
  if (!classes.length) return `Slot ${child.slot}`;
  let covered = 0;
  const named = classes.filter(({ count }) => {
    const needed = covered < 0.9 * child.n_entries;
    covered += count;
    return needed;
  }).map(({ label }) => readable(label));
  return named.length > 3 ? `${named.slice(0, 3).join(", ")} …` : named.join(", ");
}

function factsOf(node, child) {
  const facts = [`Slot ${child.slot}`, plural(child.n_entries, "entry", "entries")];
  if (node.path.length + 1 < context.stats.shape.depth) facts.push(plural(child.n_buckets, "bucket"));
  if (child.purity !== null) facts.push(`${percent(child.purity)} pure`);
  return facts;
}

function mapView(node, children, toList) {
  const first = children.length > MOST_TILES ? children.slice(0, MOST_TILES - 1) : children;
  const rest = children.slice(first.length);
  const tiles = first.map((child) => mapTile(node, child));
  const sizes = first.map((child) => child.n_entries);
  if (rest.length) {
    sizes.push(rest.reduce((sum, child) => sum + child.n_entries, 0));
    tiles.push(el("button", { type: "button", class: "tile others", onclick: toList, title: `${plural(rest.length, "smaller slot")}, as a list` },
      el("span", { class: "words" }, el("b", {}, `${plural(rest.length, "smaller slot")}`), el("span", { class: "more" }, "as a list"))));
  }
  const map = el("div", { class: "map", role: "group", "aria-label": "Slots as areas; arrow keys move, Enter opens, Backspace goes up" }, tiles);
  new ResizeObserver(() => layOut(map, sizes, tiles)).observe(map);
  map.addEventListener("keydown", (event) => {
    const next = nextTile(event.key, tiles);
    if ((event.key === "Backspace" || event.key === "Escape") && node.path.length > 0) location.hash = address(node.path.slice(0, -1));
    else if (next) next.focus();
    else return;
    event.preventDefault();
  });
  map.addEventListener("click", (event) => {
    const tile = event.target.closest("a.tile");
    if (!tile || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    zoomInto(map, tile, () => { location.hash = tile.getAttribute("href"); });
  });
  return [el("p", { class: "note" }, "Each area is a slot, as large as the entries below it. ",
    node.classes ? "Its colour is that of its most frequent class, the paler the more mixed." : ""), map];
}

function mapTile(node, child) {
  const largest = child.classes?.[0];
  const share = Math.max(0.15, largest ? largest.count / child.n_entries : 0.6);
  const whole = [...factsOf(node, child), ...(child.classes ?? []).slice(0, 8).map(({ label, count }) => `${label}: ${number(count)}`)].join(", ");
  const pictures = child.items.filter((item) => item.picture);
  const texts = pictures.length ? [] : child.items.map(mainField).filter(Boolean);
  return el("a", { class: "tile", href: address([...node.path, child.slot]), "aria-label": whole, title: whole,
      vars: { "--h": hue(largest ? largest.label : child.slot), "--strength": `${Math.round(100 * share)}%` } },
    el("span", { class: "words" },
      el("b", {}, nameOf(child)),
      el("span", { class: "more" }, `slot ${child.slot} · ${number(child.n_entries)}`),
      child.purity === null ? null : el("span", { class: "more" }, `${percent(child.purity)} pure`)),
    child.classes?.length ? mixBar(child.classes, child.n_entries) : null,
    pictures.length ? el("span", { class: "faces" }, pictures.map(face)) : null,
    texts.length ? el("span", { class: "says" }, texts.map(([, text]) => el("span", {}, text))) : null);
}

function listView(node, children) {
  const list = el("ul", { class: "slots" });
  const more = el("button", { type: "button", class: "quiet" }, "More");
  let start = 0;
  const grow = () => {
    const rows = children.slice(start, start + STEP).map((child) => el("li", {},
      el("a", { href: address([...node.path, child.slot]), title: (child.classes ?? []).slice(0, 8).map(({ label }) => label).join(", ") },
        el("b", {}, nameOf(child)), child.classes?.length ? mixBar(child.classes, child.n_entries) : null,
        el("span", { class: "note" }, factsOf(node, child).join(" · ")))));
    list.append(...rows);
    if (start > 0) rows[0]?.querySelector("a").focus();
    start += rows.length;
    more.hidden = start >= children.length;
  };
  more.addEventListener("click", grow);
  grow();
  return [list, more];
}

// -- a bucket --------------------------------------------------------------------------------------

async function showBucket(main, node) {
  const grid = el("div", {});
  const more = el("button", { type: "button", class: "quiet" }, "More");
  let start = 0;
  const load = async () => {
    const reply = await ask(`/v1/buckets/${node.bucket}?start=${start}&limit=60`);
    const tiles = reply.items.map((item) => describedTile(item));
    grid.className = gridClass(reply.items, "wide");
    grid.append(...tiles);
    if (start > 0) tiles[0]?.querySelector("a").focus();
    start += reply.items.length;
    more.hidden = start >= reply.size || reply.items.length === 0;
  };
  more.addEventListener("click", load);
  main.append(grid, more);
  await load();
}
