// Why a head looks from a query to a key: how the weight is computed, and which parts of both tokens make the
// score high. A click on a part that is a head explains why this head looks where it looks, and so on.

import { button, explainControl, make } from "./dom.js";
import { addShare, list, signed } from "./next.js";
import { differenceText, stepText } from "./scales.js";
import { COMMON, WHY as TEXTS } from "./texts.js";
import { row, strongest } from "./weights.js";

const KEYS = 6; // that are listed
const PLACES = 4; // distances that are listed, besides that of the key
const HARDLY = 0.5; // a head hardly looks at a key with less than this share of the mean weight
const SMALL = 0.005; // a sum that is shown as zero

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const isHead = (part) => /^L\d+H\d+$/.test(part);

/** `explanationOf(model, edge)` resolves to the answer of the server, or null where there is no model. If `steps`
    is given, `steps.list()` are the kept steps {step, name}, and `steps.why(name, edge)` explains an edge at one. */
export function createWhy(parent, actions, explanationOf = () => null, steps = null) {
  const section = make(parent, "section", { class: "card why-card", "aria-label": COMMON.why, hidden: "" });
  const trail = make(section, "nav", { class: "buttons", "aria-label": TEXTS.walk });
  const heading = make(section, "h3", { tabindex: -1 });
  const problem = make(section, "p", { class: "quiet", role: "status" });
  const body = make(section, "div", { class: "blocks" });
  const block = (parent, title) => {
    const box = make(parent, "div");
    make(box, "h4", {}, title);
    return box;
  };
  const partsBox = block(body, TEXTS.parts);
  const mostly = make(partsBox, "p", { class: "effect" });
  const pairs = make(partsBox, "div", { class: "rows pairs" });
  const relative = make(partsBox, "p", { class: "quiet" });
  const places = make(partsBox, "p");
  const placeRows = make(partsBox, "div", { class: "rows" });
  const since = button(partsBox, COMMON.since, () => listSteps(current));
  const byStep = make(partsBox, "p", { hidden: "" }, TEXTS.byStep);
  const stepRows = make(partsBox, "div", { class: "rows by-step" });
  const calculation = make(body, "div", { class: "calculation" });
  const scoreBox = block(calculation, TEXTS.score);
  const multiplied = make(scoreBox, "p");
  const vectors = make(scoreBox, "div", { class: "vectors", role: "img", "aria-label": TEXTS.bars });
  const summed = make(scoreBox, "p");
  const weightBox = block(calculation, TEXTS.weight);
  const softmax = make(weightBox, "p");
  const keyRows = make(weightBox, "div", { class: "rows keys" });
  const valueBox = block(calculation, TEXTS.value);
  const moved = make(valueBox, "p");
  const raised = make(valueBox, "div", { class: "rows" });
  let asked = null; // the question that is asked, or that the panel answers
  let current = null; // the model and the edge that are shown

  function showTrail({ state: { walk }, labels }) {
    trail.replaceChildren();
    walk.forEach((edge, number) => {
      const text = TEXTS.edge(edge.head, `${labels[edge.query]} ${edge.query}`, `${labels[edge.key]} ${edge.key}`);
      const last = number === walk.length - 1;
      const attributes = { "aria-current": last ? "step" : undefined, title: TEXTS.walk };
      button(trail, text, () => actions.follow(walk.slice(0, number + 1)), attributes);
      if (!last) trail.append(" ← ");
    });
    button(trail, TEXTS.close, () => actions.follow([]), { class: "action close", title: TEXTS.closes });
  }

  function draw(model, edge, answer) {
    current = { model, edge };
    const { labels, history } = model;
    const [query, key] = [edge.query, edge.key].map((token) => () => {
      const name = make(null, "bdi", { class: "token-name" }, labels[token]);
      make(name, "span", { class: "token-number" }, token);
      return name;
    });
    const seen = answer ? answer.scores.filter((score) => score !== null) : [];
    const hardly = answer && answer.weights[edge.key] < HARDLY / seen.length;
    heading.replaceChildren(...TEXTS.why(edge.head, query(), key(), hardly));
    problem.textContent = !answer ? TEXTS.needsModel : answer.problem
      ?? (history.switched.includes(edge.head) || model.step.held[model.opened] ? TEXTS.switched(edge.head) : seen.length < 2 ? TEXTS.oneKey : "");
    scoreBox.hidden = !answer?.pairs;
    partsBox.hidden = !answer?.pairs || seen.length < 2;
    valueBox.hidden = !answer?.raised;
    if (!scoreBox.hidden) {
      const { q, k, scale, position_bias: bias, scores } = answer;
      const sum = q.reduce((total, value, i) => total + value * k[i], 0);
      multiplied.replaceChildren(...TEXTS.multiplied(query(), key(), q.length));
      showVectors(answer);
      summed.replaceChildren(...TEXTS.summed(differenceText(sum), scale.toFixed(3), bias && differenceText(bias),
        differenceText(scores[edge.key])));
    }
    softmax.replaceChildren(...TEXTS.softmax(query(), seen.length || edge.query + 1, labels.length - 1 - edge.query));
    showKeys(model, edge, answer);
    if (answer?.raised) {
      moved.replaceChildren(...TEXTS.moved(key(), answer.weights[edge.key].toFixed(3), query()));
      list(raised, answer.raised.slice(0, 5).map(([text, value]) => ({ text, ...signed(value, answer.raised[0][1]) })));
    }
    if (!partsBox.hidden) showPairs(edge, answer, query, key, seen);
  }

  /** The query, the key and their products as bars, one for each dimension. */
  function showVectors({ q, k }) {
    vectors.replaceChildren();
    const products = q.map((value, i) => value * k[i]);
    [q, k, products].forEach((values, number) => {
      make(vectors, "span", { class: "quiet" }, TEXTS.vectors[number]);
      const bars = make(vectors, "div", { class: "vector" });
      bars.style.gap = values.length > 128 ? 0 : "1px";
      const most = Math.max(...values.map(Math.abs)) || 1;
      for (const value of values) {
        const look = ["looks", "looked", value > 0 ? "more" : "less"][number];
        make(bars, "i", { class: look }).style.setProperty("--value", value / most);
      }
    });
  }

  /** The keys with the largest weights, with their scores before and their weights after softmax. */
  function showKeys({ state: { walk }, labels, own }, edge, answer) {
    const weights = row(own, edge.query).map(([token, weight]) => [token, answer ? answer.weights[token] ?? 0 : weight]);
    const listed = new Set([...strongest(weights, KEYS).map(([token]) => token), edge.key]);
    const [shown, others] = [true, false].map((isListed) => weights.filter(([token]) => listed.has(token) === isListed));
    const bar = (weight) => ({ share: weight, sign: "looks", note: weight.toFixed(3) });
    const rows = shown.map(([token, weight]) => {
      const entry = { before: token, text: labels[token], ...bar(weight), marked: token === edge.key };
      const score = answer?.scores[token] ?? null; // null: the query does not see this key
      if (score === null) return entry;
      const click = () => actions.follow([...walk.slice(0, -1), { ...edge, key: token }]);
      return { ...entry, note: `${differenceText(score)} → ${entry.note}`, click, tip: TEXTS.keyTip(labels[token]) };
    });
    const rest = others.reduce((sum, [, weight]) => sum + weight, 0);
    list(keyRows, [...rows, ...(others.length ? [{ text: TEXTS.others(others.length), ...bar(rest) }] : [])]);
  }

  function showPairs(edge, { pairs: shown, total, scores, elsewhere = [], others }, query, key, seen) {
    const distance = edge.query - edge.key;
    const score = scores[edge.key];
    const away = elsewhere.filter((_, back) => back !== distance);
    const byPlace = score - mean(away);
    const byToken = score - others;
    const [place, token] = [byPlace, byToken].map((value) => value * Math.sign(total));
    const largest = shown.find(([, , value]) => value * total > 0); // not one that works against the sum
    const isMost = (value) => value > Math.abs(total) / 2;
    const andPlace = place > Math.max(0, token) ? TEXTS.andPlace(TEXTS.back(distance)) : ".";
    mostly.replaceChildren(...(Math.abs(total) < SMALL ? []
      : isMost(place) && place > 2 * Math.max(0, token) ? TEXTS.byPlace(key(), TEXTS.back(distance))
        : isMost(Math.abs(largest?.[2])) ? [...TEXTS.mostly(...largest, query(), key()), andPlace] : [TEXTS.noMost]));
    relative.replaceChildren(...TEXTS.relative(differenceText(score), differenceText(total),
      differenceText(mean(seen)), query(), key()));
    pairs.replaceChildren();
    const ends = make(pairs, "div", { class: "row quiet" });
    for (const text of [TEXTS.at(query()), [""], TEXTS.at(key())]) make(ends, "span").append(...text);
    const rest = total - shown.reduce((sum, [, , value]) => sum + value, 0);
    for (const [ofQuery, ofKey, value] of [...shown, ...(Math.abs(rest) < SMALL ? [] : [[TEXTS.rest, "", rest]])]) {
      const line = make(pairs, "div", { class: "row" });
      addPart(line, ofQuery, edge.query);
      make(line, "span", { class: "before" }, ofKey && "×");
      addPart(line, ofKey, edge.key);
      const { note, share, sign } = signed(value, shown[0][2]);
      addShare(line, sign, share);
      make(line, "span", { class: "note" }, note);
    }
    places.replaceChildren(...(away.length ? TEXTS.places(key(), TEXTS.back(distance), differenceText(byToken),
      differenceText(byPlace)) : []));
    const most = Math.max(...elsewhere.map(Math.abs));
    const rows = elsewhere.map((value, back) => ({ text: TEXTS.back(back), ...signed(value, most), marked: back === distance }));
    list(placeRows, rows.filter(({ marked }, back) => away.length && (back < PLACES || marked)));
    stepRows.replaceChildren();
    byStep.hidden = true;
    since.hidden = !steps || steps.list().length < 2;
  }

  /** A part of a token: a head is a button that explains where it looks. */
  function addPart(line, part, token) {
    if (!isHead(part)) explainControl(make(line, "span", {}, part), part.replace(/^L\d+ /, ""));
    else {
      const follow = () => actions.follow([...current.model.state.walk, { head: part, query: token, key: null }]);
      const title = TEXTS.follow(part, current.model.labels[token]);
      button(line, part, follow, { title });
    }
  }

  /** The largest pair of the same edge at each kept step. */
  async function listSteps({ edge, model }) {
    since.hidden = true;
    byStep.hidden = false;
    const found = [];
    for (const { name, step } of steps.list()) {
      const answer = await steps.why(name, edge).catch((error) => ({ problem: error.message }));
      if (current.edge !== edge || current.model !== model) return;
      const [ofQuery, ofKey, value] = answer.pairs?.[0] ?? [answer.problem, "", 0];
      found.push({ before: stepText(step), text: ofKey ? `${ofQuery} × ${ofKey}` : ofQuery, value });
      list(stepRows, found.map(({ value: each, ...texts }) =>
        ({ ...texts, ...signed(each, Math.max(...found.map((other) => Math.abs(other.value)))) })));
    }
  }

  return {
    /** Shows the last edge of the walk. */
    async paint(model) {
      const { edge, history, own } = model;
      section.hidden = !edge;
      if (!edge) {
        asked = null;
        return;
      }
      if (edge.key === null) { // the key with the largest weight
        asked = edge;
        const [[strongestKey] = [edge.query]] = strongest(row(own, edge.query), 1);
        const answer = await Promise.resolve(explanationOf(model, edge)).catch(() => null);
        const key = answer?.key ?? strongestKey;
        if (asked === edge) actions.follow([...model.state.walk.slice(0, -1), { ...edge, key }]);
        return;
      }
      showTrail(model);
      const question = [history, model.step.step, edge.head, edge.query, edge.key];
      if (asked?.every?.((each, i) => each === question[i])) return;
      const isOther = asked?.slice?.(2).join() !== question.slice(2).join();
      asked = question;
      section.classList.add("asking");
      const answer = await Promise.resolve(explanationOf(model, edge)).catch(({ message }) => ({ problem: message }));
      if (asked !== question) return;
      section.classList.remove("asking");
      draw(model, edge, answer?.weights ? answer : null);
      if (answer?.problem) problem.textContent = answer.problem;
      if (!isOther) return;
      heading.focus({ preventScroll: true });
      const { top } = section.getBoundingClientRect();
      if (top < 0 || top > 0.7 * innerHeight) section.scrollIntoView();
    },
  };
}
