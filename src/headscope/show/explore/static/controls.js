// Controls that several cards of the page have.

import { Component, Field, html } from "./viewer/html.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

const PAUSE = 1500; // ms

/** A labelled field for a number, null if it is empty and `optional`. While it has the focus, its value stays. */
export function NumberField({ value, optional, change, ...limits }) {
  const show = (field) => {
    if (field && document.activeElement !== field) field.value = value ?? "";
  };
  const changed = ({ target }) => {
    const empty = target.value === "";
    if (target.checkValidity() && (optional || !empty)) change(empty ? null : Number(target.value));
    else target.reportValidity();
  };
  return html`<${Field} tag="input" type="number" placeholder=${optional ? TEXTS.off : undefined} field=${show}
    onChange=${changed} ...${limits} />`;
}

/** A labelled switch, hidden unless it is `possible`. */
export const Switch = ({ label, on, possible, change }) => html`<${Field} label=${label} tag="input" type="checkbox"
  hidden=${!possible} checked=${on} onChange=${({ target }) => change(target.checked)} />`;

/** A field for a text. Calls `type(text, begins)` at each key press. `begins` is true for the first one since the field
    was entered, another text was shown, or the person paused: Undo undoes all typing since then. */
export class TextField extends Component {
  typing = false;

  render({ text, type, ...attributes }) {
    const show = (field) => {
      if (!field || field.value === text) return;
      field.value = text;
      field.scrollTop = field.scrollHeight; // the end of what the model writes
      this.typing = false;
    };
    const typed = ({ target }) => {
      type(target.value, !this.typing);
      this.typing = true;
      clearTimeout(this.pause);
      this.pause = setTimeout(() => { this.typing = false; }, PAUSE);
    };
    return html`<textarea spellcheck=${false} dir="auto" ref=${show} onInput=${typed}
      onBlur=${() => { this.typing = false; }} ...${attributes}></textarea>`;
  }
}

/** Marks the characters that the vocabulary lacks where they stand in the text. */
export function Unknown({ text, unknown }) {
  if (unknown.length === 0) return null;
  const characters = Array.from(text); // whole ones, as the server counts
  const before = unknown.map(({ at }, number) => characters.slice(number && unknown[number - 1].at + 1, at).join(""));
  return html`${TEXTS.unknown}${unknown.map(({ label }, number) => html`${before[number]}<mark>${label}</mark>`)}${
    characters.slice(unknown.at(-1).at + 1).join("")}`;
}
