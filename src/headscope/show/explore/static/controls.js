// Controls that several panels of the page have.

import { labelled, make } from "./viewer/dom.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

/** A labelled field for a number, null if it is empty and `optional`. Returns a function that shows a value. */
export function numberField(parent, { label, optional, change, ...limits }) {
  const field = labelled(parent, label, "input", { type: "number", placeholder: optional && TEXTS.off, ...limits });
  field.addEventListener("change", () => {
    const empty = field.value === "";
    if (field.checkValidity() && (optional || !empty)) change(empty ? null : Number(field.value));
    else field.reportValidity();
  });
  return (value) => {
    if (document.activeElement !== field) field.value = value ?? "";
  };
}

/** A labelled switch. Returns a function that shows whether it is `on`, and hides it unless it is `possible`. */
export function switchField(parent, label, change) {
  const field = labelled(parent, label, "input", { type: "checkbox", change: () => change(field.checked) });
  return (on, possible) => {
    field.checked = on;
    field.parentElement.hidden = !possible;
  };
}

/** Disables or enables a button. The focus moves to `next` if it would be lost. */
export function disable(element, disabled, next) {
  if (disabled && element === document.activeElement) next.focus();
  element.disabled = disabled;
}

/** Marks the characters that the vocabulary lacks where they stand in the text. */
export function markUnknown(notes, text, unknown) {
  if (unknown.length === 0) return;
  notes.append(TEXTS.unknown);
  const characters = Array.from(text); // whole ones, as the server counts
  let end = 0;
  for (const { at, label } of unknown) {
    notes.append(characters.slice(end, at).join(""));
    make(notes, "mark", {}, label);
    end = at + 1;
  }
  notes.append(characters.slice(end).join(""));
}

const waiting = new WeakMap(); // boxes to draw when their button is no longer pressed: it would lose the click

/** Draws the buttons of a box again. The focus stays at its place, or moves to `next` without buttons. */
export function redraw(box, draw, next) {
  clearTimeout(waiting.get(box));
  if (box.querySelector("button:active")) {
    waiting.set(box, setTimeout(() => redraw(box, draw, next), 50));
    return;
  }
  const place = [...box.querySelectorAll("button")].indexOf(document.activeElement);
  box.replaceChildren();
  draw();
  const buttons = box.querySelectorAll("button");
  if (place >= 0) (buttons[Math.min(place, buttons.length - 1)] ?? next)?.focus();
}
