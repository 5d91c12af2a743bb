// Draws the lower part of the timeline: a strip per head with its name over the steps.

import { NO_NAME, colourOf, fillName } from "./names.js";
import { headName } from "./state.js";
import { textOn } from "./theme.js";

/** The heights of the strips: {row, gap, height}. */
export function stripsOf({ layers, heads }) {
  const row = Math.max(1, Math.min(17, Math.floor(432 / (layers * heads))));
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
      const name = steps[from].names[head];
      for (to = from + 1; to < steps.length && steps[to].names[head] === name;) to += 1;
      const width = edges[to] - edges[from];
      fillName(context, theme, name, edges[from], top, width, height);
      if (height >= 12 && name !== NO_NAME) label(context, theme, name, edges[from], top, width, height);
    }
    context.font = `11px ${theme.font}`;
    context.textAlign = "right";
    context.fillStyle = theme.quiet;
    if (height >= 10) context.fillText(headName(head, heads), area.left - 8, top + height / 2);
    else if (head % heads === 0 && heads * strips.row >= 11) {
      context.fillText(`L${head / heads}`, area.left - 8, top + 5);
    }
  }
}

const heightOfStrip = ({ row }) => (row > 3 ? row - 1 : row);

/** Marks the strip of the opened head. */
export function markStrip(context, { history, opened, theme }, area) {
  const strips = stripsOf(history);
  const top = area.top + stripTop(strips, opened, history.heads);
  const height = heightOfStrip(strips);
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.5;
  context.strokeRect(area.left - 1, top - 1, area.right - area.left + 2, height + 2);
  context.fillStyle = theme.card; // hides the labels below
  context.fillRect(0, top + height / 2 - 10, area.left - 4, 20);
  context.fillStyle = theme.ink;
  context.font = `600 11px ${theme.font}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(headName(opened, history.heads), area.left - 8, top + height / 2);
}

/** Writes a name on its strip if there is room, on a plain ground, since stripes hide letters. */
function label(context, theme, name, left, top, width, height) {
  context.font = `10.5px ${theme.font}`;
  context.textAlign = "left";
  const needed = context.measureText(name).width + 8;
  if (needed > width) return;
  context.fillStyle = colourOf(theme, name);
  context.fillRect(left, top, needed, height);
  context.fillStyle = textOn(colourOf(theme, name));
  context.fillText(name, left + 4, top + height / 2 + 0.5);
}
