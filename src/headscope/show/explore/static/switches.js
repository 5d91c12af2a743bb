// Switches heads off, to their mean output, or to half, and shows what that changes.

import { EMPTY, switchesOf, writingOf } from "./address.js";
import { stream } from "./api.js";
import { mainOf } from "./session.js";
import { Button, Radios, Token, html, term } from "./viewer/html.js";
import { percentText } from "./viewer/next.js";
import { differenceText } from "./viewer/scales.js";
import { headName, headsOf } from "./viewer/state.js";
import { EXPLORE as TEXTS, HEADS } from "./viewer/texts.js";

const CHIPS = 40; // groups of switched heads that are listed
const ALL_ON = switchesOf(EMPTY);

/** What is switched, as groups {text, heads}: all heads but one, whole layers, and single heads. */
export function switchedGroups(switched, { layers, heads }) {
  const every = headsOf({ layers, heads }).map((head) => headName(head, heads));
  const on = every.filter((head) => !Object.values(switched).flat().includes(head));
  if (on.length === 1 && switched.zero.length > 0 && switched.zero.length === every.length - 1) {
    return [{ text: TEXTS.alone(on[0]), heads: switched.zero }];
  }
  const groups = [];
  for (const [way, names] of Object.entries(switched)) {
    for (let layer = 0; layer < layers; layer++) {
      const own = names.filter((head) => head.startsWith(`L${layer}H`));
      const whole = own.length === heads && heads > 1;
      for (const group of whole ? [own] : own.map((head) => [head])) {
        groups.push({ text: `${whole ? TEXTS.layer(`L${layer}`) : group[0]} ${TEXTS.switchedBy[way]}`, heads: group });
      }
    }
  }
  return groups;
}

/** The question what both sides write from the same seed, or null if nobody asks it. */
export function writtenQuestion(session) {
  const { page: { seed, length, temperature, top_k, top_p }, wanted, reading: { value } } = session;
  if (!wanted.written || !mainOf(session) || !value.reference) return null;
  const sides = [value.main, value.reference].map(({ name, answer: { ids } }) => [name, ids]);
  return JSON.stringify([sides, seed, length, temperature, top_k, top_p]);
}

/** Lets both sides of a comparison write from the same text and seed: their names, and their tokens so far. */
export async function writtenOf({ page, reading: { value: { main, reference } } }, signal, show) {
  const sides = [main, reference].map(({ name }) => ({ name, tokens: [] }));
  await Promise.all([main, reference].map(async ({ about, request }, side) => {
    const same = about.vocabulary === main.about.vocabulary;
    const prompt = same ? { text: null, tokens: main.answer.ids } : { skip: 0 };
    for await (const token of stream("write", { ...request, ...writingOf(page), ...prompt }, signal)) {
      sides[side].tokens.push(token);
      show([...sides]);
    }
  }));
  return sides;
}

/** In words: the probability of the token that is asked about, without the switches and with them. */
function effectOf({ main, reference }) {
  const { target: { id, label } } = main.answer;
  const [now, before] = [main, reference].map((side) => side?.answer.next.find((token) => token.id === id));
  if (!before || reference.about.name !== main.about.name) return [];
  const shares = [before, now].map(({ probability }) => probability);
  const named = (text) => html`<${Token} text=${text} />`;
  const [first] = [...main.answer.next].sort((a, b) => b.probability - a.probability);
  return [...TEXTS.effect(main.name, named(label), ...shares.map(percentText), shares[1] - shares[0]),
          ...(first.id === id ? [] : TEXTS.first(named(first.label), percentText(first.probability)))];
}

/** In words: the loss with the switches, or with another model of the same vocabulary. */
function lossOf({ main, reference }) {
  const [after, before] = [main.answer.loss, reference?.answer.loss ?? null];
  if (after === null || before === null || reference.about.vocabulary !== main.about.vocabulary) return "";
  const say = reference.about.name === main.about.name ? TEXTS.loss : TEXTS.otherLoss;
  return say(before.toFixed(3), after.toFixed(3), differenceText(after - before, 3), reference.name);
}

export function Switches({ session, tell, actions }) {
  const { page, view, written, reading: { value } } = session;
  if (!value) return null;
  const { main, reference } = value;
  const every = headsOf(main.about).map((head) => headName(head, main.about.heads));
  const opened = every.includes(view.head) ? view.head : "L0H0";
  const inLayer = every.filter((head) => head.split("H")[0] === opened.split("H")[0]);
  const lists = Object.entries(switchesOf(page));
  const wayOf = (head) => lists.find(([, heads]) => heads.includes(head))?.[0] ?? "on";
  const switched = (changes) => tell("changed", changes, true);
  const set = (heads, way) => switched(Object.fromEntries(lists.map(([name, before]) => {
    const kept = before.filter((head) => !heads.includes(head));
    return [name, name === way ? [...kept, ...heads] : kept];
  })));
  const groups = switchedGroups(switchesOf(page), main.about);
  const isHeld = main.answer.history.steps[0].held[every.indexOf(opened)];

  return html`<section class="card switches-card" aria-label=${TEXTS.switches}>
    <div class="buttons">
      <fieldset class="views" aria-label=${TEXTS.wayOf(opened)}>
        <span class="way-of" ...${term(TEXTS.aboutSwitches)}>${isHeld ? `${opened} ${HEADS.held}` : opened}</span>
        <${Radios} name="way" options=${TEXTS.ways} value=${wayOf(opened)} choose=${(way) => set([opened], way)} /></fieldset>
      <${Button} text=${TEXTS.alone(opened)} about="alone"
        click=${() => switched({ ...ALL_ON, zero: every.filter((head) => head !== opened) })} />
      <${Button} text=${TEXTS.layer(opened.split("H")[0])} about="layer"
        click=${() => set(inLayer, inLayer.every((head) => wayOf(head) === "zero") ? "on" : "zero")} />
      <${Button} text=${TEXTS.allOn} disabled=${groups.length === 0} click=${() => switched(ALL_ON)} />
    </div>
    <p class="effect" role="status">${effectOf(value)}</p>
    <p class="quiet loss-change">${lossOf(value)}</p>
    <div class="buttons"><span class="chips">${groups.slice(0, CHIPS).map(({ text, heads }) => html`
      <${Button} look="chip" text=${`${text} ×`} title=${TEXTS.switchOn(heads.join(", "))} click=${() => set(heads, "on")} />`)}${
      groups.length > CHIPS && TEXTS.more(groups.length - CHIPS)}</span>
      <${Button} text=${TEXTS.writeBoth} hidden=${!reference} click=${() => actions.want("written", "both")} /></div>
    <div class="written">${writtenQuestion(session) && (written.problem?.message ?? (written.value && html`<${Written} sides=${written.value} />`))}</div>
  </section>`;
}

/** What both sides write. Bold tokens differ. */
const Written = ({ sides }) => [1, 0].map((side) => html`<div><h4 dir="auto">${sides[side].name}</h4><p dir="auto">${ // on: the first one
  sides[side].tokens.map(({ id, text }, at) => html`<${sides[1 - side].tokens[at]?.id === id ? "span" : "b"}>${text}<//>`)}</p></div>`);
