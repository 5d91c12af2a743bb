// Colour scales of weights and differences, axes, and how numbers are written.

import { LOCALE } from "./texts.js";
import { mixed } from "./theme.js";

// matplotlib's viridis, as in all other pictures, and RdBu_r
const VIRIDIS = "440154471163481f71472d7b443a834046883b528b355d8d31688e2c728e287c8e24868e21908c"
  + "1f9a8a20a48628ae8035b77947c06f5dc96375d0548fd744abdc32c7e020e3e418fde725";
const RED_BLUE = "0530612166ac4393c392c5ded1e5f0f7f7f7fddbc7f4a582d6604db2182b67001f";
const SHADES = 256;

/** The shades between hexadecimal colours: `pixels` of an image, as a Uint32Array, and a CSS `gradient`. */
function shadesBetween(hexadecimals) {
  const stops = hexadecimals.match(/.{6}/g).map((digits) => `#${digits}`);
  const pixels = Uint32Array.from({ length: SHADES }, (_, shade) => {
    const place = (shade / (SHADES - 1)) * (stops.length - 1);
    const left = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = mixed(stops[left], stops[left + 1], place - left);
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
  return { pixels, gradient: `linear-gradient(to right, ${stops})` };
}

/** A colour scale: `pixels` are its colours, `index` gives the colour of a value, `ticks` are
    pairs of a value and its place from 0 to 1. */
export const WEIGHTS = {
  ...shadesBetween(VIRIDIS),
  index: (weight) => Math.min(SHADES - 1, Math.round(Math.sqrt(weight) * (SHADES - 1))),
  ticks: [0, 0.05, 0.2, 0.4, 0.7, 1].map((w) => [String(w), Math.sqrt(w)]),
  diverging: false,
};

const DIFFERENCES = shadesBetween(RED_BLUE);

/** A diverging scale from -reach to reach. */
export function differences(reach) {
  const ends = [-reach, -reach / 2, 0, reach / 2, reach];
  const sign = (value) => (value > 0 ? "+" : value < 0 ? "−" : "");
  return {
    ...DIFFERENCES,
    index: (value) => Math.max(0, Math.min(SHADES - 1, Math.round(((value / reach + 1) / 2) * (SHADES - 1)))),
    ticks: ends.map((value, i) => [sign(value) + Number(Math.abs(value).toPrecision(2)), i / 4]),
    diverging: true,
  };
}

/** The smallest of 0.01, 0.02, 0.05, 0.1, ..., 1 that is at least as large as all absolute values. */
export function reachOf(values) {
  const most = values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  return [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((reach) => reach >= most) ?? 1;
}

// ---- Time axis ---------------------------------------------------------------------------------

/** The places of training steps on an axis from `left` to `right`. It is logarithmic and includes step
    0: the unit is the first step above 0. So the many early steps and the late ones have room. */
export function timeAxis(steps, left, right) {
  const unit = steps.find(({ step }) => step > 0)?.step ?? 1;
  const place = (step) => Math.log1p(step / unit);
  const first = place(steps[0].step);
  const span = place(steps.at(-1).step) - first;
  return (step) => left + (right - left) * (span > 0 ? (place(step) - first) / span : 0.5);
}

/** The places of all steps on such an axis, in percent of its width. */
export const placesOf = (steps) => steps.map(({ step }) => step).map(timeAxis(steps, 0, 100));

/** Round steps to write on the axis, so that the places `x` of two are at least `gap` apart. */
export function ticksOf(steps, x, gap) {
  const [first, last] = [steps[0].step, steps.at(-1).step];
  const rounds = [1, 5, 2].flatMap((digit) => Array.from({ length: 16 }, (_, power) => digit * 10 ** power));
  const chosen = [];
  for (const step of [last, first, ...rounds]) {
    const inside = step >= first && step <= last;
    if (inside && chosen.every((other) => Math.abs(x(other) - x(step)) >= gap)) chosen.push(step);
  }
  return chosen;
}

/** The index of the number that is nearest to `wanted`. */
export function nearest(numbers, wanted) {
  const distances = numbers.map((number) => Math.abs(number - wanted));
  return distances.indexOf(Math.min(...distances));
}

// ---- Numbers -----------------------------------------------------------------------------------

/** A weight with two digits. */
export const weightText = (weight) => (weight > 0 && weight < 0.005 ? "<0.01" : weight.toFixed(2));

/** A difference with its sign. */
export function differenceText(value, digits = 2) {
  const size = Math.abs(value).toFixed(digits);
  return Number(size) === 0 ? "±0" : (value > 0 ? "+" : "−") + size;
}

/** A metric with few digits, for charts. */
export const shortText = (value) => value?.toFixed(Math.abs(value) >= 100 ? 0 : 2).replace("-0.00", "0.00") ?? "";

/** A metric, or nothing if there is none. */
export function metricText(value) {
  if (typeof value !== "number") return "";
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return Math.abs(value) < 0.01 && Math.abs(value) > 1e-6 ? value.toPrecision(2) : value.toFixed(3);
}

export const stepText = new Intl.NumberFormat(LOCALE).format; // a bound function
