// The page's lower half: what shows the state, and what each change of it makes do.

import { AcrossView } from "./across.js";
import { ComparePanel } from "./compare.js";
import { bindPrompts } from "./controls.js";
import { byId } from "./dom.js";
import { EffectPanel } from "./effect.js";
import { EntitiesView } from "./entities.js";
import { Explorer } from "./explorer.js";
import { Figure } from "./figure.js";
import { HeadGrid } from "./grid.js";
import { bindKeep } from "./keep.js";
import { Pointer } from "./maps.js";
import { MatchesView } from "./matches.js";
import { PairView } from "./pair.js";
import { FindPanel } from "./statistics.js";
import { TokenStrip } from "./tokens.js";
import { WhyPanel } from "./why.js";

const NO_HEADS = "This model has no attention heads: of one text there is nothing to show. Give two, to compare them.";
// What the manifest has figures of, by export/original.py.
const COMPARED = ["hidden_states", "attentions", "last_hidden_state", "pooled", "logits", "sparse", "token_vectors"];

/** What the export was compared with, as its manifest says. */
function describeOriginal(original) {
  if (!original) return "";
  if (!original.compared) return `This export was compared with nothing but itself: ${original.reason}.`;
  const differences = COMPARED.filter((name) => name in original).map((name) => original[name]);
  const libraries = `transformers ${original.transformers} and sentence-transformers ${original["sentence-transformers"]}`;
  const largest = Math.max(...differences).toExponential(1);
  return `This export was compared with ${libraries} on ${original.texts} texts: it differs by ${largest} at most.`;
}

/**
 * What the page can show of an artifact, by the task that it was exported for.
 *
 * @returns {"embedding"|"scoring"|"matching"|"other"} "scoring": a cross-encoder, one score for each pair of texts;
 *   "matching": a vector for each token
 */
function kindOf({ config: { task = "embedding", task_settings: settings }, pairs }) {
  if (task === "classification" && pairs && settings.labels.length === 1) return "scoring";
  return { embedding: "embedding", multi_vector: "matching" }[task] ?? "other";
}

/** Stands for the view of two texts where the page has none for this model. */
function noPairView(notices, { config }) {
  const task = config.task.replace("_", "-");
  const words = `This model's task is ${task}: the page compares no two texts. Each text's own attention is below.`;
  const load = () => notices.show("pair", words, { kind: "note" });
  return { answer: null, drawings: [], load, stop: () => notices.clear("pair"), draw() {} };
}

export class Page {
  #state;
  #notices;
  #manifest;
  #hasGraph; // that explains through the network
  #effect;
  #explorer;
  #pair;
  #entities = null; // of a model that labels tokens

  /** @param {{state: State, info: object, notices: Notices}} parts `info` is what `GET /info` answers */
  constructor({ state, info, notices }) {
    const { config, defaults, files, parity, precision } = info.manifest;
    this.#state = state;
    this.#notices = notices;
    this.#manifest = info.manifest;
    this.#hasGraph = "explain.onnx" in files;
    bindPrompts(state, defaults);
    const causal = config.causal ? " · causal: a token sees itself and those before it" : "";
    byId("model").textContent = [info.model, precision, `${config.num_heads.length} layers`].join(" · ") + causal;
    byId("compared").textContent = describeOriginal(parity.original);
    byId("report").hidden = !("heads.json" in files); // few artifacts have one
    this.#keepToModel();
    this.#build(info);
    this.#listen();
    if (!this.#hasHeads) notices.show("heads", NO_HEADS, { kind: "note" });
    this.load();
  }

  get #hasHeads() {
    return this.#manifest.config.num_heads.some(Boolean);
  }

  /** Shows the texts again, from the service's answers. */
  load() {
    const { mode, a, b } = this.#state.values;
    const hasText = Boolean(this.#state.text.trim());
    const isPair = mode === "pair" && Boolean(a.trim() && b.trim());
    const hasMaps = hasText && this.#hasHeads;
    for (const id of ["tokens-card", "work", "keep"]) byId(id).hidden = !hasMaps;
    byId("examples").hidden = hasText;
    this.#effect.reset();
    if (hasMaps) this.#explorer.load();
    else {
      this.#explorer.stop();
      for (const matter of ["load", "truncated"]) this.#notices.clear(matter);
    }
    if (hasText) this.#entities?.load(this.#state.text);
    else this.#entities?.stop();
    if (isPair) this.#pair.load(a, b);
    else this.#pair.stop();
  }

  /** Redraws everything: the theme has changed. */
  redraw() {
    this.#explorer.redraw();
    this.#pair.draw();
  }

  #build(info) {
    const [state, notices, kind] = [this.#state, this.#notices, kindOf(this.#manifest)];
    const pointer = new Pointer();
    const figure = new Figure(pointer);
    const strip = new TokenStrip(byId("tokens"), pointer, { name: "Tokens of the text" });
    const grid = new HeadGrid(byId("grid"), this.#manifest.config, state);
    const effect = (this.#effect = new EffectPanel(state, grid, kind));
    const views = { find: new FindPanel(state, grid), grid, figure, strip, effect, notices, pointer };
    const explorer = (this.#explorer = new Explorer({ state, info, views, reload: () => this.load() }));
    new ComparePanel(explorer);
    new WhyPanel(this.#manifest, kind);
    this.#pair = this.#viewOfPairs(kind, info);
    if (this.#manifest.config.task === "token_classification") this.#entities = new EntitiesView(this.#hasGraph);
    bindKeep({ state, info, explorer, figure, pair: this.#pair });
  }

  #viewOfPairs(kind, info) {
    if (kind === "scoring") return new AcrossView(this.#state, info);
    if (kind === "matching") return new MatchesView();
    if (kind === "other") return noPairView(this.#notices, this.#manifest);
    byId("through").hidden = !this.#hasGraph;
    return new PairView(this.#state);
  }

  #listen() {
    const [state, explorer] = [this.#state, this.#explorer];
    state.on(["a", "b", "mode", "side", "prompt"], () => this.load());
    state.on(["level", "hide", "renormalise", "layer", "head", "map"], () => explorer.loadLarge());
    state.on(["level", "hide", "renormalise", "measure"], () => explorer.loadGrid());
    state.on(["measure", "view", "threshold"], () => explorer.drawLarge());
    state.on(["find"], () => explorer.loadNormShares());
    addEventListener("hashchange", () => this.#keepToModel());
  }

  /** A link may name heads, a prompt and a graph that this model does not have. */
  #keepToModel() {
    const { layer, head, off, prompt } = this.#state.values;
    const counts = this.#manifest.config.num_heads;
    const has = (at, index) => index < (counts[at] ?? 0);
    const first = Math.max(0, counts.findIndex((count) => count > 0));
    const kept = off.filter((key) => has(...key.split(".").map(Number)));
    const place = has(layer, head) ? {} : { layer: has(layer, 0) ? layer : first, head: 0 };
    if (![...byId("prompt").options].some(({ value }) => value === prompt)) this.#state.set({ prompt: "" });
    if (!this.#hasGraph) this.#state.set({ through: "pooling" });
    this.#state.set({ ...place, ...(kept.length < off.length && { off: kept }) });
  }
}
