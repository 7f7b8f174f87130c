// The service's answers, and its failures as one kind of error. It knows nothing of the page.

import { NumberMap } from "./maps.js";

const SAFETENSORS = "application/vnd.safetensors";
const RETRIES = 3;
const LONGEST_WAIT_SECONDS = 10;
const INVISIBLE = /[\s\u200b-\u200f\u2060\ufeff]/g; // what a key brings along when it is copied

let key = ""; // in memory only: it is gone with the page
let heard = { onWaiting() {}, onRefusedKey() {} };

/** Sends this API key from now on; false, and nothing changes, if no header can carry it. */
export function useKey(value) {
  const visible = value.replace(INVISIBLE, "");
  if (!/^[\x21-\x7e]+$/.test(visible)) return false;
  key = visible;
  return true;
}

/** Whether requests from this page carry a key: links are followed without one. */
export function hasKey() {
  return Boolean(key);
}

/**
 * @param {{onWaiting: Function, onRefusedKey: Function}} listeners `onWaiting` hears the seconds until a busy service is
 *   asked again, and null once it is; `onRefusedKey` that a key is missing or wrong
 */
export function listen(listeners) {
  heard = listeners;
}

/** What the service answered instead of an answer; `status` is 0 where it could not be reached. */
export class ApiError extends Error {
  constructor({ message, status, param, retryAfter }) {
    super(message);
    Object.assign(this, { status, param, retryAfter });
  }

  /** Whether the service does not know the field or route, or its artifact cannot do it: asking again is no use. */
  get isUnsupported() {
    return [404, 405, 422, 501].includes(this.status);
  }
}

/** What a route answers in JSON: to a body, or without one to GET. */
export async function ask(path, { body, signal } = {}) {
  return (await send(path, { body, signal })).content;
}

/** What `POST /rerank` says of one text: its `score`, what `options` ask for, and whether the pair was `truncated`. */
export async function rankOne(query, document, options, signal) {
  const body = { query, texts: [document], ...options };
  const { content, headers } = await send("rerank", { body, signal });
  return { ...content[0], truncated: headers.has("x-truncated-inputs") };
}

/** The answer of `POST /encode` in safetensors, to be kept as it is. */
export async function encodeBytes(body, signal) {
  return (await send("encode", { body, signal, accept: SAFETENSORS })).content;
}

/**
 * Maps of heads, in the order of the layers that are asked for; one layer with one map where it reduces to that.
 *
 * @param {object} body of `POST /encode`, for one text or pair
 * @returns {{layers: NumberMap[][], labels: string[], offsets: number[][], segments?: (number|null)[]}} `segments` of a
 *   pair: which of its texts each label belongs to, null for special tokens
 */
export async function encodeMaps(body, signal) {
  const { metadata, tensors } = readSafetensors(await encodeBytes(body, signal));
  const entry = JSON.parse(metadata.answer).attention[0];
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
 * @param {object} body of `POST /encode`, for one text
 * @returns {Float32Array[]}
 */
export async function encodeVectors(body, signal) {
  const { tensors } = readSafetensors(await encodeBytes({ ...body, normalize: true }, signal));
  const { shape, values } = tensors.get(body.output === "tokens" ? "embeddings.0" : "embeddings");
  const [count, size] = shape;
  return Array.from({ length: count }, (_, row) => values.subarray(row * size, (row + 1) * size));
}

/**
 * Reads https://github.com/huggingface/safetensors#format: 8 bytes of header length, a JSON header, then the numbers row
 * by row, little-endian, as every machine with a browser holds them; here float16 and float32.
 *
 * @param {ArrayBuffer} buffer
 * @returns {{metadata: Object<string, string>, tensors: Map<string, {shape: number[], values: Float32Array}>}}
 */
export function readSafetensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = new Map();
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(entries)) {
    const bytes = buffer.slice(...offsets.map((offset) => 8 + length + offset)); // a copy may be read as any numbers
    const values = dtype === "F16" ? decodeHalves(new Uint16Array(bytes)) : new Float32Array(bytes);
    tensors.set(name, { shape, values });
  }
  return { metadata, tensors };
}

let halves = null; // every float16 as float32, made at the first use: 256 KiB, and decoding is one look-up a number

function decodeHalves(encoded) {
  halves ??= Float32Array.from({ length: 65536 }, (_, bits) => decodeHalf(bits));
  return new Float32Array(encoded).map((bits) => halves[bits]);
}

/** One IEEE 754 binary16. */
function decodeHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
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
      heard.onWaiting(seconds);
      await pause(seconds, options.signal).finally(() => heard.onWaiting(null));
    }
  }
}

async function sendOnce(path, { body, signal, accept = "application/json" }) {
  const headers = { accept, ...(key && { authorization: `Bearer ${key}` }) };
  const posted = body && { method: "POST", body: JSON.stringify(body) };
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { ...posted, headers, signal });
    if (response.ok) {
      const content = await (accept === SAFETENSORS ? response.arrayBuffer() : response.json());
      return { content, headers: response.headers };
    }
  } catch (error) {
    if (signal?.aborted) throw error; // else there is no answer, none to its end, or it is not the service's
    throw new ApiError({ status: 0, message: "The server cannot be reached." });
  }
  if (response.status === 401) heard.onRefusedKey();
  const failure = await readFailure(response);
  signal?.throwIfAborted();
  throw failure;
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
