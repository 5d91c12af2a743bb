// Elements and canvases. Texts are inserted only as textContent or as attributes, never as HTML.

/** Makes an element with attributes and a text, and appends it to `parent` unless that is null. An
    attribute that is a function listens to the event with its name. */
export function make(parent, tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  }
  element.textContent = text;
  parent?.append(element);
  return element;
}

/** Appends a section with a title, like all panels have. */
export function card(parent, name, title) {
  const section = make(parent, "section", { class: `card ${name}`, "aria-label": title });
  make(section, "h3", {}, title);
  return section;
}

const MAX_SIDE = 8192; // browsers refuse larger canvases

/** Clears a canvas and makes it as large as `width` x `height` CSS pixels, with a pixel for every
    pixel of the screen. Returns its context, scaled to CSS pixels. A canvas that would be too large
    has fewer pixels. */
export function fit(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio, MAX_SIDE / width, MAX_SIDE / height);
  const size = [width, height].map((side) => Math.max(1, Math.round(side * ratio)));
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, ...size);
  context.scale(ratio, ratio);
  return context;
}

/** Sets the text of an element, only if it is another one, since that would be a new layout. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The text, cut with an ellipsis if it is wider than `width` in the font of the context. */
export function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const characters = Array.from(text);
  let kept = characters.length;
  while (kept > 1 && context.measureText(characters.slice(0, kept).join("") + "…").width > width) {
    kept -= 1;
  }
  return characters.slice(0, kept).join("") + "…";
}

/** The entry of an object by a name from the data, which may be that of a method, such as toString. */
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

/** Calls `work` before the next frame, once, however often it was asked for. */
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
