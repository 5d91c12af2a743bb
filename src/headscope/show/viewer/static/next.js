// What the model predicts after the selected token: the most likely tokens, the logit lens, what each
// head adds, and the probability of the token that follows over the steps.

import { card, explain, make, set } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { Rows, draw, html } from "./html.js";
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

/** Shows rows (see `Rows`) in an element. */
export const list = (element, rows) => draw(element, html`<${Rows} rows=${rows} />`);

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
  const section = card(parent, "next-card", TEXTS.title);
  const hint = make(section, "p", { class: "quiet" });
  const blocks = make(section, "div", { class: "blocks" });
  const block = (name, about, title = "") => {
    const box = make(blocks, "div", { class: name });
    const line = make(box, "h4");
    const heading = make(line, "span", {}, title);
    const more = make(line, "span", { class: "quiet" });
    explain(heading, about);
    return { box, heading, more, rows: make(box, "div", { class: "rows" }) };
  };
  const steps = block("steps", TEXTS.about.steps, TEXTS.steps);
  const likely = block("likely", TEXTS.about.likely, TEXTS.likely);
  const lens = block("lens", GLOSSARY.words["Layer by layer, logit lens"], TEXTS.lens);
  const heads = block("heads", GLOSSARY.words["What heads add directly, direct effect"]);
  const raised = block("raised", TEXTS.about.raised);
  const chart = make(steps.box, "div", { class: "shares", role: "img" });
  const curve = make(chart, "div");
  const cursor = make(chart, "i");
  for (const share of [1, 0.5, 0]) make(chart, "span", {}, `${100 * share} %`).style.top = `${100 * (1 - share)}%`;
  let current = null;

  const following = ({ labels, kept }) => labels[kept + 1];
  const bold = (text) => make(null, "bdi", { class: "token-name" }, text);

  // ---- The chart over the steps ------------------------------------------------------------------

  function showSteps(model) {
    const { history, index, kept } = model;
    const values = history.steps.map(({ next }) => next[kept] ?? null);
    steps.box.hidden = history.steps.length < 2 || following(model) === undefined;
    if (steps.box.hidden) return;
    const places = placesOf(history.steps);
    const known = places.flatMap((place, at) => (values[at] === null ? [] : [[place, values[at]]]));
    const points = known.map(([place, share]) => `${place}% ${100 * Math.min(1 - share, LINE)}%`);
    curve.style.clipPath = `polygon(${known[0]?.[0] ?? 0}% 100%, ${points}, ${known.at(-1)?.[0] ?? 0}% 100%)`;
    cursor.style.left = `${places[index]}%`;
    const learned = values.findIndex((share) => share >= LIKELY);
    steps.more.textContent = learned < 0 ? TEXTS.below(LIKELY)
      : TEXTS.first(LIKELY, stepText(history.steps[learned].step));
    chart.setAttribute("aria-label", TEXTS.chart(steps.more.textContent));
  }

  function moveTo(event) {
    const { left, width } = chart.getBoundingClientRect();
    const index = nearest(placesOf(current.history.steps), (100 * (event.clientX - left)) / width);
    if (index !== current.index) actions.move(index);
  }
  set(chart, {
    pointerdown(event) {
      chart.setPointerCapture(event.pointerId);
      moveTo(event);
    },
    pointermove: (event) => event.buttons && moveTo(event),
  });

  return {
    /** Shows what needs no weights and no predictions. */
    show(model) {
      current = model;
      const { kept, step, labels, comparison, at, name } = model;
      section.hidden = !step.layout.some(({ name: kind }) => kind === "lens");
      blocks.hidden = kept === null;
      if (section.hidden) return;
      if (kept === null) hint.textContent = TEXTS.click;
      else {
        const next = following(model);
        hint.replaceChildren(...(next === undefined ? TEXTS.ends(bold(labels[kept]))
          : TEXTS.follows(bold(labels[kept]), bold(next))));
        if (comparison) hint.append(TEXTS.notDifference(at));
        raised.heading.textContent = TEXTS.raises(name);
        showSteps(model);
      }
    },

    /** Shows the predictions at the step of the cursor. */
    paint(model) {
      if (section.hidden || !model.predictions) return;
      const { problem, next, follows, likely: tokens, lens: layers, pushes, raised: most } = model.predictions;
      blocks.hidden = Boolean(problem);
      if (problem) hint.textContent = problem;
      if (problem) return;
      if (!follows) hint.replaceChildren(...TEXTS.predicts(bold(model.labels[model.kept]), bold(next)));
      lens.more.textContent = TEXTS.topTokenAnd(next);
      list(likely.rows, tokens.map(({ text, value, marked }) =>
        ({ before: marked && follows ? "✓" : "", text, note: percentText(value), share: value, marked })));
      list(lens.rows, layers.map(({ text, marked, next: ofNext }, layer) => {
        const before = layer + 1 < layers.length ? TEXTS.before(layer) : TEXTS.atEnd;
        return { before, text, note: percentText(ofNext), share: ofNext, marked };
      }));
      heads.heading.textContent = TEXTS.adds(next);
      list(heads.rows, headRows(pushes, model.history.heads, model.opened, actions.open));
      raised.box.hidden = !most?.length;
      list(raised.rows, (most ?? []).slice(0, RAISED).map(({ text, value, marked }) => ({
        before: marked && follows ? "✓" : "", text, marked, ...signed(value, most[0].value),
      })));
    },
  };
}
