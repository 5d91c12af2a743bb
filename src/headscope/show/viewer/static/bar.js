// The controls above all panels: run, text, view, and what to compare with.

import { make } from "./dom.js";
import { Radios, Select, draw, html } from "./html.js";
import { headName, headsOf } from "./state.js";
import { BAR as TEXTS, COMMON } from "./texts.js";

/** `others` offers more to compare with, {options, chosen, choose}: `options` changes the groups, `chosen`
    names the chosen one, and `choose` may act on it, and returns whether it did. */
export function createBar(parent, actions, others) {
  let options = {}; // to compare with, those that were shown last
  const bar = make(parent, "div", { class: "bar", role: "group", "aria-label": TEXTS.group });

  /** Shows what to choose from. Without a `history`, only the runs and texts, which need no data of a run. */
  function show(runs, state, history) {
    const chosen = runs.find(({ name }) => name === state.run) ?? runs[0];
    const texts = chosen?.texts ?? [];
    if (history) {
      const groups = comparisons(history, runs, state);
      options = others?.options(groups) ?? groups;
    }
    draw(bar, html`
      <${Select} label=${TEXTS.run} groups=${{ "": runs.map(({ name }) => [name, name || "."]) }} value=${chosen?.name}
        hidden=${runs.length < 2} choose=${actions.changeRun} />
      <${Select} label=${TEXTS.text} groups=${{ "": texts.map((tag) => [tag, tag]) }} value=${state.text}
        hidden=${texts.length < 2} choose=${(text) => actions.change({ text })} />
      <fieldset class="views" aria-label=${TEXTS.view} hidden=${!history}><${Radios} name="view" options=${TEXTS.views}
        value=${state.view} choose=${(view) => actions.change({ view })} /></fieldset>
      <${Select} label=${TEXTS.compare} groups=${options} value=${others?.chosen(state.compare) ?? state.compare}
        hidden=${!history || Object.values(options).flat().length < 2}
        choose=${(compare) => others?.choose(compare) || actions.change({ compare })} />`);
  }

  return { showRuns: (runs, state) => show(runs, state), show: ({ runs, history, state }) => show(runs, state, history) };
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
