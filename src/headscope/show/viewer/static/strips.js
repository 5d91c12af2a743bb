// The strips of the timeline: the names of each head over the steps.

import { make } from "./dom.js";
import { NO_NAME, background, toneOf } from "./names.js";
import { placesOf } from "./scales.js";
import { headName, headsOf } from "./state.js";
import { HEADS } from "./texts.js";

// Heights in pixels: of all strips, unless they are very many, of one strip, and of the lowest with stripes.
const [MOST, HIGH, STRIPED] = [300, 12, 8];

export function createStrips(parent) {
  const box = make(parent, "div", { class: "strips", "aria-hidden": "true" });
  let listed = null; // the history whose names are shown

  /** One strip per head: its name from each step to the next one, and a line where the head is held. */
  function build({ layers, heads, steps }) {
    box.replaceChildren();
    const height = Math.max(1, Math.min(HIGH, Math.floor(MOST / (layers * heads))));
    box.style.setProperty("--height", `${height}px`);
    box.classList.toggle("low", height < HIGH);
    const places = placesOf(steps);
    const edges = [0, ...places.slice(1).map((place, index) => (places[index] + place) / 2), 100];
    for (const head of headsOf({ layers, heads })) {
      const strip = make(box, "div", { class: head % heads === 0 ? "first" : "", "data-head": head });
      make(strip, "span", {}, height < HIGH ? `L${head / heads}` : headName(head, heads)); // shown of each first head
      for (let from = 0, to; from < steps.length; from = to) {
        const name = steps[from].names[head];
        const held = steps[from].held[head];
        const isSame = (step) => step.names[head] === name && step.held[head] === held;
        for (to = from + 1; to < steps.length && isSame(steps[to]);) to += 1;
        const part = make(strip, "i", { class: held ? "held" : "" });
        const label = held && name === NO_NAME ? HEADS.held : name;
        if (label !== NO_NAME) make(part, "bdi", {}, label);
        part.style.flexGrow = edges[to] - edges[from];
        part.style.setProperty("--look", background(name, height < STRIPED));
        part.style.setProperty("--tone", toneOf(name));
      }
    }
  }

  const label = make(null, "span"); // of the opened head, above that of its strip
  return ({ history, opened }) => {
    if (history !== listed) build(history);
    listed = history;
    box.querySelector(".opened")?.classList.remove("opened");
    box.children[opened].classList.add("opened");
    box.children[opened].append(label);
    label.textContent = headName(opened, history.heads);
  };
}
