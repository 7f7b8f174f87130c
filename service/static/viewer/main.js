// Puts the page together: the state, what shows it, and what changes it.

import { ApiError, getInfo, useKey } from "./api.js";
import { byId, element } from "./dom.js";
import { EffectPanel } from "./effect_panel.js";
import { EXAMPLES } from "./examples.js";
import { Explorer } from "./explorer.js";
import { Figure } from "./figure.js";
import { HeadGrid } from "./grid.js";
import { bindKeep } from "./keep_panel.js";
import { fromHash, toHash } from "./link.js";
import { Notices, describeFailure } from "./notices.js";
import { PairView } from "./pair.js";
import { Pointer } from "./pointer.js";
import { State } from "./state.js";
import { bindTheme } from "./theme.js";
import { TokenStrip } from "./tokens.js";

const TYPING_PAUSE = 350; // milliseconds without a key before a text is sent
const LINK_PAUSE = 150; // milliseconds; Safari refuses more than 100 changes of the address in 30 s

const state = new State(fromHash(location.hash));
const notices = new Notices(byId("notices"));

bindChoices();
bindTexts();
bindExamples();
bindKeyForm();
writeHash();
let again = start; // what a new API key sets off
let onTheme = () => {};
bindTheme(byId("theme"), () => onTheme());
start();

/** Asks the service what it is, then shows the page's lower half. */
async function start() {
  let info;
  try {
    info = await getInfo();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) byId("key-form").hidden = false;
    notices.show("start", describeFailure(error), { action: { name: "Try again", run: start } });
    return;
  }
  notices.clear("start");
  byId("key-form").hidden = true;
  const { model, manifest } = info;
  byId("model").textContent = `${model} · ${manifest.precision} · ${manifest.config.num_heads.length} layers`;
  clampHead(manifest.config.num_heads);
  explore(info);
}

/** Wires state, views and loading. */
function explore(info) {
  const pointer = new Pointer();
  const grid = new HeadGrid(byId("grid"), info.manifest.config.num_heads, (place) => state.set(place));
  const figure = new Figure(byId("panes"), byId("readout"), pointer);
  const strip = new TokenStrip(byId("tokens"), pointer, { name: "Tokens of the text" });
  const effect = new EffectPanel({ host: byId("effect"), ranking: byId("ranking"), state, grid });
  const explorer = new Explorer({ state, info, views: { grid, figure, strip, effect, notices, pointer } });
  const pair = new PairView({
    a: byId("pair-a"),
    b: byId("pair-b"),
    matrix: byId("pair-matrix"),
    readout: byId("pair-readout"),
    similarity: byId("similarity"),
    note: byId("pair-note"),
  });
  explorer.onUnauthorised = effect.onFailure = pair.onFailure = (error) => {
    if (!error || error.status === 401) byId("key-form").hidden = false;
  };
  const mark = () => grid.mark(openKey(), state.values.off);

  const load = () => {
    const { mode, a, b } = state.values;
    const hasText = Boolean(state.text.trim());
    const isPair = mode === "pair" && Boolean(a.trim() && b.trim());
    for (const id of ["tokens-card", "work", "keep"]) byId(id).hidden = !hasText;
    byId("examples").hidden = hasText;
    byId("pair").hidden = !isPair;
    effect.reset();
    if (!hasText) {
      explorer.stop();
      notices.clear("load");
      notices.clear("truncated");
    } else {
      explorer.load();
      effect.refresh();
    }
    if (isPair) pair.load(a, b);
    else pair.stop();
  };
  const redraw = () => {
    explorer.drawLarge();
    explorer.drawGrid();
    pair.draw();
  };

  state.on(["a", "b", "mode", "side"], load);
  state.on(["level", "hide", "renormalise"], () => {
    explorer.loadLarge();
    explorer.loadGrid();
  });
  state.on(["layer", "head", "map"], () => {
    mark();
    explorer.loadLarge();
    effect.refresh();
  });
  state.on(["measure"], () => {
    explorer.drawLarge();
    explorer.loadGrid();
  });
  state.on(["view", "threshold"], () => explorer.drawLarge());
  state.on(["shared"], () => explorer.drawGrid());
  state.on(["off"], () => {
    mark();
    effect.refresh();
  });
  onTheme = redraw;
  bindKeep({ state, info, explorer, figure, pair, writeHash });
  addEventListener("hashchange", () => clampHead(info.manifest.config.num_heads));
  again = load;
  mark();
  load();
}

/** Radio buttons, check boxes and the slider: named after what they change. */
function bindChoices() {
  const controls = [...document.querySelectorAll("input[name]")];
  const show = () => {
    for (const control of controls) {
      const value = state.values[control.name];
      if (control.type === "radio") control.checked = control.value === value;
      else if (control.type === "checkbox") control.checked = value;
      else control.value = value;
    }
    const { mode, hide, threshold } = state.values;
    byId("box-b").hidden = byId("side").hidden = mode !== "pair";
    byId("label-a").textContent = mode === "pair" ? "First text" : "Text";
    byId("renormalise").hidden = !hide;
    byId("threshold-value").textContent = threshold ? `${threshold} % of the largest` : "nothing";
  };
  for (const control of controls) {
    control.addEventListener("input", () => {
      const read = { radio: () => control.value, checkbox: () => control.checked, range: () => Number(control.value) };
      if (control.type !== "radio" || control.checked) state.set({ [control.name]: read[control.type]() });
    });
  }
  let timer = 0;
  state.on(Object.keys(state.values), () => {
    show();
    clearTimeout(timer);
    timer = setTimeout(writeHash, LINK_PAUSE);
  });
  addEventListener("hashchange", () => state.set(fromHash(location.hash)));
  show();
}

function bindTexts() {
  for (const name of ["a", "b"]) {
    const box = byId(name);
    let timer = 0;
    box.value = state.values[name];
    grow(box);
    box.addEventListener("input", () => {
      grow(box);
      clearTimeout(timer);
      timer = setTimeout(() => state.set({ [name]: box.value }), TYPING_PAUSE);
    });
    state.on([name], () => {
      if (box.value === state.values[name]) return;
      box.value = state.values[name];
      grow(box);
    });
  }
  state.on(["mode"], () => grow(byId("b")));
}

/** As high as its text, up to what the style sheet allows. */
function grow(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function bindExamples() {
  const select = byId("example");
  const take = ({ a, b }) => state.set({ a, b: b ?? "", mode: b ? "pair" : "one", side: "a" });
  select.append(...EXAMPLES.map(({ name }, value) => element("option", { value, textContent: name })));
  select.addEventListener("change", () => {
    take(EXAMPLES[Number(select.value)]);
    select.value = "";
  });
  for (const example of EXAMPLES) {
    const button = element("button", { type: "button", textContent: example.name });
    button.addEventListener("click", () => take(example));
    byId("examples").append(button);
  }
}

function bindKeyForm() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value);
    byId("key").value = "";
    byId("key-form").hidden = true;
    notices.clear("load");
    again();
  });
}

function writeHash() {
  const hash = toHash(state.values);
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

function openKey() {
  const { map, layer, head } = state.values;
  return map === "rollout" ? "rollout" : `${layer}.${head}`;
}

/** A link may name a head that this model does not have. */
function clampHead(counts) {
  const { layer, head, off } = state.values;
  const has = (at, index) => index < (counts[at] ?? 0);
  const first = Math.max(0, counts.findIndex((count) => count > 0));
  const kept = off.filter((key) => has(...key.split(".").map(Number)));
  const place = has(layer, head) ? {} : { layer: has(layer, 0) ? layer : first, head: 0 };
  state.set({ ...place, ...(kept.length < off.length && { off: kept }) });
}
