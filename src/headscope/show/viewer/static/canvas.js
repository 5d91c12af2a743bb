// What is drawn on canvases: texts, lines, the values of an axis, and pictures with one pixel per cell.

const MAX_SIDE = 8192; // browsers refuse larger canvases
const NARROW = 5; // the width of a narrow letter in pixels

/** Gives a canvas this size in pixels, and clears it. Returns its context. */
export function sized(canvas, width, height) {
  // Setting a size takes new memory, also for the same size.
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  context.reset();
  return context;
}

/** Clears a canvas and makes it as large as `width` x `height` CSS pixels, with a pixel for every
    pixel of the screen. Returns its context, scaled to CSS pixels. Very large ones have fewer pixels. */
export function sizedInCss(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio, MAX_SIDE / width, MAX_SIDE / height);
  const context = sized(canvas, ...[width, height].map((side) => Math.max(1, Math.round(side * ratio))));
  canvas.style.height = `${height}px`;
  context.scale(ratio, ratio);
  return context;
}

/** Writes a text whose left end (or as `align` says) is at x. A long one is cut to about `room`, and gets a narrower font. */
export function drawText(context, theme, text, x, y, look = {}) {
  const { colour = theme.quiet, font = "11px", align = "left", baseline = "middle", room } = look;
  context.font = `${font} ${theme.font}`;
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillStyle = colour;
  const characters = Array.from(text);
  const most = Math.floor((room ?? Infinity) / NARROW);
  context.fillText(characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text, x, y, room);
}

/** Draws a line through points, with a break where a height is null. */
export function drawLine(context, xs, ys, colour, width = 1, dash = []) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineCap = "round";
  context.setLineDash(dash);
  context.beginPath();
  ys.forEach((y, i) => {
    if (y === null) return;
    if ((ys[i - 1] ?? null) === null) context.moveTo(xs[i] - 0.01, y); // so that a single point can be seen
    context.lineTo(xs[i], y);
  });
  context.stroke();
  context.setLineDash([]);
}

/** Draws a horizontal line through an area. */
export function drawAcross(context, area, y, colour, dash) {
  const middle = Math.round(y) + 0.5; // of a pixel
  drawLine(context, [area.left, area.right], [middle, middle], colour, 1, dash);
}

/** The height of a value in an area, from `low` at the bottom to `high` at the top, or null for null. */
export const heightIn = (area, [low, high]) => (value) => (value === null ? null
  : area.top + (high > low ? 1 - (value - low) / (high - low) : 0.5) * area.height);

/** Draws a line through an area for each value of an axis, with its text at the left. */
export function drawAxis(context, theme, area, y, values, textOf) {
  for (const value of values) {
    drawText(context, theme, textOf(value), area.left - 8, y(value), { align: "right" });
    drawAcross(context, area, y(value), theme.rule);
  }
}

/** A canvas that shows a triangle of `tokens` with a colour scale. With more tokens than `side`, a pixel shows the largest
    absolute value that it covers. Cells of the future stay transparent. */
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

/** Draws `width` x `height` values on a canvas. A cell whose `value(x, y)` is null stays transparent. */
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
