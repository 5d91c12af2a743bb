// The controls above all panels: run, text, view, and what to compare with.

import { fill, labelled, make, radios } from "./dom.js";
import { headName, headsOf } from "./state.js";
import { BAR as TEXTS, COMMON } from "./texts.js";

/** `others` offers more to compare with, {options, chosen, choose}: `options` changes the groups, `chosen`
    names the chosen one, and `choose` may act on it, and returns whether it did. */
export function createBar(parent, actions, others) {
  const bar = make(parent, "div", { class: "bar", role: "group", "aria-label": TEXTS.group });
  const chooser = (text, change) => labelled(bar, text, "select", { change: ({ target }) => change(target.value) });
  const run = chooser(TEXTS.run, actions.changeRun);
  const text = chooser(TEXTS.text, (chosen) => actions.change({ text: chosen }));
  const views = make(bar, "fieldset", { class: "views", "aria-label": TEXTS.view });
  const showView = radios(views, "view", TEXTS.views, (view) => actions.change({ view }));
  const other = chooser(TEXTS.compare, (compare) => others?.choose(compare) || actions.change({ compare }));

  return {
    /** Shows the runs and texts to choose from, which needs no data of a run. */
    showRuns(runs, state) {
      const chosen = runs.find(({ name }) => name === state.run) ?? runs[0];
      fill(run, { "": runs.map(({ name }) => [name, name || "."]) }, chosen?.name);
      run.parentElement.hidden = runs.length < 2;
      const texts = chosen?.texts ?? [];
      fill(text, { "": texts.map((tag) => [tag, tag]) }, state.text);
      text.parentElement.hidden = texts.length < 2;
      views.hidden = other.parentElement.hidden = true;
    },

    show({ runs, history, state }) {
      this.showRuns(runs, state);
      views.hidden = false;
      showView(state.view);
      const groups = comparisons(history, runs, state);
      const options = others?.options(groups) ?? groups;
      other.parentElement.hidden = Object.values(options).flat().length < 2;
      fill(other, options, others?.chosen(state.compare) ?? state.compare);
    },
  };
}

/** What can be compared, as groups {label: [[value, text]]}. Runs with the same text and sizes come first. */
function comparisons({ layers, heads, steps }, runs, state) {
  const shapeOf = ({ texts, shapes }) => shapes[Math.max(0, texts.indexOf(state.text))];
  const mine = shapeOf(runs.find(({ name }) => name === state.run));
  const others = (same) => runs
    .filter((run) => run.name !== state.run && (mine != null && shapeOf(run) === mine) === same)
    .map(({ name }) => [`run:${name}`, name || "."]);
  return {
    "": [["", TEXTS.nothing]],
    [TEXTS.anotherRun]: others(true),
    [TEXTS.anotherRole]: others(true).map(([value, run]) => [value.replace("run:", "role:"), TEXTS.byRole(run)]),
    [TEXTS.anotherHead]: headsOf({ layers, heads }).map((head) => headName(head, heads))
      .filter((name) => name !== state.head).map((name) => [`head:${name}`, name]),
    [TEXTS.anotherStep]: steps.length < 2 ? [] : steps.map(({ step }) => [`step:${step}`, COMMON.step(step)]),
    [TEXTS.otherShape]: others(false),
  };
}
