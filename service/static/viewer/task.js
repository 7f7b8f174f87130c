// What the page can show of an artifact, by the task that it was exported for.

/**
 * @returns {"embedding"|"scoring"|"matching"|"other"} "scoring": a cross-encoder, one score for each pair of texts;
 *   "matching": a vector for each token
 */
export function kindOf({ manifest }) {
  const { task = "embedding", task_settings: settings } = manifest.config;
  if (task === "embedding") return "embedding";
  if (task === "multi_vector") return "matching";
  const isScoring = task === "classification" && manifest.pairs && settings.labels.length === 1;
  return isScoring ? "scoring" : "other";
}

/** Replaces the view of two texts if the page has none for this model. */
export class NoPairView {
  answer = null;
  drawings = [];
  #notices;
  #words;

  constructor(notices, { manifest }) {
    this.#notices = notices;
    const task = manifest.config.task.replace("_", "-");
    this.#words = `This model's task is ${task}: the page compares no two texts. Each text's own attention is below.`;
  }

  load() {
    this.#notices.show("pair", this.#words, { kind: "note" });
  }

  stop() {
    this.#notices.clear("pair");
  }

  draw() {}
}
