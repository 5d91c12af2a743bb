// Elements. Texts are inserted only as textContent or as attributes, never as HTML.

/** Sets attributes of an element, or removes those that are undefined. A function listens to the event
    with its name. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === undefined) element.removeAttribute(name);
    else element.setAttribute(name, value);
  }
}

/** Makes an element with attributes and a text, and appends it to `parent` unless that is null. */
export function make(parent, tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  set(element, attributes);
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

/** Sets the text of an element, only if it is another one, since that would be a new layout. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The entry of an object by a name from the data, which may be that of a method, such as toString. */
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

/** Calls `work` before the next frame, once, however often it was asked for. */
export function oncePerFrame(work) {
  let frame = 0;
  return () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(work);
  };
}
