// The service's own routes, and its failures as one kind of error. It knows nothing of the page.

import { NumberMap } from "./maps.js";
import { readSafetensors } from "./safetensors.js";

const SAFETENSORS = "application/vnd.safetensors";
const RETRIES = 3;
const LONGEST_WAIT_SECONDS = 10;

const INVISIBLE = /[\s\u200b-\u200f\u2060\ufeff]/g; // what a key brings along when it is copied

let key = ""; // in memory only: it is gone with the page
let onWaiting = () => {};
let onRefusedKey = () => {};

/** Sends this API key from now on; false, and nothing changes, if no header can carry it. */
export function useKey(value) {
  const visible = value.replace(INVISIBLE, "");
  if (!/^[\x21-\x7e]+$/.test(visible)) return false;
  key = visible;
  return true;
}

/** Calls `listener` with the seconds until a busy service is asked again, and with null once it is. */
export function listenForWaiting(listener) {
  onWaiting = listener;
}

/** Calls `listener` if the service refuses a request for want of a key, or for a wrong one. */
export function listenForRefusedKey(listener) {
  onRefusedKey = listener;
}

/** Whether requests from this page carry a key: links are followed without one. */
export function hasKey() {
  return Boolean(key);
}

/** What the service answered instead of an answer; `status` is 0 where it could not be reached. */
export class ApiError extends Error {
  constructor({ status, message, param = null, retryAfter = 0 }) {
    super(message);
    Object.assign(this, { status, param, retryAfter, hadKey: Boolean(key) });
  }

  /** Whether the service does not know the field or route, or its artifact cannot do it: asking again is no use. */
  get isUnsupported() {
    return [404, 405, 422, 501].includes(this.status);
  }
}

/** What a route answers in JSON. */
export async function getDocument(path, signal) {
  return send(path, { signal });
}

/** Tokens of one text: `{tokens, offsets, truncated}`; `prompt` as `promptOptions` gives it. */
export async function tokenize(text, signal, prompt) {
  return (await send("tokenize", { body: { inputs: text, ...prompt }, signal })).items[0];
}

/** Similarity of two texts, both with the prompt, and what carried it. */
export async function explain(a, b, through, signal, prompt) {
  return send("explain", { body: { a, b, through, ...prompt }, signal });
}

/** The same by words, of two texts or of a cross-encoder's pair; `options` more of the request. */
export async function explainWords(a, b, options, signal) {
  return send("explain", { body: { a, b, level: "word", ...options }, signal });
}

/** How well texts fit a query: `{index, score}` each, best first; a cross-encoder's as logits. */
export async function rankTexts(query, texts, signal) {
  return send("rerank", { body: { query, texts, raw_scores: true }, signal });
}

/**
 * What a cross-encoder says of a pair: `{score, attention, truncated}`.
 *
 * @param {object} [attention] as of `POST /encode`; without it the answer has no attention
 * @param {number[][]} headMask `[layer, head, gate]` each; none where empty
 * @param {boolean} isRaw a logit instead of a number from 0 to 1
 */
export async function scorePair(query, document, { attention, headMask = [], isRaw = false, signal } = {}) {
  const wanted = { ...(attention && { attention }), ...(headMask.length && { head_mask: headMask }) };
  const body = { query, texts: [document], raw_scores: isRaw, ...wanted };
  return send("rerank", { body, signal, read: readEntry });
}

/** What a multi-vector model's score of two texts is made of: `{score, matches, truncated}`. */
export async function matchTexts(query, document, signal) {
  return send("rerank", { body: { query, texts: [document], matches: true }, signal, read: readEntry });
}

/** What `POST /rerank` says of one text, and whether the pair was cut. */
async function readEntry(response) {
  const [entry] = await response.json();
  return { ...entry, truncated: response.headers.has("x-truncated-inputs") };
}

/** Entities of a text: `{entity_group, score, start, end}` each, by words. */
export async function findEntities(text, signal) {
  return send("predict", { body: { inputs: text, level: "tokens", aggregation: "first" }, signal });
}

/** What each word of a text adds to the logits of the token at a character: `{labels, logits, contributions, text}`. */
export async function explainLabel(text, at, signal) {
  return send("explain", { body: { a: text, at, through: "network", level: "word" }, signal });
}

/** Statistics of every head: by name [layer][head]. */
export async function encodeStatistics(text, signal, prompt) {
  const body = { inputs: text, ...prompt, attention: { layers: "all", form: "stats" } };
  const answer = await send("encode", { body, signal });
  return answer.attention[0].statistics;
}

/**
 * Maps of heads, in the order of the layers that `attention` asks for; one layer with one map where it reduces to that.
 *
 * @param {string|[string, string]} text or the two texts of a pair
 * @returns {{layers: NumberMap[][], labels: string[], offsets: number[][], segments?: (number|null)[]}} `segments` of a
 *   pair: which of its texts each label belongs to, null for special tokens
 */
export async function encodeMaps(text, attention, { isHalf = false, prompt, signal } = {}) {
  const input = Array.isArray(text) ? { pairs: [text] } : { inputs: text };
  const body = { ...input, ...prompt, attention, encoding_format: isHalf ? "float16" : "float" };
  const { answer, tensors } = await sendForTensors(body, signal);
  const entry = answer.attention[0];
  const whole = tensors.get("attention.0");
  const parts = whole ? [whole] : entry.layers.map((layer) => tensors.get(`attention.0.${layer}`));
  const { offsets, segments } = entry;
  return { layers: parts.flatMap(splitLayers), labels: entry.words ?? entry.tokens, offsets, segments };
}

/** Layers of a tensor [layers, heads, rows, columns], or of one layer [heads, rows, columns], as maps. */
function splitLayers({ shape, values }) {
  const [rows, columns] = shape.slice(-2);
  const heads = shape.at(-3);
  const size = rows * columns;
  return Array.from({ length: shape.length === 4 ? shape[0] : 1 }, (_, layer) =>
    Array.from({ length: heads }, (_, head) => {
      const start = (layer * heads + head) * size;
      return new NumberMap(values.subarray(start, start + size), rows, columns);
    }),
  );
}

/**
 * Vectors of length 1: of the text, or with `output` "tokens" of each token.
 *
 * @param {number[][]} headMask `[layer, head, gate]` each; none where empty
 * @returns {Float32Array[]}
 */
export async function encodeVectors(text, { headMask = [], output = "pooled", prompt, signal } = {}) {
  const body = { inputs: text, ...prompt, output, normalize: true, ...(headMask.length && { head_mask: headMask }) };
  const { tensors } = await sendForTensors(body, signal);
  const { shape, values } = tensors.get(output === "tokens" ? "embeddings.0" : "embeddings");
  const [count, size] = shape;
  return Array.from({ length: count }, (_, row) => values.subarray(row * size, (row + 1) * size));
}

/** The answer of `POST /encode` in safetensors, to be kept as it is. */
export async function encodeBytes(body) {
  return send("encode", { body, accept: SAFETENSORS });
}

async function sendForTensors(body, signal) {
  const { metadata, tensors } = readSafetensors(await send("encode", { body, signal, accept: SAFETENSORS }));
  return { answer: JSON.parse(metadata.answer), tensors };
}

/** The answer to one request, read to its end; a busy service is asked again after the time it names. */
async function send(path, options) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await sendOnce(path, options);
    } catch (error) {
      const isBusy = error instanceof ApiError && (error.status === 429 || error.status === 503);
      if (!isBusy || attempt >= RETRIES || error.retryAfter > LONGEST_WAIT_SECONDS) throw error;
      const seconds = error.retryAfter || 1;
      onWaiting(seconds);
      await pause(seconds, options.signal).finally(() => onWaiting(null));
    }
  }
}

async function sendOnce(path, { body, signal, accept = "application/json", read = (response) => response.json() }) {
  const headers = { accept, ...(body && { "content-type": "application/json" }) };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
    });
    if (response.ok) return await (accept === SAFETENSORS ? response.arrayBuffer() : read(response));
  } catch (error) {
    if (signal?.aborted) throw error; // else there is no answer, none to its end, or it is not the service's
    throw new ApiError({ status: 0, message: "The server cannot be reached." });
  }
  throw await readFailure(response);
}

async function readFailure(response) {
  const retryAfter = Number(response.headers.get("retry-after")) || 0;
  let failure = { message: `The server answered ${response.status}.` };
  try {
    const { error, error_type: kind } = await response.json();
    if (typeof error?.message === "string") failure = error;
    else if (typeof error === "string" && kind) failure = { message: error }; // as POST /rerank writes it
  } catch {
    // something between the page and the service answered; its status is all there is to say
  }
  if (response.status === 401) onRefusedKey();
  return new ApiError({ ...failure, status: response.status, retryAfter });
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
