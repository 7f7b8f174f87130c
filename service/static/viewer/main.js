// Starts the page: what it can do without the service first, the rest once the service has said what it is.

import { ask, hasKey, listen, useKey } from "./api.js";
import { Notices, Turn, attempt, describeFailure } from "./asking.js";
import { bindChoices, bindExamples, bindTexts, writeLink } from "./controls.js";
import { byId } from "./dom.js";
import { Page } from "./page.js";
import { State, fromHash } from "./state.js";
import { bindTheme } from "./theme.js";

const state = new State({ ...fromHash(location.hash), ...history.state });
const notices = new Notices();
const starting = new Turn();
let page = null;

bindTheme(byId("theme"), () => page?.redraw());
bindChoices(state);
bindTexts(state);
bindKeyForm();
listen({
  onRefusedKey: () => (byId("key-form").hidden = false),
  onWaiting: (seconds) => {
    if (seconds) notices.show("busy", `The server is busy; the page asks again in ${seconds} s.`, { kind: "note" });
    else notices.clear("busy");
  },
});
for (const id of ["info", "report"]) bindLink(byId(id));
const isFirstVisit = !history.state && !state.values.a && !state.values.b;
writeLink(state);
start();

/** Asks the service what it is, then shows the page's lower half. */
async function start() {
  const show = async (signal) => {
    const info = await ask("info", { signal });
    notices.clear("start");
    byId("key-form").hidden = true;
    const showFirst = bindExamples(state, info.manifest);
    if (isFirstVisit && !state.text.trim() && !location.hash) showFirst();
    page = new Page({ state, info, notices });
  };
  const fail = (error) => notices.show("start", describeFailure(error), { action: { name: "Try again", run: start } });
  await attempt(show, fail, starting.begin());
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
    const open = async () => {
      const document = JSON.stringify(await ask(link.getAttribute("href")));
      window.open(URL.createObjectURL(new Blob([document], { type: "application/json" })));
    };
    await attempt(open, (error) => notices.show("link", describeFailure(error)));
  });
}
