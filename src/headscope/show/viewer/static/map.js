// The attention map of the opened head: one row per query, one column per key. If heads, steps or
// runs are compared, the large map shows the difference, and two small maps show both sides.

import { labelAxis, labelPointed } from "./axes.js";
import { picture, sized } from "./canvas.js";
import { card, make, write } from "./dom.js";
import { WEIGHTS } from "./scales.js";
import { MAP as TEXTS } from "./texts.js";

export function createMap(parent, actions) {
  const section = card(parent, "map-card", TEXTS.title);
  make(section, "p", { class: "quiet" }, TEXTS.about);
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
  let labelled = []; // the labels and the size that the axes show

  function createCanvas(owner) {
    const point = ({ target, clientX, clientY }) => {
      if (!current) return;
      const { top, left, height, width } = target.getBoundingClientRect();
      const cell = (share) => Math.max(0, Math.min(current.tokens - 1, Math.floor(share * current.tokens)));
      actions.point({ query: cell((clientY - top) / height), key: cell((clientX - left) / width) });
    };
    return make(owner, "canvas", {
      role: "img", pointermove: point, pointerdown: point, pointerleave: () => actions.point(null),
      click: () => { if (pointed.query !== undefined) actions.keep(pointed.query); },
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
      if (number === 0 && current.scale.diverging) drawEdge(context, side);
      drawFrames(context, side);
    });
  }

  /** The edge of the past, since a difference of zero may look like the empty future. */
  function drawEdge(context, side) {
    const { tokens, theme } = current;
    const cell = side / tokens;
    context.strokeStyle = theme.quiet;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(0, 0.5);
    for (let token = 0; token < tokens; token++) {
      context.lineTo((token + 1) * cell - 0.5, token * cell + 0.5);
      context.lineTo((token + 1) * cell - 0.5, (token + 1) * cell);
    }
    context.stroke();
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
    pictures = shown.map((each, number) =>
      picture(each, tokens, sideOf(canvases[number]), number === 0 ? scale : WEIGHTS));
    draw();
    const size = main.clientWidth;
    if (labelled[0] === current.labels && labelled[1] === size) return;
    labelled = [current.labels, size];
    for (const axis of [down, across]) labelAxis(axis, current.labels, size);
  }

  return {
    paint(model) {
      current = model;
      const { other, scale, view, what, title, comparison } = model;
      const weights = view === "shares" ? TEXTS.share : TEXTS.weight;
      sides.hidden = !other;
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
      labelPointed(down, current.labels, pointed.query);
      labelPointed(across, current.labels, pointed.key);
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
  let shown = null;
  return (scale, text) => {
    write(caption, text);
    if (scale === shown) return;
    shown = scale;
    bar.style.background = scale.gradient;
    ticks.replaceChildren();
    for (const [label, place] of scale.ticks) make(ticks, "span", {}, label).style.left = `${100 * place}%`;
  };
}
