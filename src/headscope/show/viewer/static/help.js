// The help panel: how to read the page, and the glossary.

import { button, make } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { HELP as TEXTS } from "./texts.js";

/** Appends a button that opens the panel. `inExplore` adds what only the page of explore has. */
export function createHelp(parent, inExplore) {
  const shown = (entries) => Object.entries(entries).filter(([name]) => inExplore || name !== "explore");
  button(parent, "?", () => panel.showModal(), { "aria-label": TEXTS.title });
  const panel = make(parent, "dialog", { class: "help", "aria-label": TEXTS.title, closedby: "any" });
  button(panel, TEXTS.close, () => panel.close());
  make(panel, "h3", {}, TEXTS.title);
  const body = make(panel, "div", { tabindex: 0, autofocus: "" }); // the arrow keys scroll it
  for (const [, text] of shown(TEXTS.about)) make(body, "p", {}, text);
  for (const [name, entries] of shown(GLOSSARY)) {
    make(body, "h4", {}, TEXTS.lists[name]);
    const list = make(body, "dl");
    for (const [term, text] of Object.entries(entries)) {
      make(list, "dt", {}, term.replaceAll("_", " "));
      make(list, "dd", {}, text);
    }
  }
}
