// How head names are shown: a colour of the palette of Okabe and Ito, stripes for the second name
// with the same colour, so that no two names look the same to a colour-blind reader, and a short name.

import { own } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { headName } from "./state.js";
import { HEADS } from "./texts.js";

const STYLES = {
  "previous-token": ["blue", false, "prev"],
  induction: ["vermillion", false, "induc"],
  "first-token": ["orange", false, "first"],
  "same-token": ["purple", false, "same"],
  self: ["sky", false],
  punctuation: ["green", false, "punct"],
  "single-key": ["yellow", false, "key"],
  "fixed-offset": ["vermillion", true, "offset"],
  "short-range": ["blue", true, "short"],
  local: ["sky", true],
  "frequent-token": ["green", true, "freq"],
  "rare-token": ["purple", true, "rare"],
  global: ["grey", false],
  mixed: ["grey", true],
  "-": ["none", false, ""],
};

export const NO_NAME = "-";
const SHOWN_FIRST = 0.4;

/** The name of a head without its number: a head named "8 back" is a fixed-offset head. */
const kindOf = (name) => (/^\d+ back$/.test(name) ? "fixed-offset" : name);

/** [colour variable, striped, short name] of a name. A name of another version is striped in ink colour. */
const styleOf = (name) => own(STYLES, kindOf(name)) ?? ["ink", true];

export const definitionOf = (name) => own(GLOSSARY.names, kindOf(name));

const PLAIN = ["first-token", "local", "short-range", "frequent-token", "rare-token", "global", "mixed", NO_NAME];

/** Whether a name says something that few heads do. */
export const isTelling = (name) => !PLAIN.includes(name);

/** What a metric means: of headscope's metrics the glossary says it, of others the data. */
export const meaningOf = ({ descriptions = {} }, metric) => own(GLOSSARY.metrics, metric) ?? own(descriptions, metric);

/** The abbreviation of a name, where there is little room. */
export const shortName = (name) => own(STYLES, name)?.[2] ?? name;

/** The score of a head with two digits. A head without a name has no score. */
export const scoreText = ({ names, scores }, head) =>
  (names[head] === NO_NAME ? "" : scores[head]?.toFixed(2) ?? "");

/** The words for the name of a head: "previous-token", or "previous-token?" if it is uncertain. */
export const nameOf = ({ names, uncertain, held }, head) =>
  (names[head] === NO_NAME ? HEADS.noName : names[head]) + (uncertain[head] ? "?" : "") + (held[head] ? `, ${HEADS.held}` : "");

/** "rests 74 %": the weight of a head on the first token, if that is much and its name does not say it. */
export function restsText({ names, metrics }, head) {
  const first = own(metrics, "first")?.[head];
  return first >= SHOWN_FIRST && !["first-token", NO_NAME].includes(names[head]) ? HEADS.rests(Math.round(100 * first)) : "";
}

/** "L0H1 previous-token 0.90, rests 40 %" */
export const titleOf = (step, head, heads) =>
  [`${headName(head, heads)} ${nameOf(step, head)} ${scoreText(step, head)}`.trim(), restsText(step, head)].filter(Boolean).join(", ");

/** The CSS background image of a name. Where stripes have no room, their colours are `blended`. */
export function background(name, blended = false) {
  const [colour, striped] = styleOf(name);
  if (blended && striped) return `linear-gradient(color-mix(in srgb, var(--${colour}), var(--stripe)) 0 0)`;
  return `repeating-linear-gradient(135deg, var(--${colour}) 0 3px, var(--${striped ? "stripe" : colour}) 3px 5px)`;
}

/** The colour of a name in CSS, without stripes. */
export const toneOf = (name) => `var(--${styleOf(name)[0]})`;

/** The metric that decides a name: `previous` for previous-token. */
export function metricOf(name) {
  const special = { "rare-token": "frequent", "frequent-token": "frequent", "short-range": "distance",
                    mixed: "unevenness", [NO_NAME]: "unevenness" };
  return own(special, name) ?? kindOf(name).replace(/^(previous|first)-token$/, "$1").replaceAll("-", "_");
}
