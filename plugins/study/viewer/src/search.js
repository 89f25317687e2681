/** Search field: ranks, steps, messages, chunks, links and texts, with a list of results. */

import { element } from "./dom.js";
import { timeText } from "./units.js";

/** @typedef {import("./panel.js").PageContext} PageContext */
/** @typedef {{text: string, action: () => void}} Match */

const LARGEST_RESULT_COUNT = 40;

/**
 * Matches of a query in all runs.
 * "rank 3", "step 120", "0 > 3" (messages), "chunk 5", a time such as "12.5 us", or a part of a name.
 * @param {PageContext} page @param {string} query
 * @returns {Match[]}
 */
export function search(page, query) {
  const text = query.trim().toLowerCase();
  if (!text) return [];
  /** @type {Match[]} */
  const matches = [];
  page.runs.forEach((_, run) => {
    for (const add of [addRanks, addMessages, addChunks, addSteps, addLinks, addLabels]) {
      if (matches.length < LARGEST_RESULT_COUNT) add(page, run, text, matches);
    }
  });
  return matches.slice(0, LARGEST_RESULT_COUNT);
}

/** @param {PageContext} page @param {number} run */
function prefix(page, run) {
  return page.runs.length > 1 ? `${page.runs[run].index.name}: ` : "";
}

/** @param {PageContext} page @param {number} run @param {string} text @param {Match[]} matches */
function addRanks(page, run, text, matches) {
  const data = page.runs[run];
  const number = /^(?:rank |r)?(\d+)$/.exec(text)?.[1];
  const names = data.index.rank_names;
  for (const rank of data.rankLane.keys()) {
    if (matches.length >= LARGEST_RESULT_COUNT) return;
    if (String(rank) !== number && !names?.[rank]?.toLowerCase().includes(text)) continue;
    matches.push({
      text: `${prefix(page, run)}${data.rankText(rank)}`,
      action: () => page.state.update({ run, rank, step: null }),
    });
  }
}

/** @param {PageContext} page @param {number} run @param {string} text @param {Match[]} matches */
function addMessages(page, run, text, matches) {
  const data = page.runs[run];
  const pair = /^(?:message )?(\d+) ?(?:->|>|→|to) ?(\d+)$/.exec(text);
  if (!pair || !data.details.peer) return;
  const [source, target] = [Number(pair[1]), Number(pair[2])];
  for (let lane = 0; lane < data.laneCount; lane++) {
    if (data.laneRank[lane] !== source) continue;
    for (let i = data.laneFirst[lane]; i < data.laneFirst[lane + 1]; i++) {
      if (data.details.peer[i] !== target || data.classOf(i) !== "send") continue;
      if (matches.length >= LARGEST_RESULT_COUNT) return;
      matches.push(stepMatch(page, run, i, "message"));
    }
  }
}

/** @param {PageContext} page @param {number} run @param {string} text @param {Match[]} matches */
function addChunks(page, run, text, matches) {
  const data = page.runs[run];
  if (!data.details.chunk) return;
  const number = /^(?:chunk |c)(\d+)$/.exec(text)?.[1];
  const names = data.index.chunks?.names ?? [];
  const chunks = number !== undefined ? [Number(number)] : [];
  if (number === undefined) {
    for (let i = 0; i < names.length && chunks.length < 10; i++) if (names[i].toLowerCase().includes(text)) chunks.push(i);
  }
  for (const chunk of chunks) {
    if (number !== undefined && data.routeOf(chunk, 1).length === 0) continue;
    matches.push({
      text: `${prefix(page, run)}Follow ${data.chunkText(chunk)}`,
      action: () => page.state.update({ run, chunk }),
    });
  }
}

/** @param {PageContext} page @param {number} run @param {string} text @param {Match[]} matches */
function addSteps(page, run, text, matches) {
  const data = page.runs[run];
  const number = Number(/^(?:step |#)?(\d+)$/.exec(text)?.[1] ?? NaN);
  if (Number.isNaN(number)) return;
  const numbers = data.details.number;
  if (!numbers) {
    if (number < data.stepCount) matches.push(stepMatch(page, run, number, "step"));
    return;
  }
  for (let i = 0; i < numbers.length && matches.length < LARGEST_RESULT_COUNT; i++) {
    if (numbers[i] === number) matches.push(stepMatch(page, run, i, "step"));
  }
}

/** @param {PageContext} page @param {number} run @param {string} text @param {Match[]} matches */
function addLinks(page, run, text, matches) {
  const names = page.runs[run].index.links?.names ?? [];
  for (let link = 0; link < names.length && matches.length < LARGEST_RESULT_COUNT; link++) {
    if (!names[link].toLowerCase().includes(text)) continue;
    matches.push({ text: `${prefix(page, run)}link ${names[link]}`, action: () => page.state.update({ run, link }) });
  }
}

/** First steps whose label or kind contains the text. @param {PageContext} page @param {number} run @param {string} text @param {Match[]} matches */
function addLabels(page, run, text, matches) {
  const data = page.runs[run];
  if (/^\d+$/.test(text)) return;
  const labels = (data.index.steps?.labels ?? []).map((label) => label.toLowerCase().includes(text));
  const kinds = data.index.kinds.map((kind) => kind.name.toLowerCase().includes(text));
  if (!labels.includes(true) && !kinds.includes(true)) return;
  for (let i = 0; i < data.stepCount && matches.length < LARGEST_RESULT_COUNT; i++) {
    if (kinds[data.kind[i]] || (data.details.label && labels[data.details.label[i]])) matches.push(stepMatch(page, run, i, "step"));
  }
}

/** @param {PageContext} page @param {number} run @param {number} step @param {string} word @returns {Match} */
function stepMatch(page, run, step, word) {
  const data = page.runs[run];
  const peer = data.details.peer?.[step] ?? -1;
  const label = data.details.label ? data.index.steps?.labels?.[data.details.label[step]] : "";
  const parts = [
    `${word} ${data.stepNumber(step)}`, label || data.index.kinds[data.kind[step]].name, data.laneText(data.laneOf(step)),
    peer >= 0 ? `peer ${data.rankText(peer)}` : "", `at ${timeText(data.startOf(step), 6)}`,
  ];
  return { text: prefix(page, run) + parts.filter(Boolean).join(", "), action: () => page.goToStep(run, step) };
}

/** Create the search field with its list of results (combobox pattern of ARIA). @param {PageContext} page */
export function createSearchField(page) {
  const input = element("input", {
    type: "search", id: "search", role: "combobox", "aria-expanded": "false", "aria-controls": "matches",
    "aria-autocomplete": "list", autocomplete: "off", placeholder: "rank 3, step 120, 0 > 3, chunk 5, name",
    "aria-label": "Search a rank, step, message, chunk, link or name",
  });
  const list = element("ul", { id: "matches", role: "listbox", "aria-label": "Search results", hidden: true });
  /** @type {Match[]} */
  let matches = [];
  let active = 0;
  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  /** @param {number} index */
  const choose = (index) => {
    const match = matches[index];
    close();
    match?.action();
  };
  const show = () => {
    matches = search(page, input.value);
    active = 0;
    if (!input.value.trim()) return close();
    list.replaceChildren(...matches.map((match, index) => {
      const option = element("li", { role: "option", id: `match${index}`, "aria-selected": String(index === active) }, match.text);
      option.addEventListener("mousedown", (event) => {
        event.preventDefault();
        choose(index);
      });
      return option;
    }));
    if (!matches.length) list.append(element("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "No match"));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    if (matches.length) input.setAttribute("aria-activedescendant", "match0");
  };
  input.addEventListener("input", show);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") {
      if (list.hidden) show();
      choose(active);
    } else if (event.key === "Escape") {
      close();
      input.blur();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && matches.length) {
      event.preventDefault();
      active = (active + (event.key === "ArrowDown" ? 1 : matches.length - 1)) % matches.length;
      [...list.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === active)));
      list.children[active].scrollIntoView({ block: "nearest" });
      input.setAttribute("aria-activedescendant", `match${active}`);
    }
  });
  return { input, element: element("div", { class: "search" }, input, list) };
}
