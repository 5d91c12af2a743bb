// Selects the model and its kept step, and keeps what is shown.

import { button, explain, fill, labelled, make } from "./viewer/dom.js";
import { COMMON, EXPLORE as TEXTS } from "./viewer/texts.js";

/** The run of a model, or of a kept step such as this@100. */
export const runOf = (name) => name.split("@")[0];

/** The kept steps of the run of a model and its checkpoint, by step. */
export function keptSteps({ name, models }) {
  return models.filter((model) => runOf(model.name) === runOf(name)).sort((a, b) => a.step - b.step);
}

export function createModels(parent, actions) {
  const line = make(parent, "div", { class: "buttons models" });
  const { change } = actions;
  const model = labelled(line, TEXTS.shown, "select", { change: () => change({ model: model.value }) });
  const slider = labelled(line, TEXTS.slider, "input", { type: "range", min: 0, step: 1,
                                                         input: () => change({ model: steps[slider.value] }) });
  const kept = make(line, "span", { class: "buttons keep", role: "group" }, TEXTS.keep);
  for (const [format, text] of Object.entries(TEXTS.formats)) button(kept, text, () => actions.keep(format));
  const title = document.querySelector("h1");
  let steps = []; // the names of the kept steps of the shown run, and of its checkpoint

  return {
    show(main) {
      const { models } = main.about;
      fill(model, { "": models.map((listed) => [listed.name, TEXTS.model(listed)]) }, main.about.name);
      steps = keptSteps(main.about).map(({ name }) => name);
      slider.parentElement.hidden = steps.length < 2;
      slider.max = steps.length - 1;
      slider.value = steps.indexOf(main.about.name);
      slider.setAttribute("aria-valuetext", COMMON.step(main.about.step));
      slider.previousSibling.data = COMMON.step(main.about.step);
      explain(title, TEXTS.about(main.about));
    },
  };
}
