// What the opened head does on other texts: short texts with a query and the key that it looks at.

import { card, explain, explainControl, make, own, set, write } from "./dom.js";
import { areLabels, jsonOf } from "./model.js";
import { shortText, weightText } from "./scales.js";
import { damaged } from "./store.js";
import { ELSEWHERE as TEXTS } from "./texts.js";

const MAX_EXAMPLES = 100;
const MAX_LABELS = 500;
const KIND = "examples";

/** A card that calls `find(model)` when it is open. This returns a promise of what snapshot.py describes
    for a head, or of {problem}. By default, it is in the data of the step, and the card is hidden without it. */
export function createElsewhere(parent, store, find) {
  const section = card(parent, "elsewhere-card", "");
  const heading = section.querySelector("h3");
  const fold = make(section, "button", { type: "button", class: "fold", click: toggle }, TEXTS.show);
  explainControl(fold, TEXTS.show);
  const body = make(section, "div");
  let isOpen = !find;
  let current = null; // the newest model
  let shown = ""; // the examples on the screen, as JSON

  function toggle() {
    isOpen = !isOpen;
    show(current);
  }

  async function show(model) {
    current = model;
    section.hidden = !find && !model.step.layout.some(({ name }) => name === KIND);
    write(heading, TEXTS.title(model.name));
    set(section, { "aria-label": heading.textContent });
    set(fold, { "aria-expanded": isOpen });
    body.hidden = !isOpen;
    if (section.hidden || !isOpen) return;
    if (!shown) body.textContent = TEXTS.working;
    section.classList.add("asking");
    const found = await (find?.(model) ?? inData(store, model)).then(checked)
      .catch((error) => ({ problem: error.message }));
    if (model !== current) return;
    section.classList.remove("asking");
    const text = JSON.stringify(found);
    if (text !== shown) list(found);
    shown = text;
  }

  function list({ problem, examples, ...measured }) {
    body.replaceChildren();
    make(body, "p", { class: "quiet" }, problem ?? TEXTS.measured(measured));
    if (problem) return;
    const legend = make(body, "p", { class: "quiet legend" });
    for (const look of ["looks", "looked"]) {
      make(legend, "i", { class: `swatch ${look}` });
      legend.append(TEXTS[look]);
    }
    for (const [kind, [title, about]] of Object.entries(TEXTS.kinds)) {
      const ofKind = examples.filter((example) => example.kind === kind);
      if (ofKind.length === 0) continue;
      explain(make(make(body, "h4"), "span", {}, title), about);
      for (const example of ofKind) addExample(make(body, "div", { class: "example" }), example);
    }
  }

  return { show };
}

function addExample(row, { kind, weight, moved, labels, marked: [query, key] }) {
  make(row, "span", { class: "quiet" }, kind === "moved" ? shortText(moved) : weightText(weight));
  const text = make(row, "p");
  text.style.setProperty("--weight", `${100 * Math.sqrt(Math.min(1, weight))}%`);
  labels.forEach((label, at) => {
    make(text, "bdi", { class: [at === key && "key", at === query && "query"].filter(Boolean).join(" ") }, label);
  });
}

/** The examples of the opened head in the data. */
async function inData(store, { history, index, opened }) {
  const part = await store.part(history, index, KIND, Math.floor(opened / history.heads));
  return jsonOf(part)?.[opened % history.heads];
}

/** The examples of a head, which may come from a stranger, if they have the right form. */
function checked(found) {
  const isCount = (value) => Number.isInteger(value) && value > 0;
  const isExample = ({ kind, weight, moved, labels, marked }) => own(TEXTS.kinds, kind) && Number.isFinite(weight)
    && (Number.isFinite(moved) || (moved === null && kind !== "moved")) && areLabels(labels)
    && labels.length <= MAX_LABELS && Array.isArray(marked) && marked.length === 2
    && marked.every((at) => Number.isInteger(at) && at >= 0 && at < labels.length);
  if (typeof found?.problem === "string") return found;
  if (!areLabels([found?.source]) || !isCount(found.windows) || !isCount(found.tokens) || !Array.isArray(found.examples)
    || found.examples.length > MAX_EXAMPLES || !found.examples.every((example) => example && isExample(example))) {
    throw damaged(TEXTS.notExamples);
  }
  return found;
}
