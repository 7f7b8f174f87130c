// What each head of a cross-encoder looks at from one text to the other: a small map a head, all layers together.

import { ApiError, tokenize } from "./api.js";
import { byId, element } from "./dom.js";
import { HeadGrid } from "./grid.js";
import { crop } from "./maps.js";
import { describeFailure } from "./notices.js";
import { amountPalette } from "./palette.js";
import { loadSmallMaps, namedMaps, planGrid } from "./source.js";
import { shownTheme } from "./theme.js";
import { Turn, inParallel } from "./turns.js";

const REQUESTS_AT_ONCE = 2;
const NAME = "Heads of all layers, from the first text to the second";

export class PairGrid {
  #state;
  #info;
  #host = element("div"); // on the page while there is something to show
  #grid;
  #turn = new Turn();

  constructor(state, info) {
    this.#state = state;
    this.#info = info;
    const open = (place) => state.set({ ...place, blocks: "head" });
    this.#grid = new HeadGrid(this.#host, info.manifest.config, open, { name: NAME, hasRollout: false });
    state.on(["layer", "head", "map", "off"], () => this.#mark());
    state.on(["shared"], () => this.draw());
  }

  /** Maps of every head, layer by layer, the shown layer first. What fails is said in their place. */
  async load(a, b) {
    const signal = this.#turn.begin();
    this.#grid.clear();
    this.#mark();
    byId("across-grid").replaceChildren(this.#host);
    byId("across-filled").textContent = "";
    try {
      await this.#fill([a, b], signal);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      this.stop();
      byId("across-filled").textContent = describeFailure(error);
    }
  }

  stop() {
    this.#turn.end();
    byId("across-grid").replaceChildren();
  }

  draw(keys) {
    this.#grid.paint({ palette: amountPalette(shownTheme()), isShared: this.#state.values.shared, keys });
  }

  async #fill(pair, signal) {
    const { values } = this.#state;
    const sides = await Promise.all(pair.map((text) => tokenize(text, signal)));
    const numTokens = sides.reduce((sum, { tokens }) => sum + tokens.length, 0);
    const parts = planGrid(this.#info.manifest.config.num_heads, values.layer, numTokens, this.#info.limits);
    await inParallel(parts, REQUESTS_AT_ONCE, signal, async (part) => {
      const { layers, segments } = await loadSmallMaps(pair, values, "weights", { ...part, signal });
      this.#put(namedMaps(part, layers), segments);
    });
  }

  #put(maps, segments) {
    const of = (text) => segments.flatMap((segment, at) => (segment === text ? [at] : []));
    const [rows, columns] = [of(0), of(1)]; // as the service numbers the texts of a pair
    for (const [key, map] of maps) this.#grid.put(key, crop(map, rows, columns));
    this.draw(this.#state.values.shared ? undefined : maps.map(([key]) => key));
  }

  #mark() {
    const { map, layer, head, off } = this.#state.values;
    this.#grid.mark(map === "rollout" ? "rollout" : `${layer}.${head}`, off);
  }
}
