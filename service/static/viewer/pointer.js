// What is pointed at: a query (row), a key (column), or both. Every drawing of one map shows the same.

const NOTHING = Object.freeze({ row: null, column: null });

export class Pointer {
  #hovered = NOTHING;
  #pinned = NOTHING;
  #listeners = [];

  get place() {
    return this.#hovered === NOTHING ? this.#pinned : this.#hovered;
  }

  hover(row, column) {
    if (row === this.#hovered.row && column === this.#hovered.column) return;
    this.#hovered = row === null && column === null ? NOTHING : { row, column };
    this.#tell();
  }

  leave() {
    this.hover(null, null);
  }

  /** Keeps a place when the pointer leaves; the same place again lets go of it. */
  pin(row, column) {
    const isSame = row === this.#pinned.row && column === this.#pinned.column;
    this.#pinned = isSame ? NOTHING : { row, column };
    this.#tell();
  }

  clear() {
    this.#hovered = this.#pinned = NOTHING;
    this.#tell();
  }

  on(listener) {
    this.#listeners.push(listener);
  }

  #tell() {
    for (const listener of this.#listeners) listener(this.place);
  }
}
