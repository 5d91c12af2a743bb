// Which part of the model decides on a token: every head and every feed-forward network is switched off in
// turn, and the parts are listed without which the probability of the token changes most. On request, for
// each kept step of the run.

import { switchesOf } from "./address.js";
import { api } from "./api.js";
import { button, redraw } from "./controls.js";
import { keptSteps } from "./models.js";
import { card, make } from "./viewer/dom.js";
import { addShare, percentText } from "./viewer/next.js";
import { stepText } from "./viewer/scales.js";
import { COMMON, EXPLORE as TEXTS } from "./viewer/texts.js";

const LISTED = 6;
const SMALLEST = 0.01; // a change of the probability that is listed
const LARGE = 2 ** 25; // a model with this many parameters is asked on request only

const isHead = ({ part }) => /^L\d+H\d+$/.test(part);
const falls = ({ probability, without }) => probability - without >= SMALLEST;
const rises = ({ probability, without }) => without - probability >= SMALLEST;
const sharesOf = ({ probability, without }) => [probability, without].map(percentText);
const arrow = (shares) => shares.join(" → ").replaceAll(" ", "\u00a0");

/** Adds a row that compares the probability of a token with that without a part. `label` says the same in a
    sentence. */
function addRow(rows, name, { probability, without }, note, label, { click, pressed }) {
  const attributes = click ? { type: "button", click, "aria-pressed": pressed } : { role: "img" };
  const row = make(rows, click ? "button" : "div", { class: "row", "aria-label": label, ...attributes });
  make(row, "span", { class: "token-name" }, name);
  const bars = make(row, "span", { class: "pair" });
  addShare(bars, "reference", probability);
  addShare(bars, "probability", without);
  make(row, "span", { class: "note" }, note);
}

export function createDeciders(parent, actions) {
  const section = card(parent, "deciders-card", TEXTS.deciders);
  const heading = section.querySelector("h3");
  const about = make(section, "p", { class: "quiet" });
  const rows = make(section, "div", { class: "rows" });
  const find = button(section, TEXTS.findDeciders, () => findParts());
  const stepRows = make(section, "div", { class: "rows" });
  const since = button(section, TEXTS.since, () => findSteps());
  const status = make(section, "p", { class: "notes", role: "status" });
  let main = null; // the reading that is asked about
  let asked = ""; // the text, the token and the switched heads
  let asking = null; // ends the newest request
  let found = []; // what decides at the kept steps

  /** Runs the action of a button, which ends with the next question, and says if it fails. */
  async function run(action, work) {
    const mine = new AbortController();
    asking = mine;
    action.hidden = true;
    try {
      await work(mine.signal);
      status.textContent = "";
    } catch (error) {
      if (mine.signal.aborted) return;
      status.textContent = error.message;
      action.hidden = false;
      if (action === find) list([]);
    }
  }

  /** All parts of a model, ranked. Calls `progress` after each layer, with the parts so far. */
  async function partsOf(model, signal, progress) {
    const { request, about: { layers }, answer: { position, target } } = main;
    const parts = [];
    let layer = 0;
    for await (const { rows: more } of api.deciders({ ...request, model, position, target: target.id }, signal)) {
      signal.throwIfAborted();
      parts.push(...more);
      parts.sort((a, b) => a.without - b.without);
      layer += 1;
      progress(parts, TEXTS.layerOf(layer, layers));
    }
    return parts;
  }

  const findParts = () => run(find, async (signal) => {
    const parts = await partsOf(main.about.name, signal, (known, layer) => {
      if (main.about.parameters < LARGE) return;
      status.textContent = layer;
      list(known);
    });
    list(parts);
    since.hidden = [0, 1, found.length].includes(keptSteps(main.about).length);
    const decides = parts.find((part) => isHead(part) && falls(part));
    if (decides) actions.suggest(decides.part);
  });

  const findSteps = () => run(since, async (signal) => {
    found = [];
    for (const { name, step } of keptSteps(main.about)) {
      const [first] = await partsOf(name, signal, (known, layer) => {
        status.textContent = `${COMMON.step(stepText(step))}, ${layer}`;
      });
      found.push({ model: name, step: COMMON.step(stepText(step)), ...first });
      listSteps();
    }
  });

  function list(parts) {
    const { label } = main.answer.target;
    const listed = [...parts.filter(falls), ...parts.filter(rises).reverse()].slice(0, LISTED);
    heading.replaceChildren(...TEXTS.decidersOf(label));
    redraw(rows, () => {
      for (const row of listed) {
        const { part } = row;
        const sentence = TEXTS.without(part, label, falls(row), ...sharesOf(row));
        addRow(rows, part, row, arrow(sharesOf(row)), sentence, { click: isHead(row) && (() => actions.open(part)) });
      }
      if (parts.length > 0 && listed.length === 0) make(rows, "p", { class: "quiet" }, TEXTS.nobodyDecides);
    });
  }

  function listSteps() {
    const { about: { name }, answer: { target } } = main;
    redraw(stepRows, () => {
      for (const row of found) {
        const [share, without] = sharesOf(row);
        const note = falls(row) ? `${row.part}: ${arrow([share, without])}` : share;
        const sentence = TEXTS.atStep(row.step, target.label, share, falls(row) && row.part, without);
        const click = () => actions.change({ model: row.model, target: target.id });
        addRow(stepRows, row.step, row, note, sentence, { click, pressed: row.model === name });
      }
    });
  }

  return {
    show(newest) {
      const { about: { name, parameters }, heads, request, answer: { ids, position, target, history } } = newest;
      const question = JSON.stringify([name.split("@")[0], ids, position, target.id, switchesOf(request)]);
      const isSame = question === asked && name === main.about.name;
      if (question !== asked) found = [];
      asked = question;
      main = newest;
      listSteps();
      if (isSame) return;
      asking?.abort();
      find.hidden = since.hidden = true;
      const isShort = history.labels.length < 2;
      about.textContent = isShort ? TEXTS.noMean : TEXTS.aboutDeciders + (heads.length ? TEXTS.withHeads(heads) : "");
      status.textContent = "";
      if (!isShort && parameters < LARGE) findParts();
      else {
        list([]);
        find.hidden = isShort;
      }
    },
  };
}
