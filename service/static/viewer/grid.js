// All layers and heads as small maps, by layer or in a given order, and the rollout, if any, below them. Arrow keys move,
// Enter or a click opens.

import { button, element } from "./dom.js";
import { shrink, toImage } from "./maps.js";
import { amountPalette } from "./theme.js";

/** Which key and value head each query head of a layer reads, by the network's configuration. */
function headGroups(config, layer) {
  const count = config.num_heads[layer];
  const shared = config.num_key_value_heads?.[layer] ?? count;
  const even = Array.from({ length: shared }, () => count / shared);
  const sizes = config.query_groups?.[layer] ?? even;
  return sizes.flatMap((size, group) => Array.from({ length: size }, () => group));
}

const ROLLOUT = "Rollout through all layers";
const TILE_CELLS = 64; // rows and columns of a small map at most

export class HeadGrid {
  #state;
  #grid;
  #columns;
  #opens;
  #tiles = new Map(); // by "layer.head", and "rollout"
  #layers; // tiles by layer
  #rows = []; // tiles as they are shown
  #order = null;

  /**
   * @param {object} config the network's: its heads, and which of them read the same keys and values
   * @param {{name?: string, hasRollout?: boolean, opens?: object}} options what the maps are of, for those who do not see
   *   them; and what choosing one sets of the state beside its place
   */
  constructor(host, config, state, { name = "Heads of all layers", hasRollout = true, opens = {} } = {}) {
    this.#state = state;
    this.#opens = opens;
    const headCounts = config.num_heads;
    this.#columns = Math.max(...headCounts);
    this.#grid = element("div", { className: "heads", role: "grid", ariaLabel: name });
    this.#grid.style.setProperty("--columns", this.#columns);
    this.#layers = headCounts.map((_, layer) => this.#tilesOf(layer, headGroups(config, layer)));
    host.replaceChildren(this.#grid, ...(hasRollout ? [this.#rollout()] : []));
    this.#grid.addEventListener("keydown", (event) => this.#move(event));
    state.on(["layer", "head", "map", "off"], () => this.#mark());
    state.on(["shared"], () => this.paint());
    this.#fill();
    this.#mark();
  }

  /** Shows the tiles in the order of `keys`, which may leave some out; null shows them by layer. */
  arrange(keys) {
    if (String(keys) === String(this.#order)) return;
    this.#order = keys;
    const focused = document.activeElement;
    this.#fill();
    if (this.#grid.contains(focused)) focused.focus();
    this.#setTabStop();
  }

  get keys() {
    return [...this.#tiles.keys()].filter((key) => key !== "rollout");
  }

  /** Takes every map away. */
  clear() {
    for (const tile of this.#tiles.values()) {
      tile.map = null;
      tile.button.classList.add("waiting");
    }
    if (this.#tiles.has("rollout")) this.#nameRollout(ROLLOUT);
  }

  /** Says why there is no rollout, in its place. */
  refuseRollout(reason) {
    this.#nameRollout(reason, { isRefused: true });
    this.#tiles.get("rollout").button.classList.remove("waiting");
  }

  /** @param {[string, NumberMap][]} maps which are kept small, and shown */
  put(maps) {
    for (const [key, map] of maps) {
      const tile = this.#tiles.get(key);
      tile.map = shrink(map, TILE_CELLS, TILE_CELLS);
      tile.button.classList.remove("waiting");
    }
    this.paint(this.#state.values.shared ? undefined : maps.map(([key]) => key));
  }

  /** Draws the tiles, all of them or some; one number has one colour in all of them if the reader wants it so. */
  paint(keys = this.#tiles.keys()) {
    const largest = Math.max(0, ...this.keys.map((key) => this.#tiles.get(key).map?.largest ?? 0));
    const palette = amountPalette();
    for (const key of keys) {
      const { map, canvas } = this.#tiles.get(key);
      if (!map) continue; // not there yet
      canvas.width = map.columns;
      canvas.height = map.rows;
      if (!map.values.length) continue; // nothing is left of the text without its special tokens
      canvas.style.setProperty("--ratio", map.columns / map.rows);
      const high = this.#state.values.shared && key !== "rollout" ? largest : map.largest;
      canvas.getContext("2d").putImageData(toImage(map, { palette, high, isSigned: false, threshold: 0 }), 0, 0);
    }
  }

  /** Marks which tile is shown large, and which heads are switched off. */
  #mark() {
    for (const [key, { button }] of this.#tiles) {
      button[key === "rollout" ? "ariaPressed" : "ariaSelected"] = key === this.#state.key;
      button.classList.toggle("off", this.#state.values.off.includes(key));
    }
    this.#setTabStop();
  }

  /** Shows each head's effect as a bar below its map, 0 to 1 of the largest; null removes the bars. */
  showEffects(shares) {
    for (const [key, { button }] of this.#tiles) {
      button.style.setProperty("--effect", shares?.get(key) ?? 0);
      button.classList.toggle("ranked", Boolean(shares?.has(key)));
    }
  }

  #nameRollout(name, { isRefused = false } = {}) {
    const { button, canvas } = this.#tiles.get("rollout");
    Object.assign(button, { title: name, ariaLabel: name, disabled: isRefused });
    button.lastChild.textContent = name;
    canvas.hidden = isRefused;
  }

  #rollout() {
    const tile = this.#tile("rollout", ROLLOUT, { map: "rollout" });
    tile.role = null; // it stands below the grid
    tile.append(element("span", { textContent: ROLLOUT }));
    tile.classList.add("wide");
    return tile;
  }

  /** One tile of the grid, the open one if it is shown, is reached with the Tab key. */
  #setTabStop() {
    const shown = this.#rows.flat();
    for (const key of this.keys) this.#tiles.get(key).button.tabIndex = -1;
    const open = this.#tiles.get(this.#state.key)?.button;
    const first = shown.includes(open) ? open : shown[0];
    if (first) first.tabIndex = 0;
  }

  #fill() {
    const places = this.#order?.map((key) => this.#tiles.get(key).button);
    const starts = places?.map((_, place) => place).filter((place) => place % this.#columns === 0);
    this.#grid.classList.toggle("sorted", Boolean(places));
    this.#rows = starts?.map((start) => places.slice(start, start + this.#columns)) ?? this.#layers;
    const rows = this.#rows.map((tiles, row) => {
      if (!places) return this.#row(`L${row}`, `Layer ${row}`, tiles);
      return this.#row(starts[row] + 1, `From place ${starts[row] + 1}`, tiles);
    });
    this.#grid.replaceChildren(...(places ? [] : [this.#heading()]), ...rows);
  }

  #heading() {
    const heading = (textContent) => element("span", { role: "columnheader", textContent });
    const names = Array.from({ length: this.#columns }, (_, head) => heading(head));
    const corner = element("span", { role: "columnheader" }, element("span", { className: "sr", textContent: "Layer" }));
    return element("div", { className: "heads-row heading", role: "row" }, corner, ...names);
  }

  #row(textContent, title, tiles) {
    const name = element("span", { role: "rowheader", textContent, title });
    const nothing = element("span", { role: "gridcell", className: "quiet small none", textContent: "no heads left" });
    return element("div", { className: "heads-row", role: "row" }, name, ...(tiles.length ? tiles : [nothing]));
  }

  #tilesOf(layer, groups) {
    const isGrouped = groups.length > new Set(groups).size;
    return groups.map((group, head) => {
      const shared = isGrouped ? `, keys and values ${group}` : "";
      const name = `Layer ${layer}, head ${head}${shared}`;
      const tile = this.#tile(`${layer}.${head}`, name, { map: "head", layer, head });
      tile.classList.toggle("group-start", isGrouped && head > 0 && groups[head - 1] !== group);
      tile.append(element("span", { className: "key", textContent: `${layer}.${head}`, ariaHidden: true }));
      return tile;
    });
  }

  #tile(key, name, place) {
    const canvas = element("canvas", { width: 1, height: 1 });
    const onclick = () => this.#state.set({ ...place, ...this.#opens });
    const named = { title: name, ariaLabel: name, data: { key } };
    const tile = button("", onclick, { role: "gridcell", className: "tile waiting", ...named });
    tile.append(canvas);
    this.#tiles.set(key, { button: tile, canvas, map: null });
    return tile;
  }

  #move(event) {
    const row = this.#rows.findIndex((tiles) => tiles.includes(event.target));
    const to = this.#target(event, row, this.#rows[row].indexOf(event.target));
    if (!to) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }

  #target({ key, ctrlKey }, row, column) {
    const rows = this.#rows;
    const filled = rows.flatMap((tiles, at) => (tiles.length ? [at] : []));
    const clamp = (tiles, at) => tiles[Math.max(0, Math.min(tiles.length - 1, at))];
    const step = (by) => rows[filled[filled.indexOf(row) + by]];
    if (key === "ArrowRight") return clamp(rows[row], column + 1);
    if (key === "ArrowLeft") return clamp(rows[row], column - 1);
    if (key === "ArrowDown") return step(1) && clamp(step(1), column);
    if (key === "ArrowUp") return step(-1) && clamp(step(-1), column);
    if (key === "Home") return (ctrlKey ? rows[filled[0]] : rows[row])[0];
    if (key === "End") return (ctrlKey ? rows[filled.at(-1)] : rows[row]).at(-1);
    return null;
  }
}
