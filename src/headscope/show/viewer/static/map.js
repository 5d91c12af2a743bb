// The attention map of the opened head: one row per query, one column per key, and the tokens on its
// axes. In a comparison, the large map shows the difference, and two small maps both sides.

import { picture, sized } from "./canvas.js";
import { button, card, make, write } from "./dom.js";
import { WEIGHTS } from "./scales.js";
import { COMMON, MAP as TEXTS } from "./texts.js";

const UPRIGHT =
  /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Emoji_Presentation}\u3000-\u303f\uff00-\uff60]/u;
const ROTATED = /^[\p{Ps}\p{Pe}\p{Pd}ー]/u;
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

export function createMap(parent, actions) {
  const section = card(parent, "map-card", TEXTS.title, TEXTS.about);
  button(section, COMMON.why, () => actions.why());
  const layout = make(section, "div", { class: "map" });
  const down = make(layout, "div", { class: "axis down", "aria-hidden": "true" });
  const main = createCanvas(layout);
  const across = make(layout, "div", { class: "axis across", "aria-hidden": "true" });
  const mainScale = createScale(layout);
  const sides = make(section, "div", { class: "sides" });
  const figures = [make(sides, "figure"), make(sides, "figure")];
  const canvases = [main, ...figures.map(createCanvas)];
  const captions = figures.map((figure) => make(figure, "figcaption", { class: "quiet" }));
  const sideScale = createScale(sides);

  let current = null; // the model that is shown
  let pictures = []; // of the large map and of the two small ones
  let pointed = {};

  function createCanvas(owner) {
    const point = ({ target, clientX, clientY }) => {
      if (!current) return;
      const { top, left, height, width } = target.getBoundingClientRect();
      const cell = (share) => Math.max(0, Math.min(current.tokens - 1, Math.floor(share * current.tokens)));
      actions.point({ query: cell((clientY - top) / height), key: cell((clientX - left) / width) });
    };
    return make(owner, "canvas", {
      role: "img", pointermove: point, pointerdown: point, pointerleave: () => actions.point(null),
      click: () => { if (pointed.query >= pointed.key) actions.why(pointed.query, pointed.key); },
    });
  }

  const sideOf = (canvas) => Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));

  function draw() {
    canvases.forEach((canvas, number) => {
      const side = sideOf(canvas);
      const context = sized(canvas, side, side);
      if (!pictures[number]) return;
      context.imageSmoothingEnabled = false;
      context.drawImage(pictures[number], 0, 0, side, side);
      drawFrames(context, side);
    });
  }

  /** Frames around the row of the query and the column of the key, which make small cells visible. */
  function drawFrames(context, side) {
    const { tokens, theme } = current;
    const { query, key } = pointed;
    if (query === undefined) return;
    const cell = side / tokens;
    const line = Math.max(1, Math.min(1.5 * devicePixelRatio, cell / 2));
    context.lineWidth = line;
    const frame = (colour, x, y, width, height) => {
      context.strokeStyle = colour;
      context.strokeRect(x - line / 2, y - line / 2, width + line, height + line);
    };
    frame(theme.looks, 0, query * cell, (query + 1) * cell, cell);
    frame(theme.looked, key * cell, key * cell, cell, side - key * cell);
  }

  function drawAll() {
    if (!current) return;
    const { values, own, other, tokens, scale } = current;
    const shown = other ? [values, own, other] : [values];
    pictures = shown.map((triangle, number) =>
      picture(triangle, tokens, sideOf(canvases[number]), number === 0 ? scale : WEIGHTS));
    draw();
    for (const axis of [down, across]) labelAxis(axis, current.labels, main.clientWidth);
    mark();
  }

  /** Marks the labels of the query and the key. */
  function mark() {
    labelPointed(down, current.labels, pointed.query);
    labelPointed(across, current.labels, pointed.key);
  }

  return {
    paint(model) {
      current = model;
      const { other, scale, view, what, title, comparison } = model;
      const weights = view === "shares" ? TEXTS.share : TEXTS.weight;
      sides.hidden = !other;
      main.classList.toggle("difference", scale.diverging);
      if (other) {
        mainScale(scale, TEXTS.difference(what, comparison.what));
        sideScale(WEIGHTS, TEXTS.scale(weights));
        captions.forEach((caption, side) => write(caption, [what, comparison.what][side]));
      } else mainScale(scale, TEXTS.scale(weights));
      const shown = other ? [title, what, comparison.what] : [title];
      shown.forEach((name, number) => canvases[number].setAttribute("aria-label", TEXTS.mapOf(name)));
      drawAll();
    },
    point(what) {
      pointed = what;
      if (!current) return;
      draw();
      mark();
    },
    resize: drawAll,
  };
}

/** A colour scale with ticks. Returns a function that shows another scale. */
function createScale(parent) {
  const box = make(parent, "div", { class: "scale" });
  const bar = make(box, "div", { class: "gradient" });
  const ticks = make(box, "div", { class: "ticks" });
  const caption = make(box, "p", { class: "quiet" });
  return (scale, text) => {
    write(caption, text);
    bar.style.background = scale.gradient;
    ticks.replaceChildren();
    for (const [label, place] of scale.ticks) make(ticks, "span", {}, label).style.left = `${100 * place}%`;
  };
}

// ---- The tokens on the axes --------------------------------------------------------------------

/** Splits a label that is written downwards into runs [text, upright]. An upright run is a single
    wide character, such as a Chinese one. Other runs are rotated (Unicode Standard Annex 50). */
function runsDown(label) {
  const runs = [];
  for (const { segment } of segmenter.segment(label)) {
    const upright = UPRIGHT.test(segment) && !ROTATED.test(segment);
    if (!upright && runs.length && !runs.at(-1)[1]) runs.at(-1)[0] += segment;
    else runs.push([segment, upright]);
  }
  return runs;
}

/** Writes the label of a token on an axis. On the axis `across`, each run of the label is an element:
    with a vertical writing mode for the whole label, the characters of some fonts overlap in Chromium. */
function writeLabel(axis, labels, token, look = "") {
  const isDown = axis.classList.contains("down");
  const label = make(axis, "span", { class: look, dir: "auto" }, isDown ? labels[token] : "");
  label.style[isDown ? "top" : "left"] = `${(100 * (token + 0.5)) / labels.length}%`;
  for (const [text, upright] of isDown ? [] : runsDown(labels[token])) {
    make(label, "div", { class: upright ? "" : "turned", dir: "auto" }, text);
  }
}

/** Labels an axis of `size` pixels with as many tokens as have room without overlap. */
function labelAxis(axis, labels, size) {
  const every = Math.ceil((13 * labels.length) / Math.max(1, size));
  axis.replaceChildren();
  for (let token = 0; token < labels.length; token += every) writeLabel(axis, labels, token);
}

/** Labels the token at the pointer, and hides the labels that it would cover. If it is undefined, shows all. */
function labelPointed(axis, labels, token) {
  axis.querySelector(".here")?.remove();
  const side = axis.classList.contains("down") ? "top" : "left";
  const pixels = axis[side === "top" ? "clientHeight" : "clientWidth"];
  for (const { style } of axis.children) {
    const apart = Math.abs(parseFloat(style[side]) / 100 - (token + 0.5) / labels.length) * pixels;
    style.visibility = apart < 13 ? "hidden" : ""; // NaN, if no token is pointed at, is not below 13
  }
  if (token !== undefined) writeLabel(axis, labels, token, "here");
}
