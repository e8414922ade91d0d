// Tabs as the ARIA Authoring Practices describe them: arrow keys move, one panel shows.

import { $, element } from "./fetching.js";

/**
 * A new tab with its panel, before the last one.
 * @param {string} id of the panel @param {string} title
 * @param {boolean} [first] before all others @returns {HTMLElement} the panel
 */
export function panel(id, title, first) {
  const tab = element("button", { id: `tab-${id}`, role: "tab", textContent: title });
  tab.setAttribute("aria-controls", id);
  (first ? $("tabs").firstElementChild : $("tab-device")).before(tab);
  const made = element("section", { id, role: "tabpanel", hidden: true });
  made.setAttribute("aria-labelledby", tab.id);
  $("device").before(made);
  return made;
}

/** @param {HTMLElement} list */
export function bindTabs(list) {
  const tabs = () => /** @type {HTMLElement[]} */ (
    [...list.querySelectorAll("[role=tab]:not([hidden])")]);
  const select = (/** @type {HTMLElement} */ chosen) => {
    for (const tab of tabs()) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      const panel = document.getElementById(tab.getAttribute("aria-controls") ?? "");
      if (panel) panel.hidden = !on;
      if (on) panel?.dispatchEvent(new Event("open"));
    }
  };
  list.addEventListener("click", (event) => {
    const tab = /** @type {HTMLElement} */ (event.target).closest("[role=tab]");
    if (tab) select(/** @type {HTMLElement} */ (tab));
  });
  list.addEventListener("keydown", (event) => {
    const all = tabs();
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (at < 0 || !step) return;
    const next = all[(at + step + all.length) % all.length];
    select(next);
    next.focus();
  });
  select(tabs()[0]);
}
