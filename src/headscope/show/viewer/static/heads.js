// All heads. Of a small model, their maps, a row per layer. Of a large one, the maps of the heads that matter for the
// selected token and of those whose names say something, and a coloured cell for each head.

import { paint } from "./canvas.js";
import { make, own } from "./dom.js";
import { Button, Card, Select, draw, html } from "./html.js";
import { NO_NAME, background, isTelling, scoreText, shortName, titleOf } from "./names.js";
import { WEIGHTS, differenceText, differences, reachOf, weightText } from "./scales.js";
import { headName, headsOf } from "./state.js";
import { HEADS as TEXTS } from "./texts.js";

const MAPS = 48; // heads: with more, a model is large
const LISTED = 6; // heads of a group
const NAMED = 12;
const NARROW = 86; // pixels: in a narrower cell, names are abbreviated

export function createHeads(parent, actions) {
  const box = make(parent, "div", { class: "placed" });
  let model = null; // that is shown
  let maps = null; // its maps: {values, scale} of a head, and what they depend on
  let edges = null; // where the selected token looks in each head, with its labels
  let deciding = null; // the change of the probability without each head, where it is known
  let narrow = false; // whether names are abbreviated

  function show() {
    if (!model) return;
    const { layers, heads } = model.history;
    const large = layers * heads > MAPS;
    const known = deciding?.length === layers * heads ? deciding : null; // not those of another model
    draw(box, html`<${Card} name="grid-card" title=${large ? TEXTS.heads : TEXTS.title} about=${TEXTS.click}>
      <${About} model=${model} narrow=${narrow && !large} />
      ${large ? html`<${Groups} ...${{ model, maps, edges, deciding: known, actions }} /><${Cells} ...${{ model, maps, deciding: known, actions }} />`
        : html`<${Grid} ...${{ model, maps, narrow, actions }} />`}<//>`);
  }

  function resize() {
    const button = box.querySelector(".grid button");
    if (button) narrow = button.offsetWidth < NARROW;
    show();
  }

  return {
    show(shown) {
      const isNew = ["layers", "heads"].some((side) => shown.history[side] !== model?.history[side]);
      model = shown;
      if (isNew) maps = edges = null;
      show();
      if (isNew) resize();
    },

    paint(complete) {
      maps = mapsOf(complete, maps);
      edges = complete.edges && { ...complete.edges, labels: complete.labels, kept: complete.kept };
      show();
    },

    /** Shows which heads decide: changes of a probability by head, or null. */
    decide(changes) {
      if (changes === deciding) return;
      deciding = changes;
      show();
    },
    resize,
  };
}

/** The maps of all heads, or `before` if they are the same. */
function mapsOf({ history, thumbnails: { side, bytes }, otherThumbnails, view, comparison }, before) {
  const others = headsOf(history).map((number) => comparison?.roles?.[number] ?? { head: number });
  const key = [bytes, otherThumbnails?.bytes, view, others.map(({ head }) => head).join()];
  if (key.every((value, i) => value === before?.key[i])) return before;
  const area = side * side;
  const start = view === "shares" ? others.length * area : 0;
  const values = (number) => Float32Array.from({ length: area }, (_, at) => {
    const { head, difference = 0 } = others[number];
    if (difference === null) return 0; // no head has the same role
    return (bytes[start + number * area + at] - (otherThumbnails?.bytes[start + head * area + at] ?? 0)) / 255;
  });
  const scale = otherThumbnails ? differences(Math.max(...others.map((_, number) => reachOf(values(number))))) : WEIGHTS;
  return { key, of: (number) => ({ values: values(number), side, scale }) };
}

/** What is compared, and the abbreviations of names. */
function About({ model: { step, comparison }, narrow }) {
  const written = [...new Set(narrow ? step.names : [])].filter((name) => name !== NO_NAME && shortName(name) !== name);
  return html`<p class="quiet">${[
    comparison && comparison.kind !== "head" ? TEXTS.difference(comparison.all ?? comparison.what) : "",
    own(step.metrics, "loss_change") ? TEXTS.signed : "",
    written.length > 0 ? `${written.map((name) => `${shortName(name)} = ${name}`).sort().join(", ")}.` : "",
  ].filter(Boolean).join(" ")}</p>`;
}

/** The map of a head. It is painted again only if it is another one. */
const Thumbnail = ({ maps, number }) => html`<canvas aria-hidden="true" ref=${(canvas) => {
  if (!canvas || !maps || canvas.shown === maps.key) return;
  canvas.shown = maps.key;
  const { values, side, scale } = maps.of(number);
  paint(canvas, side, side, (key, query) => (key > query ? null : values[query * side + key]), scale);
}} />`;

/** Attributes of the button of a head: a click opens it, Shift and a click compares it with the opened one. */
function attributesOf({ model: { step, opened, comparison, history: { heads, switched } }, actions, number, reachable = true }) {
  const change = own(step.metrics, "loss_change")?.[number];
  const plain = titleOf(step, number, heads);
  const title = typeof change === "number" ? TEXTS.withoutIt(plain, differenceText(change)) : plain;
  const isOff = (step.held[number] && step.names[number] === NO_NAME) || switched.includes(headName(number, heads));
  return {
    type: "button", title, "aria-label": title, "aria-pressed": number === opened, tabindex: reachable ? 0 : -1,
    class: `${isOff ? "off" : ""} ${comparison?.kind === "head" && comparison.opened === number ? "other" : ""}`,
    onClick: ({ shiftKey }) => (shiftKey && number !== opened
      ? actions.change({ compare: `head:${headName(number, heads)}` }) : actions.open(number)),
  };
}

/** A head: its map, its name and its score, or what is `said` of it below its number. */
function Head({ model, maps, actions, number, narrow = false, said, reachable }) {
  const { step, history: { heads } } = model;
  const written = step.names[number];
  const change = own(step.metrics, "loss_change")?.[number];
  const name = written === NO_NAME ? "" : (narrow ? shortName(written) : written) + (step.uncertain[number] ? "?" : "");
  return html`<button ...${attributesOf({ model, actions, number, reachable })}><${Thumbnail} maps=${maps} number=${number} />
    ${said !== undefined && html`<b class="said">${headName(number, heads)}</b>`}${said && html`<bdi class="said">${said}</bdi>`}
    <span class="name" dir="auto" style=${{ "--look": background(written) }}>${name}</span>
    ${said === undefined && html`<span class="score">${scoreText(step, number)}</span>
      <span class="score">${typeof change === "number" ? differenceText(change) : ""}</span>`}</button>`;
}

/** Moves the focus and the opened head with the arrow keys: by `moves` {key: number of heads}. */
const arrows = ({ model: { opened, step }, actions }, moves) => (event) => {
  if (!(event.key in moves)) return;
  event.preventDefault();
  event.stopPropagation(); // outside, the arrow keys move the cursor of the timeline
  const next = opened + moves[event.key];
  if (next < 0 || next >= step.names.length) return;
  actions.open(next);
  event.currentTarget.querySelectorAll("button[aria-pressed]")[next].focus();
};

/** All maps, a row per layer. */
function Grid({ model, maps, narrow, actions }) {
  const { layers, heads } = model.history;
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads, ArrowDown: heads };
  return html`<div class="grid ${heads <= 4 ? "few" : ""}" role="group" aria-label=${TEXTS.title}
      onKeyDown=${arrows({ model, actions }, moves)}><span class="corner"></span>
    ${[...Array(heads).keys()].map((head) => html`<span class="head">H${head}</span>`)}
    ${headsOf({ layers, heads }).map((number) => html`${number % heads === 0 && html`<span class="layer">L${number / heads}</span>`}
      <${Head} key=${number} reachable=${number === model.opened} ...${{ model, maps, actions, number, narrow }} />`)}</div>`;
}

// ---- A large model ---------------------------------------------------------------------------------

/** The heads that matter for the selected token, and those whose names say something, with their maps. */
function Groups({ model, maps, edges, deciding, actions }) {
  const largest = (values, count) => [...values.keys()].filter((head) => values[head] > 0)
    .sort((a, b) => values[b] - values[a]).slice(0, count);
  const ofEdges = (name) => (edges ? largest(edges[name].weights, LISTED).map((number) => ({ number,
    said: `${edges.labels[edges[name].tokens[number]]} ${weightText(edges[name].weights[number])}` })) : []);
  const decides = deciding ? largest(deciding.map(({ change }) => Math.abs(change)), LISTED)
    .filter((number) => deciding[number].listed).map((number) => ({ number, said: deciding[number].said })) : [];
  const token = html`<bdi class="token-name">${edges?.labels[edges.kept]}</bdi>`;
  const groups = [
    [TEXTS.deciding, decides], [TEXTS.lookFrom(token), ofEdges("keys")], [TEXTS.lookAt(token), ofEdges("queries")],
    [TEXTS.named, telling(model.step).map((number) => ({ number, said: "" }))],
  ];
  return groups.filter(([, heads]) => heads.length > 0).map(([title, heads]) => html`<div class="group"><h4>${title}</h4>
    <div class="maps">${heads.map(({ number, said }) => html`<${Head} key=${number} ...${{ model, maps, actions, number, said }} />`)}</div></div>`);
}

/** Heads whose names say something: the clearest one of each name, then the second one of each, and so on. */
function telling({ names, ratios }) {
  const clearest = [...names.keys()].filter((head) => isTelling(names[head])).sort((a, b) => ratios[b] - ratios[a]);
  const place = (head) => clearest.filter((other) => names[other] === names[head]).indexOf(head);
  return [...clearest].sort((a, b) => place(a) - place(b)).slice(0, NAMED);
}

/** A cell for each head, a column per layer, coloured by what is chosen. A layer opens with its maps. */
function Cells({ model, maps, deciding, actions }) {
  const { step, opened, history, history: { layers, heads }, state: { cells, layer } } = model;
  const [, metric] = /^metric:(.+)$/.exec(cells) ?? [];
  const values = own(step.metrics, metric);
  const colour = cells === "decides" ? (deciding ? cells : "names") : values ? cells : "names";
  const metrics = Object.keys(step.metrics).map((metric) => [`metric:${metric}`, metric.replaceAll("_", " ")]);
  const ways = [["names", TEXTS.byName], ...(deciding ? [["decides", TEXTS.byDecides]] : [])];
  const most = Math.max(...(deciding ?? []).map(({ change }) => Math.abs(change)), 1e-9);
  const lookOf = (number) => {
    if (colour === "names") return background(step.names[number], true);
    const [low, high] = own(history.ends, metric) ?? [Math.min(...(values ?? [])), Math.max(...(values ?? []))];
    const change = deciding?.[number].change ?? 0;
    const share = values ? (values[number] - low) / (high - low) : Math.sqrt(Math.abs(change) / most);
    const tone = values ? "looks" : change < 0 ? "less" : "more";
    return `linear-gradient(color-mix(in srgb, var(--${tone}) ${Math.round(100 * Math.max(0, Math.min(1, share || 0)))}%, var(--none)) 0 0)`;
  };
  const moves = { ArrowLeft: -heads, ArrowRight: heads, ArrowUp: -1, ArrowDown: 1 };
  const names = [...new Set(step.names)].map((name) => [name, step.names.filter((each) => each === name).length])
    .sort((a, b) => b[1] - a[1]);
  return html`<div class="group"><h4>${TEXTS.title}</h4>
    <${Select} label=${TEXTS.colour} groups=${{ "": ways, [TEXTS.metrics]: metrics }} value=${colour}
      choose=${(cells) => actions.change({ cells })} />
    <div class="cells" role="group" aria-label=${TEXTS.title} style=${{ "--layers": layers, "--heads": heads }}
        onKeyDown=${arrows({ model, actions }, moves)}>
      ${headsOf({ layers, heads }).map((number) => html`<button key=${number}
        ...${attributesOf({ model, actions, number, reachable: number === opened })} style=${{ "--look": lookOf(number) }} />`)}</div>
    <div class="layers" style=${{ "--layers": layers }}>${[...Array(layers).keys()].map((each) => html`
      <${Button} look="" text=${each} label=${TEXTS.layer(each)} tip=${TEXTS.openLayer} aria-label=${TEXTS.layer(each)} aria-pressed=${each === layer}
        click=${() => actions.change({ layer: each === layer ? null : each })} />`)}</div>
    ${colour === "names" && html`<p class="names">${names.map(([name, count]) => html`<span>
      <i class="swatch" style=${{ background: background(name) }}></i>${name === NO_NAME ? TEXTS.noName : name} ${count}</span>`)}</p>`}
    ${layer !== null && layer < layers && html`<div class="maps">${[...Array(heads).keys()].map((head) => html`
      <${Head} key=${layer * heads + head} said="" ...${{ model, maps, actions, number: layer * heads + head }} />`)}</div>`}</div>`;
}
