// The look of head names: a colour of the palette of Okabe and Ito, and stripes for the second name
// with the same colour, so that no two names look the same to a colour-blind reader.

import { own } from "./dom.js";

const STYLES = {
  "previous-token": ["blue", false],
  induction: ["vermillion", false],
  "first-token": ["orange", false],
  "same-token": ["purple", false],
  self: ["sky", false],
  punctuation: ["green", false],
  "single-key": ["yellow", false],
  "short-range": ["blue", true],
  local: ["sky", true],
  "frequent-token": ["green", true],
  "rare-token": ["purple", true],
  global: ["grey", false],
  mixed: ["grey", true],
  "-": ["none", false],
};

export const NO_NAME = "-";

/** [colour variable, striped] of a name. A name of another version is striped in ink colour. */
const styleOf = (name) => own(STYLES, name) ?? ["ink", true];

/** The CSS background image of a name. */
export function background(name) {
  const [colour, striped] = styleOf(name);
  if (!striped) return `linear-gradient(var(--${colour}), var(--${colour}))`;
  return `repeating-linear-gradient(135deg, var(--${colour}) 0 3px, var(--stripe) 3px 5px)`;
}

export const colourOf = (theme, name) => theme[styleOf(name)[0]];

/** Fills a rectangle of a canvas with the look of a name. */
export function fillName(context, theme, name, x, y, width, height) {
  const [colour, striped] = styleOf(name);
  context.fillStyle = theme[colour];
  context.fillRect(x, y, width, height);
  if (!striped) return;
  if (height < 8) { // too low for stripes
    context.globalAlpha = 0.5;
    context.fillStyle = theme.stripe;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
    return;
  }
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = theme.stripe;
  context.lineWidth = 2;
  context.beginPath();
  for (let left = Math.floor((x - height) / 7) * 7; left < x + width; left += 7) {
    context.moveTo(left, y + height);
    context.lineTo(left + height, y);
  }
  context.stroke();
  context.restore();
}

/** The metric that decides a name: `previous` for previous-token. */
export function metricOf(name) {
  const special = { "rare-token": "frequent", "frequent-token": "frequent", "short-range": "distance" };
  return own(special, name) ?? name.replace(/^(previous|first)-token$/, "$1").replaceAll("-", "_");
}
