// Colour scales of weights and differences, axes, and how numbers are written.

import { LOCALE } from "./texts.js";

const VIRIDIS = // matplotlib's viridis, as in all other pictures
  "44015444025645045745055946075a46085c460a5d460b5e470d60470e61471063471164471365481467" +
  "48166848176948186a481a6c481b6d481c6e481d6f481f70482071482173482374482475482576482677" +
  "482878482979472a7a472c7a472d7b472e7c472f7d46307e46327e46337f463480453581453781453882" +
  "443983443a83443b84433d84433e85423f854240864241864142874144874045884046883f47883f4889" +
  "3e49893e4a893e4c8a3d4d8a3d4e8a3c4f8a3c508b3b518b3b528b3a538b3a548c39558c39568c38588c" +
  "38598c375a8c375b8d365c8d365d8d355e8d355f8d34608d34618d33628d33638d32648e32658e31668e" +
  "31678e31688e30698e306a8e2f6b8e2f6c8e2e6d8e2e6e8e2e6f8e2d708e2d718e2c718e2c728e2c738e" +
  "2b748e2b758e2a768e2a778e2a788e29798e297a8e297b8e287c8e287d8e277e8e277f8e27808e26818e" +
  "26828e26828e25838e25848e25858e24868e24878e23888e23898e238a8d228b8d228c8d228d8d218e8d" +
  "218f8d21908d21918c20928c20928c20938c1f948c1f958b1f968b1f978b1f988b1f998a1f9a8a1e9b8a" +
  "1e9c891e9d891f9e891f9f881fa0881fa1881fa1871fa28720a38620a48621a58521a68522a78522a884" +
  "23a98324aa8325ab8225ac8226ad8127ad8128ae8029af7f2ab07f2cb17e2db27d2eb37c2fb47c31b57b" +
  "32b67a34b67935b77937b87838b9773aba763bbb753dbc743fbc7340bd7242be7144bf7046c06f48c16e" +
  "4ac16d4cc26c4ec36b50c46a52c56954c56856c66758c7655ac8645cc8635ec96260ca6063cb5f65cb5e" +
  "67cc5c69cd5b6ccd5a6ece5870cf5773d05675d05477d1537ad1517cd2507fd34e81d34d84d44b86d549" +
  "89d5488bd6468ed64590d74393d74195d84098d83e9bd93c9dd93ba0da39a2da37a5db36a8db34aadc32" +
  "addc30b0dd2fb2dd2db5de2bb8de29bade28bddf26c0df25c2df23c5e021c8e020cae11fcde11dd0e11c" +
  "d2e21bd5e21ad8e219dae319dde318dfe318e2e418e5e419e7e419eae51aece51befe51cf1e51df4e61e" +
  "f6e620f8e621fbe723fde725";
// matplotlib's RdBu_r, between these colours linear
const RED_BLUE =
  "0530612166ac4393c392c5ded1e5f0f7f7f7fddbc7f4a582d6604db2182b67001f";

const SHADES = 256;

function rgb(hexadecimal, index) {
  return [0, 2, 4].map((at) => parseInt(hexadecimal.slice(6 * index + at, 6 * index + at + 2), 16));
}

function between(stops, place) {
  const left = Math.min(Math.floor(place), stops.length - 2);
  return stops[left].map((low, i) => Math.round(low + (place - left) * (stops[left + 1][i] - low)));
}

/** Colours as the numbers that a pixel of ImageData has, if seen as Uint32. */
const asPixels = (colours) => Uint32Array.from(colours, ([r, g, b]) =>
  ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);

const viridis = Array.from({ length: SHADES }, (_, i) => rgb(VIRIDIS, i));
const redBlueStops = Array.from({ length: 11 }, (_, i) => rgb(RED_BLUE, i));
const redBlue = Array.from({ length: SHADES }, (_, i) =>
  between(redBlueStops, (i / (SHADES - 1)) * 10));

/** A colour scale: `pixels` are its colours, `index` gives the colour of a value, `ticks` are
    pairs of a value and its place from 0 to 1. */
export const WEIGHTS = {
  pixels: asPixels(viridis),
  index: (weight) => Math.min(SHADES - 1, Math.round(Math.sqrt(weight) * (SHADES - 1))),
  gradient: gradient(viridis),
  ticks: [0, 0.01, 0.1, 0.2, 0.4, 0.6, 0.8, 1].map((w) => [String(w), Math.sqrt(w)]),
  diverging: false,
};

/** A diverging scale from -reach to reach. */
export function differences(reach) {
  const ends = [-reach, -reach / 2, 0, reach / 2, reach];
  const sign = (value) => (value > 0 ? "+" : value < 0 ? "−" : "");
  return {
    pixels: asPixels(redBlue),
    index: (value) =>
      Math.max(0, Math.min(SHADES - 1, Math.round(((value / reach + 1) / 2) * (SHADES - 1)))),
    gradient: gradient(redBlue),
    ticks: ends.map((value, i) => [sign(value) + Number(Math.abs(value).toPrecision(2)), i / 4]),
    diverging: true,
  };
}

/** The smallest of 0.01, 0.02, 0.05, 0.1, ... that no absolute value exceeds. */
export function reachOf(values) {
  let most = 0;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return [0.01, 0.02, 0.05, 0.1, 0.2, 0.5].find((reach) => reach >= most) ?? 1;
}

function gradient(colours) {
  const some = colours.filter((_, i) => i % 15 === 0);
  return `linear-gradient(to right, ${some.map(([r, g, b]) => `rgb(${r} ${g} ${b})`)})`;
}

// ---- Time axis ---------------------------------------------------------------------------------

/** Places training steps on an axis from 0 to 1. It is logarithmic and includes step 0: the unit is
    the first step above 0. So both the many early steps and the evenly spaced late ones have room. */
export function timeAxis(steps) {
  const unit = steps.find((step) => step > 0) ?? 1;
  const place = (step) => Math.log1p(step / unit);
  const first = place(steps[0]);
  const span = place(steps.at(-1)) - first;
  return (step) => (span > 0 ? (place(step) - first) / span : 0.5);
}

/** Round steps to write on the axis, so that two are at least `gap` apart (as part of the axis). */
export function ticksOf(steps, at, gap) {
  const [first, last] = [steps[0], steps.at(-1)];
  const rounds = [1, 5, 2].flatMap((digit) =>
    Array.from({ length: 16 }, (_, power) => digit * 10 ** power));
  const chosen = [];
  for (const step of [last, first, ...rounds]) {
    const inside = step >= first && step <= last;
    if (inside && chosen.every((other) => Math.abs(at(other) - at(step)) >= gap)) chosen.push(step);
  }
  return chosen;
}

// ---- Numbers -----------------------------------------------------------------------------------

/** A weight with two digits. */
export const weightText = (weight) =>
  weight > 0 && weight < 0.005 ? "<0.01" : weight.toFixed(2);

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
  return Math.abs(value) < 0.01 && value !== 0 ? value.toPrecision(2) : value.toFixed(3);
}

const inThousands = new Intl.NumberFormat(LOCALE);
export const stepText = (step) => inThousands.format(step);
