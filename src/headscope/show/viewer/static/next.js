// What the model predicts after the selected token: the most likely tokens, the logit lens, what each
// head adds, and the probability of the token that follows over the steps.

import { make } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { Rows, Token, draw, html, term } from "./html.js";
import { differenceText, nearest, placesOf, stepText } from "./scales.js";
import { headName } from "./state.js";
import { NEXT as TEXTS } from "./texts.js";

const HEADS = 8; // heads that are listed
const RAISED = 5; // tokens that the opened head raises most
const LIKELY = 0.5;
const LINE = 0.97; // a curve at zero is a line, which can be seen

export function percentText(share) {
  if (Number.isNaN(share)) return TEXTS.notANumber;
  if (share > 0 && share < 0.001) return "<0.1 %";
  if (share > 0.9994 && share < 1) return ">99.9 %";
  return `${(100 * share).toFixed(share < 0.0995 || (share > 0.9945 && share < 1) ? 1 : 0)} %`;
}

export const signed = (value, most) => ({
  note: differenceText(value), share: Math.abs(value) / (Math.abs(most) || 1), sign: value < 0 ? "less" : "more",
});

/** Rows of the heads with the largest absolute values, and of the opened head. */
export function headRows(values, heads, opened, open) {
  const order = [...values.keys()].sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  return order.filter((head, place) => place < HEADS || head === opened).map((head) => ({
    text: headName(head, heads), ...signed(values[head], values[order[0]]), marked: head === opened, click: () => open(head),
  }));
}

export function createNext(parent, actions) {
  const section = make(parent, "section", { class: "card next-card", "aria-label": TEXTS.title });
  let predictions = null; // those that were loaded last

  /** Shows a model. Without its predictions, those that were loaded last stay until they are there. */
  function show(model) {
    section.hidden = !model.step.layout.some(({ name }) => name === "lens");
    if (model.predictions && !model.predictions.problem) ({ predictions } = model);
    if (!section.hidden) draw(section, html`<${Next} ...${{ model, predictions, actions }} />`);
  }

  return { show, paint: show };
}

function Next({ model, predictions, actions }) {
  const { history, kept, labels, comparison, at, name, opened } = model;
  const problem = model.predictions?.problem;
  const following = labels[kept + 1];
  const bold = (text) => html`<${Token} text=${text} />`;
  const hint = problem ?? (kept === null ? TEXTS.click : [
    ...(model.predictions?.follows === false ? TEXTS.predicts(bold(labels[kept]), bold(predictions.next))
      : following === undefined ? TEXTS.ends(bold(labels[kept])) : TEXTS.follows(bold(labels[kept]), bold(following))),
    comparison && TEXTS.notDifference(at)]);
  const { next, follows, likely, lens, pushes, raised } = predictions ?? {};
  const block = (look, about, title, rows, more = "") => html`<div class=${look} hidden=${rows.length === 0}>
    <h4><span ...${term(about)}>${title}</span><span class="quiet">${more}</span></h4><div class="rows"><${Rows} rows=${rows} /></div></div>`;
  const mark = (marked) => (marked && follows ? "✓" : "");
  return html`<h3>${TEXTS.title}</h3><p class="quiet">${hint}</p>
    <div class="blocks" hidden=${kept === null || Boolean(problem)}>
      ${history.steps.length > 1 && following !== undefined && html`<${Steps} ...${{ history, kept, index: model.index, actions }} />`}
      ${predictions && html`${block("likely", TEXTS.about.likely, TEXTS.likely, likely.map(({ text, value, marked }) =>
        ({ before: mark(marked), text, note: percentText(value), share: value, marked })))}
      ${block("lens", GLOSSARY.words["Layer by layer, logit lens"], TEXTS.lens, lens.map(({ text, marked, next: share }, layer) =>
        ({ before: layer + 1 < lens.length ? TEXTS.before(layer) : TEXTS.atEnd, text, note: percentText(share), share, marked })),
        TEXTS.topTokenAnd(next))}
      ${block("heads", GLOSSARY.words["What heads add directly, direct effect"], TEXTS.adds(next),
        headRows(pushes, history.heads, opened, actions.open))}
      ${block("raised", TEXTS.about.raised, TEXTS.raises(name), (raised ?? []).slice(0, RAISED).map(
        ({ text, value, marked }) => ({ before: mark(marked), text, marked, ...signed(value, raised[0].value) })))}`}</div>`;
}

/** The chart over the steps. */
function Steps({ history: { steps }, kept, index, actions }) {
  const values = steps.map(({ next }) => next[kept] ?? null);
  const places = placesOf(steps);
  const known = places.flatMap((place, at) => (values[at] === null ? [] : [[place, values[at]]]));
  const points = known.map(([place, share]) => `${place}% ${100 * Math.min(1 - share, LINE)}%`);
  const curve = `polygon(${known[0]?.[0] ?? 0}% 100%, ${points}, ${known.at(-1)?.[0] ?? 0}% 100%)`;
  const learned = values.findIndex((share) => share >= LIKELY);
  const said = learned < 0 ? TEXTS.below(LIKELY) : TEXTS.first(LIKELY, stepText(steps[learned].step));
  const moveTo = ({ clientX, currentTarget }) => {
    const { left, width } = currentTarget.getBoundingClientRect();
    const step = nearest(places, (100 * (clientX - left)) / width);
    if (step !== index) actions.move(step);
  };
  const grab = (event) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    moveTo(event);
  };
  return html`<div class="steps"><h4><span ...${term(TEXTS.about.steps)}>${TEXTS.steps}</span><span class="quiet">${said}</span></h4>
    <div class="shares" role="img" aria-label=${TEXTS.chart(said)} onPointerDown=${grab}
        onPointerMove=${(event) => event.buttons && moveTo(event)}>
      <div style=${{ clipPath: curve }}></div><i style=${{ left: `${places[index]}%` }}></i>
      ${[1, 0.5, 0].map((share) => html`<span style=${{ top: `${100 * (1 - share)}%` }}>${100 * share} %</span>`)}</div></div>`;
}
