// The buttons that keep something: link, picture, data.

import { byId } from "./dom.js";
import { copyAddress, drawPicture, jsonFile, saveFile, toRows } from "./keep.js";

const COPIED_FOR = 2000; // milliseconds

/** Binds the buttons to what is shown. */
export function bindKeep({ state, info, explorer, figure, pair, writeLink }) {
  byId("copy-link").onclick = () => {
    writeLink(state);
    copyLink();
  };
  byId("save-png").onclick = async () => {
    const panes = explorer.large ? shownPanes(state, figure, pair) : [];
    if (!panes.length) return;
    const blob = await drawPicture(`${info.model}: ${explorer.title}`, panes);
    saveFile(`${fileName(explorer)}.png`, blob);
  };
  byId("save-json").onclick = () => {
    if (explorer.large) saveFile(`${fileName(explorer)}.json`, jsonFile(collect(state, info, explorer, pair)));
  };
}

async function copyLink() {
  const button = byId("copy-link");
  if (await copyAddress()) {
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy link"), COPIED_FOR);
    return;
  }
  byId("link-field").hidden = false;
  byId("link").value = location.href;
  byId("link").select();
}

function shownPanes(state, figure, pair) {
  const captions = { weights: "Weights", norms: "Norms ‖α f(x)‖" };
  const panes = figure.panes
    .filter(({ host }) => !host.classList.contains("missing"))
    .map(({ drawing, measure }) => ({ drawing, caption: captions[measure] }));
  return state.values.mode === "pair" ? [...panes, ...pair.drawings] : panes;
}

function fileName({ large: { request: { map, layer, head } } }) {
  return map === "rollout" ? "attention-rollout" : `attention-layer-${layer}-head-${head}`;
}

/** The present map, with everything needed to read it. */
function collect(state, info, explorer, pair) {
  const { request, labels, offsets, maps } = explorer.large;
  const { map, layer, head, level, hide, renormalise, text } = request;
  const { mode, off } = state.values;
  const statistics = map === "head" && explorer.statistics;
  return {
    model: info.model,
    source: info.manifest.source,
    precision: info.manifest.precision,
    text,
    [level === "word" ? "words" : "tokens"]: labels,
    offsets,
    ...(map === "rollout" ? { reduce: "rollout" } : { layer, head }),
    exclude_special: hide,
    renormalise: hide && renormalise,
    weights: toRows(maps.weights),
    ...(maps.norms && { norms: toRows(maps.norms) }),
    ...(statistics && {
      statistics: Object.fromEntries(
        Object.entries(statistics).map(([name, values]) => [name, values && values[layer][head]]),
      ),
    }),
    ...(off.length && { heads_off: off }),
    ...(mode === "pair" && pair.answer && { pair: { texts: pair.texts, ...pair.answer } }),
  };
}
