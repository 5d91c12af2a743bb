// The text, coloured by weights: in one colour where the token looks, in another one who looks at it.

import { card, make, write } from "./dom.js";
import { TEXT as TEXTS } from "./texts.js";
import { shadesOf } from "./weights.js";

export function createText(parent, actions) {
  const section = card(parent, "text-card", TEXTS.title);
  const legend = make(section, "p", { class: "quiet legend" });
  const box = make(section, "div", { class: "tokens", role: "group", "aria-label": TEXTS.tokens });
  let labels = null;
  let tokens = [];
  const ends = []; // the last elements of the tokens
  let reachable = 0; // the token that the Tab key reaches

  function build(model) {
    const focused = tokens.indexOf(document.activeElement);
    // While a text grows, its elements stay: one that is replaced would lose a click.
    let same = 0;
    while (same < tokens.length && labels[same] === model.labels[same]) same += 1;
    while (box.lastChild && box.lastChild !== ends[same - 1]) box.lastChild.remove();
    labels = model.labels;
    tokens = labels.map((label, number) => {
      if (number < same) return tokens[number];
      const token = make(box, "span", { role: "button", dir: "auto", tabindex: -1, "data-token": number }, label);
      make(token, "small", {}, "–");
      ends[number] = label.endsWith("⏎") ? make(box, "br") : token;
      return token;
    });
    reach(Math.max(0, Math.min(focused < 0 ? 0 : focused, tokens.length - 1)));
    if (focused >= 0) tokens[reachable].focus({ preventScroll: true });
  }

  function reach(token) {
    tokens[reachable]?.setAttribute("tabindex", "-1");
    reachable = token;
    tokens[token].setAttribute("tabindex", "0");
  }

  const listen = (type, act) => box.addEventListener(type, (event) => {
    const token = event.target.closest("[data-token]");
    if (token) act(Number(token.dataset.token), event);
  });
  listen("pointerover", (token) => actions.point({ token }));
  listen("click", actions.keep);
  listen("focusin", (token) => {
    reach(token);
    if (tokens[token].matches(":focus-visible")) actions.point({ token });
  });
  for (const end of ["pointerleave", "focusout"]) box.addEventListener(end, () => actions.point(null));
  listen("keydown", (token, event) => {
    const steps = { ArrowLeft: token - 1, ArrowRight: token + 1, Home: 0, End: tokens.length - 1 };
    if (event.key === "Enter" || event.key === " ") actions.keep(token);
    else if (event.key in steps) tokens[steps[event.key]]?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation(); // outside the text, the arrow keys move the cursor of the timeline
  });

  return {
    show(model) {
      if (model.labels !== labels) build(model);
      model.losses.forEach((loss, number) => write(tokens[number].querySelector("small"), loss?.toFixed(1) ?? "–"));
    },

    point(pointed, model) {
      const shades = shadesOf(model, pointed);
      const { query, key } = pointed;
      tokens.forEach((token, number) => {
        const { back = "", text = "" } = (number <= query ? shades.looks : shades.looked)[number] ?? {};
        const marked = number === query ? "own" : number === key ? "other" : "";
        token.style.backgroundColor = back;
        token.style.color = text;
        token.className = marked;
        token.setAttribute("aria-pressed", number === model.kept);
      });
      writeLegend(model, query);
    },
  };

  function writeLegend({ scale, comparison, kept }, query) {
    const colours = scale.diverging ? { more: TEXTS.more(comparison.what), less: TEXTS.less }
      : query === undefined ? { looked: TEXTS.share } : { looks: TEXTS.looks, looked: TEXTS.looked };
    legend.replaceChildren();
    for (const [name, text] of Object.entries(colours)) {
      make(legend, "i", { class: `swatch ${name}` });
      legend.append(text);
    }
    make(legend, "span", { class: "hint" }, kept === null ? TEXTS.point : TEXTS.clear);
  }
}
