// Starts the page: what it can do without the service first, the rest once the service has said what it is.

import { ApiError, getDocument, hasKey, listenForRefusedKey, listenForWaiting, useKey } from "./api.js";
import { bindChoices, bindExamples, bindTexts, takeExample, writeLink } from "./controls.js";
import { byId } from "./dom.js";
import { fromHash } from "./link.js";
import { examplesOf } from "./examples.js";
import { jsonFile } from "./keep.js";
import { Notices, describeFailure } from "./notices.js";
import { Page } from "./page.js";
import { State } from "./state.js";
import { bindTheme } from "./theme.js";
import { Turn } from "./turns.js";

const state = new State({ ...fromHash(location.hash), ...history.state });
const notices = new Notices(byId("notices"));
const starting = new Turn();
let page = null;

bindTheme(byId("theme"), () => page?.redraw());
bindChoices(state);
bindTexts(state);
bindKeyForm();
listenForRefusedKey(() => (byId("key-form").hidden = false));
listenForWaiting((seconds) => {
  if (seconds) notices.show("busy", `The server is busy; the page asks again in ${seconds} s.`, { kind: "note" });
  else notices.clear("busy");
});
for (const id of ["info", "report"]) bindLink(byId(id));
const isFirstVisit = !history.state && !state.values.a && !state.values.b;
writeLink(state);
start();

/** Asks the service what it is, then shows the page's lower half. */
async function start() {
  const signal = starting.begin();
  let info;
  try {
    info = await getDocument("info", signal);
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof ApiError)) throw error;
    notices.show("start", describeFailure(error), { action: { name: "Try again", run: start } });
    return;
  }
  notices.clear("start");
  byId("key-form").hidden = true;
  const examples = examplesOf(info);
  bindExamples(state, examples, info.manifest.model);
  if (isFirstVisit && !state.text.trim() && !location.hash) takeExample(state, examples[0], info.manifest.model);
  page = new Page({ state, info, notices });
}

function bindKeyForm() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const isKey = useKey(byId("key").value);
    byId("key").value = "";
    if (!isKey) return notices.show("key", "There are letters that no API key has. Copy the key again.");
    byId("key-form").hidden = true;
    for (const matter of ["key", "load"]) notices.clear(matter);
    if (page) page.load();
    else start();
  });
}

/** Opens a link's target with the key, if there is one: the browser would ask without it. */
function bindLink(link) {
  link.addEventListener("click", async (event) => {
    if (!hasKey()) return;
    event.preventDefault();
    notices.clear("link");
    try {
      window.open(URL.createObjectURL(jsonFile(await getDocument(link.getAttribute("href")))));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      notices.show("link", describeFailure(error));
    }
  });
}
