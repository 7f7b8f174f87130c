// Maps of the text that is looked at, as its reader wants them, from the service or from what is kept of it.

import { encodeMaps } from "./api.js";
import { BoundedCache } from "./cache.js";

const CACHE_BYTES = 64 * 2 ** 20;
const FLOAT_BYTES = 4;

const cache = new BoundedCache(CACHE_BYTES);

/** The part of an attention request that the reader's filters stand for. */
export function attentionOptions({ level, hide, renormalise }, form) {
  return {
    ...(level === "word" && { level }),
    ...(hide && { exclude_special: true }),
    ...(hide && renormalise && form === "weights" && { renormalise: true }),
    ...(form === "norms" && { form }),
  };
}

/** One map at full size and precision: of a head, or the rollout. */
export async function loadLargeMap(text, values, form, signal) {
  const selection =
    values.map === "rollout" ? { reduce: "rollout" } : { layers: [values.layer], heads: [values.head] };
  return load(text, { ...selection, ...attentionOptions(values, form) }, { signal });
}

/** Maps of some heads of a layer in half precision, for small pictures. */
export async function loadSmallMaps(text, values, form, { layer, heads, signal }) {
  const request = { layers: [layer], heads, ...attentionOptions(values, form) };
  return load(text, request, { isHalf: true, signal });
}

/** The rollout in half precision, for its small picture. */
export async function loadSmallRollout(text, values, signal) {
  return load(text, { reduce: "rollout", ...attentionOptions(values, "weights") }, { isHalf: true, signal });
}

/** Requests that fill the grid: whole layers, or parts of them where a layer's answer would be over the limit. */
export function planGrid(headCounts, firstLayer, numTokens, maxBytes) {
  const most = Math.max(1, Math.floor(maxBytes / (numTokens * numTokens * FLOAT_BYTES)));
  const layers = headCounts.map((_, layer) => layer);
  layers.sort((a, b) => Number(b === firstLayer) - Number(a === firstLayer) || a - b);
  return layers.flatMap((layer) => {
    const heads = Array.from({ length: headCounts[layer] }, (_, head) => head);
    const parts = [];
    for (let start = 0; start < heads.length; start += most) parts.push({ layer, heads: heads.slice(start, start + most) });
    return parts;
  });
}

async function load(text, attention, { isHalf = false, signal }) {
  const key = JSON.stringify([text, attention, isHalf]);
  const kept = cache.get(key);
  if (kept) return kept;
  const answer = await encodeMaps(text, attention, { isHalf, signal });
  cache.set(key, answer, answer.maps.reduce((bytes, map) => bytes + map.bytes, 2 * key.length));
  return answer;
}
