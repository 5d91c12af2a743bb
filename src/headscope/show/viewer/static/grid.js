// The thumbnails of all heads, one row per layer.

import { paint } from "./canvas.js";
import { card, make, own, set, write } from "./dom.js";
import { NO_NAME, background, scoreText, shortName, titleOf } from "./names.js";
import { WEIGHTS, differenceText, differences, reachOf } from "./scales.js";
import { headName, headsOf } from "./state.js";
import { HEADS as TEXTS } from "./texts.js";

export function createGrid(parent, actions) {
  const section = card(parent, "grid-card", TEXTS.title, TEXTS.click);
  const about = make(section, "p", { class: "quiet" });
  const grid = make(section, "div", { class: "grid", role: "group", "aria-label": TEXTS.title });
  let cells = []; // {button, map, name, score, change}, layer by layer
  let painted = []; // what the thumbnails show
  let current = null; // the model that is shown
  let narrow = false; // whether names are abbreviated

  function build({ layers, heads }) {
    grid.replaceChildren();
    grid.classList.toggle("few", heads <= 4);
    make(grid, "span", { class: "corner" });
    for (let head = 0; head < heads; head++) make(grid, "span", { class: "head" }, `H${head}`);
    cells = headsOf({ layers, heads }).map((number) => {
      if (number % heads === 0) make(grid, "span", { class: "layer" }, `L${number / heads}`);
      const click = ({ shiftKey }) => (shiftKey && number !== current.opened
        ? actions.change({ compare: `head:${headName(number, heads)}` }) : actions.open(number));
      const button = make(grid, "button", { type: "button", click });
      const map = make(button, "canvas", { "aria-hidden": "true" });
      const name = make(button, "span", { class: "name", dir: "auto" });
      const score = make(button, "span", { class: "score" });
      const change = make(button, "span", { class: "score" });
      return { button, map, name, score, change };
    });
  }

  grid.addEventListener("keydown", (event) => {
    const { opened, history: { heads } } = current;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation(); // outside the grid, the arrow keys move the cursor of the timeline
    const next = opened + moves[event.key];
    if (next < 0 || next >= cells.length) return;
    actions.open(next);
    cells[next].button.focus();
  });

  /** Writes the names. Where there is little room, they are abbreviated, and the abbreviations listed. */
  function label() {
    const { step, opened, comparison, history: { heads, switched } } = current;
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
      button.classList.toggle("off", isHeld || switched.includes(headName(number, heads)));
      button.classList.toggle("other", comparison?.kind === "head" && comparison.opened === number);
      set(button, { tabindex: number === opened ? 0 : -1, "aria-pressed": number === opened });
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
  }

  function resize() {
    if (!current) return;
    narrow = cells[0].button.offsetWidth < 86;
    label();
  }

  return {
    show(model) {
      const { layers, heads } = model.history;
      const isNew = layers !== current?.history.layers || heads !== current.history.heads;
      current = model;
      if (isNew) build(model.history);
      if (isNew) resize();
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
      cells.forEach(({ map }, number) => {
        const weight = (key, query) => (key > query ? null : values[number * area + query * side + key]);
        paint(map, side, side, weight, scale);
      });
    },
    resize,
  };
}
