// Texts to begin with. `places`: by model, the head that answers the example's question best.

const EXAMPLES = [
  {
    name: "What does “it” look at?",
    a: "The trophy does not fit into the suitcase because it is too large.",
    places: { "sentence-transformers/all-MiniLM-L6-v2": { layer: 3, head: 1 } },
  },
  { name: "Words in pieces", a: "Antidisestablishmentarianism and tokenisation are unbelievably long words." },
  { name: "A repeated name", a: "Mary gave the book to John, and John gave the pen to Mary." },
  {
    name: "Two texts: a paraphrase",
    a: "A man is playing a guitar on stage.",
    b: "Someone performs music with a guitar.",
  },
  {
    name: "Two texts: a negation",
    a: "The medicine is safe for children.",
    b: "The medicine is not safe for children.",
  },
  { name: "Right to left", a: "القط جلس على الحصيرة لأنها كانت دافئة." },
];

/** The model's own texts if it names any, since it may know no word of others. `info` is what `GET /info` answers. */
export function examplesOf({ manifest }) {
  return manifest.examples.length ? manifest.examples.map((a) => ({ name: a, a })) : EXAMPLES;
}
