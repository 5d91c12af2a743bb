// Draws the upper part of the timeline: a line per head, the loss, and the axis of the steps.

import { own, shortened } from "./dom.js";
import { shortText, stepText, ticksOf } from "./scales.js";
import { headName } from "./state.js";

export const LINES = 116; // heights in pixels
export const LOSS = 28;
const LABELLED = 8; // heads with a label if there are many
const FEW = 9; // up to this number, all heads have a colour and a label

/** The heads that get a colour and a label: all if they are few, otherwise those with the largest
    values over all steps, and always the opened head. */
export function labelledHeads({ history, metric, opened }) {
  const all = Array.from({ length: history.layers * history.heads }, (_, head) => head);
  if (all.length <= FEW) return all;
  const most = all.map((head) =>
    Math.max(...history.steps.map((step) => own(step.metrics, metric)?.[head] ?? -Infinity)));
  const top = all.sort((a, b) => most[b] - most[a]).slice(0, LABELLED);
  return top.includes(opened) ? top : [...top, opened];
}

/** Places texts at heights `ys`, at least `gap` apart and between `low` and `high`. */
function spread(ys, gap, low, high) {
  const order = ys.map((_, i) => i).sort((a, b) => ys[a] - ys[b]);
  const placed = [...ys];
  let free = low;
  for (const i of order) {
    placed[i] = Math.max(placed[i], free);
    free = placed[i] + gap;
  }
  let limit = high;
  for (const i of order.reverse()) {
    placed[i] = Math.min(placed[i], limit);
    limit = placed[i] - gap;
  }
  return placed;
}

const look = (theme, order) => ({
  colour: theme.series[order % theme.series.length],
  dash: [[], [6, 4], [1, 4]][Math.floor(order / theme.series.length) % 3],
});

const valuesOf = ({ history, metric }, head) =>
  history.steps.map((step) => own(step.metrics, metric)?.[head] ?? null);

function heightOf({ history, metric }, area) {
  const [low, high] = rangeOf(history, metric);
  return (value) => area.top + (1 - (value - low) / (high - low)) * area.height;
}

/** Draws a line per point that is not null, and breaks it where a point is null. */
export function curve(context, values, x, y, colour, width, dash) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineCap = "round";
  context.setLineDash(dash);
  context.beginPath();
  let pen = false;
  values.forEach((value, index) => {
    if (value === null) pen = false;
    else if (pen) context.lineTo(x(index), y(value));
    else {
      context.moveTo(x(index), y(value));
      context.lineTo(x(index) + 0.01, y(value)); // so that a single point can be seen
      pen = true;
    }
  });
  context.stroke();
  context.setLineDash([]);
}

/** The axis of the metric, and the lines of the heads that have no label. */
export function drawOtherLines(context, model, x, area) {
  const { history, metric, theme } = model;
  const [low, high] = rangeOf(history, metric);
  const y = heightOf(model, area);
  context.font = `11px ${theme.font}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    const value = low + part * (high - low);
    context.fillStyle = theme.quiet;
    context.fillText(String(Number(value.toPrecision(3))), area.left - 8, y(value));
    horizontal(context, theme.rule, area, y(value), []);
  }
  const uniform = own(history.uniform, metric);
  if (uniform >= low && uniform <= high) horizontal(context, theme.quiet, area, y(uniform), [2, 4]);
  const count = history.layers * history.heads;
  if (count <= FEW) return;
  context.globalAlpha = 0.35;
  for (let head = 0; head < count; head++) curve(context, valuesOf(model, head), x, y, theme.grey, 1, []);
  context.globalAlpha = 1;
}

/** The lines of the heads with a label, and the labels at their ends with the values at the cursor. */
export function drawLabelledLines(context, model, x, area) {
  const { history, opened, theme } = model;
  const y = heightOf(model, area);
  const labelled = labelledHeads(model);
  labelled.forEach((head, order) => {
    const { colour, dash } = look(theme, order);
    if (head !== opened) curve(context, valuesOf(model, head), x, y, colour, 1.5, dash);
  });
  const { colour, dash } = look(theme, labelled.indexOf(opened));
  curve(context, valuesOf(model, opened), x, y, colour, 3.5, dash);

  const shown = labelled
    .map((head, order) => ({ head, value: valuesOf(model, head).at(-1), ...look(theme, order) }))
    .filter(({ value }) => value !== null);
  const places = spread(shown.map(({ value }) => y(value)), 12, area.top + 2, area.top + area.height);
  context.textBaseline = "middle";
  context.textAlign = "left";
  shown.forEach(({ head, value, colour, dash }, order) => {
    context.strokeStyle = colour;
    context.lineWidth = head === opened ? 2.5 : 1.5;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(area.right + 2, y(value));
    context.lineTo(area.right + 10, places[order]);
    context.lineTo(area.right + 18, places[order]);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = theme.ink;
    context.font = `${head === opened ? "600 " : ""}11px ${theme.font}`;
    const name = headName(head, history.heads);
    const text = `${name} ${shortText(valuesOf(model, head)[model.index])}`; // the value at the cursor
    context.fillText(shortened(context, text, area.room - 22), area.right + 22, places[order]);
  });
}

/** The ends of the axis of a metric. */
export function rangeOf(history, metric) {
  const ends = own(history.ends, metric);
  if (ends && ends[1] > ends[0]) return ends;
  const values = history.steps.flatMap((step) => step.metrics[metric] ?? []).filter((v) => v !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  return high > low ? [low, high] : [0, 1];
}

export function drawLoss(context, { history, theme }, place, area) {
  const { name, steps, values } = history.loss;
  const [first, last] = [history.steps[0].step, history.steps.at(-1).step];
  const points = steps
    .map((step, i) => [step, values[i]])
    .filter(([step, value]) => step >= first && step <= last && typeof value === "number");
  context.font = `11px ${theme.font}`;
  context.textBaseline = "middle";
  context.fillStyle = theme.quiet;
  if (points.length === 0) return;
  const all = points.map(([, value]) => value);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const y = (value) => area.top + (high > low ? 1 - (value - low) / (high - low) : 0.5) * area.height;
  context.textAlign = "right";
  for (const value of high > low ? [low, high] : [low]) {
    context.fillText(value.toFixed(2), area.left - 8, y(value));
    horizontal(context, theme.rule, area, y(value), []);
  }
  context.strokeStyle = theme.quiet;
  context.lineWidth = 1.5;
  context.beginPath();
  points.forEach(([step, value], i) => {
    const x = area.left + place(step) * (area.right - area.left);
    if (i === 0) context.moveTo(x, y(value));
    else context.lineTo(x, y(value));
  });
  context.stroke();
  context.textAlign = "left";
  context.fillText(name, area.left + 4, area.top + area.height - 8); // below the loss, which falls
}

function horizontal(context, colour, area, y, dash) {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(area.left, Math.round(y) + 0.5);
  context.lineTo(area.right, Math.round(y) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

export function drawSteps(context, { history, theme }, place, area) {
  const steps = history.steps.map(({ step }) => step);
  const width = area.right - area.left;
  context.font = `11px ${theme.font}`;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const step of ticksOf(steps, place, 46 / width)) {
    const x = area.left + place(step) * width;
    context.fillStyle = theme.quiet;
    context.fillText(stepText(step), x, area.top + 5);
    context.fillRect(Math.round(x), area.top, 1, 4);
  }
}
