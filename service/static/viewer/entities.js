// The entities that a model finds in a text, as marks in it: each with its label, and its score on request.

import { ApiError, findEntities } from "./api.js";
import { byId, element, showBusy } from "./dom.js";
import { formatNumber } from "./ink.js";
import { describeFailure } from "./notices.js";
import { Turn } from "./turns.js";

export class EntitiesView {
  #turn = new Turn();

  async load(text) {
    byId("entities").hidden = false;
    const signal = this.#turn.begin();
    showBusy(byId("entities"), true);
    try {
      const found = await findEntities(text, signal);
      byId("entities-text").replaceChildren(...marked(Array.from(text), found));
      byId("entities-note").textContent = found.length ? "" : "The model finds none in this text.";
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      byId("entities-text").replaceChildren();
      byId("entities-note").textContent = describeFailure(error);
    }
    if (!signal.aborted) showBusy(byId("entities"), false);
  }

  stop() {
    this.#turn.end();
    byId("entities").hidden = true;
    showBusy(byId("entities"), false);
  }
}

/** The text, with a mark around each entity; places count characters, of which some are two units in JavaScript. */
function marked(characters, entities) {
  const parts = [];
  let end = 0;
  for (const entity of entities) {
    const start = Math.max(end, entity.start);
    parts.push(characters.slice(end, start).join(""));
    end = Math.max(end, entity.end);
    const title = `${entity.entity_group} ${formatNumber(entity.score)}`;
    const label = element("small", { textContent: entity.entity_group });
    parts.push(element("mark", { title }, element("bdi", { textContent: characters.slice(start, end).join("") }), label));
  }
  return [...parts, characters.slice(end).join("")];
}
