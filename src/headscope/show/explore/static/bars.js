// The most likely next tokens, as bars: their probabilities, before and after temperature, top-k and
// top-p. When heads are switched or another model is compared, a third bar shows the other probability.

import { Card, Share, html, term } from "./viewer/html.js";
import { percentText } from "./viewer/next.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

const LISTED = 5; // tokens of a model with another vocabulary

export function Bars({ session: { reading: { value }, page }, tell, actions }) {
  if (!value) return null;
  const { main, main: { answer }, reference } = value;
  const comparable = reference?.about.vocabulary === main.about.vocabulary;
  const otherModel = reference?.about.name !== main.about.name;
  const others = new Map((reference?.answer.next ?? []).map(({ id, probability }) => [id, probability]));
  const listed = [...answer.next].sort((a, b) => b.probability - a.probability);
  const most = (comparable ? [] : reference?.answer.next ?? []).slice(0, LISTED)
    .map(({ label, probability }) => `“${label}” ${percentText(probability)}`);

  const row = ({ id, label, probability, sampled }) => {
    const other = others.get(id);
    const second = comparable ? (other === undefined ? "" : (otherModel ? TEXTS.elsewhere : TEXTS.before)(percentText(other)))
      : sampled === 0 ? TEXTS.cutAway : TEXTS.sampled(percentText(sampled));
    return html`<div key=${id} class="bar-row ${sampled === 0 ? "cut" : ""}">
      <button type="button" class="pick token-name" dir="auto" title=${TEXTS.pick(label)}
        onClick=${() => actions.pick(id, answer)}>${label}</button>
      <span class="pair">${comparable && html`<${Share} look="reference" share=${other} />`}
        <${Share} look="probability" share=${probability} /><${Share} look="sampled" share=${sampled} /></span>
      <span class="note">${percentText(probability)}</span><span class="note quiet">${second}</span>
      <button type="button" class="ask" aria-pressed=${id === answer.target.id} aria-label=${TEXTS.ask(label)}
        ...${term(TEXTS.aboutAsk)} onClick=${() => tell("changed", { target: page.target === id ? null : id })}>?</button></div>`;
  };

  return html`<${Card} name="bars-card" label=${TEXTS.next} about=${TEXTS.aboutBars}
      title=${TEXTS.nextAfter(answer.history.labels[answer.position])}>
    <div class="bars" role="group" aria-label=${TEXTS.next}>${listed.map(row)}</div>
    <p class="quiet">${TEXTS.removed(percentText(answer.removed))}${comparable && ` ${TEXTS.grey(reference.name)}`}</p>
    <p class="quiet">${most.length > 0 && TEXTS.otherTokens(reference.name, most.join(", "))}</p>
  <//>`;
}
