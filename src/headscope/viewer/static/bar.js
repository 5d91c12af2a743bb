// The controls above all panels: run, text, view, and what to compare with.

import { make } from "./dom.js";
import { stepText } from "./scales.js";
import { headName } from "./state.js";

const VIEWS = { weights: "weights", shares: "without the first token" };
const KINDS = { "": "nothing", step: "another step", run: "another run", head: "another head" };

export function createBar(parent, actions) {
  const bar = make(parent, "div", { class: "bar", role: "group", "aria-label": "What is shown" });
  const field = (text) => {
    const label = make(bar, "label", {}, `${text} `);
    return { label, select: make(label, "select", { "aria-label": text }) };
  };
  const run = field("run");
  const text = field("text");

  const views = make(bar, "fieldset", { class: "views" });
  make(views, "legend", { class: "hidden" }, "view");
  const radios = Object.entries(VIEWS).map(([view, name]) => {
    const label = make(views, "label");
    const radio = make(label, "input", { type: "radio", name: "view", value: view });
    label.append(name);
    radio.addEventListener("change", () => actions.change({ view }));
    return radio;
  });

  const kind = field("compare with");
  const choice = make(kind.label, "select", { "aria-label": "compare with which" });

  run.select.addEventListener("change", () => actions.changeRun(run.select.value));
  text.select.addEventListener("change", () => actions.change({ text: text.select.value }));
  kind.select.addEventListener("change", () => actions.compare(kind.select.value));
  choice.addEventListener("change", () =>
    actions.change({ compare: `${kind.select.value}:${choice.value}` }));

  /** Sets the options [value, text] of a select, only if they changed, and its value. */
  function fill(select, options, value) {
    const written = JSON.stringify(options);
    if (select.dataset.options !== written) {
      select.replaceChildren();
      for (const [each, label] of options) make(select, "option", { value: each }, label);
      select.dataset.options = written;
    }
    select.value = value;
  }

  return {
    /** Shows the choices of run and text, for which the data of a run is not needed. */
    showRuns(runs, state) {
      const chosen = runs.find(({ name }) => name === state.run) ?? runs[0];
      fill(run.select, runs.map(({ name }) => [name, name || "."]), chosen?.name);
      run.label.hidden = runs.length < 2;
      const texts = chosen?.texts ?? [];
      fill(text.select, texts.map((tag) => [tag, tag]), state.text);
      text.label.hidden = texts.length < 2;
      views.hidden = kind.label.hidden = true;
    },

    show({ runs, history, state }) {
      this.showRuns(runs, state);
      views.hidden = false;
      radios.forEach((radio) => { radio.checked = radio.value === state.view; });

      const [compared] = state.compare.split(":", 1);
      const chosen = state.compare.slice(compared.length + 1);
      const options = choicesOf(history, runs, state);
      const kinds = Object.entries(KINDS).filter(([name]) => name === "" || options[name].length > 0);
      kind.label.hidden = kinds.length < 2;
      fill(kind.select, kinds, compared);
      choice.hidden = compared === "";
      fill(choice, options[compared] ?? [], chosen);
    },
  };
}

/** The choices [value, text] of each kind of comparison. */
export function choicesOf(history, runs, state) {
  const heads = Array.from({ length: history.layers * history.heads }, (_, n) => headName(n, history.heads));
  return {
    step: history.steps.length < 2 ? []
      : history.steps.map(({ step }) => [String(step), `step ${stepText(step)}`]),
    run: runs.filter(({ name }) => name !== state.run).map(({ name }) => [name, name || "."]),
    head: heads.filter((name) => name !== state.head).map((name) => [name, name]),
  };
}
