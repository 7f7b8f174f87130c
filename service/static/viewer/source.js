// Maps of the text that is looked at, as its reader wants them, from the service or from what is kept of it.

import { encodeMaps } from "./api.js";
import { inParallel } from "./asking.js";

const MOST_KEPT_BYTES = 64 * 2 ** 20;
const FLOAT_BYTES = 4; // as the server counts its limit
const ONE_ANSWER_BYTES = 4 * 2 ** 20; // of layers that come together
const REQUESTS_AT_ONCE = 2;

const kept = new Map(); // answers by their request, for going back to them; beyond the bound all are dropped
let keptBytes = 0;

export const NO_PROMPT = "-"; // chosen instead of a prompt's name

/** The part of a request that the chosen prompt stands for; without it the service uses the model's default. */
export function promptOptions({ prompt }) {
  if (!prompt) return {};
  return prompt === NO_PROMPT ? { prompt: "" } : { prompt_name: prompt };
}

/** The part of an attention request that the reader's filters stand for. */
export function attentionOptions({ level, hide, renormalise }, form = "weights") {
  return {
    ...(level === "word" && { level }),
    ...(hide && { exclude_special: true }),
    ...(hide && renormalise && form === "weights" && { renormalise: true }),
    ...(form === "norms" && { form }),
  };
}

/**
 * A body of `POST /encode`, with the reader's prompt and filters.
 *
 * @param {string|[string, string]} text or the two of a pair
 * @param {object} selection which maps: the attention's layers, heads or `reduce`
 */
export function requestFor(text, values, selection, form) {
  const inputs = Array.isArray(text) ? { pairs: [text] } : { inputs: text };
  return { ...inputs, ...promptOptions(values), attention: { ...selection, ...attentionOptions(values, form) } };
}

/** What `POST /encode` is asked for the map that is shown large: of a head, or the rollout. */
export function largeRequest(text, values, form) {
  const { map, layer, head } = values;
  return requestFor(text, values, map === "rollout" ? { reduce: "rollout" } : { layers: [layer], heads: [head] }, form);
}

/** That map at full size and precision. */
export async function loadLargeMap(text, values, form, signal) {
  return load(largeRequest(text, values, form), signal);
}

/** The rollout in half precision, for its small picture. */
export async function loadSmallRollout(text, values, signal) {
  return load({ ...requestFor(text, values, { reduce: "rollout" }), encoding_format: "float16" }, signal);
}

/**
 * Maps of all heads in half precision, for small pictures, the shown layer first.
 *
 * @param {string|[string, string]} text as of `requestFor`
 * @param {{form?: string, numTokens: number, info: object, signal: AbortSignal}} how `info` is what `GET /info` answers
 * @param {(maps: [string, NumberMap][], segments?: (number|null)[]) => void} onMaps hears the maps of each answer with
 *   their heads' names, "layer.head"
 */
export async function loadSmallMaps(text, values, { form, numTokens, info, signal }, onMaps) {
  const parts = planGrid(info.manifest.config.num_heads, values.layer, numTokens, info.limits);
  await inParallel(parts, REQUESTS_AT_ONCE, signal, async ({ layers, heads }) => {
    const body = { ...requestFor(text, values, { layers, heads: heads ?? "all" }, form), encoding_format: "float16" };
    const { layers: maps, segments } = await load(body, signal);
    const named = (layer, at) => maps[at].map((map, head) => [`${layer}.${heads?.[head] ?? head}`, map]);
    onMaps(layers.flatMap(named), segments);
  });
}

/**
 * Requests that fill the grid, the shown layer first. Each runs the whole model: a short text's layers come together, a
 * long one's each on its own, so that they appear as they come; what would be over a limit comes in parts.
 *
 * @param {{max_attention_bytes: number, max_attention_work_bytes: number}} limits of an answer, and of the arrays computed
 *   for it: all heads of its layers
 * @returns {{layers: number[], heads?: number[]}[]} all heads where none are named
 */
export function planGrid(headCounts, firstLayer, numTokens, limits) {
  const { max_attention_bytes: maxBytes, max_attention_work_bytes: maxWork } = limits;
  const layers = headCounts.map((_, layer) => layer).filter((layer) => headCounts[layer] > 0);
  layers.sort((a, b) => Number(b === firstLayer) - Number(a === firstLayer) || a - b);
  const mapBytes = numTokens * numTokens * FLOAT_BYTES;
  const allBytes = headCounts.reduce((sum, count) => sum + count * mapBytes, 0);
  if (allBytes <= Math.min(ONE_ANSWER_BYTES, maxBytes, maxWork)) return [{ layers }];
  const most = Math.max(1, Math.floor(maxBytes / mapBytes));
  return layers.flatMap((layer) => {
    const heads = Array.from({ length: headCounts[layer] }, (_, head) => head);
    const starts = heads.filter((head) => head % most === 0);
    return starts.map((start) => ({ layers: [layer], heads: heads.slice(start, start + most) }));
  });
}

async function load(body, signal) {
  const key = JSON.stringify(body);
  if (kept.has(key)) return kept.get(key);
  const answer = await encodeMaps(body, signal);
  const bytes = answer.layers.flat().reduce((total, map) => total + map.values.byteLength, 2 * key.length);
  if (keptBytes + bytes > MOST_KEPT_BYTES) {
    kept.clear();
    keptBytes = 0;
  }
  kept.set(key, answer);
  keptBytes += bytes;
  return answer;
}
