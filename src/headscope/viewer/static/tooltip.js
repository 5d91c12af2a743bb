// One tooltip for all terms. It opens on hover and on keyboard focus, and is read to screen readers.

import { make } from "./dom.js";

/** Makes `element` a term that is explained by `text`. Without a text, it stays as it is. */
export function explain(element, text) {
  if (!text) return;
  element.setAttribute("data-tip", text);
  element.setAttribute("aria-description", text);
  element.setAttribute("tabindex", "0");
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
    tip.style.top = `${fits ? below : Math.max(8, box.top - tip.offsetHeight - 6)}px`;
  }

  root.addEventListener("pointerover", open);
  root.addEventListener("focusin", open);
  root.addEventListener("focusout", () => { tip.hidden = true; });
  root.addEventListener("pointerleave", () => { tip.hidden = true; });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
}
