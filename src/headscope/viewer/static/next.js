// What the model predicts after the selected token: the most likely tokens, the logit lens, what each
// head adds, and the probability of the token that follows over the steps.

import { curve } from "./chart.js";
import { card, fit, make } from "./dom.js";
import { differenceText, stepText, timeAxis } from "./scales.js";
import { headName } from "./state.js";
import { explain } from "./tooltip.js";

const HEADS = 8; // heads that are listed
const HEIGHT = 76; // of the chart, in pixels
const LEFT = 42;
const LIKELY = 0.5;
const ABOUT = {
  likely: "The tokens with the largest probabilities after the selected token. ✓ marks the one that "
    + "follows in the text.",
  lens: "The logit lens: what the final norm and the output head make of the residual stream before "
    + "each layer and after the last one. A row has the most likely token and, as a bar, the "
    + "probability of the token that follows.",
  heads: "Direct effect: what each head adds to the logit of the token that follows, minus what it "
    + "adds on average to all tokens. What a head does through later layers is not included.",
  raised: "The tokens whose logits the opened head raises most at this token, by the same measure.",
  steps: "The probability of the token that follows, after the last layer, over the steps.",
};

function percentText(share) {
  if (Number.isNaN(share)) return "not a number";
  return share > 0 && share < 0.001 ? "<0.1 %" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

export function createNext(parent, actions) {
  const section = card(parent, "next-card", "What the model predicts");
  const hint = make(section, "p", { class: "quiet" });
  const blocks = make(section, "div", { class: "blocks" });
  const block = (name, title) => {
    const part = make(blocks, "div", { class: name });
    const line = make(part, "h4");
    const heading = make(line, "span", {}, title);
    const more = make(line, "span", { class: "quiet" });
    explain(heading, ABOUT[name]);
    return { part, heading, more, rows: make(part, "div", { class: "rows" }) };
  };
  const steps = block("steps", "Over the steps");
  const likely = block("likely", "Most likely next tokens");
  const lens = block("lens", "Layer by layer");
  const heads = block("heads", "What heads add");
  const raised = block("raised", "What the opened head raises");
  const canvas = make(steps.rows, "canvas", { role: "img" });
  let current = null;

  /** Shows rows {before, text, note, share, sign, marked, click}: `share` is the length of the bar. */
  function list({ rows }, shown) {
    const focused = [...rows.children].indexOf(document.activeElement);
    const name = focused < 0 ? null : rows.children[focused].querySelector("bdi").textContent;
    rows.replaceChildren();
    for (const { before = "", text, note, share, sign = "", marked, click } of shown) {
      const row = make(rows, click ? "button" : "div", { class: `row ${marked ? "marked" : ""}` });
      if (click) {
        row.type = "button";
        row.setAttribute("aria-pressed", marked);
        row.addEventListener("click", click);
      }
      make(row, "span", { class: "before" }, before);
      make(row, "bdi", { class: "token-name" }, text);
      const bar = make(row, "i", { class: `share ${sign}`, "aria-hidden": "true" });
      bar.style.setProperty("--value", `${100 * Math.min(1, share || 0)}%`);
      make(row, "span", { class: "note" }, note);
      if (text === name) row.focus();
    }
  }

  const following = ({ labels, kept }) => labels[kept + 1];

  function showLikely({ kept, tokens, predictions: { top, names, lens: found, layers } }) {
    const start = (layers * tokens + kept) * top;
    const next = found.following[kept];
    const rows = Array.from({ length: top }, (_, i) => {
      const token = found.indices[start + i];
      const share = found.probabilities[start + i];
      return { text: names[token], note: percentText(share), share, marked: token === next };
    });
    if (next !== undefined && !rows.some(({ marked }) => marked)) {
      const share = found.next[layers * (tokens - 1) + kept];
      rows.push({ text: names[next], note: percentText(share), share, marked: true });
    }
    list(likely, rows.map((row) => ({ ...row, before: row.marked ? "✓" : "" })));
  }

  function showLens({ kept, tokens, predictions: { top, names, lens: found, layers } }) {
    list(lens, Array.from({ length: layers + 1 }, (_, layer) => {
      const start = (layer * tokens + kept) * top;
      const known = kept + 1 < tokens;
      const share = known ? found.next[layer * (tokens - 1) + kept] : found.probabilities[start];
      const token = found.indices[start];
      return {
        before: layer < layers ? `before L${layer}` : "at the end", text: names[token],
        note: percentText(share), share, marked: known && token === found.following[kept],
      };
    }));
  }

  function showHeads({ kept, tokens, history, opened, predictions: { lens: found } }) {
    const count = history.layers * history.heads;
    const push = (head) => found.pushes[head * (tokens - 1) + kept];
    const order = Array.from({ length: count }, (_, head) => head)
      .sort((a, b) => Math.abs(push(b)) - Math.abs(push(a)));
    const most = Math.abs(push(order[0]));
    const shown = order.slice(0, HEADS);
    if (!shown.includes(opened)) shown.push(opened);
    list(heads, shown.map((head) => ({
      text: headName(head, history.heads), note: differenceText(push(head)),
      share: most ? Math.abs(push(head)) / most : 0, sign: push(head) < 0 ? "less" : "more",
      marked: head === opened, click: () => actions.open(head),
    })));
  }

  function showRaised({ kept, tokens, history, opened, predictions: { top, names, lens: found, pushes } }) {
    raised.part.hidden = !pushes;
    if (!pushes) return;
    const start = ((opened % history.heads) * tokens + kept) * top;
    const most = Math.abs(pushes.values[start]) || 1;
    list(raised, Array.from({ length: top }, (_, i) => {
      const token = pushes.indices[start + i];
      const value = pushes.values[start + i];
      const marked = token === found.following[kept];
      return { before: marked ? "✓" : "", text: names[token], note: differenceText(value), marked,
               share: Math.abs(value) / most, sign: value < 0 ? "less" : "more" };
    }));
  }

  // ---- The chart over the steps ------------------------------------------------------------------

  const probabilities = ({ history, kept }) =>
    history.steps.map(({ predictions }) => predictions?.next[kept] ?? null);

  function xOf({ history }) {
    const place = timeAxis(history.steps.map(({ step }) => step));
    const width = canvas.clientWidth - LEFT - 10;
    return (index) => LEFT + place(history.steps[index].step) * width;
  }

  function showSteps(model) {
    const { history, theme, index } = model;
    const values = probabilities(model);
    steps.part.hidden = history.steps.length < 2 || following(model) === undefined;
    if (steps.part.hidden) return;
    const context = fit(canvas, canvas.clientWidth, HEIGHT);
    const x = xOf(model);
    const y = (share) => 8 + (1 - share) * (HEIGHT - 16);
    context.font = `11px ${theme.font}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.strokeStyle = theme.rule;
    context.fillStyle = theme.quiet;
    for (const share of [0, 0.5, 1]) {
      context.fillText(`${100 * share} %`, LEFT - 6, y(share));
      context.strokeRect(LEFT, y(share), canvas.clientWidth - LEFT - 10, 0);
    }
    curve(context, values, x, y, theme.looks, 2, []);
    context.fillStyle = theme.accent;
    context.fillRect(x(index) - 1, 4, 2, HEIGHT - 10);
    const learned = values.findIndex((share) => share >= LIKELY);
    steps.more.textContent = learned < 0 ? ` below ${100 * LIKELY} % at all steps`
      : ` first at least ${100 * LIKELY} % at step ${stepText(history.steps[learned].step)}`;
    canvas.setAttribute("aria-label", `Probability over the steps:${steps.more.textContent}`);
  }

  function moveTo(event) {
    const x = xOf(current);
    const at = event.clientX - canvas.getBoundingClientRect().left;
    const distances = current.history.steps.map((_, index) => Math.abs(x(index) - at));
    const index = distances.indexOf(Math.min(...distances));
    if (index !== current.index) actions.move(index);
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    moveTo(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) moveTo(event);
  });

  return {
    /** Shows what needs no further data. */
    show(model) {
      current = model;
      const { kept, step, labels, comparison, at } = model;
      section.hidden = !step.predictions;
      blocks.hidden = kept === null;
      if (section.hidden) return;
      const next = kept === null ? undefined : following(model);
      hint.replaceChildren();
      const say = (text) => hint.append(text);
      const name = (text) => make(hint, "bdi", { class: "token-name" }, text);
      if (kept === null) {
        say("Click a token in the text: what the model expects after it, layer by layer, which head "
          + "adds what, and since when.");
        return;
      }
      say("After “");
      name(labels[kept]);
      if (next === undefined) say("”. The text ends here, so the token that follows is unknown.");
      else {
        say("”, the text continues with “");
        name(next);
        say("”.");
      }
      if (comparison) say(` The values are those of ${at}, not a difference.`);
      lens.more.textContent = next === undefined ? " top token"
        : ` top token, probability of “${next}”`;
      heads.part.hidden = next === undefined;
      heads.heading.textContent = next === undefined ? "" : `What heads add to “${next}”`;
      raised.heading.textContent = `What ${model.name} raises most`;
      showSteps(model);
    },

    /** Shows the predictions at the step of the cursor. */
    paint(model) {
      if (section.hidden || !model.predictions) return;
      if (model.predictions.problem) {
        hint.textContent = model.predictions.problem;
        blocks.hidden = true;
        return;
      }
      showLikely(model);
      showLens(model);
      if (following(model) !== undefined) showHeads(model);
      showRaised(model);
    },

    resize() {
      if (current && !section.hidden && current.kept !== null) showSteps(current);
    },
  };
}
