/** Choose the panels for the data of the page. */

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {import("./panel.js").Panel} Panel */

/**
 * Create the panels below the time panel, in their order on the page.
 * @param {PageContext} page
 * @param {import("./columns.js").ColumnBlock} block
 * @returns {Promise<Panel[]>}
 */
export async function createPanels(page, block) {
  return [];
}
