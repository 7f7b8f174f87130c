// The page's lower half: what shows the state, and what each change of it makes do.

import { AcrossView } from "./across.js";
import { ComparePanel } from "./compare.js";
import { bindPrompts, writeLink } from "./controls.js";
import { byId } from "./dom.js";
import { embeddingEffect, noEffect } from "./effect.js";
import { EffectPanel } from "./effect_panel.js";
import { EntitiesView } from "./entities.js";
import { Explorer } from "./explorer.js";
import { Figure } from "./figure.js";
import { FindPanel } from "./find_panel.js";
import { HeadGrid } from "./grid.js";
import { bindKeep } from "./keep_panel.js";
import { MatchesView } from "./matches.js";
import { PairView } from "./pair.js";
import { Pointer } from "./pointer.js";
import { scoreEffect } from "./score_effect.js";
import { NoPairView, kindOf } from "./task.js";
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

export class Page {
  #state;
  #headCounts;
  #hasHeads;
  #hasPrompt;
  #hasGraph; // that explains through the network
  #notices;
  #grid;
  #effect;
  #explorer;
  #pair;
  #entities = null; // of a model that labels tokens

  /** @param {{state: State, info: object, notices: Notices}} parts `info` is what `GET /info` answers */
  constructor({ state, info, notices }) {
    this.#state = state;
    this.#headCounts = info.manifest.config.num_heads;
    this.#hasHeads = this.#headCounts.some(Boolean);
    this.#notices = notices;
    const causal = info.manifest.config.causal ? " · causal: a token sees itself and those before it" : "";
    const facts = [info.model, info.manifest.precision, `${this.#headCounts.length} layers`];
    byId("model").textContent = facts.join(" · ") + causal;
    byId("compared").textContent = describeOriginal(info.manifest.parity.original);
    byId("report").hidden = !("heads.json" in info.manifest.files); // few artifacts have one
    this.#hasGraph = "explain.onnx" in info.manifest.files;
    this.#hasPrompt = bindPrompts(state, info.manifest.defaults);
    this.#keepToModel();
    this.#build(info);
    this.#listen();
    this.#mark();
    if (!this.#hasHeads) notices.show("heads", NO_HEADS, { kind: "note" });
    this.load();
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
    else this.#forget();
    if (hasText) this.#entities?.load(this.#state.text);
    else this.#entities?.stop();
    if (isPair) this.#pair.load(a, b);
    else this.#pair.stop();
  }

  /** Redraws everything: the theme has changed. */
  redraw() {
    this.#explorer.drawLarge();
    this.#explorer.drawGrid();
    this.#pair.draw();
  }

  #build(info) {
    const state = this.#state;
    const pointer = new Pointer();
    const figure = new Figure(pointer);
    const strip = new TokenStrip(byId("tokens"), pointer, { name: "Tokens of the text" });
    this.#grid = new HeadGrid(byId("grid"), info.manifest.config, (place) => state.set(place));
    const measure = { embedding: embeddingEffect, scoring: scoreEffect }[kindOf(info)] ?? noEffect;
    this.#effect = new EffectPanel(state, this.#grid, measure);
    const find = new FindPanel(state, this.#grid);
    const views = { find, grid: this.#grid, figure, strip, effect: this.#effect, notices: this.#notices, pointer };
    this.#explorer = new Explorer({ state, info, views, reload: () => this.load() });
    new ComparePanel(this.#explorer);
    new WhyPanel(info);
    this.#pair = this.#viewOfPairs(info);
    if (info.manifest.config.task === "token_classification") {
      this.#entities = new EntitiesView(this.#hasGraph);
    }
    bindKeep({ state, info, explorer: this.#explorer, figure, pair: this.#pair, writeLink });
  }

  #viewOfPairs(info) {
    const kind = kindOf(info);
    if (kind === "scoring") return new AcrossView(this.#state, info);
    if (kind === "matching") return new MatchesView();
    if (kind === "other") return new NoPairView(this.#notices, info);
    byId("through").hidden = !this.#hasGraph;
    return new PairView(this.#state);
  }

  #listen() {
    const [state, explorer, effect] = [this.#state, this.#explorer, this.#effect];
    state.on(["a", "b", "mode", "side", "prompt"], () => this.load());
    state.on(["level", "hide", "renormalise"], () => {
      explorer.loadLarge();
      explorer.loadGrid();
    });
    state.on(["layer", "head", "map"], () => explorer.loadLarge());
    state.on(["layer", "head", "map", "off"], () => {
      this.#mark();
      effect.refresh();
    });
    state.on(["measure"], () => {
      explorer.drawLarge();
      explorer.loadGrid();
    });
    state.on(["find"], () => explorer.loadNormShares());
    state.on(["view", "threshold"], () => explorer.drawLarge());
    state.on(["shared"], () => explorer.drawGrid());
    addEventListener("hashchange", () => this.#keepToModel());
  }

  /** There is no text: nothing is under way, and nothing said of one holds. */
  #forget() {
    this.#explorer.stop();
    this.#notices.clear("load");
    this.#notices.clear("truncated");
  }

  #mark() {
    const { map, layer, head, off } = this.#state.values;
    this.#grid.mark(map === "rollout" ? "rollout" : `${layer}.${head}`, off);
  }

  /** A link may name heads, a prompt and a graph that this model does not have. */
  #keepToModel() {
    const { layer, head, off, prompt } = this.#state.values;
    const has = (at, index) => index < (this.#headCounts[at] ?? 0);
    const first = Math.max(0, this.#headCounts.findIndex((count) => count > 0));
    const kept = off.filter((key) => has(...key.split(".").map(Number)));
    const place = has(layer, head) ? {} : { layer: has(layer, 0) ? layer : first, head: 0 };
    if (!this.#hasPrompt(prompt)) this.#state.set({ prompt: "" });
    if (!this.#hasGraph) this.#state.set({ through: "pooling" });
    this.#state.set({ ...place, ...(kept.length < off.length && { off: kept }) });
  }
}
