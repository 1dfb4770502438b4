// The tree page: a map of what lies below a node, down to the items of a bucket.
import { ask, classMix, context, el, hue, itemLink, labelText, mixBar, number, ordered, percent, plural, say, thumbnail } from "./dom.js";

export async function showTree(main, path, isCurrent) {
  const node = await ask(`/v1/tree?path=${path.join(".")}`);
  if (!isCurrent()) return;
  const parts = [plural(node.n_entries, "entry", "entries")];
  if (node.bucket === null) parts.push(plural(node.n_buckets, "bucket"));
  if (node.purity !== null) parts.push(`${percent(node.purity)} pure`);
  main.replaceChildren(
    crumbs(path, node),
    el("h1", { tabindex: -1 }, title(path, node)),
    el("p", { class: "note" }, parts.join(" · ")),
    classMix(node.classes, 8) ?? "");
  if (node.bucket !== null) await showBucket(main, node);
  else if (node.children.length === 0) main.append(el("p", { class: "card" }, "Nothing lies here."));
  else showMap(main, node);
  say(`${title(path, node)}: ${parts.join(", ")}`);
}

const title = (path, node) => path.length === 0 ? "The tree" : node.bucket !== null ? `Bucket ${path.join(" › ")}` : `Level ${path.length}, slot ${path.at(-1)}`;
const address = (path) => `#/tree/${path.join("/")}`;

function crumbs(path, node) {
  const links = [["Root", []], ...path.map((slot, level) => [`Slot ${slot}`, path.slice(0, level + 1)])];
  return el("nav", { class: "crumbs", "aria-label": "Path in the tree" }, el("ol", {},
    links.map(([text, to], place) => el("li", {}, place === links.length - 1
      ? el("span", { "aria-current": "location" }, text)
      : el("a", { href: address(to) }, text)))));
}

// -- the map ---------------------------------------------------------------------------------------

function showMap(main, node) {
  const children = [...node.children].sort((a, b) => b.n_entries - a.n_entries);
  const tiles = children.map((child) => tile(node, child));
  const map = el("div", { class: "map", role: "group", "aria-label": "Slots as areas; arrow keys move, Enter opens, Backspace goes up" }, tiles);
  main.append(
    el("p", { class: "note" }, "Each area is a slot, as large as the entries below it. ",
      node.classes ? "Its colour is the most frequent class, the paler the more mixed." : ""),
    map, table(node, children));
  const lay = () => layOut(map, children.map((child) => child.n_entries), tiles);
  lay();
  new ResizeObserver(lay).observe(map);
  map.addEventListener("keydown", (event) => move(event, tiles, node.path));
}

function facts(child) {
  const entries = ordered(child.classes);
  const largest = entries.length ? entries[0] : null;
  // The name of a slot: its classes, until they make up nine tenths of it, three at most.
  let covered = 0;
  const named = entries.filter(([, count]) => {
    const wanted = covered < 0.9 * child.n_entries;
    covered += count;
    return wanted;
  }).map(([label]) => labelText(label));
  const name = named.length > 3 ? `${named.slice(0, 3).join(", ")} …` : named.join(", ");
  return { entries, largest, name: largest === null ? `Slot ${child.slot}` : name, share: largest === null ? 0 : largest[1] / child.n_entries };
}

function tile(node, child) {
  const { entries, largest, name, share } = facts(child);
  const told = [`Slot ${child.slot}`, plural(child.n_entries, "entry", "entries")];
  if (node.path.length + 1 < context.stats.shape.depth) told.push(plural(child.n_buckets, "bucket"));
  if (largest !== null) told.push(`${percent(share)} ${labelText(largest[0])}`);
  if (child.purity !== null) told.push(`${percent(child.purity)} pure`);
  return el("a", { class: "tile", href: address([...node.path, child.slot]), "aria-label": told.join(", "), title: told.join(", "),
      vars: { "--h": hue(largest === null ? child.slot : largest[0]), "--strength": `${Math.round(100 * (largest === null ? 0.6 : share))}%` } },
    el("span", { class: "words" },
      el("b", {}, name),
      el("span", { class: "more" }, `slot ${child.slot} · ${number(child.n_entries)}`),
      child.purity === null ? null : el("span", { class: "more" }, `${percent(child.purity)} pure`)),
    entries.length ? mixBar(entries, 0, child.n_entries) : null,
    el("span", { class: "faces" }, child.items.filter((item) => item.picture).map((item) => thumbnail(item))));
}

// Squarified treemap (Bruls, Huizing, van Wijk 2000): rows as long as they make tiles squarer.
export function squarify(sizes, width, height) {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const areas = sizes.map((size) => size / total * width * height);
  const places = [];
  let [x, y, w, h] = [0, 0, width, height];
  const worst = (row, side) => {
    const sum = row.reduce((a, b) => a + b, 0);
    return Math.max(side * side * Math.max(...row) / (sum * sum), sum * sum / (side * side * Math.min(...row)));
  };
  for (let at = 0; at < areas.length;) {
    const side = Math.min(w, h);
    const row = [areas[at]];
    while (at + row.length < areas.length && worst([...row, areas[at + row.length]], side) <= worst(row, side)) row.push(areas[at + row.length]);
    const thick = row.reduce((a, b) => a + b, 0) / side;
    let along = 0;
    for (const area of row) {
      const length = area / thick;
      places.push(w >= h ? [x, y + along, thick, length] : [x + along, y, length, thick]);
      along += length;
    }
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    at += row.length;
  }
  return places;
}

function layOut(map, sizes, tiles) {
  const { width, height } = map.getBoundingClientRect();
  squarify(sizes, width, height).forEach(([x, y, w, h], place) => {
    const style = tiles[place].style;
    style.left = `${x}px`; style.top = `${y}px`; style.width = `${w}px`; style.height = `${h}px`;
    tiles[place].classList.toggle("small", w < 90 || h < 70);
    tiles[place].classList.toggle("tiny", w < 44 || h < 30);
    tiles[place].classList.toggle("large", w > 120 && h > 140);
    // Pictures as large as fit side by side into what the words leave.
    const n = tiles[place].querySelectorAll(".thumb").length || 1;
    const free = [w - 28, h - 108];
    let side = Math.min(110, ...free);
    while (side > 26 && Math.floor((free[0] + 5) / (side + 5)) * Math.floor((free[1] + 5) / (side + 5)) < n) side -= 2;
    style.setProperty("--face", `${Math.floor(side)}px`);
  });
}

// Arrow keys go to the nearest tile in that direction.
function move(event, tiles, path) {
  if ((event.key === "Backspace" || event.key === "Escape") && path.length > 0) {
    event.preventDefault();
    location.hash = address(path.slice(0, -1));
    return;
  }
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!way || !tiles.includes(document.activeElement)) return;
  event.preventDefault();
  const centre = (tile) => { const r = tile.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; };
  const here = centre(document.activeElement);
  let best = null, least = Infinity;
  for (const tile of tiles) {
    const [dx, dy] = centre(tile).map((value, axis) => value - here[axis]);
    const along = dx * way[0] + dy * way[1], across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (tile !== document.activeElement && along > 1 && along + 2 * across < least) [best, least] = [tile, along + 2 * across];
  }
  best?.focus();
}

function table(node, children) {
  return el("details", { class: "options" }, el("summary", {}, "As a table"),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Slots as a table" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Slot", "Entries", "Buckets", "Pure", "Most frequent"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, children.map((child) => {
        const { largest, share } = facts(child);
        return el("tr", {},
          el("th", { scope: "row" }, el("a", { href: address([...node.path, child.slot]) }, `${child.slot}`)),
          el("td", {}, number(child.n_entries)), el("td", {}, number(child.n_buckets)),
          el("td", {}, child.purity === null ? "–" : percent(child.purity)),
          el("td", {}, largest === null ? "–" : `${labelText(largest[0])} (${percent(share)})`));
      })))));
}

// -- a bucket --------------------------------------------------------------------------------------

async function showBucket(main, node) {
  const grid = el("div", { class: "grid wide" });
  const more = el("button", { type: "button", class: "quiet" }, "More");
  let start = 0;
  const load = async () => {
    const told = await ask(`/v1/buckets/${node.bucket}?start=${start}&limit=60`);
    const links = told.items.map((item) => itemLink(item));
    grid.append(...links);
    if (start > 0) links[0]?.focus();
    start += told.items.length;
    more.hidden = start >= told.size || told.items.length === 0;
  };
  more.addEventListener("click", load);
  main.append(grid, more);
  await load();
}
