// One tooltip for all terms. It opens on hover and on keyboard focus, and is read to screen readers.

import { make } from "./dom.js";

/** Makes `element` a term that is explained by `text`, or an ordinary text if `text` is undefined. */
export function explain(element, text) {
  const attributes = { "data-tip": text, "aria-description": text, tabindex: "0" };
  for (const [name, value] of Object.entries(attributes)) {
    if (text === undefined) element.removeAttribute(name);
    else element.setAttribute(name, value);
  }
}

/** Shows the texts of `explain` for all elements inside `root`. */
export function createTooltip(root) {
  const tip = make(root, "div", { class: "tip", "aria-hidden": "true", hidden: "" });

  function open(event) {
    const term = event.target.closest?.("[data-tip]");
    if (!term) {
      tip.hidden = true;
      return;
    }
    tip.textContent = term.dataset.tip;
    tip.hidden = false;
    const box = term.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(8, Math.min(box.left, width - tip.offsetWidth - 8))}px`;
    const below = box.bottom + 6;
    const fits = below + tip.offsetHeight < document.documentElement.clientHeight;
    const top = fits ? below : Math.max(8, box.top - tip.offsetHeight - 6);
    tip.style.top = `${top + window.scrollY}px`; // the tooltip scrolls with the page
  }

  root.addEventListener("pointerover", open);
  root.addEventListener("focusin", open);
  root.addEventListener("focusout", () => { tip.hidden = true; });
  root.addEventListener("pointerleave", () => { tip.hidden = true; });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
}
