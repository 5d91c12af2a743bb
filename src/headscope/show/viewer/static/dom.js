// Elements, fields of forms, and the tooltip. Texts are only textContent or attributes, never HTML.

import { GLOSSARY } from "./glossary.js";

const MEANINGS = Object.entries({ ...GLOSSARY.words, ...GLOSSARY.explore }); // of one or more words

/** Sets attributes of an element, or removes undefined ones. A function listens to the event with its name. */
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

/** Appends a section with a title, like all panels have. `about` explains the panel. */
export function card(parent, name, title, about) {
  const section = make(parent, "section", { class: `card ${name}`, "aria-label": title });
  explain(make(section, "h3", {}, title), about);
  return section;
}

/** Sets the text of an element, only if it is another one, since that would be a new layout. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The entry of an object by a name from the data. The name may be that of a method, such as toString. */
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

/** Calls `work` before the next frame, once, however often it was asked for. */
export function oncePerFrame(work) {
  let frame = 0;
  return () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(work);
  };
}

/** A button, with the meaning of its text in the glossary as its tooltip. */
export const button = (parent, text, click, attributes) => make(parent, "button", {
  type: "button", class: "action", click, "data-tip": controlMeaning(text), "aria-description": controlMeaning(text), ...attributes }, text);

/** Makes `element` a term that is explained by `text`, or an ordinary text if `text` is undefined. */
export function explain(element, text) {
  set(element, { "data-tip": text, "aria-description": text, tabindex: text === undefined ? undefined : 0 });
}

/** What the glossary says of a control with this label, if anything. */
export const controlMeaning = (label) => MEANINGS.find(([words]) => words.split(", ").includes(label))?.[1];

/** Shows the texts of `explain` for all elements inside `root` in one tooltip, on hover and on keyboard
    focus. It is also read to screen readers. */
export function createTooltip(root) {
  const tip = make(root, "div", { class: "tip", "aria-hidden": "true", hidden: "" });
  let pressed = false; // whether the pointer is where it pressed something, which may have changed since

  function open(event) {
    const isPressed = event.target.matches?.(":is(button, input, select, summary):is(:active, :not(:focus-visible))");
    if (event.type === "focusin" ? isPressed : pressed) return; // not over what the control changes
    const term = event.target.closest?.("[data-tip]");
    tip.classList.toggle("late", event.type === "pointerover");
    tip.hidden = !term;
    if (tip.hidden) return;
    tip.textContent = term.dataset.tip;
    const box = term.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(8, Math.min(box.left, width - tip.offsetWidth - 8))}px`;
    const below = box.bottom + 6;
    const hasRoom = below + tip.offsetHeight < document.documentElement.clientHeight;
    const top = hasRoom ? below : Math.max(8, box.top - tip.offsetHeight - 6);
    tip.style.top = `${top + window.scrollY}px`; // the tooltip scrolls with the page
  }

  const close = () => { tip.hidden = true; };
  const press = () => {
    pressed = true;
    close();
  };
  set(root, { pointerover: open, focusin: open, focusout: close, pointerleave: close, pointerdown: press,
              pointermove: () => { pressed = false; } });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") close(); });
}
