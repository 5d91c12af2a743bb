// The most likely next tokens, as bars: their probabilities, before and after temperature, top-k and
// top-p. When heads are switched or another model is compared, a third bar shows the other probability.

import { card, explain, make } from "./viewer/dom.js";
import { redraw } from "./controls.js";
import { addShare, percentText } from "./viewer/next.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";

const LISTED = 5; // tokens of a model with another vocabulary

export function createBars(parent, actions) {
  const section = card(parent, "bars-card", TEXTS.next, TEXTS.aboutBars);
  const heading = section.querySelector("h3");
  const rows = make(section, "div", { class: "bars", role: "group", "aria-label": TEXTS.next });
  const removed = make(section, "p", { class: "quiet" });
  const elsewhere = make(section, "p", { class: "quiet" });

  function showRow({ id, label, probability, sampled, other }, answer, compared, otherModel) {
    const row = make(rows, "div", { class: "bar-row" });
    row.classList.toggle("cut", sampled === 0);
    make(row, "button", { type: "button", class: "pick token-name", dir: "auto", title: TEXTS.pick(label),
                          click: () => actions.pick(id, answer) }, label);
    const bars = make(row, "span", { class: "pair" });
    if (compared) addShare(bars, "reference", other);
    addShare(bars, "probability", probability);
    addShare(bars, "sampled", sampled);
    make(row, "span", { class: "note" }, percentText(probability));
    make(row, "span", { class: "note quiet" }, compared
      ? (other === undefined ? "" : (otherModel ? TEXTS.elsewhere : TEXTS.before)(percentText(other)))
      : sampled === 0 ? TEXTS.cutAway : TEXTS.sampled(percentText(sampled)));
    const explainToken = () => actions.change({ target: actions.now().target === id ? null : id });
    const ask = make(row, "button", { type: "button", class: "ask", "aria-pressed": id === answer.target.id,
                                      "aria-label": TEXTS.ask(label), click: explainToken }, "?");
    explain(ask, TEXTS.aboutAsk);
  }

  return {
    show(main, reference) {
      const { answer } = main;
      heading.replaceChildren(...TEXTS.nextAfter(answer.history.labels[answer.position]));
      const comparable = reference?.about.vocabulary === main.about.vocabulary;
      const others = new Map((reference?.answer.next ?? []).map(({ id, probability }) => [id, probability]));
      const listed = answer.next.map((token) => ({ ...token, other: others.get(token.id) }));
      listed.sort((a, b) => b.probability - a.probability);
      redraw(rows, () => {
        for (const token of listed) showRow(token, answer, comparable, reference?.about.name !== main.about.name);
      });
      const most = (comparable ? [] : reference?.answer.next ?? []).slice(0, LISTED)
        .map(({ label, probability }) => `“${label}” ${percentText(probability)}`);
      elsewhere.textContent = most.length ? TEXTS.otherTokens(reference.name, most.join(", ")) : "";
      removed.textContent = TEXTS.removed(percentText(answer.removed))
        + (comparable ? ` ${TEXTS.grey(reference.name)}` : "");
    },
  };
}
