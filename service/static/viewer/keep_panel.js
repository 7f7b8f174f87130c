// The buttons that keep something: link, pictures, numbers, the request for them.

import { ApiError, encodeBytes, hasKey } from "./api.js";
import { byId } from "./dom.js";
import { toCsv, toCurl, toPython, toSvg } from "./export.js";
import { copyText, drawPicture, jsonFile, saveFile, toRows } from "./keep.js";
import { ofOneText } from "./maps.js";
import { describeFailure } from "./notices.js";
import { amountPalette } from "./palette.js";
import { NO_PROMPT, attentionOptions, largeAttention, promptOptions } from "./source.js";

const COPIED_FOR = 2000; // milliseconds

/** Binds the buttons to what is shown: whatever is kept is of `explorer.large`, which is of one request. */
export function bindKeep({ state, info, explorer, figure, pair, writeLink }) {
  const shown = (keep) => () => explorer.large && keep(explorer.large);
  const address = new URL("encode", location.href.replace(/#.*/s, "")).href;
  const body = ({ request, maps }) => {
    const attention = largeAttention(request, measureOf(state, maps));
    return { inputs: request.text, ...promptOptions(request), attention };
  };
  byId("copy-link").onclick = () => {
    writeLink(state);
    copy(byId("copy-link"), location.href);
  };
  byId("copy-curl").onclick = shown((large) => copy(byId("copy-curl"), toCurl(address, body(large), hasKey())));
  byId("copy-python").onclick = shown((large) => copy(byId("copy-python"), toPython(address, body(large), hasKey())));
  byId("save-png").onclick = shown(async (large) => {
    const panes = shownPanes(state, figure, pair);
    if (!panes.length) return;
    const blob = await drawPicture(`${info.manifest.model}: ${explorer.title}`, panes, detailsOf(state, large));
    saveFile(`${fileName(large)}.png`, blob);
  });
  byId("save-svg").onclick = shown((large) => {
    const { labels, offsets, maps } = large;
    if (!labels.length) return;
    const special = offsets.map(([start, end]) => start === end);
    const map = chosenMap(state, maps);
    const threshold = (state.values.threshold / 100) * map.largest;
    const model = ofOneText(map, { labels, special, palette: amountPalette("light"), threshold });
    const svg = toSvg(`${info.manifest.model}: ${explorer.title}`, detailsOf(state, large), model);
    saveFile(`${fileName(large)}.svg`, new Blob([svg], { type: "image/svg+xml" }));
  });
  byId("save-csv").onclick = shown((large) => {
    const csv = toCsv(large.labels, chosenMap(state, large.maps));
    saveFile(`${fileName(large)}.csv`, new Blob([csv], { type: "text/csv" }));
  });
  byId("save-json").onclick = shown((large) => {
    saveFile(`${fileName(large)}.json`, jsonFile(collect(state, info, explorer, pair)));
  });
  byId("save-safetensors").onclick = shown((large) => saveAllHeads(large.request));
}

/** Weights of every head, as the service writes them, its answer with the tokens among them. */
async function saveAllHeads(request) {
  const attention = { layers: "all", heads: "all", ...attentionOptions(request, "weights") };
  const button = byId("save-safetensors");
  button.disabled = true;
  try {
    const bytes = await encodeBytes({ inputs: request.text, ...promptOptions(request), attention });
    saveFile("attention-all-heads.safetensors", new Blob([bytes]));
    byId("kept").textContent = "";
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("kept").textContent = describeFailure(error);
  } finally {
    button.disabled = false;
  }
}

async function copy(button, text) {
  const name = button.dataset.name ?? button.textContent;
  if (await copyText(text)) {
    button.dataset.name = name;
    button.textContent = "Copied";
    byId("kept").textContent = `${name}: copied`;
    setTimeout(() => (button.textContent = name), COPIED_FOR);
    return;
  }
  byId("link-field").hidden = false;
  byId("link").value = text;
  byId("link").select();
}

/** A rollout has no norms, nor have those artifacts that cannot compute them. */
function measureOf({ values }, maps) {
  return values.measure === "norms" && maps.norms ? "norms" : "weights";
}

function chosenMap(state, maps) {
  return maps[measureOf(state, maps)];
}

/** What a picture says of itself besides its title. */
function detailsOf(state, { request, maps }) {
  const { level, hide, renormalise, text, prompt } = request;
  const { threshold, off } = state.values;
  const measure = measureOf(state, maps);
  const sums = renormalise && measure === "weights" ? ", rows sum to 1 again" : "";
  const filters = [
    measure,
    level === "word" ? "by words" : "by tokens",
    ...(hide ? [`without special tokens${sums}`] : []),
    ...(prompt ? [prompt === NO_PROMPT ? "no prompt" : `prompt: ${prompt}`] : []),
    ...(threshold ? [`hidden below ${threshold} % of the largest`] : []),
    ...(off.length ? [`heads switched off for the effect: ${off.join(", ")}`] : []),
  ];
  return [`Text: ${text.replaceAll(/\s+/g, " ")}`, filters.join("; ")];
}

function shownPanes(state, figure, pair) {
  const captions = { weights: "Weights", norms: "Norms ‖α f(x)‖" };
  const panes = figure.panes
    .filter(({ host }) => !host.classList.contains("missing"))
    .map(({ drawing, measure }) => ({ drawing, caption: [captions[measure], drawing.shown].filter(Boolean).join(", ") }));
  return state.values.mode === "pair" ? [...panes, ...pair.drawings] : panes;
}

function fileName({ request: { map, layer, head } }) {
  return map === "rollout" ? "attention-rollout" : `attention-layer-${layer}-head-${head}`;
}

/** The present map, with everything needed to read it. */
function collect(state, info, explorer, pair) {
  const { request, labels, offsets, maps } = explorer.large;
  const { map, layer, head, level, hide, renormalise, text } = request;
  const { mode, off } = state.values;
  const statistics = map === "head" && explorer.statistics;
  return {
    model: info.manifest.model,
    source: info.manifest.source,
    precision: info.manifest.precision,
    text,
    ...promptOptions(request),
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
