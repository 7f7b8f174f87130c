// From a text to what is drawn of it: tokens, small maps as they come, one map large, numbers beside it.

import { ApiError, encodeStatistics, tokenize } from "./api.js";
import { byId, showBusy } from "./dom.js";
import { NORM_SHARE } from "./find_panel.js";
import { describeFailure } from "./notices.js";
import { amountPalette } from "./palette.js";
import { NO_PROMPT, loadLargeMap, loadSmallMaps, loadSmallRollout, namedMaps, planGrid, promptOptions } from "./source.js";
import { showStatistics } from "./statistics.js";
import { shownTheme } from "./theme.js";
import { Turn, inParallel } from "./turns.js";

const REQUESTS_AT_ONCE = 2;
const NO_NORMS = "This server has no norms; its artifact or version does not have them. Weights are shown.";
const NO_ROLLOUT = "No rollout: all layers of this text together are too large for this server.";
const NO_STATISTICS = "No numbers: all heads on this text together are too large for this server.";
const GRID_CAPTIONS = {
  weights: "Weights: rows are queries, columns are keys.",
  norms: "Norms ‖α f(x)‖: rows are queries, columns are keys.",
};

export class Explorer {
  #state;
  #info;
  #views;
  #reload; // everything, the view of two texts too
  #turns = { text: new Turn(), large: new Turn(), grid: new Turn(), shares: new Turn() };
  onDrawn = () => {};
  statistics = null;
  large = null; // {request, labels, offsets, maps: {weights, norms}}; `request`: the values and the text that it is of
  #normShares; // by layer and head; null if the service has no norms, undefined until they are loaded
  #numTokens = 0;
  #hasNorms = true;
  #hasStatistics = true;

  /** @param {{find, grid, figure, strip, effect, notices, pointer}} views */
  constructor({ state, info, views, reload }) {
    this.#state = state;
    this.#info = info;
    this.#views = views;
    this.#reload = reload;
    views.pointer.on(() => this.#point());
  }

  /** Loads everything again, for another text. */
  async load() {
    const signal = this.#turns.text.begin();
    this.#turns.large.end();
    this.#turns.grid.end();
    this.#turns.shares.end();
    this.large = this.statistics = null;
    this.#normShares = undefined;
    this.#hasStatistics = true;
    byId("statistics").textContent = byId("count").textContent = "";
    this.#views.grid.clear();
    this.#views.find.show(null);
    this.#views.effect.setLabels([]);
    showBusy(byId("work"), true);
    showBusy(byId("tokens-card"), true);
    const { text, values } = this.#state;
    const prompt = promptOptions(values);
    await this.#guard(signal, async () => {
      const tokens = await tokenize(text, signal, prompt);
      this.#accept(tokens);
      await Promise.all([this.loadLarge(), this.loadGrid(), this.#loadStatistics(text, signal, prompt)]);
    });
  }

  /** The map that is shown large, and its norms. */
  async loadLarge() {
    if (isStale()) return this.#reload();
    const signal = this.#turns.large.begin();
    const { values, text } = this.#state;
    if (!text.trim()) return;
    showBusy(byId("work"), true);
    await this.#guard(signal, async () => {
      const load = loadLargeMap(text, values, "weights", signal);
      const [weights, norms] = await Promise.all([
        values.map === "rollout" ? unlessTooLarge(load, signal) : load,
        values.map === "head" ? this.#loadNorms((form) => loadLargeMap(text, values, form, signal)) : null,
      ]);
      if (!weights) return this.#refuseRollout();
      const maps = { weights: weights.layers[0][0], norms: norms?.layers[0][0] };
      if (String(this.large?.labels) !== String(weights.labels)) this.#views.pointer.clear();
      this.large = { request: { ...values, text }, labels: weights.labels, offsets: weights.offsets, maps };
      this.drawLarge();
      showBusy(byId("work"), false);
      showBusy(byId("tokens-card"), false);
    });
  }

  /** Small maps of every head, layer by layer, the shown layer first. */
  async loadGrid() {
    if (isStale()) return this.#reload();
    const signal = this.#turns.grid.begin();
    const { values, text } = this.#state;
    if (!text.trim()) return;
    const form = values.measure === "norms" && this.#hasNorms ? "norms" : "weights";
    this.#views.grid.clear();
    const counts = this.#info.manifest.config.num_heads;
    const parts = planGrid(counts, values.layer, this.#numTokens, this.#info.limits);
    const all = this.#views.grid.keys.length;
    let filled = 0;
    await this.#guard(signal, async () => {
      await inParallel([...parts, null], REQUESTS_AT_ONCE, signal, async (part) => {
        if (!part) {
          const rollout = await unlessTooLarge(loadSmallRollout(text, values, signal), signal);
          if (rollout) this.#putTiles([["rollout", rollout.layers[0][0]]]);
          else this.#refuseRollout();
          return;
        }
        const load = (kind) => loadSmallMaps(text, values, kind, { ...part, signal });
        const answer = (form === "norms" && (await this.#loadNorms(load))) || (await load("weights"));
        byId("grid-caption").textContent = GRID_CAPTIONS[this.#hasNorms ? form : "weights"];
        const maps = namedMaps(part, answer.layers);
        this.#putTiles(maps);
        filled += maps.length;
        byId("filled").textContent = filled < all ? `${filled} of ${all}` : `${all}`;
      });
    });
  }

  /** The share of its layer's norms that each head moves, if heads are looked for by it. */
  async loadNormShares() {
    const { values, text } = this.#state;
    if (values.find !== "norm" || this.#normShares !== undefined || !this.statistics) return;
    const signal = this.#turns.shares.begin();
    const counts = this.#info.manifest.config.num_heads;
    const sums = counts.map((count) => new Array(count).fill(0));
    const whole = { ...values, level: "token", hide: false };
    await this.#guard(signal, async () => {
      const load = (part) => this.#loadNorms(() => loadSmallMaps(text, whole, "norms", { ...part, signal }));
      const parts = planGrid(counts, values.layer, this.#numTokens, this.#info.limits);
      await inParallel(parts, REQUESTS_AT_ONCE, signal, async (part) => {
        for (const [key, map] of namedMaps(part, (await load(part))?.layers ?? [])) {
          const [layer, head] = key.split(".");
          sums[layer][head] = map.values.reduce((total, value) => total + value, 0);
        }
      });
      if (signal.aborted) return;
      const shares = sums.map((layer) => {
        const total = layer.reduce((all, one) => all + one, 0) || 1;
        return layer.map((one) => one / total);
      });
      this.#normShares = this.#hasNorms ? shares : null;
      this.#views.find.show({ ...this.statistics, [NORM_SHARE]: this.#normShares });
    });
  }

  /** Draws the large map again: another view, threshold or theme. */
  drawLarge() {
    if (!this.large) return;
    const { request, labels, offsets, maps } = this.large;
    const { view, measure, threshold } = this.#state.values;
    const { prompts, default_prompt_name: byDefault } = this.#info.manifest.defaults;
    const prompt = request.prompt === NO_PROMPT ? "" : prompts[request.prompt || byDefault];
    const written = writtenParts((prompt ?? "") + request.text, offsets);
    const shown = { palette: this.#palette(), threshold: threshold / 100 };
    const shared = { labels, written, special: isSpecial(offsets), ...shown };
    const hasNorms = request.map === "head" && this.#hasNorms;
    byId("measure").disabled = !hasNorms;
    this.#views.strip.show(labels, shared.special);
    byId("count").textContent = labels.length;
    this.#views.figure.show(maps, shared, { view, measure: hasNorms ? measure : "weights" });
    byId("head-title").textContent = this.title;
    this.#point();
    this.drawStatistics();
    this.onDrawn();
  }

  /** Names the map that is shown, which is not the chosen one while that is under way. */
  get title() {
    const { map, layer, head } = this.large?.request ?? this.#state.values;
    return map === "rollout" ? "Rollout through all layers" : `Layer ${layer}, head ${head}`;
  }

  drawGrid(keys) {
    this.#views.grid.paint({ palette: this.#palette(), isShared: this.#state.values.shared, keys });
  }

  /** The numbers of the shown map, once both are there. */
  drawStatistics() {
    if (!this.large) return;
    const { map, layer, head } = this.large.request;
    if (map === "rollout") byId("statistics").textContent = "These numbers are of one head; a rollout is made of all.";
    else if (this.statistics) showStatistics(byId("statistics"), this.statistics, layer, head);
    else if (!this.#hasStatistics) byId("statistics").textContent = NO_STATISTICS;
  }

  /** Stops everything: there is no text. */
  stop() {
    for (const turn of Object.values(this.#turns)) turn.end();
    for (const id of ["work", "tokens-card"]) showBusy(byId(id), false);
  }

  #accept({ tokens, offsets, truncated }) {
    const { level, hide } = this.#state.values;
    this.#numTokens = tokens.length;
    if (level === "token" && !hide) {
      this.#views.strip.show(tokens, isSpecial(offsets));
      byId("count").textContent = tokens.length;
    }
    this.#views.effect.setLabels(tokens);
    this.#views.effect.refresh();
    this.#views.notices.clear("load");
    document.body.classList.remove("stale");
    if (!truncated) return this.#views.notices.clear("truncated");
    const most = this.#info.limits.max_sequence_length;
    const words = `The text is longer than the ${most} tokens this model takes: its end was cut off.`;
    this.#views.notices.show("truncated", words, { kind: "note" });
  }

  async #loadStatistics(text, signal, prompt) {
    this.statistics = await unlessTooLarge(encodeStatistics(text, signal, prompt), signal);
    this.#hasStatistics = this.statistics !== null;
    this.#views.find.show(this.statistics ?? { [NORM_SHARE]: null });
    this.drawStatistics();
    await this.loadNormShares();
  }

  async #loadNorms(load) {
    if (!this.#hasNorms) return null;
    try {
      return await load("norms");
    } catch (error) {
      if (!(error instanceof ApiError) || !error.isUnsupported) throw error;
      this.#hasNorms = false;
      byId("no-norms").textContent = NO_NORMS;
      return null;
    }
  }

  /** There is a head to look at all the same. */
  #refuseRollout() {
    this.#views.grid.refuseRollout(NO_ROLLOUT);
    this.#state.set({ map: "head" });
  }

  #putTiles(maps) {
    for (const [key, map] of maps) this.#views.grid.put(key, map);
    this.drawGrid(this.#state.values.shared ? undefined : maps.map(([key]) => key));
  }

  #point() {
    if (!this.large) return;
    const { row, column } = this.#views.pointer.place;
    const { measure } = this.#state.values;
    const map = (measure === "norms" && this.large.maps.norms) || this.large.maps.weights;
    const values = row !== null ? map.row(row) : column !== null ? map.column(column) : null;
    this.#views.strip.shade(values && Array.from(values, (value) => value / (map.largest || 1)));
    this.#views.strip.mark(row ?? column);
  }

  #palette() {
    return amountPalette(shownTheme());
  }

  async #guard(signal, work) {
    try {
      await work();
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      this.stop();
      document.body.classList.add("stale");
      this.#views.notices.clear("truncated");
      const action = { name: "Try again", run: this.#reload };
      this.#views.notices.show("load", describeFailure(error), { action });
    }
  }
}

/** The awaited answer; null if it is too large for the server, as all layers together may be. */
async function unlessTooLarge(answer, signal) {
  try {
    return await answer;
  } catch (error) {
    if (signal.aborted || !(error instanceof ApiError) || error.status !== 413) throw error;
    return null;
  }
}

/** Whether an answer failed: the page still shows the maps of the request before. */
function isStale() {
  return document.body.classList.contains("stale");
}

/** The part of a text that each token stands for; offsets count characters, which may be two of JavaScript's units. */
function writtenParts(text, offsets) {
  const characters = [...text];
  return offsets.map(([start, end]) => characters.slice(start, end).join(""));
}

function isSpecial(offsets) {
  return offsets.map(([start, end]) => start === end);
}
