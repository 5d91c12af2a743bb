// Which part of the model decides on a token: one head or one feed-forward network at a time is switched off,
// and the parts without which the probability changes most are listed. On request, for each kept step.

import { switchesOf } from "./address.js";
import { stream } from "./api.js";
import { keptSteps } from "./models.js";
import { mainOf, runOf } from "./session.js";
import { GLOSSARY } from "./viewer/glossary.js";
import { Button, Card, Radios, Rows, Select, html } from "./viewer/html.js";
import { percentText } from "./viewer/next.js";
import { headName, headsOf } from "./viewer/state.js";
import { COMMON, EXPLORE as TEXTS } from "./viewer/texts.js";

const LISTED = 5; // heads, and networks
const DECISIVE = 0.9; // a head decides if this share of the probability or less is left without it
const SMALLEST = 0.01; // a change of the probability that is listed
const SOON = 3; // seconds: what takes longer is asked on request only

const isHead = ({ part }) => /^L\d+H\d+$/.test(part);
const falls = ({ probability, without }) => probability - without >= SMALLEST;
const rises = ({ probability, without }) => without - probability >= SMALLEST;
const shares = ({ probability, without }) => [probability, without].map((share) => percentText(share).replace(" ", "\u00a0"));
const size = ({ probability, without }) => Math.abs(probability - without);

// ---- What is asked ---------------------------------------------------------------------------------

/** What a reading asks of `model`, or of all steps of its run. */
const asked = ({ request, answer: { ids, position, target } }, by, model) =>
  JSON.stringify([by, model, ids, position, target.id, switchesOf(request)]);
const isShort = ({ answer: { history } }, by) => by === "mean" && history.labels.length < 2;

/** The question which part decides, or null if nobody asks it. */
export function decidersQuestion(session) {
  const { page: { by }, wanted } = session;
  const main = mainOf(session);
  if (!main || isShort(main, by)) return null;
  const question = asked(main, by, main.about.name);
  return main.answer.deciders_seconds < SOON || wanted.deciders === question ? question : null;
}

/** The same for each kept step. */
export function keptQuestion(session) {
  const { page: { by }, wanted } = session;
  const main = mainOf(session);
  const question = main && asked(main, by, runOf(main.about.name));
  return question && wanted.kept === question ? question : null;
}

/** Waits until what has changed on the page is painted. */
const painted = () => new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); });

/** All parts of a model, those without which the token is least likely first. Shows what is known so far. */
async function partsOf({ main, by, model }, signal, show) {
  const { request, answer: { position, target } } = main;
  let parts = [];
  for await (const { rows, share } of stream("deciders", { ...request, model, position, target: target.id, by }, signal)) {
    signal.throwIfAborted();
    if (rows.length === 0) continue; // a layer is done
    parts = [...parts, ...rows].sort((a, b) => a.without - b.without);
    show(parts, share);
  }
  return parts;
}

/** Answers the question which part decides: {model, by, label, parts, share}. */
export async function decidersOf(session, signal, show) {
  const { page: { by }, reading: { value: { main } } } = session;
  const value = { by, model: main.about.name, label: main.answer.target.label };
  await painted(); // the reading is seen first
  signal.throwIfAborted();
  const parts = await partsOf({ main, ...value }, signal, (found, share) => show({ ...value, parts: found, share }));
  return { ...value, parts, share: 1 };
}

/** Answers it for each kept step: {at, steps}, where `at` says how far it is. */
export async function keptOf(session, signal, show) {
  const { page: { by }, reading: { value: { main } } } = session;
  const steps = [];
  for (const { name, step } of keptSteps(main.about)) {
    const at = COMMON.step(step);
    const parts = await partsOf({ main, by, model: name }, signal,
      (found, share) => show({ at: `${at}, ${percentText(share)}`, steps: [...steps] }));
    steps.push({ model: name, step: at, parts });
  }
  return { at: "", steps };
}

// ---- What is shown ---------------------------------------------------------------------------------

/** The head that the sentence names, as a row, or null. */
const headOf = (parts) => parts.filter(isHead).sort((a, b) => size(b) - size(a))[0] ?? null;

/** The head that decides, as far as is known, or null. */
export function decidingHead(session) {
  const { deciders: { value, of } } = session;
  const head = value && of === decidersQuestion(session) ? headOf(value.parts) : null;
  const [before, after] = head ? shares(head) : [];
  return before === after ? null : head.part;
}

let given = { value: null, changes: null }; // the last changes: the same answer has the same object

/** The change of the probability without each head, for the viewer: by head {change, said, listed}, or null. */
export function changesOf(session) {
  const { deciders: { value, of }, reading } = session;
  const current = value && of === decidersQuestion(session) ? value : null;
  if (given.value === current) return given.changes;
  const { layers, heads } = reading.value.main.about;
  const rows = new Map((current?.parts ?? []).map((row) => [row.part, row]));
  const changes = current && headsOf({ layers, heads }).map((number) => {
    const row = rows.get(headName(number, heads));
    return row ? { change: row.without - row.probability, said: `→ ${shares(row)[1]}`, listed: size(row) >= SMALLEST } : { change: 0 };
  });
  given = { value: current, changes };
  return changes;
}

const bar = (row) => ({ share: size(row), sign: row.probability > row.without ? "less" : "more" });

export function Deciders({ session, tell, actions }) {
  const { page: { by }, view, reading: { value: reading }, deciders, kept, wanted } = session;
  if (!reading) return null;
  const { main } = reading;
  const { about, heads, answer: { target: { label } } } = main;
  const short = isShort(main, by);
  const question = asked(main, by, about.name);
  const isAsked = !mainOf(session) || decidersQuestion(session) !== null;
  const value = deciders.value;
  const shown = value && !short && isAsked && !deciders.problem && runOf(value.model) === runOf(about.name) ? value : null;
  const asking = deciders.busy || kept.busy || (shown && deciders.of !== question);

  return html`<${Card} name="deciders-card" look=${asking ? "asking" : ""} label=${TEXTS.deciders} title=${TEXTS.decidersOf(label)}
      about=${TEXTS.aboutDeciders(by)}
      more=${html`<fieldset class="views" aria-label=${TEXTS.by}><${Radios} name="by" options=${TEXTS.bys} value=${by}
        choose=${(chosen) => tell("changed", { by: chosen })} /></fieldset>`}>
    <p class="quiet">${short ? TEXTS.noMean : heads.length > 0 && TEXTS.withHeads(heads)}</p>
    ${shown && html`<${Found} ...${shown} opened=${view.head} open=${actions.open} />`}
    <${Button} text=${TEXTS.findDeciders} hidden=${short || (isAsked && !deciders.problem)}
      click=${() => actions.want("deciders", question)} />
    <${Steps} session=${session} tell=${tell} want=${actions.want} complete=${shown?.share === 1} />
    <p class="notes" role="status">${(deciders.problem ?? kept.problem)?.message}</p>
  <//>`;
}

/** The parts that decide: a sentence, and two lists. */
function Found({ parts, by, label, share, opened, open }) {
  const head = headOf(parts);
  const decides = head && falls(head) && head.without <= DECISIVE * head.probability;
  const say = decides ? TEXTS.decides : head && rises(head) ? TEXTS.holdsBack : TEXTS.noneDecides;
  const named = head && html`<${Button} look="link" text=${head.part} tip=${TEXTS.opens(head.part)} click=${() => open(head.part)} />`;
  const list = (title, ofKind) => {
    const largest = parts.filter(ofKind).sort((a, b) => size(b) - size(a)).slice(0, LISTED)
      .filter((row) => size(row) >= SMALLEST || row === head);
    const rows = [...largest.filter((row) => !rises(row)), ...largest.filter(rises)].map((row) => ({
      text: row.part.replace(" feed-forward", ""), note: TEXTS.change(shares(row)[1], by), ...bar(row),
      click: isHead(row) ? () => open(row.part) : undefined, marked: row.part === opened, tip: isHead(row) ? TEXTS.opens(row.part) : undefined,
      label: TEXTS.effectOf(row.part, by, label, falls(row), ...shares(row)),
    }));
    return html`<div><h4><span data-tip=${ofKind === isHead ? undefined : GLOSSARY.words["feed-forward"]}>${title}</span></h4>
      ${rows.length ? html`<div class="rows"><${Rows} rows=${rows} /></div>` : html`<p class="quiet">${TEXTS.noChange}</p>`}</div>`;
  };
  return html`<p class="effect">${share < 1 && TEXTS.soFar}${head && say(named, by, ...shares(head))}</p>
    <div class="blocks">${list(TEXTS.headList, isHead)}${list(TEXTS.networkList, (row) => !isHead(row))}</div>
    <p class="quiet">${share < 1 && TEXTS.measuredSoFar(percentText(share))}</p>`;
}

/** The part without which the token is least likely, at each kept step. */
function Steps({ session, tell, want, complete }) {
  const { page: { by }, reading: { value: { main } }, kept } = session;
  const { about: { name }, answer: { target: { label } } } = main;
  const question = asked(main, by, runOf(name));
  const steps = kept.of === question ? kept.value.steps : [];
  const parts = (steps.at(-1)?.parts ?? []).map((row) => [row.part, row.part]);
  const part = parts.some(([name]) => name === session.part) ? session.part : "";
  const isAsked = session.wanted.kept === question && !kept.problem;
  const rows = steps.map(({ model, step, parts: ranked }) => {
    const row = ranked.find((each) => each.part === part) ?? ranked[0];
    const named = (part || falls(row)) && row.part;
    const note = named ? `${shares(row)[0]} ${TEXTS.change(shares(row)[1], by)}` : shares(row)[0];
    return {
      text: step, ...bar(row), note: named && !part ? `${named}: ${note}` : note, marked: model === name,
      label: TEXTS.atStep(step, label, named, by, ...shares(row)), click: () => tell("changed", { model }),
    };
  });
  return html`<${Select} label=${TEXTS.ofPart} hidden=${steps.length === 0} value=${part}
      groups=${{ "": [["", TEXTS.firstPart], ...parts] }} choose=${(chosen) => tell("selected", { part: chosen })} />
    <div class="rows kept-rows"><${Rows} rows=${rows} /></div>
    <${Button} text=${COMMON.since} hidden=${!complete || isAsked || keptSteps(main.about).length < 2}
      click=${() => want("kept", question)} />
    <p class="notes" role="status">${kept.busy && kept.value?.at}</p>`;
}
