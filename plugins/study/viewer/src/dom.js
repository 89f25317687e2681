/** Create elements of the page; texts are always inserted as text, never as markup. */

/**
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, string|number|boolean|undefined>} [attributes] False and undefined omit the attribute.
 * @param {(Node|string)[]} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === undefined) continue;
    node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children);
  return node;
}

/** @param {string} text @param {() => void} action @param {Record<string, string>} [attributes] */
export function button(text, action, attributes = {}) {
  const node = element("button", { type: "button", ...attributes }, text);
  node.addEventListener("click", action);
  return node;
}

/** Table row of cells; numbers are aligned to the right. @param {(string|number|Node)[]} cells @param {"td"|"th"} [name] */
export function tableRow(cells, name = "td") {
  return element("tr", {}, ...cells.map((cell) => {
    const number = typeof cell === "number" || (typeof cell === "string" && /^-?[\d.\u202f]+( |$)/.test(cell));
    const attributes = { ...(number ? { class: "number" } : {}), ...(name === "th" ? { scope: "col" } : {}) };
    return element(name, attributes, cell instanceof Node ? cell : String(cell));
  }));
}

/** Description list of facts. @param {[string, string][]} facts */
export function factList(facts) {
  return element("dl", { class: "facts" },
    ...facts.flatMap(([label, text]) => [element("dt", {}, label), element("dd", {}, text)]));
}

/** Offer a file to the reader. @param {Blob} blob @param {string} name */
export function saveFile(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
