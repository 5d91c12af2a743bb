// Draws triangles of weights and thumbnails as pictures with one pixel per cell.

import { sized } from "./canvas.js";

/** A canvas that shows a triangle of `tokens` with a colour scale. With more tokens than `side`, a
    pixel shows the value with the largest absolute value that it covers. Cells of the future stay
    transparent. */
export function picture(values, tokens, side, scale) {
  const cells = Math.min(tokens, Math.max(1, side));
  const shown = new Float32Array(cells * cells);
  const seen = new Uint8Array(cells * cells);
  const cell = Uint32Array.from({ length: tokens }, (_, i) => Math.floor((i * cells) / tokens));
  let place = 0;
  for (let query = 0; query < tokens; query++) {
    const first = cell[query] * cells;
    for (let key = 0; key <= query; key++) {
      const at = first + cell[key];
      const value = values[place++];
      if (Math.abs(value) >= Math.abs(shown[at])) shown[at] = value;
      seen[at] = 1;
    }
  }
  const value = (x, y) => (seen[y * cells + x] ? shown[y * cells + x] : null);
  return paint(document.createElement("canvas"), cells, cells, value, scale);
}

/** Draws `width` x `height` values on a canvas. `value(x, y)` is null for a cell that stays
    transparent. */
export function paint(canvas, width, height, value, scale) {
  const context = sized(canvas, width, height);
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at++) {
      const shown = value(x, y);
      if (shown !== null) pixels[at] = scale.pixels[scale.index(shown)];
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
