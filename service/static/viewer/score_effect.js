// What switching heads off does to a cross-encoder's score of two texts. The score is a logit here: one near 0 or 1 as
// a number from 0 to 1 would hardly move.

import { scorePair } from "./api.js";
import { AT_ONCE, formatEffect, headMask } from "./effect.js";
import { element } from "./dom.js";
import { inParallel } from "./turns.js";

export const scoreEffect = {
  rankTitle: "Without this head the score (a logit) changes by",
  hint: (which) => `See how the score of the two texts changes without ${which}. A weight alone does not tell.`,
  missing: "Give two texts: the score of a pair is what a head is measured by.",
  isPossible: ({ values: { mode, a, b } }) => mode === "pair" && Boolean(a.trim() && b.trim()),

  async rank({ values: { a, b } }, keys, signal, onEffect) {
    const whole = await score(a, b, [], signal);
    await inParallel(keys, AT_ONCE, signal, async (key) => onEffect(key, (await score(a, b, [key], signal)) - whole));
  },

  async measure({ values: { a, b } }, keys, signal) {
    const [before, after] = await Promise.all([score(a, b, [], signal), score(a, b, keys, signal)]);
    return { before, after };
  },

  show(host, { before, after }) {
    const change = element("b", {
      class: "number",
      textContent: formatEffect(after - before),
      data: { effect: after - before },
    });
    const words = ` (a logit: ${before.toFixed(4)} with, ${after.toFixed(4)} without)`;
    host.replaceChildren(
      element("p", {}, "The score changes by ", change, element("span", { class: "quiet", textContent: words })),
    );
  },
};

async function score(query, document, off, signal) {
  return (await scorePair(query, document, { headMask: headMask(off), isRaw: true, signal })).score;
}
