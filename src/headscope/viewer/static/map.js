// The attention map of the opened head: one row per query, one column per key. If heads, steps or
// runs are compared, the large map shows the difference, and two small maps show both sides.

import { labelAxis, labelPointed } from "./axes.js";
import { card, make, write } from "./dom.js";
import { picture } from "./picture.js";
import { WEIGHTS } from "./scales.js";
import { texts } from "./texts.js";

const TEXTS = texts.map;

export function createMap(parent, actions) {
  const section = card(parent, "map-card", TEXTS.title);
  make(section, "p", { class: "quiet" }, TEXTS.about);
  const layout = make(section, "div", { class: "map" });
  const down = make(layout, "div", { class: "axis down", "aria-hidden": "true" });
  const main = createCanvas(layout, "large");
  const across = make(layout, "div", { class: "axis across", "aria-hidden": "true" });
  const mainScale = createScale(layout);
  const sides = make(section, "div", { class: "sides" });
  const pair = [0, 1].map(() => {
    const figure = make(sides, "figure");
    const canvas = createCanvas(figure, "small");
    return { canvas, caption: make(figure, "figcaption", { class: "quiet" }) };
  });
  const sideScale = createScale(sides);

  let current = null; // the model that is shown
  let pictures = []; // of the large map and of the two small ones
  let pointed = null;
  let labelled = []; // the labels and the size that the axes show

  function createCanvas(owner, size) {
    const canvas = make(owner, "canvas", { class: size, role: "img" });
    const point = (event) => {
      if (!current) return;
      const box = canvas.getBoundingClientRect();
      const cell = (place, length) =>
        Math.max(0, Math.min(current.tokens - 1, Math.floor((place / length) * current.tokens)));
      actions.point({
        query: cell(event.clientY - box.top, box.height),
        key: cell(event.clientX - box.left, box.width),
      });
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", () => actions.point(null));
    canvas.addEventListener("click", () => {
      if (pointed?.query !== undefined) actions.keep(pointed.query);
    });
    return canvas;
  }

  const sideOf = (canvas) => Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio));

  function drawPictures() {
    const { values, own, other, tokens, scale } = current;
    pictures = [picture(values, tokens, sideOf(main), scale)];
    if (other) {
      pictures.push(picture(own, tokens, sideOf(pair[0].canvas), WEIGHTS));
      pictures.push(picture(other, tokens, sideOf(pair[1].canvas), WEIGHTS));
    }
  }

  function draw() {
    [main, pair[0].canvas, pair[1].canvas].forEach((canvas, number) => {
      const side = sideOf(canvas);
      // Both are compared, because a new canvas has 300 x 150 pixels.
      if (canvas.width !== side || canvas.height !== side) canvas.width = canvas.height = side;
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, side, side);
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
    const query = pointed?.query ?? pointed?.token;
    const key = pointed?.key ?? pointed?.token;
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
    drawPictures();
    draw();
    const size = main.clientWidth;
    if (labelled[0] === current.labels && labelled[1] === size) return;
    labelled = [current.labels, size];
    for (const axis of [down, across]) labelAxis(axis, current.labels, size);
  }

  return {
    paint(model) {
      current = model;
      const { other, scale, view, comparison } = model;
      const weights = view === "shares" ? TEXTS.share : TEXTS.weight;
      sides.hidden = !other;
      if (other) {
        mainScale(scale, TEXTS.difference(model.what, comparison.what));
        sideScale(WEIGHTS, TEXTS.scale(weights));
        write(pair[0].caption, model.what);
        write(pair[1].caption, comparison.what);
        pair.forEach(({ canvas, caption }) =>
          canvas.setAttribute("aria-label", TEXTS.mapOf(caption.textContent)));
      } else mainScale(scale, TEXTS.scale(weights));
      main.setAttribute("aria-label", TEXTS.mapOf(model.title));
      drawAll();
    },
    point(model, what) {
      pointed = what;
      if (!current) return;
      draw();
      labelPointed(down, current.labels, what?.query ?? what?.token);
      labelPointed(across, current.labels, what?.key ?? what?.token);
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
  let shown = "";
  return (scale, text) => {
    write(caption, text);
    const ends = JSON.stringify(scale.ticks);
    if (ends === shown) return;
    shown = ends;
    bar.style.background = scale.gradient;
    ticks.replaceChildren();
    for (const [label, place] of scale.ticks) make(ticks, "span", {}, label).style.left = `${100 * place}%`;
  };
}
