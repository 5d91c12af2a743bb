// Light or dark, and the colours of the style sheet for canvases.

const NAMES = [
  ...["card", "rule", "ink", "quiet", "accent", "looks", "looked", "more", "less"],
  ...["blue", "orange", "green", "vermillion", "sky", "purple", "yellow", "grey"],
];

/** Keeps the attribute data-theme of the page current, and calls `changed` after a change. Inside
    TensorBoard, its own switch decides; elsewhere the browser's setting. */
export function watchTheme(changed) {
  const setting = matchMedia("(prefers-color-scheme: dark)");
  const body = outerWindow()?.document.body;
  const apply = () => {
    const theme = (body ? body.classList.contains("dark-mode") : setting.matches) ? "dark" : "light";
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    changed();
  };
  if (body) new MutationObserver(apply).observe(body, { attributeFilter: ["class"] });
  else setting.addEventListener("change", apply);
  apply();
}

/** The window around the frame of this page. Null if there is none, or if it is of another origin. */
export function outerWindow() {
  try {
    return window.parent !== window && window.parent.document ? window.parent : null;
  } catch {
    return null;
  }
}

/** The colours of the style sheet, by name. */
export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const theme = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  theme.series = ["blue", "orange", "green", "vermillion", "sky", "purple", "ink"].map((n) => theme[n]);
  theme.font = getComputedStyle(document.body).fontFamily;
  return theme;
}

const channels = (hexadecimal) => [1, 3, 5].map((i) => parseInt(hexadecimal.slice(i, i + 2), 16));

/** The relative luminance of a colour (WCAG 2), from 0 to 1. */
function luminance([r, g, b]) {
  const linear = (v) => (v <= 10.3 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

/** The channels of a colour between two others: of the first one if `share` is 0, of the second if it is 1. */
export function mixed(first, second, share) {
  const to = channels(second);
  return channels(first).map((low, i) => Math.round(low + share * (to[i] - low)));
}

/** A background between the paper and `colour`, and a text colour that can be read on it. */
export function tint(paper, colour, share) {
  const back = mixed(paper, colour, share);
  return { back: `rgb(${back})`, text: luminance(back) > 0.19 ? "#10151c" : "#ffffff" };
}
