/** A panel of the page: heading, tools, content; and panels that draw on a canvas. */

import { button, element, saveFile } from "./dom.js";
import { STEP_CLASSES } from "./format.js";
import { CanvasSurface, SvgSurface } from "./surface.js";

/** @typedef {import("./surface.js").Surface} Surface */
/** @typedef {import("./theme.js").Theme} Theme */
/** @typedef {import("./state.js").ViewState} ViewState */
/** @typedef {import("./run.js").Run} Run */
/** @typedef {import("./state.js").ViewValues} ViewValues */

/**
 * @typedef {object} PageContext  Shared objects of all panels.
 * @property {ViewState} state
 * @property {Run[]} runs
 * @property {() => Theme} theme
 * @property {import("./tooltip.js").Tooltip} tooltip
 * @property {(run: number, step: number) => void} goToStep  Select a step and show it in the window.
 * @property {import("./format.js").ViewIndex} index
 */

let panelCount = 0;

export class Panel {
  /** @param {PageContext} page @param {string} title */
  constructor(page, title) {
    this.page = page;
    this.title = title;
    /** Prefix of the identifiers of elements of this panel. */
    this.id = `panel${panelCount++}`;
    const heading = element("h2", { id: this.id }, title);
    this.tools = element("div", { class: "tools" });
    this.body = element("div", { class: "body" });
    this.element = element("section", { class: "panel", "aria-labelledby": heading.id },
      element("header", {}, heading, this.tools), this.body);
    const fold = button("–", () => {
      this.body.hidden = !this.body.hidden;
      fold.textContent = this.body.hidden ? "+" : "–";
      fold.setAttribute("aria-expanded", String(!this.body.hidden));
    }, { "aria-label": `Fold panel ${title}`, "aria-expanded": "true", class: "fold" });
    this.tools.append(fold);
  }

  /** React to changed values of the shared state. @param {Set<keyof ViewValues>} _changed */
  stateChanged(_changed) {}

  /** Draw again, for example in another theme. */
  redraw() {}
}

/** Panel with a canvas, and an overlay for marks that change with the pointer. */
export class CanvasPanel extends Panel {
  /** @param {PageContext} page @param {string} title @param {string} description For screen readers. @param {number} height */
  constructor(page, title, description, height) {
    super(page, title);
    this.height = height;
    this.width = 0;
    this.canvas = element("canvas", { role: "img", "aria-label": description });
    this.overlay = element("canvas", { class: "overlay", "aria-hidden": "true" });
    this.stage = element("div", { class: "stage" }, this.canvas, this.overlay);
    this.body.append(this.stage);
    this.tools.prepend(
      button("SVG", () => this.saveSvg(), { title: "Save this view as SVG", "aria-label": `Save ${title} as SVG` }),
      button("PNG", () => this.savePng(), { title: "Save this view as PNG", "aria-label": `Save ${title} as PNG` }));
    /** Milliseconds of script of the last complete drawing. */
    this.lastDrawing = 0;
    this.#requested = 0;
    new ResizeObserver(() => this.requestDrawing()).observe(this.stage);
    for (const kind of /** @type {const} */ (["pointerleave", "pointercancel"])) {
      this.canvas.addEventListener(kind, () => page.tooltip.hide());
    }
  }

  #requested;

  /** Draw the panel in the next frame. */
  requestDrawing() {
    this.#requested ||= requestAnimationFrame(() => {
      this.#requested = 0;
      this.drawNow();
    });
  }

  redraw() {
    this.drawNow();
  }

  drawNow() {
    const width = Math.floor(this.stage.clientWidth);
    if (!width) return;
    const begin = performance.now();
    this.width = width;
    this.layout(width);
    const context = this.#sized(this.canvas);
    const surface = new CanvasSurface(context);
    surface.rect(0, 0, width, this.height, this.page.theme().paper);
    this.paint(surface, width, this.height);
    this.drawOverlay();
    this.lastDrawing = performance.now() - begin;
  }

  drawOverlay() {
    if (!this.width) return;
    const context = this.#sized(this.overlay);
    context.clearRect(0, 0, this.width, this.height);
    this.paintOverlay(new CanvasSurface(context), this.width, this.height);
  }

  /** Give the canvas the size of the panel in device pixels. @param {HTMLCanvasElement} canvas */
  #sized(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.width * ratio), height = Math.round(this.height * ratio);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${this.height}px`;
      this.stage.style.height = `${this.height}px`;
    }
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

  /** Set `height` before a drawing. @param {number} _width */
  layout(_width) {}

  /** @param {Surface} _surface @param {number} _width @param {number} _height */
  paint(_surface, _width, _height) {}

  /** @param {Surface} _surface @param {number} _width @param {number} _height */
  paintOverlay(_surface, _width, _height) {}

  /** Position of a pointer event on the canvas in pixels. @param {MouseEvent} event @returns {[number, number]} */
  position(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** Text of the present view as SVG, with the legend below it. */
  svgText() {
    const legend = this.#placeLegend();
    const surface = new SvgSurface(this.width, legend.height);
    this.#paintFile(surface, legend);
    return surface.toString();
  }

  /** Places of the entries of the legend below the picture, and the height with the legend. */
  #placeLegend() {
    let x = 6, y = this.height + 12;
    const entries = [];
    for (const item of this.body.querySelectorAll(".legend > li")) {
      const swatch = item.querySelector(".swatch"), box = item.querySelector("input");
      const text = item.textContent?.trim() ?? "", width = 34 + text.length * 6.2;
      if (!swatch || (box && !box.checked)) continue;
      if (x > 6 && x + width > this.width) [x, y] = [6, y + 18];
      const { backgroundColor } = getComputedStyle(swatch);
      const colour = backgroundColor === "rgba(0, 0, 0, 0)" ? this.page.theme().classes[STEP_CLASSES.indexOf("wait")] : backgroundColor;
      entries.push({ x, y, text, colour });
      x += width;
    }
    return { entries, height: entries.length ? y + 12 : this.height };
  }

  /** @param {Surface} surface @param {{entries: {x: number, y: number, text: string, colour: string}[], height: number}} legend */
  #paintFile(surface, legend) {
    const theme = this.page.theme();
    surface.rect(0, 0, this.width, legend.height, theme.paper);
    this.paint(surface, this.width, this.height);
    this.paintOverlay(surface, this.width, this.height);
    for (const { x, y, text, colour } of legend.entries) {
      surface.rect(x, y - 6, 12, 12, colour);
      surface.frame(x, y - 6, 12, 12, theme.faint);
      surface.text(text, x + 17, y, { colour: theme.ink });
    }
  }

  saveSvg() {
    saveFile(new Blob([this.svgText()], { type: "image/svg+xml" }), `${fileName(this.title)}.svg`);
  }

  /** Save the present view with twice the resolution of the screen. */
  savePng() {
    const canvas = element("canvas"), legend = this.#placeLegend();
    canvas.width = 2 * this.width;
    canvas.height = 2 * legend.height;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(2, 2);
    this.#paintFile(new CanvasSurface(context), legend);
    canvas.toBlob((blob) => blob && saveFile(blob, `${fileName(this.title)}.png`), "image/png");
  }
}

/** @param {string} title */
function fileName(title) {
  return title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}
