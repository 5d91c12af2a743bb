// The tokens on the axes of the map.

import { make } from "./dom.js";

const UPRIGHT =
  /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Emoji_Presentation}\u3000-\u303f\uff00-\uff60]/u;
const ROTATED = /^[\p{Ps}\p{Pe}\p{Pd}ー]/u;
const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Splits a label that is written downwards into runs [text, upright]. An upright run is a single
    wide character, such as a Chinese one. Other runs are rotated (Unicode Standard Annex 50). */
function runsDown(label) {
  const runs = [];
  for (const { segment } of segmenter.segment(label)) {
    const upright = UPRIGHT.test(segment) && !ROTATED.test(segment);
    if (!upright && runs.length && !runs.at(-1)[1]) runs.at(-1)[0] += segment;
    else runs.push([segment, upright]);
  }
  return runs;
}

/** Labels the axes of a map with as many tokens as fit on `size` pixels without overlap. Each run of
    a label is an element: in Chromium, a vertical writing mode for the whole label lets the characters
    of some fonts overlap. */
export function labelAxes(down, across, labels, size) {
  const every = Math.ceil((13 * labels.length) / Math.max(1, size));
  down.replaceChildren();
  across.replaceChildren();
  for (let token = 0; token < labels.length; token += every) {
    const place = `${(100 * (token + 0.5)) / labels.length}%`;
    make(down, "span", { dir: "auto" }, labels[token]).style.top = place;
    const label = make(across, "span");
    label.style.left = place;
    for (const [text, upright] of runsDown(labels[token])) {
      make(label, "div", { class: upright ? "" : "turned", dir: "auto" }, text);
    }
  }
}
