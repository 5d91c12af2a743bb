// The thumbnails of all heads, one row per layer.

import { paint, sizedInCss } from "./canvas.js";
import { card, make, own, set, write } from "./dom.js";
import { NO_NAME, background, scoreText, shortName, titleOf } from "./names.js";
import { WEIGHTS, differenceText, differences, reachOf } from "./scales.js";
import { headName, headsOf } from "./state.js";
import { HEADS as TEXTS } from "./texts.js";

export function createGrid(parent, actions) {
  const section = card(parent, "grid-card", TEXTS.title, TEXTS.click);
  const about = make(section, "p", { class: "quiet" });
  const grid = make(section, "div", { class: "grid", role: "group", "aria-label": TEXTS.title });
  // One canvas for all thumbnails: browsers are slow with hundreds of canvases.
  const canvas = make(grid, "canvas", { "aria-hidden": "true" });
  const atlas = document.createElement("canvas"); // all thumbnails, one pixel per cell
  let heads = 0;
  let cells = []; // {button, place, name, score}, layer by layer
  let opened = null;
  let boxes = []; // [left, top, width] of the thumbnails
  let size = [0, 0]; // of the canvas
  let painted = []; // what the thumbnails show
  let current = null; // the model that is shown
  let narrow = false; // whether names are abbreviated

  function build(layers, headsPerLayer) {
    heads = headsPerLayer;
    grid.replaceChildren(canvas);
    grid.classList.toggle("few", heads <= 4);
    make(grid, "span", { class: "corner" });
    for (let head = 0; head < heads; head++) make(grid, "span", { class: "head" }, `H${head}`);
    cells = headsOf({ layers, heads }).map((number) => {
      if (number % heads === 0) make(grid, "span", { class: "layer" }, `L${number / heads}`);
      const click = ({ shiftKey }) => (shiftKey && number !== opened
        ? actions.change({ compare: `head:${headName(number, heads)}` }) : actions.open(number));
      const button = make(grid, "button", { type: "button", tabindex: -1, "aria-pressed": false, click });
      const place = make(button, "i");
      const name = make(button, "span", { class: "name", dir: "auto" });
      const score = make(button, "span", { class: "score" });
      const change = make(button, "span", { class: "score" });
      return { button, place, name, score, change };
    });
    opened = null;
  }

  grid.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation(); // outside the grid, the arrow keys move the cursor of the timeline
    const next = opened + moves[event.key];
    if (next < 0 || next >= cells.length) return;
    actions.open(next);
    cells[next].button.focus();
  });

  function press(head) {
    if (head === opened) return;
    if (opened !== null) set(cells[opened].button, { tabindex: -1, "aria-pressed": false });
    set(cells[head].button, { tabindex: 0, "aria-pressed": true });
    opened = head;
  }

  const atlasColumns = () => Math.ceil(Math.sqrt(cells.length));

  function measure() {
    narrow = cells.length > 0 && cells[0].button.offsetWidth < 86;
    if (current) label();
    canvas.style.width = canvas.style.height = "0"; // the canvas must not enlarge what is measured
    boxes = cells.map(({ button, place }) =>
      [button.offsetLeft + place.offsetLeft, button.offsetTop + place.offsetTop, place.offsetWidth]);
    size = [grid.scrollWidth, grid.scrollHeight];
  }

  /** Writes the names. Where there is little room, they are abbreviated, and the abbreviations listed. */
  function label() {
    const { step, opened: head, comparison } = current;
    const changes = own(step.metrics, "loss_change");
    const shortened = new Set();
    cells.forEach(({ button, name, score, change }, number) => {
      const written = step.names[number];
      const short = narrow ? shortName(written) : written;
      const text = written === NO_NAME ? "" : short + (step.uncertain[number] ? "?" : "");
      if (text && short !== written) shortened.add(`${short} = ${written}`);
      const without = typeof changes?.[number] === "number" ? differenceText(changes[number]) : "";
      const plain = titleOf(step, number, heads);
      const title = without ? TEXTS.withoutIt(plain, without) : plain;
      const isHeld = step.held[number] && step.names[number] === NO_NAME;
      button.classList.toggle("off", isHeld || current.history.switched.includes(headName(number, heads)));
      button.classList.toggle("other", comparison?.kind === "head" && comparison.opened === number);
      write(change, without);
      write(name, text);
      write(score, scoreText(step, number));
      if (button.title === title) return;
      set(button, { title, "aria-label": title });
      name.style.setProperty("--look", background(written));
    });
    write(about, [
      comparison && comparison.kind !== "head" ? TEXTS.difference(comparison.all ?? comparison.what) : "",
      changes ? TEXTS.signed : "",
      shortened.size > 0 ? `${[...shortened].sort().join(", ")}.` : "",
    ].filter(Boolean).join(" "));
    press(head);
  }

  function draw() {
    if (painted.length === 0) return;
    canvas.style.width = `${size[0]}px`;
    const context = sizedInCss(canvas, ...size);
    context.imageSmoothingEnabled = false;
    const columns = atlasColumns();
    const side = atlas.width / columns;
    boxes.forEach(([x, y, width], number) => {
      context.globalAlpha = cells[number].button.classList.contains("off") ? 0.3 : 1;
      context.drawImage(
        atlas, (number % columns) * side, Math.floor(number / columns) * side, side, side, x, y, width, width);
    });
  }

  return {
    show(model) {
      const { layers, heads: headsPerLayer } = model.history;
      const isNew = headsPerLayer !== heads || layers * heads !== cells.length;
      current = model;
      if (isNew) build(layers, headsPerLayer);
      if (isNew) measure();
      else label();
    },

    paint({ thumbnails, otherThumbnails, view, comparison }) {
      const others = cells.map((_, number) => comparison?.roles?.[number] ?? { head: number });
      const shown = [cells, thumbnails, otherThumbnails, view, others.map(({ head }) => head).join()];
      if (shown.every((value, i) => value === painted[i])) return;
      painted = shown;
      const { side, bytes } = thumbnails;
      const area = side * side;
      const start = view === "shares" ? cells.length * area : 0;
      const values = Float32Array.from({ length: cells.length * area }, (_, at) => {
        const { head, difference = 0 } = others[Math.floor(at / area)];
        if (difference === null) return 0; // no head has the same role
        return (bytes[start + at] - (otherThumbnails?.bytes[start + head * area + (at % area)] ?? 0)) / 255;
      });
      const scale = otherThumbnails ? differences(reachOf(values)) : WEIGHTS;
      const columns = atlasColumns();
      const rows = Math.ceil(cells.length / columns);
      paint(atlas, columns * side, rows * side, (x, y) => {
        const number = Math.floor(y / side) * columns + Math.floor(x / side);
        const [query, key] = [y % side, x % side];
        return key > query || number >= cells.length ? null : values[number * area + query * side + key];
      }, scale);
      draw();
    },

    resize() {
      measure();
      draw();
    },
  };
}
