// Selects the model and its kept step, and keeps what is shown.

import { runOf } from "./session.js";
import { explain } from "./viewer/dom.js";
import { Button, Field, Select, html } from "./viewer/html.js";
import { COMMON, EXPLORE as TEXTS } from "./viewer/texts.js";

/** The kept steps of the run of a model and its checkpoint, by step. */
export function keptSteps({ name, models }) {
  return models.filter((model) => runOf(model.name) === runOf(name)).sort((a, b) => a.step - b.step);
}

export function Models({ session: { page, reading: { value } }, tell, actions }) {
  if (!value) return null;
  const { about } = value.main;
  const steps = keptSteps(about).map(({ name }) => name);
  const choose = (model) => tell("changed", { model });
  const step = about.models.find(({ name }) => name === page.model)?.step ?? about.step;
  explain(document.querySelector("h1"), TEXTS.about(about));
  return html`<div class="buttons models">
    <${Select} label=${TEXTS.shown} groups=${{ "": about.models.map((listed) => [listed.name, TEXTS.model(listed)]) }}
      value=${page.model} choose=${choose} />
    <${Field} label=${TEXTS.slider} text=${COMMON.step(step)} tag="input" type="range" min="0" step="1" hidden=${steps.length < 2}
      max=${steps.length - 1} value=${steps.indexOf(page.model)} aria-valuetext=${COMMON.step(step)}
      onInput=${({ target }) => choose(steps[target.value])} />
    <span class="buttons keep" role="group">${TEXTS.keep}${Object.entries(TEXTS.formats).map(([format, text]) => html`
      <${Button} text=${text} click=${() => actions.keep(format)} />`)}</span></div>`;
}
