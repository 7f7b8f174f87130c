// Finds heads by what they do on this text: previous token, special tokens, the same word elsewhere, and so on.

import { byId, element, quiet } from "./dom.js";
import { bar } from "./effect.js";

const LISTED = 6;

/** By name: words for a reader, and the statistic that is largest for such heads. */
const KINDS = {
  previous: { words: "previous token", statistic: "offset_previous" },
  next: { words: "next token", statistic: "offset_next" },
  self: { words: "itself", statistic: "offset_self" },
  special: { words: "special tokens", statistic: "special_mass" },
  repeated: { words: "same word elsewhere", statistic: "repeated_token" },
  punctuation: { words: "punctuation", statistic: "punctuation_mass" },
  broad: { words: "many tokens alike", statistic: "normalized_entropy" },
  focused: { words: "one token", statistic: "confidence" },
  far: { words: "far away", statistic: "distance" },
};

export const FIND_KINDS = Object.keys(KINDS);

export class FindPanel {
  #state;
  #grid;
  #statistics = null;

  constructor(state, grid) {
    this.#state = state;
    this.#grid = grid;
    const buttons = Object.entries(KINDS).map(([name, { words }]) => {
      const button = element("button", { type: "button", textContent: words, data: { find: name } });
      button.addEventListener("click", () => state.set({ find: state.values.find === name ? "" : name }));
      return button;
    });
    byId("find").append(...buttons);
    state.on(["find"], () => this.#draw());
    this.#draw();
  }

  /** @param {?Object<string, number[][]|null>} statistics of the shown text by name [layer][head]; null while unknown */
  show(statistics) {
    this.#statistics = statistics;
    this.#draw();
  }

  #draw() {
    const { find } = this.#state.values;
    for (const button of byId("find").querySelectorAll("button")) {
      const values = this.#statistics?.[KINDS[button.dataset.find].statistic];
      button.setAttribute("aria-pressed", button.dataset.find === find);
      button.disabled = this.#statistics !== null && !values;
    }
    const found = this.#found(find);
    byId("grid").classList.toggle("finding", Boolean(found));
    this.#grid.showEffects(found && new Map(found.map(({ key, share }) => [key, share])));
    byId("found").replaceChildren(...(found ? this.#list(found) : []));
  }

  #found(find) {
    const values = find && this.#statistics?.[KINDS[find].statistic];
    if (!values) return null;
    const most = Math.max(...values.flat()) || 1;
    const heads = values.flatMap((row, layer) =>
      row.map((value, head) => ({ layer, head, key: `${layer}.${head}`, value, share: Math.max(0, value / most) })),
    );
    return heads.sort((a, b) => b.value - a.value);
  }

  #list(found) {
    const items = found.slice(0, LISTED).map(({ layer, head, value, share }) => {
      const name = `layer ${layer}, head ${head}`;
      const button = element("button", { type: "button", class: "plain", textContent: name });
      button.addEventListener("click", () => this.#state.set({ map: "head", layer, head }));
      return bar(button, value, share);
    });
    const unit = { broad: "share of the largest entropy", far: "tokens, mean", focused: "largest weight, mean" };
    return [
      element("ol", { class: "bars" }, ...items),
      quiet(`${unit[this.#state.values.find] ?? "weight, mean over the text"}; on this text`, "p"),
    ];
  }
}
