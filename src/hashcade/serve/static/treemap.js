// A map of areas: where each lies, which words fit into it, and how to walk it with the keyboard.

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

const PADDING = 12;
const SMALL_LINE = 17;  // pixels of a line of small words

// Put the tiles in their places. Titles get the size and the number of lines that fit.
export function layOut(map, sizes, tiles) {
  const { width, height } = map.getBoundingClientRect();
  if (!width) return;
  squarify(sizes, width, height).forEach(([x, y, w, h], place) => {
    const tile = tiles[place], { style } = tile;
    style.left = `${x}px`; style.top = `${y}px`; style.width = `${w}px`; style.height = `${h}px`;
    const font = Math.max(11, Math.min(18, w / 8, h / 3.2));
    const hasMore = w > 84 && h > font * 1.2 + 2 * SMALL_LINE + PADDING;
    const lines = Math.floor((h - PADDING - (hasMore ? 2 * SMALL_LINE : 0)) / (1.2 * font));
    tile.classList.toggle("bare", lines < 1 || w < 34);
    tile.classList.toggle("brief", !hasMore);
    tile.classList.toggle("large", w > 120 && h > 140);
    style.setProperty("--font", `${font}px`);
    const shown = Math.min(hasMore ? 2 : 3, Math.max(1, lines));
    style.setProperty("--lines", shown);
    const left = h - 2 * PADDING - shown * 1.2 * font - 2 * SMALL_LINE - 18;
    style.setProperty("--says", `${Math.max(0, SMALL_LINE * Math.floor(left / SMALL_LINE))}px`);
    // Pictures as large as fit side by side into what the words leave, and no more than do.
    const thumbs = tile.querySelectorAll(".thumb");
    const free = [w - 28, h - 118];
    const fitting = (side) => Math.floor((free[0] + 5) / (side + 5)) * Math.floor((free[1] + 5) / (side + 5));
    let side = Math.min(110, ...free);
    while (side > 26 && fitting(side) < (thumbs.length || 1)) side -= 2;
    style.setProperty("--face", `${Math.floor(side)}px`);
    thumbs.forEach((thumb, number) => { thumb.style.display = number < fitting(side) ? "" : "none"; });
  });
}

// The tile in the direction of an arrow key that is nearest to the one that has the focus.
export function nextTile(key, tiles) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  if (!way || !tiles.includes(document.activeElement)) return null;
  const centre = (tile) => { const r = tile.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; };
  const start = centre(document.activeElement);
  let best = null, least = Infinity;
  for (const tile of tiles) {
    const [dx, dy] = centre(tile).map((value, axis) => value - start[axis]);
    const along = dx * way[0] + dy * way[1], across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (tile !== document.activeElement && along > 1 && along + 2 * across < least) [best, least] = [tile, along + 2 * across];
  }
  return best ?? document.activeElement;
}

// Let a tile grow to the whole map, then go on.
export function zoomInto(map, tile, then) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return then();
  const { left, top, width, height } = tile.style;
  tile.classList.add("zooming");
  const whole = { left: "0px", top: "0px", width: `${map.clientWidth}px`, height: `${map.clientHeight}px` };
  tile.animate([{ left, top, width, height }, whole], { duration: 180, easing: "ease-in" }).finished.then(then, then);
}
