// Elements that follow from a state: Preact, with templates of htm (preactjs.com). Texts are never HTML.

import { controlMeaning } from "./dom.js";
import htm from "./htm.js";
import { Component, h, render } from "./preact.js";

export const html = htm.bind(h);
export { Component };

/** Draws in an element. The focus stays at its element or, if this is gone, at its place. */
export function draw(element, content) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const box = focused?.parentElement;
  const place = focused ? [...box.children].indexOf(focused) : -1;
  render(content, element);
  if (!focused || document.activeElement === focused) return;
  const near = focused.isConnected ? focused : box.children[Math.min(place, box.children.length - 1)];
  (near ?? element.querySelector("textarea, input, button:not([aria-disabled=true])"))?.focus();
}

/** Attributes of a term that is explained by `text`, or of an ordinary text if `text` is undefined. */
export const term = (text) => ({ "data-tip": text, "aria-description": text, tabindex: text === undefined ? undefined : 0 });

/** A panel with a title. `about` explains it, and `more` stands beside the title. */
export const Card = ({ name, title, about, look = "", more, children, label = title }) => html`
  <section class="card ${name} ${look}" aria-label=${label}><h3 ...${term(about)}>${title}</h3>${more}${children}</section>`;

/** A button, with the meaning of `about` in the glossary as its tooltip, by default that of its text. A disabled one
    keeps the focus. */
export const Button = ({ text, click, look = "action", about = text, tip = controlMeaning(about), disabled = false, ...more }) => html`
  <button type="button" class=${look} data-tip=${tip} aria-description=${tip} aria-disabled=${disabled ? "true" : undefined}
    onClick=${() => disabled || click()} ...${more}>${text}</button>`;

/** A field with a label. Other attributes are those of the element `tag`, which `field` gets. */
export const Field = ({ label, text = label, tag = "select", hidden = false, field, children, ...more }) => html`
  <label hidden=${hidden} data-tip=${controlMeaning(label)}>${text} <${tag} ref=${field} aria-label=${label}
    aria-description=${controlMeaning(label)} ...${more}>${children}<//></label>`;

/** A select with a label. `groups` are its options {label: [[value, text]]}, and `choose` gets the chosen value. */
export const Select = ({ groups, choose, ...more }) => html`<${Field} onChange=${({ target }) => choose(target.value)} ...${more}>${
  Object.entries(groups).map(([label, options]) => {
    const every = options.map(([option, text]) => html`<option value=${option}>${text}</option>`);
    return label && options.length > 0 ? html`<optgroup label=${label}>${every}</optgroup>` : every;
  })}<//>`;

/** A radio button per option {value: text}. */
export const Radios = ({ name, options, value, choose }) => Object.entries(options).map(([option, text]) => html`
  <label data-tip=${controlMeaning(text)}><input type="radio" name=${name} value=${option} aria-description=${controlMeaning(text)}
    checked=${option === value} onChange=${() => choose(option)} />${text}</label>`);

/** A bar that shows a share from 0 to 1. */
export const Share = ({ look = "", share }) => html`
  <i class="share ${look}" aria-hidden="true" style=${{ "--value": `${100 * Math.min(1, share || 0)}%` }}></i>`;

/** The name of a token. */
export const Token = ({ text, number }) => html`<bdi class="token-name">${text}${
  number !== undefined && html`<span class="token-number">${number}</span>`}</bdi>`;

/** Rows {before, text, note, share, sign, label, tip, marked, click}. `share` is the length of the bar, `label` says
    the row in a sentence, and `tip` explains it. */
export const Rows = ({ rows }) => rows.map(({ before = "", text, note, share, sign, label, tip, marked, click }) => html`
  <${click ? "button" : "div"} key=${`${before} ${text}`} class="row ${marked ? "marked" : ""}" onClick=${click}
    type=${click && "button"} aria-pressed=${click && Boolean(marked)} aria-label=${label}
    role=${label && !click ? "img" : undefined} data-tip=${tip}>
    <span class="before">${before}</span><bdi class="token-name">${text}</bdi><${Share} look=${sign} share=${share} />
    <span class="note">${note}</span><//>`);
