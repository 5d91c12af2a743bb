// Draws the timeline: a line per head, the loss, and the axis of the steps. Each has an area
// {left, right, top, height, x, xs} in pixels: x(step) is the place of a training step, and xs those of all.

import { drawAcross, drawAxis, drawLine, drawText, heightIn } from "./canvas.js";
import { own } from "./dom.js";
import { shortText, stepText, ticksOf } from "./scales.js";
import { headName, headsOf } from "./state.js";

const LABELLED = 8; // heads with a label if there are many
const FEW = 9; // up to this number, all heads have a colour and a label

/** The heads that get a colour and a label: all of up to FEW heads, otherwise those with the largest
    values over all steps, and the opened head. */
export function labelledHeads(model) {
  const all = headsOf(model.history);
  if (all.length <= FEW) return all;
  const most = all.map((head) => Math.max(...valuesOf(model, head).map((value) => value ?? -Infinity)));
  const top = all.sort((a, b) => most[b] - most[a]).slice(0, LABELLED);
  return top.includes(model.opened) ? top : [...top, model.opened];
}

/** Places texts at heights `ys`, at least `gap` apart and between `low` and `high`. */
function spread(ys, gap, low, high) {
  const order = [...ys.keys()].sort((a, b) => ys[a] - ys[b]);
  const placed = [...ys];
  const push = (inside, limit, step) => order.forEach((i) => {
    placed[i] = inside(placed[i], limit);
    limit = placed[i] + step;
  });
  push(Math.max, low, gap);
  order.reverse();
  push(Math.min, high, -gap);
  return placed;
}

const valuesOf = ({ history, metric }, head) => history.steps.map((step) => own(step.metrics, metric)?.[head] ?? null);

/** The axis of the metric, and the lines of the heads that have no label. */
export function drawOtherLines(context, model, area) {
  const { history, metric, opened, theme } = model;
  const [low, high] = rangeOf(model);
  const y = heightIn(area, [low, high]);
  drawAxis(context, theme, area, y, [low, (low + high) / 2, high], (value) => String(Number(value.toPrecision(3))));
  const even = own(history.steps.at(-1).uniform, metric)?.[opened];
  if (even >= low && even <= high) drawAcross(context, area, y(even), theme.quiet, [1, 5]);
  const heads = headsOf(history);
  if (heads.length <= FEW) return;
  context.globalAlpha = 0.35;
  for (const head of heads) drawLine(context, area.xs, valuesOf(model, head).map(y), theme.grey);
  context.globalAlpha = 1;
}

/** The lines of the heads with a label, and the labels at their ends with the values at the cursor. */
export function drawLabelledLines(context, model, area) {
  const { history, opened, theme } = model;
  const y = heightIn(area, rangeOf(model));
  const lines = labelledHeads(model).map((head, order) => {
    const values = valuesOf(model, head);
    const colour = theme.series[order % theme.series.length];
    const dash = [[], [6, 4], [1, 4]][Math.floor(order / theme.series.length) % 3];
    return { head, values, ys: values.map(y), colour, dash, font: head === opened ? "600 11px" : "11px" };
  });
  const front = lines.find(({ head }) => head === opened);
  for (const line of lines) if (line !== front) drawLine(context, area.xs, line.ys, line.colour, 1.5, line.dash);
  drawLine(context, area.xs, front.ys, front.colour, 3.5, front.dash);

  const shown = lines.filter(({ values }) => values.at(-1) !== null);
  const places = spread(shown.map(({ ys }) => ys.at(-1)), 12, area.top + 2, area.top + area.height);
  const [near, bend, end, label] = [2, 10, 18, 22].map((distance) => area.right + distance);
  shown.forEach(({ head, values, ys, colour, dash, font }, order) => {
    const place = places[order];
    drawLine(context, [near, bend, end], [ys.at(-1), place, place], colour, head === opened ? 2.5 : 1.5, dash);
    const text = `${headName(head, history.heads)} ${shortText(values[model.index])}`; // the value at the cursor
    drawText(context, theme, text, label, place, { colour: theme.ink, font });
  });
}

/** The ends of the axis of a metric. */
export function rangeOf({ history, metric }) {
  const ends = own(history.ends, metric);
  if (ends && ends[1] > ends[0]) return ends;
  const values = history.steps.flatMap((step) => step.metrics[metric] ?? []).filter((v) => v !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  return high > low ? [low, high] : [0, 1];
}

export function drawLoss(context, { history: { loss, steps }, theme }, area) {
  const points = loss.steps
    .map((step, i) => [step, loss.values[i]])
    .filter(([step, value]) => step >= steps[0].step && step <= steps.at(-1).step && typeof value === "number");
  if (points.length === 0) return;
  const values = points.map(([, value]) => value);
  const ends = [Math.min(...values), Math.max(...values)];
  const y = heightIn(area, ends);
  drawAxis(context, theme, area, y, new Set(ends), (value) => value.toFixed(2));
  drawLine(context, points.map(([step]) => area.x(step)), values.map(y), theme.quiet, 1.5);
  drawText(context, theme, loss.name, area.left + 4, area.top + area.height - 8); // below the loss, which falls
}

export function drawSteps(context, { history, theme }, area) {
  for (const step of ticksOf(history.steps, area.x, 46)) {
    drawText(context, theme, stepText(step), area.x(step), area.top + 5, { align: "center", baseline: "top" });
    context.fillRect(Math.round(area.x(step)), area.top, 1, 4);
  }
}
