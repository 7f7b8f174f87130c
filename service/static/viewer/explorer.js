// From a text to what is drawn of it: tokens, small maps as they come, one map large, numbers beside it.

import { ApiError, ask } from "./api.js";
import { Turn, attempt, describeFailure } from "./asking.js";
import { byId, showBusy } from "./dom.js";
import { isSpecial } from "./maps.js";
import { NO_PROMPT, loadLargeMap, loadSmallMaps, loadSmallRollout, promptOptions } from "./source.js";
import { NORM_SHARE, showStatistics } from "./statistics.js";

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
  statistics; // of each head; null if they are too large for the server, undefined until they are there
  large = null; // {request, labels, offsets, special, maps: {weights, norms}}; `request`: values and text it is of
  #normShares; // by layer and head; null if the service has no norms, undefined until they are there
  #numTokens = 0;
  #hasNorms = true;

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
    for (const turn of Object.values(this.#turns)) turn.end();
    this.large = null;
    this.statistics = this.#normShares = undefined;
    byId("statistics").textContent = byId("count").textContent = "";
    this.#views.grid.clear();
    this.#views.find.show(null);
    this.#showBusy(true);
    const { text, values } = this.#state;
    const body = { inputs: text, ...promptOptions(values) };
    await this.#guard("text", async (signal) => {
      this.#accept((await ask("tokenize", { body, signal })).items[0]);
      await Promise.all([this.loadLarge(), this.loadGrid(), this.#loadStatistics(body, signal)]);
    });
  }

  /** The map that is shown large, and its norms. */
  async loadLarge() {
    if (isStale()) return this.#reload();
    const { values, text } = this.#state;
    if (!text.trim()) return;
    showBusy(byId("work"), true);
    await this.#guard("large", async (signal) => {
      const load = loadLargeMap(text, values, "weights", signal);
      const [weights, norms] = await Promise.all([
        values.map === "rollout" ? unlessTooLarge(load) : load,
        values.map === "head" ? this.#loadNorms(() => loadLargeMap(text, values, "norms", signal)) : null,
      ]);
      if (!weights) return this.#refuseRollout();
      const { labels, offsets } = weights;
      const maps = { weights: weights.layers[0][0], norms: norms?.layers[0][0] };
      if (String(this.large?.labels) !== String(labels)) this.#views.pointer.clear();
      this.large = { request: { ...values, text }, labels, offsets, special: isSpecial(offsets), maps };
      this.drawLarge();
      this.#showBusy(false);
    });
  }

  /** Small maps of every head, layer by layer, the shown layer first; then the rollout. */
  async loadGrid() {
    if (isStale()) return this.#reload();
    const { values, text } = this.#state;
    if (!text.trim()) return;
    const { grid } = this.#views;
    grid.clear();
    const all = grid.keys.length;
    let filled = 0;
    await this.#guard("grid", async (signal) => {
      const load = (form) =>
        this.#loadSmallMaps(form, values, signal, (maps) => {
          grid.put(maps);
          filled += maps.length;
          byId("filled").textContent = filled < all ? `${filled} of ${all}` : `${all}`;
          byId("grid-caption").textContent = GRID_CAPTIONS[form];
        });
      if (values.measure === "norms") await this.#loadNorms(() => load("norms"));
      if (!filled) await load("weights");
      const rollout = await unlessTooLarge(loadSmallRollout(text, values, signal));
      if (rollout) grid.put([["rollout", rollout.layers[0][0]]]);
      else this.#refuseRollout();
    });
  }

  /** The share of its layer's norms that each head moves, if heads are looked for by it. */
  async loadNormShares() {
    const { values } = this.#state;
    if (values.find !== "norm" || this.#normShares !== undefined || !this.statistics) return;
    const sums = this.#info.manifest.config.num_heads.map((count) => new Array(count));
    await this.#guard("shares", async (signal) => {
      await this.#loadNorms(() =>
        this.#loadSmallMaps("norms", { ...values, level: "token", hide: false }, signal, (maps) => {
          for (const [key, map] of maps) {
            const [layer, head] = key.split(".");
            sums[layer][head] = map.sum({ row: null, column: null });
          }
        }),
      );
      const shares = sums.map((layer) => {
        const total = layer.reduce((all, one) => all + one, 0) || 1;
        return layer.map((one) => one / total);
      });
      this.#normShares = this.#hasNorms ? shares : null;
      this.#views.find.show({ ...this.statistics, [NORM_SHARE]: this.#normShares });
    });
  }

  /** Draws everything again, in another theme. */
  redraw() {
    this.drawLarge();
    this.#views.grid.paint();
  }

  /** Draws the large map again: another view, measure or threshold. */
  drawLarge() {
    if (!this.large) return;
    const { request, labels, offsets, special, maps } = this.large;
    const { values } = this.#state;
    const { prompts, default_prompt_name: byDefault } = this.#info.manifest.defaults;
    const prompt = request.prompt === NO_PROMPT ? "" : prompts[request.prompt || byDefault];
    const written = writtenParts((prompt ?? "") + request.text, offsets);
    const hasNorms = request.map === "head" && this.#hasNorms;
    byId("measure").disabled = !hasNorms;
    this.#views.strip.show(labels, special);
    byId("count").textContent = labels.length;
    this.#views.figure.show(maps, { labels, written, special }, hasNorms ? values : { ...values, measure: "weights" });
    byId("head-title").textContent = this.title;
    this.#point();
    this.#drawStatistics();
    this.onDrawn();
  }

  /** Names the map that is shown, which is not the chosen one while that is under way. */
  get title() {
    const { map, layer, head } = this.large.request;
    return map === "rollout" ? "Rollout through all layers" : `Layer ${layer}, head ${head}`;
  }

  /** Stops everything: there is no text. */
  stop() {
    for (const turn of Object.values(this.#turns)) turn.end();
    this.#showBusy(false);
  }

  #showBusy(isBusy) {
    for (const id of ["work", "tokens-card"]) showBusy(byId(id), isBusy);
  }

  #accept({ tokens, offsets, truncated }) {
    const { level, hide } = this.#state.values;
    const { strip, effect, notices } = this.#views;
    this.#numTokens = tokens.length;
    if (level === "token" && !hide) {
      strip.show(tokens, isSpecial(offsets));
      byId("count").textContent = tokens.length;
    }
    effect.refresh(tokens);
    notices.clear("load");
    document.body.classList.remove("stale");
    if (!truncated) return notices.clear("truncated");
    const most = this.#info.limits.max_sequence_length;
    const words = `The text is longer than the ${most} tokens this model takes: its end was cut off.`;
    notices.show("truncated", words, { kind: "note" });
  }

  async #loadStatistics(body, signal) {
    const attention = { layers: "all", form: "stats" };
    const answer = await unlessTooLarge(ask("encode", { body: { ...body, attention }, signal }));
    this.statistics = answer && answer.attention[0].statistics;
    this.#views.find.show(this.statistics ?? { [NORM_SHARE]: null });
    this.#drawStatistics();
    await this.loadNormShares();
  }

  /** The numbers of the shown map, once both are there. */
  #drawStatistics() {
    if (!this.large) return;
    const { map, layer, head } = this.large.request;
    if (map === "rollout") byId("statistics").textContent = "These numbers are of one head; a rollout is made of all.";
    else if (this.statistics) showStatistics(byId("statistics"), this.statistics, layer, head);
    else if (this.statistics === null) byId("statistics").textContent = NO_STATISTICS;
  }

  #loadSmallMaps(form, values, signal, onMaps) {
    const how = { form, numTokens: this.#numTokens, info: this.#info, signal };
    return loadSmallMaps(this.#state.text, values, how, onMaps);
  }

  async #loadNorms(load) {
    if (!this.#hasNorms) return null;
    try {
      return await load();
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

  #point() {
    if (!this.large) return;
    const { pointer, strip } = this.#views;
    const map = (this.#state.values.measure === "norms" && this.large.maps.norms) || this.large.maps.weights;
    const { row, column } = pointer.place;
    const values = row !== null ? map.row(row) : map.line(pointer.place);
    strip.shade(values && Array.from(values, (value) => value / (map.largest || 1)));
    strip.mark(row ?? column);
  }

  async #guard(kind, work) {
    const signal = this.#turns[kind].begin();
    const fail = (error) => {
      this.stop();
      document.body.classList.add("stale");
      this.#views.notices.clear("truncated");
      const action = { name: "Try again", run: this.#reload };
      this.#views.notices.show("load", describeFailure(error), { action });
    };
    await attempt(work, fail, signal);
  }
}

/** The awaited answer; null if it is too large for the server, as all layers together may be. */
async function unlessTooLarge(answer) {
  try {
    return await answer;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 413) throw error;
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
