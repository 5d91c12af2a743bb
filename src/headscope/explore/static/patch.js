// Copies the outputs of heads from another text into this one, and shows how the answer changes.

import { make } from "./viewer/dom.js";
import { api } from "./api.js";
import { button, markUnknown, redraw } from "./controls.js";
import { textField } from "./editor.js";
import { fill, labelled } from "./viewer/fields.js";
import { list, percentText } from "./viewer/next.js";
import { differenceText } from "./viewer/scales.js";
import { headName } from "./viewer/state.js";
import { texts } from "./viewer/texts.js";

const TEXTS = texts.explore;
const SHOWN = 8; // heads in the list of effects

export function createPatch(parent, actions) {
  const section = make(parent, "details", { class: "card patch-card" });
  make(section, "summary", {}, TEXTS.patch);
  make(section, "p", { class: "quiet" }, TEXTS.aboutPatch);
  const { show: showSecond } = textField(section, { rows: 2, "aria-label": TEXTS.second, placeholder: TEXTS.second },
    (second, begins) => {
      asked = {};
      actions.change({ second, copies: [] }, begins);
    });
  const notes = make(section, "p", { class: "notes" });
  const body = make(section, "div", { class: "patched" });
  const pairs = make(body, "div", { class: "token-pairs", role: "group", "aria-label": TEXTS.positions });
  const buttons = make(body, "div", { class: "buttons" });
  const here = button(buttons, "", () => copy(position));
  const everywhere = button(buttons, "", () => copy(null));
  const every = button(buttons, TEXTS.everyHead, () => update(true));
  const chips = make(body, "p", { class: "chips" });
  const answers = make(body, "div", { class: "buttons" });
  const chosen = ["right", "wrong"].map((name) => {
    const select = labelled(answers, TEXTS.answers[name]);
    select.addEventListener("change", () => {
      asked[name] = Number(select.value);
      update();
    });
    return { name, select };
  });
  const says = make(body, "p", { role: "status" });
  const table = make(body, "table", { class: "answers" });
  const effectsTitle = make(body, "p", { class: "quiet", hidden: "" }, TEXTS.effects);
  const effects = make(body, "div", { class: "rows effects" });
  let [state, main, view] = [null, null, null];
  let wanted = Infinity; // the chosen position, at first the last one
  let position = 0;
  let asked = {}; // the tokens whose logits are compared, if the user chose them
  let tried = null; // the effects of every head, and what they belong to
  let vocabulary = null; // that `asked` belongs to
  let asking = null;
  let shownFor = "";

  function copy(at) {
    const head = view.head;
    const others = actions.now().copies.filter((each) => each.head !== head || each.position !== at);
    actions.change({ copies: [...others, { head, position: at }] }, true);
  }

  async function update(everyHead = false) {
    asking?.abort();
    asking = new AbortController();
    try {
      const answer = await api.patch({ ...main.request, other: state.second, copies: state.copies,
                                       every_head: everyHead, ...asked }, asking.signal);
      if (answer.every_head) tried = { texts: textsOf(), right: answer.right.id, wrong: answer.wrong.id,
                                       effects: answer.every_head };
      draw(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      shownFor = "failed"; // ask again
      fail(error.message);
    }
  }

  const textsOf = () => JSON.stringify([main.request, state.second]);

  /** The copies, each with a button that removes it. */
  function showCopies() {
    redraw(chips, () => {
      for (const each of state.copies) {
        const where = each.position === null ? TEXTS.allPositions : TEXTS.at(each.position);
        const remove = () => actions.change({ copies: actions.now().copies.filter((other) => other !== each) }, true);
        button(chips, `${each.head} ${where} ×`, remove, { class: "chip" });
      }
    }, here);
  }

  function fail(problem) {
    says.textContent = problem;
    for (const part of [table, effects]) part.replaceChildren();
    effectsTitle.hidden = true;
    buttons.hidden = answers.hidden = true;
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
        }, { class: first[at] === second[at] ? "token-pair" : "token-pair differs", "aria-pressed": at === position });
        for (const label of [first[at], second[at]]) make(pair, "bdi", {}, label ?? "–");
      }
    });
    if (problem) return fail(problem);
    buttons.hidden = answers.hidden = false;
    here.textContent = TEXTS.copyHere(view.head, first[position], position);
    everywhere.textContent = TEXTS.copyAll(view.head);
    const options = { "": next.map(({ id, label }) => [id, label]) };
    for (const { name, select } of chosen) fill(select, options, answer[name].id);
    const [before, other, after] = [difference.before, difference.other, difference.after].map((value) =>
      differenceText(value));
    says.textContent = TEXTS.answer(right.label, wrong.label, before, other, state.copies.length ? after : null);
    table.replaceChildren();
    const head = make(make(table, "thead"), "tr");
    for (const name of TEXTS.columns) make(head, "th", { scope: "col" }, name);
    const rows = make(table, "tbody");
    const strongest = (each) => Math.max(each.before, each.other, each.after);
    for (const each of next.sort((a, b) => strongest(b) - strongest(a)).slice(0, 10)) {
      const row = make(rows, "tr");
      make(row, "th", { scope: "row", class: "token-name", dir: "auto" }, each.label);
      for (const name of ["before", "other", "after"]) {
        const cell = make(row, "td", {}, percentText(each[name]));
        make(cell, "i", { class: "share", "aria-hidden": "true" }).style.setProperty("--value", `${100 * each[name]}%`);
      }
    }
    const same = tried && tried.texts === textsOf() && tried.right === right.id && tried.wrong === wrong.id;
    effectsTitle.hidden = !same;
    if (!same) return effects.replaceChildren();
    const changes = tried.effects.map((value, number) => [headName(number, main.about.heads), value - difference.before]);
    const most = Math.max(...changes.map(([, value]) => Math.abs(value))) || 1;
    list(effects, changes.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, SHOWN).map(([name, value]) => ({
      text: name, note: differenceText(value), share: Math.abs(value) / most, sign: value < 0 ? "less" : "more",
      marked: name === view.head, click: () => actions.open(name),
    })));
  }

  return {
    show(...shown) {
      [state, main, view] = shown;
      view = { ...view, head: view.head ?? "L0H0" };
      showSecond(state.second);
      body.hidden = !state.second;
      if (state.second && shownFor === "") section.open = true;
      const key = JSON.stringify([textsOf(), state.copies, view.head]);
      if (body.hidden || key === shownFor) return;
      shownFor = key;
      if (main.about.vocabulary !== vocabulary) asked = {};
      vocabulary = main.about.vocabulary;
      showCopies();
      update();
    },
  };
}
