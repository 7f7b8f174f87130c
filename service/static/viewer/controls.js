// What a reader types and chooses, and the address that follows it.

import { button, byId, element } from "./dom.js";
import { fromHash, toHash } from "./link.js";
import { NO_PROMPT } from "./source.js";

const TYPING_PAUSE = 350; // milliseconds without a key before a text is sent
const PLACES = ["mode", "map", "layer", "head"]; // a change of these is a step that the browser's Back undoes
const LINK_PAUSE = 150; // milliseconds; Safari refuses more than 100 changes of the address in 30 s

/** Radio buttons, check boxes and the slider: each is named after the value that it changes. */
export function bindChoices(state) {
  const controls = [...document.querySelectorAll("input[name]")];
  for (const control of controls) {
    control.addEventListener("input", () => {
      if (control.type !== "radio" || control.checked) state.set({ [control.name]: read(control) });
    });
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

/** The model's prompts, if it has any; returns whether a choice is one of them. */
export function bindPrompts(state, { prompts, default_prompt_name: byDefault }) {
  const none = { value: byDefault === null ? "" : NO_PROMPT, textContent: "none" };
  const named = Object.entries(prompts).map(([name, text]) => {
    return { value: name === byDefault ? "" : name, textContent: `${name}: “${text.trim()}”` };
  });
  const options = [none, ...named];
  const select = byId("prompt");
  select.replaceChildren(...options.map((option) => element("option", option)));
  select.onchange = () => state.set({ prompt: select.value });
  state.on(["prompt"], () => (select.value = state.values.prompt));
  byId("prompt-field").hidden = !named.length;
  select.value = state.values.prompt;
  return (prompt) => options.some(({ value }) => value === prompt);
}

/** Texts to begin with, in the list and, while there is no text, as buttons. */
export function bindExamples(state, examples, model) {
  const take = (example) => takeExample(state, example, model);
  const select = byId("example");
  examples.forEach((example, value) => {
    select.append(element("option", { value, textContent: example.name }));
    byId("examples").append(button(example.name, () => take(example)));
  });
  select.onchange = () => select.value && take(examples[Number(select.value)]);
  select.onblur = () => (select.value = ""); // not before: arrow keys step through the closed list
}

/** Shows an example, and the head that answers its question if it is known for this model. */
export function takeExample(state, { a, b, places }, model) {
  const place = places?.[model];
  state.set({ a, b: b ?? "", mode: b ? "pair" : "one", side: "a", ...(place && { ...place, map: "head" }) });
}

/** Makes the address say what is shown; the texts stay in this tab's history, which a reload and Back keep. */
export function writeLink({ values }, { isStep = false } = {}) {
  const hash = toHash(values);
  const texts = { a: values.a, b: values.b };
  const address = hash ? `#${hash}` : location.pathname + location.search;
  if (isStep && hash !== location.hash.slice(1)) history.pushState(texts, "", address);
  else history.replaceState(texts, "", address);
}
