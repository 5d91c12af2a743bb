// Draws the lower part of the timeline: a strip per head with its name over the steps.

import { NO_NAME, colourOf, fillName } from "./names.js";
import { headName } from "./state.js";
import { textOn } from "./theme.js";

/** The heights of the strips: {row, gap, height}. */
export function stripsOf({ layers, heads }) {
  const row = Math.max(1, Math.min(12, Math.floor(300 / (layers * heads))));
  const gap = layers > 1 && layers * heads <= 512 ? 3 : 0;
  return { row, gap, height: layers * heads * row + (layers - 1) * gap };
}

/** The top of the strip of a head. */
export const stripTop = ({ row, gap }, head, heads) => head * row + Math.floor(head / heads) * gap;

/** One strip per head: its name from each step to the next one. */
export function drawStrips(context, { history, theme }, x, area) {
  const { layers, heads, steps } = history;
  const strips = stripsOf(history);
  const height = heightOfStrip(strips);
  context.textBaseline = "middle";
  const edges = steps.map((_, index) =>
    (index === 0 ? area.left : (x(index - 1) + x(index)) / 2)).concat(area.right);
  for (let head = 0; head < layers * heads; head++) {
    const top = area.top + stripTop(strips, head, heads);
    for (let from = 0, to; from < steps.length; from = to) {
      const name = nameAt(steps[from], head);
      for (to = from + 1; to < steps.length && nameAt(steps[to], head) === name;) to += 1;
      const width = edges[to] - edges[from];
      fillName(context, theme, name, edges[from], top, width, height);
      if (height >= 11 && name !== NO_NAME) label(context, theme, name, edges[from], top, width, height);
    }
    context.font = `11px ${theme.font}`;
    context.textAlign = "right";
    context.fillStyle = theme.quiet;
    const text = height >= 10 ? headName(head, heads) : `L${head / heads}`;
    if (hasLabel(history, head)) context.fillText(text, area.left - 8, top + labelMiddle(height));
  }
}

const nameAt = (step, head) => (step.measured ?? step).names[head];
const heightOfStrip = ({ row }) => (row > 3 ? row - 1 : row);
const labelMiddle = (height) => (height >= 10 ? height / 2 : 5);

/** Every strip has a label if it is high enough, otherwise the first strip of a layer has one. */
function hasLabel(history, head) {
  const { row } = stripsOf(history);
  const { heads } = history;
  return heightOfStrip({ row }) >= 10 || (head % heads === 0 && heads * row >= 11);
}

/** Marks the strip of the opened head. */
export function markStrip(context, { history, opened, theme }, area) {
  const strips = stripsOf(history);
  const top = area.top + stripTop(strips, opened, history.heads);
  const height = heightOfStrip(strips);
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.5;
  context.strokeRect(area.left - 1, top - 1, area.right - area.left + 2, height + 2);
  context.fillStyle = theme.card; // hides the labels that would overlap
  const middle = top + height / 2;
  for (let head = 0; head < history.layers * history.heads; head++) {
    const y = area.top + stripTop(strips, head, history.heads) + labelMiddle(height);
    const overlaps = Math.abs(y - middle) < 10 && hasLabel(history, head);
    if (overlaps) context.fillRect(0, y - 7, area.left - 4, 14);
  }
  context.fillStyle = theme.ink;
  context.font = `600 11px ${theme.font}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(headName(opened, history.heads), area.left - 8, middle);
}

/** Writes a name on its strip if there is room, on a plain ground, since stripes hide letters. */
function label(context, theme, name, left, top, width, height) {
  context.font = `10px ${theme.font}`;
  context.textAlign = "left";
  const needed = context.measureText(name).width + 8;
  if (needed > width) return;
  context.fillStyle = colourOf(theme, name);
  context.fillRect(left, top, needed, height);
  context.fillStyle = textOn(colourOf(theme, name));
  context.fillText(name, left + 4, top + height / 2 + 0.5);
}
