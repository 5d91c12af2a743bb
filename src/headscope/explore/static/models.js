// Selects the model, its kept step, and a second model for comparison.

import { make } from "./viewer/dom.js";
import { button } from "./editor.js";
import { stepText } from "./viewer/scales.js";
import { texts } from "./viewer/texts.js";

const TEXTS = texts.explore;

export function createModels(parent, actions) {
  const section = make(parent, "section", { class: "models", "aria-label": TEXTS.models });
  const line = make(section, "div", { class: "buttons" });
  const field = (label, tag, attributes) => {
    const box = make(line, "label", {}, `${label} `);
    return { box, field: make(box, tag, { "aria-label": label, ...attributes }) };
  };
  const model = field(TEXTS.shown, "select");
  const slider = field(TEXTS.slider, "input", { type: "range", min: 0, step: 1 });
  const other = field(TEXTS.compare, "select");
  const kept = make(line, "span", { class: "buttons keep", role: "group" }, TEXTS.keep);
  for (const [format, text] of Object.entries(TEXTS.formats)) button(kept, text, () => actions.keep(format));
  const about = make(section, "p", { class: "quiet" });
  let steps = []; // the names of the kept steps of the shown run, and of its checkpoint
  let filled = "";

  model.field.addEventListener("change", () => actions.change({ model: model.field.value }));
  other.field.addEventListener("change", () => actions.change({ other: other.field.value }));
  slider.field.addEventListener("input", () => actions.change({ model: steps[slider.field.value] }));

  const nameOf = ({ title, step }) => TEXTS.model(title, step);

  return {
    show(state, main) {
      const { models } = main.about;
      if (JSON.stringify(models) !== filled) {
        filled = JSON.stringify(models);
        for (const { field: select } of [model, other]) select.replaceChildren();
        make(other.field, "option", { value: "" }, TEXTS.nothing);
        for (const each of models) {
          make(model.field, "option", { value: each.name }, nameOf(each));
          make(other.field, "option", { value: each.name }, nameOf(each));
        }
      }
      model.field.value = main.about.name;
      other.field.value = state.other;
      model.box.hidden = other.box.hidden = models.length < 2;
      const run = main.about.name.split("@")[0];
      const own = models.filter(({ name }) => name.split("@")[0] === run);
      const isFirst = ({ step }, at) => own.findIndex((each) => each.step === step) === at;
      steps = own.filter(isFirst).sort((a, b) => a.step - b.step).map(({ name }) => name);
      slider.box.hidden = steps.length < 2;
      slider.field.max = steps.length - 1;
      slider.field.value = steps.findIndex((name) =>
        own.find((each) => each.name === name).step === main.about.step);
      slider.field.setAttribute("aria-valuetext", TEXTS.step(stepText(main.about.step)));
      const { parameters, layers, heads, block_size: block, vocab_size: size, path } = main.about;
      about.textContent = TEXTS.about({ parameters, layers, heads, block, size, path });
    },
  };
}
