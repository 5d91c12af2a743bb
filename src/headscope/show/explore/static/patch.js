// Copies the outputs of heads from another text into this one, and shows how the answer changes.

import { button, explain, explainControl, fill, labelled, make } from "./viewer/dom.js";
import { ask } from "./api.js";
import { markUnknown, redraw } from "./controls.js";
import { textField } from "./editor.js";
import { addShare, listHeads, percentText } from "./viewer/next.js";
import { differenceText } from "./viewer/scales.js";
import { headName, headNumber } from "./viewer/state.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

const CASES = ["before", "other", "after"]; // the text, the other one, and the text with the copies

export function createPatch(parent, actions) {
  const section = make(parent, "details", { class: "card patch-card" });
  explain(make(section, "summary", {}, TEXTS.patch), TEXTS.aboutPatch);
  const field = textField(section, { rows: 2, "aria-label": TEXTS.second, placeholder: TEXTS.second },
    (second, begins) => {
      asked = {};
      actions.change({ second, copies: [] }, begins);
    });
  const notes = make(section, "p", { class: "notes" });
  const body = make(section, "div", { class: "patched" });
  const pairs = make(body, "div", { class: "token-pairs", role: "group", "aria-label": TEXTS.positions });
  explainControl(pairs, TEXTS.positions);
  const buttons = make(body, "div", { class: "buttons" });
  const here = button(buttons, "", () => copy(position));
  const everywhere = button(buttons, "", () => copy(null));
  for (const control of [here, everywhere]) explainControl(control, TEXTS.copy);
  button(buttons, TEXTS.everyHead, () => update(true));
  const chips = make(body, "p", { class: "chips" });
  const answers = make(body, "div", { class: "buttons" });
  const chooser = (name) => labelled(answers, TEXTS.answers[name], "select", { change: ({ target }) => {
    asked[name] = Number(target.value);
    update();
  } });
  const choosers = { right: chooser("right"), wrong: chooser("wrong") };
  const says = make(body, "p", { role: "status" });
  const table = make(body, "table", { class: "answers" });
  const columns = make(make(table, "thead"), "tr");
  for (const name of TEXTS.columns) make(columns, "th", { scope: "col" }, name);
  const rows = make(table, "tbody");
  const effectsTitle = make(body, "p", { class: "quiet", hidden: "" }, TEXTS.effects);
  const effects = make(body, "div", { class: "rows effects" });
  let [state, main, view] = [null, null, null];
  let wanted = Infinity; // the chosen position, at first the last one
  let position = 0;
  let asked = {}; // the tokens whose logits are compared, if the user chose them
  let tried = {}; // the effects of every head, and what they belong to
  let asking = null;
  let shownFor = "";

  function copy(at) {
    const head = view.head;
    const others = actions.now().copies.filter((copied) => copied.head !== head || copied.position !== at);
    actions.change({ copies: [...others, { head, position: at }] }, true);
  }

  async function update(everyHead = false) {
    asking?.abort();
    asking = new AbortController();
    try {
      const answer = await ask("patch", { ...main.request, other: state.second, copies: state.copies,
                                          every_head: everyHead, ...asked }, asking.signal);
      if (answer.every_head) tried = { of: questionOf(answer), effects: answer.every_head };
      draw(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      shownFor = "failed"; // ask again
      showProblem(error.message);
    }
  }

  const questionOf = ({ right, wrong }) => JSON.stringify([main.request, state.second, right.id, wrong.id]);

  function showProblem(problem) {
    says.textContent = problem;
    for (const element of [buttons, answers, table, effectsTitle, effects]) element.hidden = Boolean(problem);
  }

  function draw(answer) {
    const { tokens: [first, second], unknown, problem, right, wrong, next, difference } = answer;
    position = Math.min(wanted, first.length - 1);
    notes.replaceChildren();
    markUnknown(notes, state.second, unknown[1]);
    redraw(pairs, () => {
      for (let at = 0; at < Math.max(first.length, second.length); at++) {
        const pair = button(pairs, "", () => {
          wanted = at;
          draw(answer);
        }, { class: `token-pair ${first[at] === second[at] ? "" : "differs"}`, "aria-pressed": at === position });
        for (const label of [first[at], second[at]]) make(pair, "bdi", {}, label ?? "–");
      }
    });
    showProblem(problem);
    if (problem) return;
    here.textContent = TEXTS.copyHere(view.head, first[position], position);
    everywhere.textContent = TEXTS.copyAll(view.head);
    const options = { "": next.map(({ id, label }) => [id, label]) };
    fill(choosers.right, options, right.id);
    fill(choosers.wrong, options, wrong.id);
    const [before, other, after] = CASES.map((name) => differenceText(difference[name]));
    says.textContent = TEXTS.answer(right.label, wrong.label, before, other, state.copies.length ? after : null);
    rows.replaceChildren();
    const strongest = (token) => Math.max(...CASES.map((name) => token[name]));
    for (const token of next.sort((a, b) => strongest(b) - strongest(a)).slice(0, 10)) {
      const row = make(rows, "tr");
      make(row, "th", { scope: "row", class: "token-name", dir: "auto" }, token.label);
      for (const name of state.copies.length ? CASES : CASES.slice(0, 2)) {
        addShare(make(row, "td", {}, percentText(token[name])), "", token[name]);
      }
    }
    effectsTitle.hidden = effects.hidden = tried.of !== questionOf(answer);
    if (effects.hidden) return;
    const { heads } = main.about;
    listHeads(effects, tried.effects.map((value) => value - difference.before), heads,
      headNumber(view.head, main.about), (head) => actions.open(headName(head, heads)));
  }

  return {
    show(...shown) {
      if (shown[1].about.vocabulary !== main?.about.vocabulary) asked = {};
      [state, main, view] = shown;
      view = { ...view, head: view.head ?? "L0H0" };
      if (field.show(state.second)) section.open = Boolean(state.second);
      body.hidden = !state.second;
      const key = JSON.stringify([main.request, state.second, state.copies, view.head]);
      if (body.hidden || key === shownFor) return;
      shownFor = key;
      redraw(chips, () => {
        for (const copied of state.copies) {
          const remove = () => actions.change({ copies: actions.now().copies.filter((each) => each !== copied) }, true);
          const where = copied.position === null ? TEXTS.allPositions : TEXTS.at(copied.position);
          button(chips, `${copied.head} ${where} ×`, remove, { class: "chip", title: TEXTS.removeCopy });
        }
      }, here);
      update();
    },
  };
}
