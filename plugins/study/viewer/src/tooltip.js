/** Box with facts next to the pointer. */

import { element } from "./dom.js";

export class Tooltip {
  constructor() {
    this.element = element("div", { class: "tooltip", role: "status", "aria-live": "off", hidden: true });
  }

  /** Show lines next to a position of the window; the first line is the title. @param {number} x @param {number} y @param {string[]} lines */
  show(x, y, lines) {
    this.element.replaceChildren(...lines.map((line, i) => element(i ? "div" : "strong", {}, line)));
    this.element.hidden = false;
    const { width, height } = this.element.getBoundingClientRect();
    const left = x + 14 + width > window.innerWidth ? x - width - 10 : x + 14;
    const top = y + 14 + height > window.innerHeight ? y - height - 10 : y + 14;
    this.element.style.left = `${Math.max(2, left)}px`;
    this.element.style.top = `${Math.max(2, top)}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}
