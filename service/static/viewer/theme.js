// Light, dark, or as the system has it, which is the one choice kept in the browser; and the colours of numbers in both.
// Their lightness (OKLab) falls or rises steadily with the value, so order survives any colour blindness and a print in
// grey; one hue for amounts, blue and orange for signed ones.
// OKLab: Björn Ottosson, https://bottosson.github.io/posts/oklab/

const STORED = "polyhead-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "Theme: automatic", light: "Theme: light", dark: "Theme: dark" };
const system = matchMedia("(prefers-color-scheme: dark)");

const STEPS = 256;
const COLOURS = {
  light: {
    amount: { lightness: [0.995, 0.33], hue: [245, 278], chroma: 0.17 },
    signed: { middle: 0.985, ends: 0.45, chroma: 0.15 },
  },
  dark: {
    amount: { lightness: [0.225, 0.93], hue: [285, 225], chroma: 0.14 },
    signed: { middle: 0.24, ends: 0.82, chroma: 0.13 },
  },
};
const POSITIVE_HUE = 258;
const NEGATIVE_HUE = 55;

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
    stored(theme);
    onChange();
  });
  system.addEventListener("change", onChange);
}

/** The choice, after it is kept if one is given; where storage is switched off it lasts as long as the page. */
function stored(theme) {
  try {
    if (theme) localStorage.setItem(STORED, theme);
    const kept = localStorage.getItem(STORED);
    return kept in NEXT ? kept : "auto";
  } catch {
    return "auto";
  }
}

/** "light" or "dark", as it is shown now. */
function shownTheme() {
  const { theme } = document.documentElement.dataset;
  return theme === "auto" ? (system.matches ? "dark" : "light") : theme;
}

/** The page's colours as they are now. */
export function pageInk() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "quiet", "line", "accent", "card"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Colours of 0 to 1, as RGBA bytes, 256 x 4. */
export function amountPalette(theme = shownTheme()) {
  const { lightness, hue, chroma } = COLOURS[theme].amount;
  return table((t) => [mix(lightness, t), chroma * Math.sin((Math.PI / 2) * Math.min(1, 1.6 * t)), mix(hue, t)]);
}

/** Colours of -1 to 1, as RGBA bytes, 256 x 4; the middle is 0. */
export function signedPalette(theme = shownTheme()) {
  const { middle, ends, chroma } = COLOURS[theme].signed;
  return table((t) => {
    const amount = Math.abs(2 * t - 1);
    return [mix([middle, ends], amount), chroma * amount, t < 0.5 ? NEGATIVE_HUE : POSITIVE_HUE];
  });
}

/** Which of a palette's colours stands for a place from 0 to 1. */
export function paletteIndex(place) {
  return Math.max(0, Math.min(STEPS - 1, Math.round(place * (STEPS - 1))));
}

function table(colour) {
  const bytes = new Uint8ClampedArray(4 * STEPS);
  for (let step = 0; step < STEPS; step += 1) {
    bytes.set([...oklchToRgb(...colour(step / (STEPS - 1))), 255], 4 * step);
  }
  return bytes;
}

function mix([from, to], t) {
  return from + (to - from) * t;
}

function oklchToRgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((linear) => 255 * gamma(Math.max(0, Math.min(1, linear))));
}

function gamma(linear) {
  return linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055;
}
