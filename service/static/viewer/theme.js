// Light, dark, or as the system has it. Only this choice is kept in the browser.

const STORED = "polyhead-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "Theme: automatic", light: "Theme: light", dark: "Theme: dark" };
const system = matchMedia("(prefers-color-scheme: dark)");

/** "light" or "dark", as it is shown now. */
export function shownTheme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
}

/** Makes a button of the choice; `onChange` is called when what is shown changes. */
export function bindTheme(button, onChange) {
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
  };
  show(stored());
  button.addEventListener("click", () => {
    const theme = NEXT[document.documentElement.dataset.theme];
    show(theme);
    store(theme);
    onChange();
  });
  system.addEventListener("change", onChange);
}

function stored() {
  try {
    const theme = localStorage.getItem(STORED);
    return theme in NEXT ? theme : "auto";
  } catch {
    return "auto"; // storage is switched off
  }
}

function store(theme) {
  try {
    localStorage.setItem(STORED, theme);
  } catch {
    // storage is switched off: the choice lasts as long as the page
  }
}
