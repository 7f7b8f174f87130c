// What switching heads off does to the embedding: a measurement, unlike attention weights.

import { encodeVectors } from "./api.js";
import { element } from "./dom.js";
import { promptOptions } from "./source.js";
import { inParallel } from "./turns.js";

const MOST_TOKENS = 5;
export const AT_ONCE = 6; // connections that browsers keep to one host; the server batches the requests that wait

/** How heads are measured by a text's embedding; `EffectPanel` shows it. */
export const embeddingEffect = {
  rankTitle: "Without this head the embedding turns by (1 − cos)",
  hint: (which) => `See how far the text's embedding turns without ${which}. A weight alone does not tell.`,
  missing: "",
  isPossible: ({ text }) => Boolean(text),
  rank: rankHeads,
  measure: measureEffect,
  show: showEffect,
};

/** In its place where neither an embedding nor a score can change. */
export const noEffect = {
  missing: "This page measures heads by an embedding or by the score of a pair; this model gives neither.",
  isPossible: () => false,
};

/** Heads as `head_mask` takes them: "3.5" is layer 3, head 5, closed. */
export function headMask(keys) {
  return keys.map((key) => [...key.split(".").map(Number), 0]);
}

/**
 * How far a text's embedding turns without some heads.
 *
 * @returns {{cosine: number, turned: number, tokens: {index: number, turned: number}[]}} `turned` is 1 - cos; `tokens`
 *   those whose last vectors turn the most
 */
async function measureEffect({ text, values }, keys, signal) {
  const [mask, prompt] = [headMask(keys), promptOptions(values)];
  const [[before], [after], tokensBefore, tokensAfter] = await Promise.all([
    encodeVectors(text, { prompt, signal }),
    encodeVectors(text, { prompt, headMask: mask, signal }),
    encodeVectors(text, { prompt, output: "tokens", signal }),
    encodeVectors(text, { prompt, output: "tokens", headMask: mask, signal }),
  ]);
  const tokens = tokensBefore.map((vector, index) => ({ index, turned: turnedBetween(vector, tokensAfter[index]) }));
  tokens.sort((a, b) => b.turned - a.turned);
  const turned = turnedBetween(before, after);
  return { cosine: 1 - turned, turned, tokens: tokens.slice(0, MOST_TOKENS) };
}

/** The effect of each head alone, one after another. `onEffect` hears each. */
async function rankHeads({ text, values }, keys, signal, onEffect) {
  const prompt = promptOptions(values);
  const [whole] = await encodeVectors(text, { prompt, signal });
  await inParallel(keys, AT_ONCE, signal, async (key) => {
    const [without] = await encodeVectors(text, { prompt, headMask: headMask([key]), signal });
    onEffect(key, turnedBetween(whole, without));
  });
}

/** 1 - cos of two vectors of length 1, as half their squared distance: exact where the two are nearly equal. */
export function turnedBetween(a, b) {
  let squares = 0;
  for (let index = 0; index < a.length; index += 1) squares += (a[index] - b[index]) ** 2;
  return squares / 2;
}

/** The result of `measureEffect` in words. */
function showEffect(host, { cosine, turned, tokens }, labels) {
  const most = tokens[0]?.turned || 1;
  const items = tokens.map(({ index, turned: amount }) =>
    bar(element("bdi", { class: "mono", textContent: labels[index] ?? `token ${index}` }), amount, amount / most),
  );
  host.replaceChildren(
    element(
      "p",
      {},
      "Cosine between the embedding with and without: ",
      element("b", { class: "number", textContent: cosine.toFixed(4), data: { effect: turned } }),
      element("span", { class: "quiet", textContent: ` (1 − cos ${formatEffect(turned)})` }),
    ),
    element("p", { class: "quiet small", textContent: "Tokens whose last vectors turn the most (1 − cos):" }),
    element("ol", { class: "bars" }, ...items),
  );
}

/** A list entry with a bar behind its number. */
export function bar(name, value, share) {
  const entry = element("li", {}, name, element("span", { class: "number", textContent: formatEffect(value) }));
  entry.style.setProperty("--share", share);
  return entry;
}

export function formatEffect(value) {
  const size = Math.abs(value);
  return size >= 0.001 || size < 1e-6 ? value.toFixed(4) : value.toFixed(6);
}
