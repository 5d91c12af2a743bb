// The text: typed, or written by the model.

import { button, card, make } from "./viewer/dom.js";
import { disable, markUnknown, numberField, switchField } from "./controls.js";
import { keptSteps, runOf } from "./models.js";
import { COMMON, EXPERIMENTS, EXPLORE as TEXTS } from "./viewer/texts.js";

const PAUSE = 1500; // ms
const SAMPLING = {
  length: { min: 1, max: 10000, step: 1 },
  temperature: { min: 0, max: 100, step: "any" },
  top_k: { min: 1, max: 1e6, step: 1, optional: true },
  top_p: { min: 0.001, max: 1, step: "any", optional: true },
  seed: { min: 0, max: 2 ** 53 - 1, step: 1 },
};

/** A field for a text. Calls `type(text, begins)` at each key press. `begins` is true for the first one
    since the field was entered, `show` set another text, or the person paused: Undo undoes all typing since then. */
export function textField(parent, attributes, type) {
  const field = make(parent, "textarea", { spellcheck: false, dir: "auto", ...attributes });
  let typing = false;
  let pause = 0;
  field.addEventListener("input", () => {
    type(field.value, !typing);
    typing = true;
    clearTimeout(pause);
    pause = setTimeout(() => { typing = false; }, PAUSE);
  });
  field.addEventListener("blur", () => { typing = false; });
  /** Shows a text. Returns whether it is another one. */
  const show = (text) => {
    if (field.value === text) return false;
    field.value = text;
    field.scrollTop = field.scrollHeight; // the end of what the model writes
    typing = false;
    return true;
  };
  return { field, show };
}

export function createEditor(parent, actions) {
  const section = card(parent, "editor-card", TEXTS.text);
  make(section.querySelector("h3"), "span", { class: "working" }, ` ${COMMON.working}`);
  const { field, show: showText } = textField(section,
    { rows: 3, "aria-label": TEXTS.text, placeholder: TEXTS.invitation },
    (text, begins) => actions.change({ text }, begins));
  const notes = make(section, "p", { class: "notes", role: "status" });
  const buttons = make(section, "div", { class: "buttons" });
  const write = button(buttons, TEXTS.write, () => (writing ? actions.stop() : actions.write()), { class: "action play" });
  const one = button(buttons, TEXTS.one, () => actions.write(1));
  const back = button(buttons, TEXTS.back, () => actions.back());
  const undo = button(buttons, TEXTS.undo, () => actions.undo());
  const question = switchField(buttons, TEXTS.question, (on) => actions.change({ question: on, text: field.value }, true));
  const tries = make(section, "div", { class: "buttons tries" });
  const task = make(section, "p", { class: "quiet task", role: "status" });
  const sampling = make(section, "details", { class: "sampling" });
  make(sampling, "summary", {}, TEXTS.howToSample);
  const settings = make(sampling, "div", { class: "buttons" });
  const reading = make(section, "details", { class: "sampling" });
  make(reading, "summary", {}, TEXTS.howToRead);
  const line = make(reading, "div", { class: "buttons" });
  const reads = ["begin", "special"].map((name) => [name,
    switchField(line, TEXTS.reads[name], (on) => actions.change({ [name]: on, text: field.value }, true))]);
  const shows = Object.entries(SAMPLING).map(([name, options]) => [name, numberField(settings,
    { label: TEXTS.sampling[name], ...options, change: (value) => actions.change({ [name]: value }) })]);

  let offered = null; // the run whose experiments are offered
  let tried = null; // the text of the experiment
  let writing = false;

  /** Offers the experiments that fit the model, and its other examples. */
  function showTries(about) {
    if (runOf(about.name) === offered) return;
    offered = runOf(about.name);
    tries.replaceChildren(about.texts.length ? TEXTS.tries : "");
    for (const text of about.texts) {
      const fitting = EXPERIMENTS.filter(({ text: own, layers = 1, vocabulary = 1, early }) => own === text
        && about.layers >= layers && about.vocab_size >= vocabulary && (!early || keptSteps(about).length > 1));
      for (const experiment of fitting.length ? fitting : [{ title: TEXTS.example(text), text }]) {
        button(tries, experiment.title, () => {
          task.textContent = experiment.task ?? "";
          tried = text;
          actions.start(experiment);
        });
      }
    }
  }

  return {
    show(state, { about, request, answer }) {
      showTries(about);
      if (answer.text !== tried) task.textContent = "";
      for (const [name, showValue] of shows) showValue(state[name]);
      question(state.question, about.can.question);
      reading.hidden = !(about.can.begin || about.can.special);
      for (const [name, showOn] of reads) showOn(state[name] ?? about.typed[name], about.can[name]);
      showText(state.text ?? answer.text);
      disable(undo, !actions.canUndo(), field);
      disable(back, answer.ids.length < 2, field);
      notes.replaceChildren();
      notes.classList.remove("error");
      const { labels } = answer.history;
      const cut = answer.ids.length - labels.length;
      if (cut > 0) notes.append(TEXTS.cut(cut, about.block_size, answer.text.slice(0, 40)));
      if (answer.split) notes.append(TEXTS.split);
      if (labels.length > 1 && labels.at(-1) === "·" && about.vocab_size > 300) notes.append(TEXTS.endsWithSpace);
      markUnknown(notes, request.text, answer.unknown);
    },

    showWriting(on) {
      writing = on;
      write.textContent = on ? TEXTS.stop : TEXTS.write;
      one.hidden = on;
      // Otherwise, screen readers would read a sentence for each token.
      document.querySelector(".says").setAttribute("aria-live", on ? "off" : "polite");
    },

    say(error) {
      if (error.name === "AbortError") return;
      undo.disabled = !actions.canUndo();
      notes.textContent = error.message;
      notes.classList.add("error");
    },
  };
}
