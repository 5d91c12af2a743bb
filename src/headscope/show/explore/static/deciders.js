// Which part of the model decides on a token: one head or one feed-forward network at a time is switched off,
// and the parts without which the probability changes most are listed. On request, for each kept step.

import { switchesOf } from "./address.js";
import { stream } from "./api.js";
import { keptSteps, runOf } from "./models.js";
import { button, card, explain, fill, labelled, make, radios } from "./viewer/dom.js";
import { GLOSSARY } from "./viewer/glossary.js";
import { list, percentText } from "./viewer/next.js";
import { COMMON, EXPLORE as TEXTS } from "./viewer/texts.js";

const LISTED = 6;
const DECISIVE = 0.9; // a head decides if this share of the probability or less is left without it
const SMALLEST = 0.01; // a change of the probability that is listed
const LARGE = 2 ** 35; // a model with this many parameters x layers x heads x tokens is asked on request only

const isHead = ({ part }) => /^L\d+H\d+$/.test(part);
const falls = ({ probability, without }) => probability - without >= SMALLEST;
const rises = ({ probability, without }) => without - probability >= SMALLEST;
const shares = ({ probability, without }) => [probability, without].map(percentText);
const change = (row) => ({
  note: shares(row).join(" → ").replaceAll(" ", "\u00a0"),
  share: Math.abs(row.probability - row.without), sign: row.probability > row.without ? "less" : "more",
});

export function createDeciders(parent, actions) {
  const section = card(parent, "deciders-card", TEXTS.deciders);
  const heading = section.querySelector("h3");
  const about = make(section, "p", { class: "quiet" });
  const ways = make(section, "fieldset", { class: "views", "aria-label": TEXTS.by });
  const showBy = radios(ways, "by", TEXTS.bys, (by) => actions.change({ by }));
  const verdict = make(section, "p", { class: "effect" });
  const partRows = make(section, "div", { class: "rows" });
  const find = button(section, TEXTS.findDeciders, () => run(find, findParts));
  const ofPart = labelled(section, TEXTS.ofPart, "select", { change: () => listSteps() });
  const stepRows = make(section, "div", { class: "rows" });
  const since = button(section, COMMON.since, () => run(since, findSteps));
  const status = make(section, "p", { class: "notes", role: "status" });
  let main = null; // the reading that is asked about
  let by = "mean"; // what replaces the output of a part
  let asked = ""; // the question that the list answers
  let asking = null; // ends the request that is on its way
  let found = []; // the parts at the kept steps, ranked

  /** Runs the work of a button, and says how it ends. */
  async function run(asker, work) {
    const mine = asking = new AbortController();
    asker.hidden = true;
    section.classList.add("asking");
    try {
      status.textContent = await work(mine.signal) ?? "";
    } catch (error) {
      if (mine.signal.aborted) return;
      status.textContent = error.message;
      asker.hidden = false;
      if (asker === find) listParts([]);
    }
    if (asking !== mine) return;
    asking = null;
    section.classList.remove("asking");
  }

  /** Ends the request that is on its way. Its question is then asked again. */
  function stop() {
    asking?.abort();
    if (asking) asked = "";
    asking = null;
    section.classList.remove("asking");
  }

  /** Whether the parts of the model are switched off on request only. */
  const isLarge = ({ about: { parameters, layers, heads }, answer: { history: { labels } } }) =>
    parameters * layers * heads * labels.length >= LARGE;

  /** All parts of a model, ranked. Shows the progress after the words `at`. */
  async function partsOf(model, signal, at = "") {
    const { request, about: { layers }, answer: { position, target } } = main;
    const parts = [];
    for await (const { rows } of stream("deciders", { ...request, model, position, target: target.id, by }, signal)) {
      signal.throwIfAborted();
      parts.push(rows);
      if (at || isLarge(main)) status.textContent = at + TEXTS.layerOf(parts.length, layers);
    }
    return parts.flat().sort((a, b) => a.without - b.without);
  }

  async function findParts(signal) {
    const parts = await partsOf(main.about.name, signal);
    const listed = [...parts.filter(falls), ...parts.filter(rises).reverse()];
    const [head] = parts.filter(isHead).sort((a, b) => change(b).share - change(a).share);
    const decides = falls(head) && head.without <= DECISIVE * head.probability;
    const say = decides ? TEXTS.decides : rises(head) ? TEXTS.holdsBack : TEXTS.noneDecides;
    const [before, after] = shares(head).map((share) => share.replace(" ", "\u00a0"));
    const words = say(head.part, by, before, after);
    listParts(listed.slice(0, LISTED), words);
    since.hidden = [0, 1, found.length].includes(keptSteps(main.about).length);
    actions.suggest(before === after ? null : head.part); // the head that the words name
  }

  async function findSteps(signal) {
    found = [];
    for (const { name, step } of keptSteps(main.about)) {
      const at = COMMON.step(step);
      found.push({ model: name, step: at, parts: await partsOf(name, signal, `${at}, `) });
      listSteps();
    }
  }

  function listParts(parts, says = "") {
    const { label } = main.answer.target;
    verdict.textContent = says;
    list(partRows, parts.map((row) => ({
      text: row.part, ...change(row), click: isHead(row) ? () => actions.open(row.part) : undefined,
      label: TEXTS.effectOf(row.part, by, label, falls(row), ...shares(row)),
      tip: isHead(row) ? undefined : GLOSSARY.words["feed-forward"],
    })));
  }

  function listSteps() {
    const { about: { name }, answer: { target: { label } } } = main;
    const parts = (found.at(-1)?.parts ?? []).map(({ part }) => [part, part]);
    ofPart.parentElement.hidden = found.length === 0;
    fill(ofPart, { "": [["", TEXTS.firstPart], ...parts] }, ofPart.value);
    list(stepRows, found.map(({ model, step, parts: ranked }) => {
      const row = ranked.find(({ part }) => part === ofPart.value) ?? ranked[0];
      const part = (ofPart.value || falls(row)) && row.part;
      return {
        text: step, ...change(row),
        note: ofPart.value ? change(row).note : part ? `${part}: ${change(row).note}` : shares(row)[0],
        label: TEXTS.atStep(step, label, part, by, ...shares(row)),
        click: () => actions.change({ model }), marked: model === name,
      };
    }));
  }

  function show(state, newest) {
    const { about: { name }, heads, request, answer: { ids, position, target, history } } = newest;
    const question = JSON.stringify([state.by, runOf(name), ids, position, target.id, switchesOf(request)]);
    const isSame = question === asked && name === main.about.name;
    if (!isSame) stop();
    if (question !== asked) found = [];
    if (main && runOf(name) !== runOf(main.about.name)) listParts([]);
    [main, asked, by] = [newest, question, state.by];
    heading.replaceChildren(...TEXTS.decidersOf(target.label));
    listSteps();
    if (isSame) return;
    actions.suggest(null);
    const isShort = by === "mean" && history.labels.length < 2;
    showBy(by);
    explain(heading, TEXTS.aboutDeciders(by));
    about.textContent = isShort ? TEXTS.noMean : heads.length ? TEXTS.withHeads(heads) : "";
    status.textContent = "";
    find.hidden = isShort || !isLarge(main);
    since.hidden = true;
    if (!isShort && find.hidden) run(find, findParts);
    else listParts([]);
  }

  return { show, stop };
}
