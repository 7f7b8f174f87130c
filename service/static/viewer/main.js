// Starts the page: what it can do without the service first, the rest once the service has said what it is.

import { ApiError, getDocument, getInfo, hasKey, useKey } from "./api.js";
import { bindChoices, bindExamples, bindTexts, writeLink } from "./controls.js";
import { byId } from "./dom.js";
import { fromHash } from "./link.js";
import { jsonFile } from "./keep.js";
import { Notices, describeFailure } from "./notices.js";
import { Page } from "./page.js";
import { State } from "./state.js";
import { bindTheme } from "./theme.js";

const state = new State(fromHash(location.hash));
const notices = new Notices(byId("notices"));
let page = null;

bindTheme(byId("theme"), () => page?.redraw());
bindChoices(state);
bindTexts(state);
bindExamples(state);
bindKeyForm();
for (const id of ["info", "report"]) bindLink(byId(id));
writeLink(state);
start();

/** Asks the service what it is, then shows the page's lower half. */
async function start() {
  let info;
  try {
    info = await getInfo();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) byId("key-form").hidden = false;
    notices.show("start", describeFailure(error), { action: { name: "Try again", run: start } });
    return;
  }
  notices.clear("start");
  byId("key-form").hidden = true;
  page = new Page({ state, info, notices });
}

function bindKeyForm() {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(byId("key").value);
    byId("key").value = "";
    byId("key-form").hidden = true;
    notices.clear("load");
    if (page) page.load();
    else start();
  });
}

/** Opens what a link leads to with the key, where there is one: the browser would ask without it. */
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
