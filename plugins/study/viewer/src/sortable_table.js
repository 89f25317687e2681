/** Table with a text filter and with columns that sort the rows. */

import { button, element } from "./dom.js";

/**
 * @typedef {{values: (string|number|null)[], texts: string[], action?: (() => void)|null}} Row
 *   Values for sorting, texts for display, and the effect of the first cell.
 * @typedef {object} TableData
 * @property {string} label  For screen readers.
 * @property {string[]} columns
 * @property {Row[]} rows
 * @property {number} [sortedBy]  Column of the first order.
 * @property {boolean} [descending]
 * @property {(row: Row) => boolean} [accepts]  Further filter.
 */

const LARGEST_ROW_COUNT = 1000;

/** @param {TableData} data @returns {HTMLElement & {refresh?: () => void}} */
export function sortableTable(data) {
  let column = data.sortedBy ?? -1, descending = data.descending ?? false;
  const filter = element("input", { type: "search", "aria-label": `Filter ${data.label}`, placeholder: "Filter" });
  const body = element("tbody"), count = element("output", { class: "hint" });
  const heads = data.columns.map((name, i) => element("th", { scope: "col" }, button(name, () => {
    descending = column === i ? !descending : false;
    column = i;
    refresh();
  })));
  const refresh = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) => (data.accepts?.(row) ?? true)
      && words.every((word) => row.texts.some((text) => text.toLowerCase().includes(word))));
    if (column >= 0) rows.sort((a, b) => compareValues(a.values[column], b.values[column], descending));
    body.replaceChildren(...rows.slice(0, LARGEST_ROW_COUNT).map((row) => element("tr", {}, ...row.texts.map((text, i) => {
      const number = typeof row.values[i] === "number" || row.values[i] === null;
      const content = i === 0 && row.action ? button(text, row.action, { class: "link" }) : text;
      return element("td", number ? { class: "number" } : {}, content);
    }))));
    count.textContent = rows.length > LARGEST_ROW_COUNT ? `${LARGEST_ROW_COUNT} of ${rows.length} rows` : rows.length === 1 ? "1 row" : `${rows.length} rows`;
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : descending ? "descending" : "ascending"));
  };
  filter.addEventListener("input", refresh);
  refresh();
  const table = element("table", { "aria-label": data.label }, element("thead", {}, element("tr", {}, ...heads)), body);
  const box = element("div", {}, element("div", { class: "row" }, filter, count),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${data.label}` }, table));
  return Object.assign(box, { refresh });
}

/** Order of two values; null is last in both directions. @param {string|number|null} a @param {string|number|null} b @param {boolean} descending */
function compareValues(a, b, descending) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
  return descending ? -order : order;
}
