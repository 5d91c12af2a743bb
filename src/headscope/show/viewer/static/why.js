// Why a head looks from a query to a key: how the weight is computed, and which parts of both tokens make the
// score high. A click on a part that is a head explains why this head looks where it looks, and so on.

import { controlMeaning, make } from "./dom.js";
import { Button, Rows, Select, Share, Token, draw, html } from "./html.js";
import { signed } from "./next.js";
import { differenceText, stepText } from "./scales.js";
import { COMMON, WHY as TEXTS } from "./texts.js";
import { row, strongest } from "./weights.js";

const KEYS = 6; // that are listed
const PLACES = 4; // distances that are listed, besides that of the key
const HARDLY = 0.5; // a head hardly looks at a key with less than this share of the mean weight
const SMALL = 0.005; // a sum that is shown as zero
const SHARE = 0.1; // of the sum: smaller parts are one row
const LISTED = 8; // parts of a token
const HEADS = 3; // heads that are always listed: from them, the walk goes on

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const isHead = (part) => /^L\d+H\d+$/.test(part);

/** `explanationOf(model, edge)` resolves to the answer of the server, or null where there is no model. If `steps`
    is given, `steps.list()` are the kept steps {step, name}, and `steps.why(name, edge)` explains an edge at one. */
export function createWhy(parent, actions, explanationOf = () => null, steps = null) {
  const section = make(parent, "section", { class: "card why-card", "aria-label": COMMON.why, hidden: "" });
  let asked = null; // the question that is asked, or that the panel answers
  let shown = null; // what is shown: {model, edge, answer, problem, byStep}

  const show = (changes) => {
    shown = { ...shown, ...changes };
    draw(section, html`<${Trail} model=${shown.model} follow=${actions.follow} />
      <${Explanation} ...${shown} follow=${actions.follow} since=${steps?.list().length > 1 && !shown.byStep && listSteps} />`);
  };

  /** The largest pair of the same edge at each kept step. */
  async function listSteps() {
    const { edge, model } = shown;
    const found = [];
    show({ byStep: found });
    for (const { name, step } of steps.list()) {
      const answer = await steps.why(name, edge).catch((error) => ({ problem: error.message }));
      if (shown.edge !== edge || shown.model !== model) return;
      const [ofQuery, ofKey, value] = answer.pairs?.[0] ?? [answer.problem, "", 0];
      found.push({ before: stepText(step), text: ofKey ? `${ofQuery} × ${ofKey}` : ofQuery, value });
      show({ byStep: [...found] });
    }
  }

  return {
    /** Shows the last edge of the walk. */
    async paint(model) {
      const { edge, history, own } = model;
      section.hidden = !edge;
      if (!edge) {
        asked = null;
        section.classList.remove("asking");
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
      const question = [history, model.step.step, edge.head, edge.query, edge.key];
      if (asked?.every?.((each, i) => each === question[i])) return;
      const isOther = asked?.slice?.(2).join() !== question.slice(2).join();
      asked = question;
      section.classList.add("asking");
      const answer = await Promise.resolve(explanationOf(model, edge)).catch(({ message }) => ({ problem: message }));
      if (asked !== question) return;
      section.classList.remove("asking");
      show({ model, edge, answer: answer?.weights ? answer : null, problem: answer?.problem, byStep: null });
      if (!isOther) return;
      section.querySelector("h3").focus({ preventScroll: true });
      const { top } = section.getBoundingClientRect();
      if (top < 0 || top > 0.7 * innerHeight) section.scrollIntoView();
    },
  };
}

/** The edges of the walk. */
function Trail({ model: { state: { walk }, labels }, follow }) {
  const edges = walk.map(({ head, query, key }, number) => {
    const text = TEXTS.edge(head, `${labels[query]} ${query}`, `${labels[key]} ${key}`);
    const last = number === walk.length - 1;
    return html`<${Button} text=${text} aria-current=${last ? "step" : undefined} title=${TEXTS.walk}
      click=${() => follow(walk.slice(0, number + 1))} />${last ? "" : " ← "}`;
  });
  return html`<nav class="buttons" aria-label=${TEXTS.walk}>${edges}
    <${Button} look="action close" text=${TEXTS.close} title=${TEXTS.closes} click=${() => follow([])} /></nav>`;
}

function Explanation({ model, edge, answer, problem, byStep, follow, since }) {
  const { labels, history, step, opened } = model;
  // Not `key`, because Preact keeps that property.
  const [query, looked] = [edge.query, edge.key].map((token) => html`<${Token} text=${labels[token]} number=${token} />`);
  const seen = answer ? answer.scores.filter((score) => score !== null) : [];
  const hardly = answer && answer.weights[edge.key] < HARDLY / seen.length;
  const isOff = history.switched.includes(edge.head) || step.held[opened];
  const notes = answer ? isOff ? TEXTS.switched(edge.head) : seen.length < 2 ? TEXTS.oneKey : "" : TEXTS.needsModel;
  const { pushes, next } = (edge.query === model.kept && model.predictions) || {};
  return html`<h3 tabindex="-1">${TEXTS.why(edge.head, query, looked, hardly)}</h3>
    <p class="quiet" role="status">${problem ?? notes}</p>
    ${answer && pushes && html`<p>${TEXTS.adds(edge.head, query, differenceText(pushes[opened]), next)}</p>`}
    <div class="blocks">
      ${answer?.pairs && seen.length > 1 && html`<${Sums} ...${{ model, edge, answer, query, looked, seen, follow, byStep, since }} />`}
      <div class="calculation">
        ${answer?.pairs && html`<${Score} edge=${edge} answer=${answer} query=${query} looked=${looked} />`}
        <${Softmax} model=${model} edge=${edge} answer=${answer} query=${query} seen=${seen.length} follow=${follow} />
        ${answer?.raised && html`<div><h4>${TEXTS.value}</h4>
          <p>${TEXTS.moved(looked, answer.weights[edge.key].toFixed(3), query)}</p>
          <div class="rows"><${Rows} rows=${answer.raised.slice(0, 5).map(([text, value]) =>
            ({ text, ...signed(value, answer.raised[0][1]) }))} /></div></div>`}</div></div>`;
}

/** Where the score comes from: the largest pair, or sums over the parts of the query and of the key. */
function Sums({ model, edge, answer, query, looked, seen, follow, byStep, since }) {
  const { total, scores, pairs, by_query: ofQuery, by_key: ofKey, elsewhere = [], others } = answer;
  const distance = edge.query - edge.key;
  const score = scores[edge.key];
  const away = elsewhere.filter((_, back) => back !== distance);
  const [byPlace, byToken] = [score - mean(away), score - others];
  const [place, token] = [byPlace, byToken].map((value) => value * Math.sign(total));
  const largest = pairs.find(([, , value]) => value * total > 0); // not one that works against the sum
  const isMost = (value) => value > Math.abs(total) / 2;
  const placeIsMost = isMost(place) && place > 2 * Math.max(0, token);
  const pairIsMost = isMost(Math.abs(largest?.[2]));
  const andPlace = place > Math.max(0, token) ? TEXTS.andPlace(TEXTS.back(distance)) : ".";
  const mostly = Math.abs(total) < SMALL ? [] : placeIsMost ? TEXTS.byPlace(looked, TEXTS.back(distance))
    : pairIsMost ? [...TEXTS.mostly(...largest, query, looked), andPlace] : [TEXTS.noMost];
  const go = (part, at) => follow([...model.state.walk, { head: part, query: at, key: null }]);
  const most = Math.max(...[...ofQuery, ...ofKey].map(([, value]) => Math.abs(value)));
  const sums = html`<div class="blocks sums">
    <${Parts} title=${TEXTS.partsOf(query)} name="by-query" parts=${ofQuery} total=${total} most=${most}
      go=${(part) => go(part, edge.query)} at=${model.labels[edge.query]} />
    <${Parts} title=${TEXTS.partsOf(looked)} name="by-key" parts=${ofKey} total=${total} most=${most}
      go=${(part) => go(part, edge.key)} at=${model.labels[edge.key]} /></div>`;
  const pairRows = html`<${Pairs} ...${{ edge, pairs, total, query, looked, go, labels: model.labels }} />`;
  const placeRows = elsewhere.map((value, back) => ({ text: TEXTS.back(back), marked: back === distance,
    ...signed(value, Math.max(...elsewhere.map(Math.abs))) })).filter(({ marked }, back) => back < PLACES || marked);
  return html`<div><h4>${TEXTS.parts}</h4><p class="effect">${mostly}</p>
    ${pairIsMost ? [pairRows, sums] : [sums, pairRows]}
    <p class="quiet">${TEXTS.relative(differenceText(score), differenceText(total), differenceText(mean(seen)), query, looked)}</p>
    ${away.length > 0 && html`<p>${TEXTS.places(looked, TEXTS.back(distance), differenceText(byToken), differenceText(byPlace))}</p>
      <div class="rows"><${Rows} rows=${placeRows} /></div>`}
    <${Button} text=${COMMON.since} hidden=${!since} click=${since} />
    ${byStep && html`<p>${TEXTS.byStep}</p><div class="rows by-step"><${Rows} rows=${byStep.map(({ value, ...texts }) =>
      ({ ...texts, ...signed(value, Math.max(...byStep.map((each) => Math.abs(each.value)))) }))} /></div>`}</div>`;
}

/** The parts of one token that add most, and at least some heads. All others are one row. */
function Parts({ title, name, parts, total, most, go, at }) {
  const heads = parts.filter(([part]) => isHead(part)).slice(0, HEADS);
  const largest = parts.filter(([, value]) => Math.abs(value) >= SHARE * Math.abs(total)).slice(0, LISTED);
  const isListed = (row) => (largest.includes(row) && row[1] !== 0) || heads.includes(row);
  const others = parts.filter((part) => !isListed(part) && part[1] !== 0);
  const rest = others.reduce((sum, [, value]) => sum + value, 0);
  const rows = parts.filter(isListed).map(([part, value]) => ({
    text: part, ...signed(value, most), click: isHead(part) ? () => go(part) : undefined,
    tip: isHead(part) ? TEXTS.follow(part, at) : controlMeaning(part.replace(/^L\d+ /, "")),
  }));
  if (others.length) rows.push({ text: TEXTS.otherParts(others.length), ...signed(rest, most) });
  return html`<div class=${name}><h4>${title}</h4><div class="rows"><${Rows} rows=${rows} /></div></div>`;
}

/** The largest pairs of a part of the query and a part of the key. */
function Pairs({ edge, pairs, total, query, looked, go, labels }) {
  const rest = total - pairs.reduce((sum, [, , value]) => sum + value, 0);
  const rows = [...pairs, ...(Math.abs(rest) < SMALL ? [] : [[TEXTS.rest, "", rest]])];
  const part = (name, token) => (isHead(name)
    ? html`<${Button} text=${name} title=${TEXTS.follow(name, labels[token])} click=${() => go(name, token)} />`
    : html`<span data-tip=${controlMeaning(name.replace(/^L\d+ /, ""))}>${name}</span>`);
  return html`<h4>${TEXTS.pairs}</h4>
    <div class="rows pairs"><div class="row quiet"><span>${TEXTS.at(query)}</span><span></span><span>${TEXTS.at(looked)}</span></div>
    ${rows.map(([ofQuery, ofKey, value]) => {
      const { note, share, sign } = signed(value, pairs[0][2]);
      return html`<div class="row">${part(ofQuery, edge.query)}<span class="before">${ofKey && "×"}</span>${part(ofKey, edge.key)}
        <${Share} look=${sign} share=${share} /><span class="note">${note}</span></div>`;
    })}</div>`;
}

/** The query, the key and their products as bars, one for each dimension, and the score. */
function Score({ edge, answer: { q, k, scale, position_bias: bias, scores }, query, looked }) {
  const products = q.map((value, i) => value * k[i]);
  const sum = products.reduce((total, value) => total + value, 0);
  const bars = [q, k, products].map((values, number) => {
    const most = Math.max(...values.map(Math.abs)) || 1;
    return html`<span class="quiet">${TEXTS.vectors[number]}</span>
      <div class="vector" style=${{ gap: values.length > 128 ? 0 : "1px" }}>${values.map((value) => html`
        <i class=${["looks", "looked", value > 0 ? "more" : "less"][number]} style=${{ "--value": value / most }} />`)}</div>`;
  });
  return html`<div><h4>${TEXTS.score}</h4><p>${TEXTS.multiplied(query, looked, q.length)}</p>
    <div class="vectors" role="img" aria-label=${TEXTS.bars}>${bars}</div>
    <p>${TEXTS.summed(differenceText(sum), scale.toFixed(3), bias && differenceText(bias), differenceText(scores[edge.key]))}</p></div>`;
}

/** The keys with the largest weights, with their scores before and their weights after softmax. Each key can be chosen. */
function Softmax({ model: { state: { walk }, labels, own }, edge, answer, query, seen, follow }) {
  const weights = row(own, edge.query).map(([token, weight]) => [token, answer ? answer.weights[token] ?? 0 : weight]);
  const listed = new Set([...strongest(weights, KEYS).map(([token]) => token), edge.key]);
  const [shown, others] = [true, false].map((isListed) => weights.filter(([token]) => listed.has(token) === isListed));
  const choose = (token) => follow([...walk.slice(0, -1), { ...edge, key: token }]);
  const bar = (weight) => ({ share: weight, sign: "looks", note: weight.toFixed(3) });
  const rows = shown.map(([token, weight]) => {
    const entry = { before: token, text: labels[token], ...bar(weight), marked: token === edge.key };
    const score = answer?.scores[token] ?? null; // null: the query does not see this key
    return score === null ? entry : { ...entry, note: `${differenceText(score)} → ${entry.note}`,
      click: () => choose(token), tip: TEXTS.keyTip(labels[token]) };
  });
  const rest = others.reduce((sum, [, weight]) => sum + weight, 0);
  if (others.length) rows.push({ text: TEXTS.others(others.length), ...bar(rest) });
  const keys = weights.filter(([token]) => (answer?.scores[token] ?? null) !== null)
    .map(([token]) => [token, `${labels[token]} ${token}`]);
  return html`<div><h4>${TEXTS.weight}</h4>
    <p>${TEXTS.softmax(query, seen || edge.query + 1, labels.length - 1 - edge.query)}</p>
    <div class="rows keys"><${Rows} rows=${rows} /></div>
    <${Select} label=${TEXTS.key} hidden=${others.length === 0 || !answer} groups=${{ "": keys }} value=${edge.key}
      choose=${(token) => choose(Number(token))} /></div>`;
}
