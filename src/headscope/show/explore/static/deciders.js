// Which part of the model decides on a token: every head and every feed-forward network is switched off in
// turn, and the parts without which the probability changes most are listed. On request, for each kept step.

import { switchesOf } from "./address.js";
import { api } from "./api.js";
import { button } from "./controls.js";
import { keptSteps, runOf } from "./models.js";
import { card, make, radios } from "./viewer/dom.js";
import { list, percentText } from "./viewer/next.js";
import { stepText } from "./viewer/scales.js";
import { COMMON, EXPLORE as TEXTS } from "./viewer/texts.js";

const LISTED = 6;
const SMALLEST = 0.01; // a change of the probability that is listed
const LARGE = 2 ** 25; // a model with this many parameters is asked on request only

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
  const ways = make(section, "fieldset", { class: "views" });
  const showBy = radios(ways, "by", { mean: TEXTS.ways.mean, zero: TEXTS.ways.zero }, (way) => {
    by = way;
    show(main);
  });
  const partRows = make(section, "div", { class: "rows" });
  const find = button(section, TEXTS.findDeciders, () => run(find, findParts));
  const stepRows = make(section, "div", { class: "rows" });
  const since = button(section, TEXTS.since, () => run(since, findSteps));
  const status = make(section, "p", { class: "notes", role: "status" });
  let main = null; // the reading that is asked about
  let asked = ""; // the text, the token and the switched heads
  let asking = null; // ends the newest request
  let by = "mean"; // what replaces the output of a part
  let found = []; // what decides at the kept steps

  /** Runs the work of a button, which the next question ends, and says how it ends. */
  async function run(asker, work) {
    const { signal } = asking = new AbortController();
    asker.hidden = true;
    try {
      status.textContent = await work(signal) ?? "";
    } catch (error) {
      if (signal.aborted) return;
      status.textContent = error.message;
      asker.hidden = false;
      if (asker === find) listParts([]);
    }
  }

  /** All parts of a model, ranked. Shows the progress after the words `at`. */
  async function partsOf(model, signal, at = "") {
    const { request, about: { layers, parameters }, answer: { position, target } } = main;
    const parts = [];
    for await (const { rows } of api.deciders({ ...request, model, position, target: target.id, by }, signal)) {
      signal.throwIfAborted();
      parts.push(rows);
      if (at || parameters >= LARGE) status.textContent = at + TEXTS.layerOf(parts.length, layers);
    }
    return parts.flat().sort((a, b) => a.without - b.without);
  }

  async function findParts(signal) {
    const parts = await partsOf(main.about.name, signal);
    const listed = [...parts.filter(falls), ...parts.filter(rises).reverse()];
    listParts(listed.slice(0, LISTED));
    since.hidden = [0, 1, found.length].includes(keptSteps(main.about).length);
    actions.suggest(parts.filter(falls).find(isHead)?.part);
    return listed.length > 0 ? "" : TEXTS.nobodyDecides;
  }

  async function findSteps(signal) {
    found = [];
    for (const { name, step } of keptSteps(main.about)) {
      const at = COMMON.step(stepText(step));
      const [first] = await partsOf(name, signal, `${at}, `);
      found.push({ model: name, step: at, ...first });
      listSteps();
    }
  }

  function listParts(parts) {
    const { label } = main.answer.target;
    heading.replaceChildren(...TEXTS.decidersOf(label));
    list(partRows, parts.map((row) => ({
      text: row.part, ...change(row), click: isHead(row) ? () => actions.open(row.part) : undefined,
      label: TEXTS.without(row.part, label, falls(row), ...shares(row)),
    })));
  }

  function listSteps() {
    const { about: { name }, answer: { target: { id, label } } } = main;
    list(stepRows, found.map((row) => ({
      text: row.step, ...change(row), note: falls(row) ? `${row.part}: ${change(row).note}` : shares(row)[0],
      label: TEXTS.atStep(row.step, label, falls(row) && row.part, ...shares(row)),
      click: () => actions.change({ model: row.model, target: id }), marked: row.model === name,
    })));
  }

  function show(newest) {
    const { about: { name, parameters }, heads, request, answer: { ids, position, target, history } } = newest;
    const question = JSON.stringify([by, runOf(name), ids, position, target.id, switchesOf(request)]);
    const isSame = question === asked && name === main.about.name;
    if (question !== asked) found = [];
    asked = question;
    main = newest;
    listSteps();
    if (isSame) return;
    asking?.abort();
    const isShort = by === "mean" && history.labels.length < 2;
    showBy(by);
    about.textContent = isShort ? TEXTS.noMean
      : TEXTS.aboutDeciders(TEXTS.replacements[by]) + (heads.length ? TEXTS.withHeads(heads) : "");
    status.textContent = "";
    find.hidden = isShort || parameters < LARGE;
    since.hidden = true;
    if (!isShort && find.hidden) run(find, findParts);
    else listParts([]);
  }

  return { show };
}
