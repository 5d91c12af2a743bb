// Switches heads off, to their mean output, or to half, and shows what that changes.

import { button, explain, explainControl, make, radios } from "./viewer/dom.js";
import { EMPTY, switchesOf } from "./address.js";
import { disable, redraw } from "./controls.js";
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
        groups.push({ text: `${whole ? TEXTS.layer(`L${layer}`) : group[0]} ${TEXTS.ways[way]}`, heads: group });
      }
    }
  }
  return groups;
}

export function createSwitches(parent, actions) {
  const section = make(parent, "section", { class: "card switches-card", "aria-label": TEXTS.switches });
  const buttons = make(section, "div", { class: "buttons" });
  const ways = make(buttons, "fieldset", { class: "views" });
  const title = make(ways, "span", { class: "way-of" });
  explain(title, TEXTS.aboutSwitches);
  const showWay = radios(ways, "way", TEXTS.ways, (way) => set([opened], way));
  const alone = button(buttons, "", () => {
    const others = every().filter((head) => head !== opened);
    actions.change({ ...ALL_ON, zero: others }, true);
  });
  const layer = button(buttons, "", () => {
    const off = inLayer().every((head) => wayOf(head) === "zero");
    set(inLayer(), off ? "on" : "zero");
  });
  explainControl(alone, "alone");
  explainControl(layer, "layer");
  const reset = button(buttons, TEXTS.allOn, () => actions.change(ALL_ON, true));
  const effect = make(section, "p", { class: "effect", role: "status" });
  const loss = make(section, "p", { class: "quiet loss-change" });
  const line = make(section, "div", { class: "buttons" });
  const chips = make(line, "span", { class: "chips" });
  const again = button(line, TEXTS.writeBoth, () => rewrite());
  const written = make(section, "div", { class: "written" });
  let [state, main, reference, opened] = [null, null, null, "L0H0"];
  let rewriting = null;
  let shownFor = ""; // what the written texts belong to

  const every = () => headsOf(main.about).map((head) => headName(head, main.about.heads));
  const inLayer = () => every().filter((head) => head.split("H")[0] === opened.split("H")[0]);
  const lists = () => Object.entries(switchesOf(actions.now()));
  const wayOf = (head) => lists().find(([, heads]) => heads.includes(head))?.[0] ?? "on";

  function set(heads, way) {
    const changed = lists().map(([name, before]) => {
      const kept = before.filter((head) => !heads.includes(head));
      return [name, name === way ? [...kept, ...heads] : kept];
    });
    actions.change(Object.fromEntries(changed), true);
  }

  const key = () => JSON.stringify([main.name, reference?.name, main.answer.ids, state.seed, state.length,
                                    state.temperature, state.top_k, state.top_p]);

  /** Writes the text from the same seed with and without the switches. */
  async function rewrite() {
    rewriting?.abort();
    rewriting = new AbortController();
    shownFor = key();
    const draw = (sides) => {
      written.replaceChildren();
      for (const side of [1, 0]) { // the text without the switches is the first one
        const column = make(written, "div");
        make(column, "h4", { dir: "auto" }, [main, reference][side].name);
        const text = make(column, "p", { dir: "auto" });
        sides[side].forEach(({ id, text: written }, at) =>
          make(text, sides[1 - side][at]?.id === id ? "span" : "b", {}, written));
      }
    };
    try {
      await actions.rewrite(rewriting.signal, draw);
    } catch (error) {
      if (error.name === "AbortError") return;
      rewriting.abort();
      written.textContent = error.message;
    }
  }

  /** In words: the probability of the token that is asked about, without the switches and with them. */
  function effectOf() {
    const { target: { id, label } } = main.answer;
    const [now, before] = [main, reference].map((side) => side?.answer.next.find((token) => token.id === id));
    if (!before || reference.about.name !== main.about.name) return [];
    const shares = [before, now].map(({ probability }) => probability);
    const named = (text) => make(null, "bdi", { class: "token-name" }, text);
    const [first] = [...main.answer.next].sort((a, b) => b.probability - a.probability);
    return [...TEXTS.effect(main.name, named(label), ...shares.map(percentText), shares[1] - shares[0]),
            ...(first.id === id ? [] : TEXTS.first(named(first.label), percentText(first.probability)))];
  }

  return {
    show(...shown) {
      let head;
      [state, main, reference, head] = shown;
      opened = every().includes(head) ? head : opened;
      ways.setAttribute("aria-label", TEXTS.wayOf(opened));
      const isHeld = main.answer.history.steps[0].held[every().indexOf(opened)];
      title.textContent = isHeld ? `${opened} ${HEADS.held}` : opened;
      showWay(wayOf(opened));
      alone.textContent = TEXTS.alone(opened);
      layer.textContent = TEXTS.layer(opened.split("H")[0]);
      const groups = switchedGroups(switchesOf(state), main.about);
      disable(reset, groups.length === 0, alone);
      redraw(chips, () => {
        for (const { text, heads } of groups.slice(0, CHIPS)) {
          button(chips, `${text} ×`, () => set(heads, "on"),
            { class: "chip", title: TEXTS.switchOn(heads.join(", ")) });
        }
      }, alone);
      if (groups.length > CHIPS) chips.append(TEXTS.more(groups.length - CHIPS));
      const [after, before] = [main.answer.loss, reference?.answer.loss ?? null];
      const comparable = after !== null && before !== null && reference.about.vocabulary === main.about.vocabulary;
      const say = reference?.about.name === main.about.name ? TEXTS.loss : TEXTS.otherLoss;
      const [from, to] = comparable ? [before.toFixed(3), after.toFixed(3)] : [];
      effect.replaceChildren(...effectOf());
      loss.textContent = comparable ? say(from, to, differenceText(to - from, 3), reference.name) : "";
      again.hidden = !reference;
      if (again.hidden) written.replaceChildren();
      else if (written.children.length > 0 && shownFor !== key()) rewrite();
    },
  };
}
