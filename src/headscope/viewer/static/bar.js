// The controls above all panels: run, text, view, and what to compare with.

import { make } from "./dom.js";
import { stepText } from "./scales.js";
import { headName } from "./state.js";
import { texts } from "./texts.js";

const TEXTS = texts.bar;

export function createBar(parent, actions) {
  const bar = make(parent, "div", { class: "bar", role: "group", "aria-label": TEXTS.group });
  const field = (text) => {
    const label = make(bar, "label", {}, `${text} `);
    return { label, select: make(label, "select", { "aria-label": text }) };
  };
  const run = field(TEXTS.run);
  const text = field(TEXTS.text);

  const views = make(bar, "fieldset", { class: "views" });
  make(views, "legend", { class: "hidden" }, TEXTS.view);
  const radios = Object.entries(TEXTS.views).map(([view, name]) => {
    const label = make(views, "label");
    const radio = make(label, "input", { type: "radio", name: "view", value: view });
    label.append(name);
    radio.addEventListener("change", () => actions.change({ view }));
    return radio;
  });

  const other = field(TEXTS.compare);

  run.select.addEventListener("change", () => actions.changeRun(run.select.value));
  text.select.addEventListener("change", () => actions.change({ text: text.select.value }));
  other.select.addEventListener("change", () => actions.change({ compare: other.select.value }));

  /** Sets the options of a select, groups {label: [[value, text]]}, only if they changed, and its value. */
  function fill(select, groups, value) {
    const written = JSON.stringify(groups);
    if (select.dataset.options !== written) {
      select.replaceChildren();
      for (const [label, options] of Object.entries(groups)) {
        const group = label && options.length > 0 ? make(select, "optgroup", { label }) : select;
        for (const [each, text] of options) make(group, "option", { value: each }, text);
      }
      select.dataset.options = written;
    }
    select.value = value;
  }

  return {
    /** Shows the choices of run and text, for which the data of a run is not needed. */
    showRuns(runs, state) {
      const chosen = runs.find(({ name }) => name === state.run) ?? runs[0];
      fill(run.select, { "": runs.map(({ name }) => [name, name || "."]) }, chosen?.name);
      run.label.hidden = runs.length < 2;
      const texts = chosen?.texts ?? [];
      fill(text.select, { "": texts.map((tag) => [tag, tag]) }, state.text);
      text.label.hidden = texts.length < 2;
      views.hidden = other.label.hidden = true;
    },

    show({ runs, history, state }) {
      this.showRuns(runs, state);
      views.hidden = false;
      radios.forEach((radio) => { radio.checked = radio.value === state.view; });

      const choices = choicesOf(history, runs, state);
      other.label.hidden = Object.values(choices).flat().length < 2;
      fill(other.select, choices, state.compare);
    },
  };
}

/** What can be compared, as groups {label: [[value, text]]}. Runs with the same text and as many heads
    as the shown one come first. */
function choicesOf({ layers, heads, steps }, runs, state) {
  const shapeOf = ({ texts, shapes }) => shapes[Math.max(0, texts.indexOf(state.text))];
  const mine = shapeOf(runs.find(({ name }) => name === state.run));
  const others = (same) => runs
    .filter((run) => run.name !== state.run && (mine != null && shapeOf(run) === mine) === same)
    .map(({ name }) => [`run:${name}`, name || "."]);
  return {
    "": [["", TEXTS.nothing]],
    [TEXTS.anotherRun]: others(true),
    [TEXTS.anotherHead]: Array.from({ length: layers * heads }, (_, n) => headName(n, heads))
      .filter((name) => name !== state.head).map((name) => [`head:${name}`, name]),
    [TEXTS.anotherStep]: steps.length < 2 ? []
      : steps.map(({ step }) => [`step:${step}`, texts.step(stepText(step))]),
    [TEXTS.otherShape]: others(false),
  };
}
