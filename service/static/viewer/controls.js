// What a reader types and chooses, and the address that follows it.

import { button, byId, element } from "./dom.js";
import { NO_PROMPT } from "./source.js";
import { fromHash, toHash } from "./state.js";

const TYPING_PAUSE = 350; // milliseconds without a key before a text is sent
const PLACES = ["mode", "map", "layer", "head"]; // a change of these is a step that the browser's Back undoes
const LINK_PAUSE = 150; // milliseconds; Safari refuses more than 100 changes of the address in 30 s

/** Texts to begin with. `places`: by model, the head that answers the example's question best. */
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

/** Radio buttons, check boxes and the slider: each is named after the value that it changes. */
export function bindChoices(state) {
  const controls = [...document.querySelectorAll("input[name]")];
  for (const control of controls) {
    control.addEventListener("input", () => state.set({ [control.name]: read(control) }));
  }
  let timer = 0;
  let isStep = false;
  state.on(Object.keys(state.values), (changed) => {
    showChoices(state, controls);
    isStep ||= PLACES.some((name) => changed.has(name));
    clearTimeout(timer);
    timer = setTimeout(() => {
      writeLink(state, { isStep });
      isStep = false;
    }, LINK_PAUSE);
  });
  addEventListener("popstate", () => state.set({ ...fromHash(location.hash), ...history.state }));
  showChoices(state, controls);
}

function read({ type, value, checked }) {
  if (type === "checkbox") return checked;
  return type === "range" ? Number(value) : value;
}

function showChoices({ values }, controls) {
  for (const control of controls) {
    const value = values[control.name];
    if (control.type === "radio") control.checked = control.value === value;
    else if (control.type === "checkbox") control.checked = value;
    else control.value = value;
  }
  const { mode, hide, threshold } = values;
  byId("box-b").hidden = byId("side").hidden = mode !== "pair";
  byId("label-a").textContent = mode === "pair" ? "First text" : "Text";
  byId("renormalise").hidden = !hide;
  byId("threshold-value").textContent = threshold ? `${threshold} % of the largest` : "0: all are shown";
}

/** The boxes for text. */
export function bindTexts(state) {
  for (const name of ["a", "b"]) bindText(state, name, byId(name));
  state.on(["mode"], () => grow(byId("b")));
}

function bindText(state, name, box) {
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
    clearTimeout(timer);
    box.value = state.values[name];
    grow(box);
  });
}

/** As high as its text, up to what the style sheet allows. */
function grow(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

/** The model's prompts, if it has any. */
export function bindPrompts(state, { prompts, default_prompt_name: byDefault }) {
  const none = element("option", { value: byDefault === null ? "" : NO_PROMPT, textContent: "none" });
  const named = Object.entries(prompts).map(([name, text]) => {
    return element("option", { value: name === byDefault ? "" : name, textContent: `${name}: “${text.trim()}”` });
  });
  const select = byId("prompt");
  select.replaceChildren(none, ...named);
  select.value = state.values.prompt;
  select.onchange = () => state.set({ prompt: select.value });
  state.on(["prompt"], () => (select.value = state.values.prompt));
  byId("prompt-field").hidden = !named.length;
}

/**
 * Texts to begin with, in the list and, while there is no text, as buttons: the model's own if it names any, since it may
 * know no word of others. Returns a function that shows the first of them.
 */
export function bindExamples(state, { model, examples: own }) {
  const examples = own.length ? own.map((a) => ({ name: a, a })) : EXAMPLES;
  const take = ({ a, b, places }) => {
    const place = places?.[model]; // of the head that answers the example's question, if it is known
    state.set({ a, b: b ?? "", mode: b ? "pair" : "one", side: "a", ...(place && { ...place, map: "head" }) });
  };
  const select = byId("example");
  examples.forEach((example, value) => {
    select.append(element("option", { value, textContent: example.name }));
    byId("examples").append(button(example.name, () => take(example)));
  });
  select.onchange = () => select.value && take(examples[Number(select.value)]);
  select.onblur = () => (select.value = ""); // not before: arrow keys step through the closed list
  return () => take(examples[0]);
}

/** Makes the address say what is shown; the texts stay in this tab's history, which a reload and Back keep. */
export function writeLink({ values }, { isStep = false } = {}) {
  const hash = toHash(values);
  const texts = { a: values.a, b: values.b };
  const address = hash ? `#${hash}` : location.pathname + location.search;
  if (isStep && hash !== location.hash.slice(1)) history.pushState(texts, "", address);
  else history.replaceState(texts, "", address);
}
