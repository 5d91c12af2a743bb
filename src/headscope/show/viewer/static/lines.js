// Lines from queries (left) to keys (right). Only the visible rows are drawn.

import { drawText, sizedInCss } from "./canvas.js";
import { card, explain, make } from "./dom.js";
import { LINES as TEXTS } from "./texts.js";
import { at, shadesOf } from "./weights.js";

const MIN_WEIGHT = { all: 0.05, token: 0.005 };
const MAX_HEIGHT = 594;
const NEAR = 6; // pixels between a curve and a click on it
const MAX_SHARE = 0.5; // of the height of the window

export function createLines(parent, actions) {
  const section = card(parent, "lines-card", TEXTS.title);
  const heading = section.querySelector("h3");
  const ends = make(section, "div", { class: "ends quiet" });
  make(ends, "span", {}, TEXTS.query);
  make(ends, "span", {}, TEXTS.key);
  const scroller = make(section, "div", { class: "lines" });
  const canvas = make(scroller, "canvas", { "aria-hidden": "true" });
  const spacer = make(scroller, "div");

  let current = null;
  let pointed = {};
  let row = 20; // height of a token in pixels
  let column = 0; // width of the tokens
  let drawn = []; // the curves, {query, key}

  const listen = (type, act) => scroller.addEventListener(type, ({ clientX, clientY }) => {
    const { left, top } = scroller.getBoundingClientRect();
    const token = Math.floor((clientY - top + scroller.scrollTop) / row);
    if (current && token >= 0 && token < current.tokens) act(token, curveAt(clientX - left, clientY - top));
  });
  listen("pointermove", (token, curve) => actions.point(curve ?? { token }));
  listen("click", (token, curve) => (curve ? actions.why(curve.query, curve.key) : actions.keep(token)));
  scroller.addEventListener("pointerleave", () => actions.point(null));
  scroller.addEventListener("scroll", draw, { passive: true });

  /** The drawn curve {query, key} that is nearest to a point, or null. */
  function curveAt(x, y) {
    const share = (x - column) / (scroller.clientWidth - 2 * column);
    if (share < 0 || share > 1) return null;
    const rise = share * share * (3 - 2 * share); // of the Bézier curves of `drawCurves`
    const distance = ({ query, key }) =>
      Math.abs((query + (key - query) * rise + 0.5) * row - scroller.scrollTop - y);
    const [nearest] = [...drawn].sort((a, b) => distance(a) - distance(b));
    return nearest && distance(nearest) <= NEAR ? nearest : null;
  }

  function layOut() {
    if (!current) return;
    const most = Math.min(MAX_HEIGHT, Math.max(240, MAX_SHARE * innerHeight));
    row = Math.max(16, Math.min(28, Math.floor(most / current.tokens)));
    const height = Math.min(most, row * current.tokens);
    scroller.style.height = `${height}px`;
    spacer.style.height = `${row * current.tokens - height}px`;
    draw();
  }

  function draw() {
    if (!current) return;
    const { theme, tokens, labels } = current;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    const context = sizedInCss(canvas, width, height);
    const top = scroller.scrollTop;
    column = Math.min(170, Math.floor(width * 0.33));
    const first = Math.floor(top / row);
    const last = Math.min(tokens - 1, Math.ceil((top + height) / row));
    drawCurves(context, column, width - column, top, first, last);

    const { query: focus, key } = pointed;
    const { looks, looked } = shadesOf(current, pointed);
    for (let token = first; token <= last; token++) {
      const y = token * row - top;
      const cell = (x, shade, marked, align) => {
        const style = focus === undefined ? null : shade;
        if (style) {
          context.fillStyle = style.back;
          context.fillRect(x, y + 1, column, row - 2);
        }
        if (marked) {
          context.strokeStyle = marked;
          context.lineWidth = 2;
          context.strokeRect(x + 1, y + 2, column - 2, row - 4);
        }
        const look = { colour: style?.text ?? theme.ink, font: "12px", align, room: column - 14 };
        drawText(context, theme, labels[token], align === "right" ? x + column - 7 : x + 7, y + row / 2 + 0.5, look);
      };
      cell(0, looked[token], token === focus ? theme.looks : null, "right");
      cell(width - column, looks[token], token === key ? theme.looked : null, "left");
    }
  }

  function drawCurves(context, left, right, top, first, last) {
    const { values, tokens, theme, scale, reach } = current;
    const { query: focus } = pointed;
    const third = (right - left) / 3;
    drawn = [];
    const middle = (token) => (token + 0.5) * row - top;
    const curve = (query, key, colour, smallest) => {
      const value = values[at(query, key)];
      const size = scale.diverging ? Math.abs(value) / reach : value;
      if (size < smallest) return;
      drawn.push({ query, key });
      context.strokeStyle = scale.diverging ? (value > 0 ? theme.more : theme.less) : colour;
      context.globalAlpha = focus === undefined ? 0.1 + 0.6 * size : 0.15 + 0.85 * Math.sqrt(size);
      context.lineWidth = 0.5 + (focus === undefined ? 2 : 4) * size;
      context.beginPath();
      context.moveTo(left, middle(query));
      context.bezierCurveTo(left + third, middle(query), right - third, middle(key), right, middle(key));
      context.stroke();
    };
    if (focus !== undefined) {
      for (let query = focus + 1; query < tokens; query++) curve(query, focus, theme.looked, MIN_WEIGHT.token);
      for (let key = 0; key <= focus; key++) curve(focus, key, theme.looks, MIN_WEIGHT.token);
    } else {
      for (let query = first; query <= last; query++) {
        for (let key = 0; key <= query; key++) curve(query, key, theme.blue, MIN_WEIGHT.all);
      }
    }
    context.globalAlpha = 1;
  }

  return {
    paint(model) {
      current = model;
      explain(heading, model.scale.diverging ? TEXTS.differences : TEXTS.weights);
      layOut();
    },
    point(what) {
      pointed = what;
      const top = pointed.query * row;
      const isVisible = top >= scroller.scrollTop && top + row <= scroller.scrollTop + scroller.clientHeight;
      if (pointed.query !== undefined && !isVisible && !scroller.matches(":hover")) {
        scroller.scrollTop = top - scroller.clientHeight / 2;
      }
      draw();
    },
    resize: layOut,
  };
}
