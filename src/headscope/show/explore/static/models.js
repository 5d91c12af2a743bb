// Selects the model, its kept step, and a second model for comparison.

import { button } from "./controls.js";
import { fill, labelled, make } from "./viewer/dom.js";
import { stepText } from "./viewer/scales.js";
import { COMMON, EXPLORE as TEXTS } from "./viewer/texts.js";

/** The kept steps of the run of a model and its checkpoint, by step. */
export function keptSteps({ name, models }) {
  const runOf = (model) => model.name.split("@")[0];
  const own = models.filter((model) => runOf(model) === runOf({ name }));
  const isFirst = ({ step }, at) => own.findIndex((other) => other.step === step) === at;
  return own.filter(isFirst).sort((a, b) => a.step - b.step);
}

export function createModels(parent, actions) {
  const section = make(parent, "section", { class: "models", "aria-label": TEXTS.models });
  const line = make(section, "div", { class: "buttons" });
  const { change } = actions;
  const model = labelled(line, TEXTS.shown, "select", { change: () => change({ model: model.value }) });
  const slider = labelled(line, TEXTS.slider, "input", { type: "range", min: 0, step: 1,
                                                         input: () => change({ model: steps[slider.value] }) });
  const other = labelled(line, TEXTS.compare, "select", { change: () => change({ other: other.value }) });
  const kept = make(line, "span", { class: "buttons keep", role: "group" }, TEXTS.keep);
  for (const [format, text] of Object.entries(TEXTS.formats)) button(kept, text, () => actions.keep(format));
  const about = make(section, "p", { class: "quiet" });
  let steps = []; // the names of the kept steps of the shown run, and of its checkpoint

  return {
    show(state, main) {
      const { models } = main.about;
      const options = models.map(({ name, title, step }) => [name, TEXTS.model(title, step)]);
      fill(model, { "": options }, main.about.name);
      fill(other, { "": [["", TEXTS.nothing], ...options] }, state.other);
      for (const select of [model, other]) select.parentElement.hidden = models.length < 2;
      const kept = keptSteps(main.about);
      steps = kept.map(({ name }) => name);
      slider.parentElement.hidden = steps.length < 2;
      slider.max = steps.length - 1;
      slider.value = kept.findIndex(({ step }) => step === main.about.step);
      slider.setAttribute("aria-valuetext", COMMON.step(stepText(main.about.step)));
      const { parameters, layers, heads, block_size: block, vocab_size: size, path } = main.about;
      about.textContent = TEXTS.about({ parameters, layers, heads, block, size, path });
    },
  };
}
