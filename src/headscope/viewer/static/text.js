// The text, coloured by weights: in one colour where the token looks, in another one who looks at it.

import { card, make, write } from "./dom.js";
import { shadesOf } from "./shades.js";
import { texts } from "./texts.js";

const TEXTS = texts.text;

export function createText(parent, actions) {
  const section = card(parent, "text-card", TEXTS.title);
  const legend = make(section, "p", { class: "quiet legend" });
  const box = make(section, "div", { class: "tokens", role: "group", "aria-label": TEXTS.tokens });
  let labels = null;
  let tokens = [];
  const ends = []; // the last element of each token
  let styles = [];
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
      const attributes = { role: "button", dir: "auto", tabindex: -1, "data-token": number };
      const token = make(box, "span", attributes, label);
      make(token, "small");
      ends[number] = label.endsWith("⏎") ? make(box, "br") : token;
      return token;
    });
    styles = labels.map((_, number) => (number < same ? styles[number] : null));
    reach(Math.max(0, Math.min(focused < 0 ? 0 : focused, tokens.length - 1)));
    if (focused >= 0) tokens[reachable].focus({ preventScroll: true });
  }

  function showLosses(losses) {
    losses.forEach((loss, number) => {
      const small = tokens[number].querySelector("small");
      write(small, loss?.toFixed(1) ?? "–");
      if (loss === null) small.removeAttribute("aria-label");
      else small.setAttribute("aria-label", TEXTS.loss(loss.toFixed(2)));
    });
  }

  function reach(token) {
    tokens[reachable]?.setAttribute("tabindex", "-1");
    reachable = token;
    tokens[token].setAttribute("tabindex", "0");
  }

  const numberOf = (event) => {
    const token = event.target.closest("[data-token]");
    return token ? Number(token.dataset.token) : null;
  };
  box.addEventListener("pointerover", (event) => {
    const token = numberOf(event);
    if (token !== null) actions.point({ token });
  });
  box.addEventListener("pointerleave", () => actions.point(null));
  box.addEventListener("click", (event) => {
    const token = numberOf(event);
    if (token !== null) actions.keep(token);
  });
  box.addEventListener("focusin", (event) => {
    const token = numberOf(event);
    reach(token);
    if (tokens[token].matches(":focus-visible")) actions.point({ token });
  });
  box.addEventListener("focusout", () => actions.point(null));
  box.addEventListener("keydown", (event) => {
    const token = numberOf(event);
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
      showLosses(model.losses);
    },

    point(model, pointed) {
      const { looks, looked } = shadesOf(model, pointed);
      const token = pointed?.token ?? pointed?.query;
      for (let number = 0; number < tokens.length; number++) {
        const [list, level] = (number <= (token ?? -1) ? looks : looked)[number] ?? [null, 0];
        const style = level > 0 ? list[level] : null;
        const marked = number === token ? "own" : number === pointed?.key ? "other" : "";
        const kept = number === model.kept;
        if (styles[number]?.style === style && styles[number].marked === marked
            && styles[number].kept === kept) continue;
        styles[number] = { style, marked, kept };
        tokens[number].style.backgroundColor = style?.back ?? "";
        tokens[number].style.color = style?.text ?? "";
        tokens[number].className = marked;
        tokens[number].setAttribute("aria-pressed", kept);
      }
      writeLegend(model, token);
    },
  };

  function writeLegend(model, token) {
    legend.replaceChildren();
    const swatch = (name, text) => {
      make(legend, "i", { class: `swatch ${name}` });
      legend.append(text);
    };
    if (model.scale.diverging) {
      swatch("more", TEXTS.more(model.comparison.what));
      swatch("less", TEXTS.less);
    } else if (token !== undefined) {
      swatch("looks", TEXTS.looks);
      swatch("looked", TEXTS.looked);
    } else {
      swatch("looked", TEXTS.share);
    }
    const hint = model.kept === null ? TEXTS.point : TEXTS.clear;
    make(legend, "span", { class: "hint" }, hint);
  }
}
