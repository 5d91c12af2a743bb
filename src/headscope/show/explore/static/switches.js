// Switches heads off, to their mean output, or to half, and shows what that changes.

import { card, explainControl, make, radios } from "./viewer/dom.js";
import { EMPTY, switchesOf } from "./address.js";
import { button, disable, redraw } from "./controls.js";
import { differenceText } from "./viewer/scales.js";
import { headName, headsOf } from "./viewer/state.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

const CHIPS = 40; // switched heads that are listed
const ALL_ON = switchesOf(EMPTY);

export function createSwitches(parent, actions) {
  const section = card(parent, "switches-card", TEXTS.switches);
  section.hidden = true; // until a text is read
  make(section, "p", { class: "quiet" }, TEXTS.aboutSwitches);
  const ways = make(section, "fieldset", { class: "views" });
  const legend = make(ways, "legend", { class: "hidden" });
  const title = make(ways, "span", { class: "way-of" });
  const showWay = radios(ways, "way", TEXTS.ways, (way) => set([opened], way));
  const buttons = make(section, "div", { class: "buttons" });
  const alone = button(buttons, "", () => {
    const others = every().filter((head) => head !== opened);
    actions.change({ ...ALL_ON, zero: others }, true);
  });
  const layer = button(buttons, "", () => {
    const off = inLayer().every((head) => wayOf(head) === "zero");
    set(inLayer(), off ? "on" : "zero");
  });
  explainControl(alone, "alone");
  const reset = button(buttons, TEXTS.allOn, () => actions.change(ALL_ON, true));
  const chips = make(section, "p", { class: "chips" });
  const loss = make(section, "p", { class: "loss-change", role: "status" });
  const again = make(section, "div", { class: "again" });
  button(again, TEXTS.writeBoth, () => rewrite());
  const written = make(again, "div", { class: "written" });
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

  return {
    show(...shown) {
      let head;
      [state, main, reference, head] = shown;
      section.hidden = false;
      opened = every().includes(head) ? head : opened;
      legend.textContent = TEXTS.wayOf(opened);
      title.textContent = opened;
      showWay(wayOf(opened));
      alone.textContent = TEXTS.alone(opened);
      layer.textContent = TEXTS.layer(opened.split("H")[0]);
      const switched = every().filter((name) => wayOf(name) !== "on");
      disable(reset, switched.length === 0, alone);
      redraw(chips, () => {
        for (const name of switched.slice(0, CHIPS)) {
          button(chips, `${name} ${TEXTS.ways[wayOf(name)]} ×`, () => set([name], "on"),
            { class: "chip", title: TEXTS.switchOn(name) });
        }
      }, alone);
      if (switched.length > CHIPS) chips.append(TEXTS.more(switched.length - CHIPS));
      const [after, before] = [main.answer.loss, reference?.answer.loss ?? null];
      const comparable = after !== null && before !== null && reference.about.vocabulary === main.about.vocabulary;
      const say = reference?.about.name === main.about.name ? TEXTS.loss : TEXTS.otherLoss;
      const [from, to] = comparable ? [before.toFixed(3), after.toFixed(3)] : [];
      loss.textContent = comparable ? say(from, to, differenceText(to - from, 3), reference.name) : "";
      again.hidden = !reference;
      if (again.hidden) written.replaceChildren();
      else if (written.children.length > 0 && shownFor !== key()) rewrite();
    },
  };
}
