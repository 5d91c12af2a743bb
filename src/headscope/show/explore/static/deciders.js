// Which part of the model decides on a token: every head and every feed-forward network is switched off in
// turn, and the parts without which the token is least likely are listed.

import { api } from "./api.js";
import { button, redraw } from "./controls.js";
import { card, make } from "./viewer/dom.js";
import { addShare, percentText } from "./viewer/next.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

const LISTED = 6;
const SMALLEST = 0.01; // a change of the probability that is listed
const LARGE = 2 ** 25; // a model with this many parameters is asked on request only

export function createDeciders(parent, actions) {
  const section = card(parent, "deciders-card", TEXTS.deciders);
  const heading = section.querySelector("h3");
  const about = make(section, "p", { class: "quiet", role: "status" });
  const find = button(section, TEXTS.findDeciders, () => ask());
  const rows = make(section, "div", { class: "rows" });
  let main = null; // the reading that is asked about
  let asking = null; // ends the newest request

  async function ask() {
    const { request, answer: { position, target } } = main;
    const mine = new AbortController();
    asking = mine;
    find.hidden = true;
    const parts = [];
    try {
      for await (const layer of api.deciders({ ...request, position, target: target.id }, mine.signal)) {
        parts.push(...layer.rows);
        parts.sort((a, b) => a.without - b.without);
        list(parts);
      }
      about.textContent = TEXTS.aboutDeciders;
      actions.suggest(parts.map(({ part }) => part).find((part) => /^L\d+H\d+$/.test(part)));
    } catch (error) {
      if (error.name !== "AbortError") about.textContent = error.message;
    }
  }

  function list(parts) {
    const listed = parts.slice(0, LISTED).filter(({ probability, without }) => probability - without >= SMALLEST);
    redraw(rows, () => {
      for (const { part, probability, without } of listed) {
        const isHead = /^L\d+H\d+$/.test(part);
        const row = make(rows, isHead ? "button" : "div", { class: "row", ...(isHead
          && { type: "button", click: () => actions.open(part) }) });
        make(row, "span", { class: "token-name" }, part);
        const bars = make(row, "span", { class: "pair" });
        addShare(bars, "reference", probability);
        addShare(bars, "probability", without);
        make(row, "span", { class: "note" }, TEXTS.falls(percentText(probability), percentText(without)));
      }
      if (listed.length === 0) make(rows, "p", { class: "quiet" }, TEXTS.nobodyDecides);
    });
  }

  return {
    show(newest) {
      if (newest === main) return;
      main = newest;
      asking?.abort();
      heading.replaceChildren(...TEXTS.decidersOf(main.answer.target.label));
      about.textContent = TEXTS.askingDeciders;
      find.hidden = main.about.parameters < LARGE;
      if (find.hidden) ask();
      else rows.replaceChildren();
    },
  };
}
