// Draws the lower part of the timeline: a strip per head with its name over the steps.

import { drawText } from "./canvas.js";
import { NO_NAME, colourOf, fillName } from "./names.js";
import { headName, headsOf } from "./state.js";
import { textOn } from "./theme.js";

/** The sizes of the strips: {height, strip, topOf, middle, hasLabel}. `height` is that of all strips,
    `strip` that of one, `topOf(head)` its top, and `middle` that of its label below the top. */
export function stripsOf({ layers, heads }) {
  const count = layers * heads;
  const row = Math.max(1, Math.min(12, Math.floor(300 / count)));
  const gap = layers > 1 && count <= 512 ? 3 : 0;
  const strip = row > 3 ? row - 1 : row;
  const isHigh = strip >= 10;
  return {
    height: count * row + (layers - 1) * gap,
    strip,
    topOf: (head) => head * row + Math.floor(head / heads) * gap,
    middle: isHigh ? strip / 2 : 5,
    // Every strip has a label if it is high enough, otherwise the first strip of a layer has one.
    hasLabel: (head) => isHigh || (head % heads === 0 && heads * row >= 11),
    labelOf: (head) => (isHigh ? headName(head, heads) : `L${head / heads}`),
  };
}

const nameAt = (step, head) => (step.measured ?? step).names[head];

/** One strip per head: its name from each step to the next one. */
export function drawStrips(context, { history, theme }, area) {
  const { steps } = history;
  const { strip, topOf, middle, hasLabel, labelOf } = stripsOf(history);
  const edges = steps.map(({ step }, index) =>
    (index === 0 ? area.left : (area.x(steps[index - 1].step) + area.x(step)) / 2)).concat(area.right);
  for (const head of headsOf(history)) {
    const top = area.top + topOf(head);
    for (let from = 0, to; from < steps.length; from = to) {
      const name = nameAt(steps[from], head);
      for (to = from + 1; to < steps.length && nameAt(steps[to], head) === name;) to += 1;
      const width = edges[to] - edges[from];
      fillName(context, theme, name, edges[from], top, width, strip);
      if (strip >= 11 && name !== NO_NAME) label(context, theme, name, edges[from], top, width, strip);
    }
    if (hasLabel(head)) drawText(context, theme, labelOf(head), area.left - 8, top + middle, { align: "right" });
  }
}

/** Marks the strip of the opened head. */
export function markStrip(context, { history, opened, theme }, area) {
  const { strip, topOf, middle, hasLabel } = stripsOf(history);
  const top = area.top + topOf(opened);
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.5;
  context.strokeRect(area.left - 1, top - 1, area.right - area.left + 2, strip + 2);
  context.fillStyle = theme.card; // hides the labels that would overlap
  for (const head of headsOf(history)) {
    const y = area.top + topOf(head) + middle;
    const overlaps = Math.abs(y - top - strip / 2) < 10 && hasLabel(head);
    if (overlaps) context.fillRect(0, y - 7, area.left - 4, 14);
  }
  const look = { align: "right", font: "600 11px", colour: theme.ink };
  drawText(context, theme, headName(opened, history.heads), area.left - 8, top + strip / 2, look);
}

/** Writes a name on its strip if there is room, on a plain ground, since stripes hide letters. */
function label(context, theme, name, left, top, width, height) {
  context.font = `10px ${theme.font}`;
  const needed = context.measureText(name).width + 8;
  if (needed > width) return;
  context.fillStyle = colourOf(theme, name);
  context.fillRect(left, top, needed, height);
  const look = { font: "10px", colour: textOn(colourOf(theme, name)) };
  drawText(context, theme, name, left + 4, top + height / 2 + 0.5, look);
}
