// One tooltip for all terms. It opens on hover and on keyboard focus, and is read to screen readers.

import { make, set } from "./dom.js";

/** Makes `element` a term that is explained by `text`, or an ordinary text if `text` is undefined. */
export function explain(element, text) {
  set(element, { "data-tip": text, "aria-description": text, tabindex: text === undefined ? undefined : 0 });
}

/** Shows the texts of `explain` for all elements inside `root`. */
export function createTooltip(root) {
  const tip = make(root, "div", { class: "tip", "aria-hidden": "true", hidden: "" });

  function open(event) {
    const term = event.target.closest?.("[data-tip]");
    tip.hidden = !term;
    if (tip.hidden) return;
    tip.textContent = term.dataset.tip;
    const box = term.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(8, Math.min(box.left, width - tip.offsetWidth - 8))}px`;
    const below = box.bottom + 6;
    const fits = below + tip.offsetHeight < document.documentElement.clientHeight;
    const top = fits ? below : Math.max(8, box.top - tip.offsetHeight - 6);
    tip.style.top = `${top + window.scrollY}px`; // the tooltip scrolls with the page
  }

  const close = () => { tip.hidden = true; };
  set(root, { pointerover: open, focusin: open, focusout: close, pointerleave: close });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") close(); });
}
