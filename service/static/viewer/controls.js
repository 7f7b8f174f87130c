// What a reader types and chooses, and the address that follows it.

import { byId, element } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { fromHash, toHash } from "./link.js";

const TYPING_PAUSE = 350; // milliseconds without a key before a text is sent
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
  state.on(Object.keys(state.values), () => {
    showChoices(state, controls);
    clearTimeout(timer);
    timer = setTimeout(() => writeLink(state), LINK_PAUSE);
  });
  addEventListener("hashchange", () => state.set(fromHash(location.hash)));
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

/** Texts to begin with, in the list and, while there is no text, as buttons. */
export function bindExamples(state) {
  const take = ({ a, b }) => state.set({ a, b: b ?? "", mode: b ? "pair" : "one", side: "a" });
  const select = byId("example");
  EXAMPLES.forEach((example, value) => {
    select.append(element("option", { value, textContent: example.name }));
    const button = element("button", { type: "button", textContent: example.name });
    button.addEventListener("click", () => take(example));
    byId("examples").append(button);
  });
  select.addEventListener("change", () => {
    take(EXAMPLES[Number(select.value)]);
    select.value = "";
  });
}

/** Makes the address say what is shown. */
export function writeLink({ values }) {
  const hash = toHash(values);
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}
