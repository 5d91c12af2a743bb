// What the opened head does in other texts: short texts with a query and the key that it looks at.

import { explain, make, own, write } from "./dom.js";
import { areLabels, jsonOf } from "./model.js";
import { shortText, weightText } from "./scales.js";
import { damaged } from "./store.js";
import { COMMON, ELSEWHERE as TEXTS } from "./texts.js";

const MAX_LENGTH = 500; // of a list

/** A card that shows, when it is unfolded, what `find(model)` returns: a promise of what `shown_examples`
    says of the opened head. By default, it is in the data, and without it there is no card. */
export function createElsewhere(parent, store, find) {
  const section = make(parent, "section", { class: "card elsewhere-card" });
  const fold = make(section, "details", { open: find ? undefined : "", toggle: () => current && show(current) });
  const heading = make(fold, "summary");
  const body = make(fold, "div");
  let current = null; // the newest model
  let shown = ""; // what is on the screen, as JSON

  async function show(model) {
    current = model;
    section.hidden = !find && !model.step.layout.some(({ name }) => name === "examples");
    write(heading, TEXTS.title(model.name));
    if (section.hidden || !fold.open) return;
    section.classList.add("asking");
    if (!shown) body.textContent = COMMON.working;
    const found = await (find?.(model) ?? inData(store, model)).then(checked)
      .catch(({ message }) => ({ problem: message }));
    if (model !== current) return;
    section.classList.remove("asking");
    if (shown === JSON.stringify(found)) return;
    shown = JSON.stringify(found);
    list(found);
  }

  function list({ problem, measured, examples = [] }) {
    body.replaceChildren();
    fold.scrollTop = 0;
    make(body, "p", { class: "quiet" }, problem ?? TEXTS.measured(measured));
    for (const [kind, [title, about]] of Object.entries(TEXTS.kinds)) {
      const ofKind = examples.filter((example) => example.kind === kind);
      if (ofKind.length > 0) explain(make(make(body, "h4"), "span", {}, title), about);
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
    make(text, "bdi", { class: `${at === key ? "key" : ""} ${at === query ? "query" : ""}` }, label);
  });
}

/** The examples of the opened head in the data of its layer. */
async function inData(store, { history, index, opened }) {
  const part = await store.part(history, index, "examples", Math.floor(opened / history.heads));
  return jsonOf(part)?.[opened % history.heads];
}

/** The examples of a head, which may come from a stranger, if they have the right form. */
function checked(found) {
  const isShort = (list) => Array.isArray(list) && list.length <= MAX_LENGTH;
  const isExample = ({ kind, weight, moved, labels, marked }) => own(TEXTS.kinds, kind) && Number.isFinite(weight)
    && (Number.isFinite(moved) || kind !== "moved") && isShort(labels) && areLabels(labels)
    && isShort(marked) && marked.length === 2 && marked.every((at) => Object.hasOwn(labels, at));
  const isRight = areLabels([found?.measured]) && isShort(found.examples)
    && found.examples.every((example) => isExample(example ?? {}));
  if (!isRight) throw damaged(TEXTS.notExamples);
  return found;
}
