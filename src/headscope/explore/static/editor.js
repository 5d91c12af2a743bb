// The text: typed, or written by the model.

import { card, make } from "./viewer/dom.js";
import { texts } from "./viewer/texts.js";

const TEXTS = texts.explore;

/** A labelled field for a number. An empty field is null if `optional`. */
export function numberField(parent, { label, min, max, step, optional, change }) {
  const box = make(parent, "label", { class: "number" }, `${label} `);
  const field = make(box, "input", { type: "number", min, max, step, ...(optional && { placeholder: TEXTS.off }) });
  field.addEventListener("change", () => {
    const empty = field.value === "";
    if (field.checkValidity() && (optional || !empty)) change(empty ? null : Number(field.value));
    else field.reportValidity();
  });
  return (value) => {
    if (document.activeElement !== field) field.value = value ?? "";
  };
}

export function button(parent, text, click, attributes = {}) {
  const made = make(parent, "button", { type: "button", class: "action", ...attributes }, text);
  made.addEventListener("click", click);
  return made;
}

/** Marks the characters that the vocabulary lacks where they stand in the text. */
export function markUnknown(notes, text, unknown) {
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

/** Disables a button or not. The focus moves to `next` if it would be lost. */
export function disable(element, disabled, next) {
  if (disabled && element === document.activeElement) next.focus();
  element.disabled = disabled;
}

const waiting = new WeakMap(); // boxes whose button is pressed: a button that is replaced loses the click

/** Draws the buttons of a box again. The focus stays at its place, or moves to `next` if the box is
    empty. */
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

export function createEditor(parent, actions) {
  const section = card(parent, "editor-card", TEXTS.text);
  make(section.querySelector("h3"), "span", { class: "working" }, ` ${TEXTS.working}`);
  const field = make(section, "textarea", { rows: 4, "aria-label": TEXTS.text, spellcheck: false, dir: "auto" });
  const notes = make(section, "p", { class: "notes", role: "status" });
  const buttons = make(section, "div", { class: "buttons" });
  const write = button(buttons, TEXTS.write, () => actions.write());
  const stop = button(buttons, TEXTS.stop, () => actions.stop(), { hidden: "" });
  const one = button(buttons, TEXTS.one, () => actions.write(1));
  const back = button(buttons, TEXTS.back, () => actions.back());
  const undo = button(buttons, TEXTS.undo, () => actions.undo());
  const showLength = numberField(buttons, { label: TEXTS.length, min: 1, max: 10000, step: 1,
                                            change: (value) => actions.change({ length: value }) });
  const showSeed = numberField(buttons, { label: TEXTS.seed, min: 0, max: 2 ** 53 - 1, step: 1,
                                          change: (value) => actions.change({ seed: value }) });
  let typed = false; // whether the last action was typing: it is undone as a whole
  field.addEventListener("input", () => {
    actions.stop();
    actions.change({ text: field.value }, !typed);
    typed = true;
  });

  field.addEventListener("blur", () => { typed = false; });

  return {
    show(state, { about, request, answer }, canUndo) {
      showLength(state.length);
      showSeed(state.seed);
      const text = state.text ?? answer.text;
      if (field.value !== text) {
        field.value = text;
        typed = false;
      }
      disable(undo, !canUndo, field);
      disable(back, answer.ids.length < 2, field);
      notes.replaceChildren();
      notes.classList.remove("error");
      const cut = answer.ids.length - answer.history.labels.length;
      if (cut > 0) notes.append(TEXTS.cut(cut, about.block_size, answer.text.slice(0, 40)));
      if (answer.unknown.length > 0) markUnknown(notes, request.text, answer.unknown);
    },

    showWriting(on) {
      const [hidden, shown] = on ? [write, stop] : [stop, write];
      shown.hidden = false;
      if (document.activeElement === hidden) shown.focus();
      hidden.hidden = true;
      one.hidden = on;
      // A sentence for each token would be too much to listen to.
      document.querySelector(".says").setAttribute("aria-live", on ? "off" : "polite");
    },

    say(error, canUndo) {
      if (error.name === "AbortError") return;
      undo.disabled = !canUndo;
      notes.textContent = error.message;
      notes.classList.add("error");
    },
  };
}
