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

/** Writes the label of a token on the axis `down` or `across` a map of so many labels. Each run of a
    label is an element: in Chromium, a vertical writing mode for the whole label lets the characters
    of some fonts overlap. */
function write(axis, labels, token, look = "") {
  const isDown = axis.classList.contains("down");
  const label = make(axis, "span", { class: look, dir: "auto" }, isDown ? labels[token] : "");
  label.style[isDown ? "top" : "left"] = `${(100 * (token + 0.5)) / labels.length}%`;
  for (const [text, upright] of isDown ? [] : runsDown(labels[token])) {
    make(label, "div", { class: upright ? "" : "turned", dir: "auto" }, text);
  }
}

/** Labels an axis of a map with as many tokens as fit on `size` pixels without overlap. */
export function labelAxis(axis, labels, size) {
  const every = Math.ceil((13 * labels.length) / Math.max(1, size));
  axis.replaceChildren();
  for (let token = 0; token < labels.length; token += every) write(axis, labels, token);
}

/** Labels the token that is pointed at instead of the labels that it would cover, or none if it is undefined. */
export function labelPointed(axis, labels, token) {
  axis.querySelector(".here")?.remove();
  const side = axis.classList.contains("down") ? "top" : "left";
  const pixels = axis[side === "top" ? "clientHeight" : "clientWidth"];
  for (const { style } of axis.children) {
    const apart = Math.abs(parseFloat(style[side]) / 100 - (token + 0.5) / labels.length) * pixels;
    style.visibility = apart < 13 ? "hidden" : ""; // NaN, if no token is pointed at, is not below 13
  }
  if (token !== undefined) write(axis, labels, token, "here");
}
