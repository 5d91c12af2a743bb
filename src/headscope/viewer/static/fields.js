// Fields of forms: labelled fields, the options of a select, and radio buttons.

import { make } from "./dom.js";

/** A field with a label, which is its parent element. */
export function labelled(parent, text, tag = "select", attributes = {}) {
  return make(make(parent, "label", {}, `${text} `), tag, { "aria-label": text, ...attributes });
}

/** Sets the options of a select, groups {label: [[value, text]]}, only if they changed, and its value. */
export function fill(select, groups, value) {
  const written = JSON.stringify(groups);
  if (select.dataset.options !== written) {
    select.replaceChildren();
    for (const [label, options] of Object.entries(groups)) {
      const group = label && options.length > 0 ? make(select, "optgroup", { label }) : select;
      for (const [each, text] of options) make(group, "option", { value: each }, text);
    }
    select.dataset.options = written;
  }
  select.value = value;
}

/** A radio button per option {value: text}. Returns a function that shows which one is chosen. */
export function radios(parent, name, options, choose) {
  const made = Object.entries(options).map(([value, text]) => {
    const label = make(parent, "label");
    const radio = make(label, "input", { type: "radio", name, value, change: () => choose(value) });
    label.append(text);
    return radio;
  });
  return (chosen) => made.forEach((radio) => { radio.checked = radio.value === chosen; });
}
