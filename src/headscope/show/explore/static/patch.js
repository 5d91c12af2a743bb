// Copies the outputs of heads from another text into this one, and shows how the answer changes.

import { ask } from "./api.js";
import { TextField, Unknown } from "./controls.js";
import { mainOf } from "./session.js";
import { controlMeaning } from "./viewer/dom.js";
import { Button, Component, Rows, Select, Share, html, term } from "./viewer/html.js";
import { headRows, percentText } from "./viewer/next.js";
import { differenceText } from "./viewer/scales.js";
import { headName, headNumber } from "./viewer/state.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

const CASES = ["before", "other", "after"]; // the text, the other one, and the text with the copies
const LISTED = 10;

/** The question how the answer changes, or null if there is no other text. */
export function patchQuestion(session) {
  const { page: { second, copies }, patchTokens, reading } = session;
  return second && mainOf(session) ? JSON.stringify([reading.value.question, second, copies, patchTokens]) : null;
}

/** The same with every head copied, on request. */
export function effectsQuestion(session) {
  const question = patchQuestion({ ...session, page: { ...session.page, copies: [] } });
  return session.wanted.effects === question ? question : null;
}

export const patchOf = ({ page: { second, copies }, patchTokens, reading }, signal) =>
  ask("patch", { ...reading.value.main.request, other: second, copies, ...patchTokens }, signal);

export const effectsOf = ({ page: { second }, patchTokens, reading }, signal) =>
  ask("patch", { ...reading.value.main.request, other: second, copies: [], ...patchTokens, every_head: true }, signal);

/** The card. It is unfolded when an experiment or an address has another text. */
export class Patch extends Component {
  componentDidMount() { this.base.open = Boolean(this.props.session.page.second); }
  componentDidUpdate(before) {
    const { second } = this.props.session.page;
    if (second !== before.session.page.second && !this.base.contains(document.activeElement)) this.base.open = Boolean(second);
  }

  render({ session, tell, actions }) {
    const { page: { second, copies }, patch: { value: answer, problem }, patchAt, view, reading: { value } } = session;
    if (!value) return html`<details class="card patch-card" />`;
    const refused = problem?.message ?? answer?.problem;
    return html`<details class="card patch-card"><summary ...${term(TEXTS.aboutPatch)}>${TEXTS.patch}</summary>
      <${TextField} text=${second} rows="2" aria-label=${TEXTS.second} placeholder=${TEXTS.second}
        type=${(text, begins) => tell("changed", { second: text, copies: [] }, begins)} />
      <p class="notes">${second && answer && html`<${Unknown} text=${second} unknown=${answer.unknown[1]} />`}</p>
      ${second && html`<div class="patched">
        ${answer && html`<${Positions} answer=${answer} at=${patchAt} select=${(at) => tell("selected", { patchAt: at })} />`}
        ${refused && html`<p role="status">${refused}</p>`}
        ${answer && !refused && html`<${Answer} answer=${answer} copies=${copies} at=${patchAt} head=${view.head ?? "L0H0"}
          copied=${(others) => tell("changed", { copies: others }, true)} open=${actions.open}
          compare=${(tokens) => tell("selected", { patchTokens: { ...session.patchTokens, ...tokens } })} />
        <${Effects} session=${session} ...${actions} />`}</div>`}
    </details>`;
  }
}

/** The tokens of both texts, one above the other. One position is selected. */
function Positions({ answer: { tokens: [first, second] }, at, select }) {
  const selected = Math.min(at ?? Infinity, first.length - 1);
  const places = [...Array(Math.max(first.length, second.length)).keys()];
  return html`<div class="token-pairs" role="group" aria-label=${TEXTS.positions} data-tip=${controlMeaning(TEXTS.positions)}>${
    places.map((place) => html`<button type="button" class="token-pair ${first[place] === second[place] ? "" : "differs"}"
      aria-pressed=${place === selected} onClick=${() => select(place)}>${
      [first[place], second[place]].map((label) => html`<bdi>${label ?? "–"}</bdi>`)}</button>`)}</div>`;
}

/** How the answer changes, and what can be copied. */
function Answer({ answer, copies, at, head, copied, compare }) {
  const { tokens: [first], right, wrong, next, difference } = answer;
  const position = Math.min(at ?? Infinity, first.length - 1);
  const copy = (place) => copied([...copies.filter((each) => each.head !== head || each.position !== place), { head, position: place }]);
  const [before, other, after] = CASES.map((name) => differenceText(difference[name]));
  const strongest = (token) => Math.max(...CASES.map((name) => token[name]));
  const likely = [...next].sort((a, b) => strongest(b) - strongest(a)).slice(0, LISTED);
  const cases = copies.length ? CASES : CASES.slice(0, 2);
  const chooser = (name, { id }) => html`<${Select} label=${TEXTS.answers[name]} value=${id}
    groups=${{ "": next.map((token) => [token.id, token.label]) }} choose=${(token) => compare({ [name]: Number(token) })} />`;
  return html`
    <div class="buttons"><${Button} text=${TEXTS.copyHere(head, first[position], position)} about=${TEXTS.copy} click=${() => copy(position)} />
      <${Button} text=${TEXTS.copyAll(head)} about=${TEXTS.copy} click=${() => copy(null)} /></div>
    <p class="chips">${copies.map((each) => html`<${Button} look="chip" title=${TEXTS.removeCopy}
      text=${`${each.head} ${each.position === null ? TEXTS.allPositions : TEXTS.at(each.position)} ×`}
      click=${() => copied(copies.filter((one) => one !== each))} />`)}</p>
    <div class="buttons">${chooser("right", right)}${chooser("wrong", wrong)}</div>
    <p role="status">${TEXTS.answer(right.label, wrong.label, before, other, copies.length ? after : null)}</p>
    <table class="answers"><thead><tr>${TEXTS.columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${likely.map((token) => html`<tr><th scope="row" class="token-name" dir="auto">${token.label}</th>${
        cases.map((name) => html`<td>${percentText(token[name])}<${Share} share=${token[name]} /></td>`)}</tr>`)}</tbody></table>`;
}

/** How the answer changes with each head copied, on request. */
function Effects({ session, want, open }) {
  const { view, effects: { value, of, problem, busy }, reading: { value: { main: { about } } } } = session;
  const question = patchQuestion({ ...session, page: { ...session.page, copies: [] } });
  const changes = value && of === question ? value.every_head.map((each) => each - value.difference.before) : null;
  return html`<${Button} text=${TEXTS.everyHead} disabled=${busy || changes !== null} click=${() => want("effects", question)} />
    <p class="quiet">${problem?.message ?? (changes && TEXTS.effects)}</p>
    <div class="rows effects">${changes && html`<${Rows} rows=${headRows(changes, about.heads, headNumber(view.head, about),
      (number) => open(headName(number, about.heads)))} />`}</div>`;
}
