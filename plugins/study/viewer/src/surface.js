/** One set of drawing operations with two targets: a canvas, and the text of an SVG file. */

/**
 * @typedef {{colour: string, size?: number, align?: "start"|"middle"|"end", bold?: boolean, turn?: number, halo?: string}} TextStyle
 *   `turn`: rotation around the position in degrees. `halo`: colour of an outline that separates the text from lines.
 *
 * @typedef {object} Surface
 * @property {(x: number, y: number, width: number, height: number, colour: string) => void} rect
 * @property {(x: number, y: number, width: number, height: number, colour: string, stroke?: number) => void} frame
 * @property {(points: number[], colour: string, stroke?: number, dash?: number[]) => void} line
 *   Line through x0, y0, x1, y1, ...
 * @property {(points: number[], colour: string) => void} area  Filled polygon.
 * @property {(x: number, y: number, radius: number, colour: string, border?: string) => void} circle
 * @property {(text: string, x: number, y: number, style: TextStyle) => void} text  y is the middle of the line.
 * @property {(image: HTMLCanvasElement, x: number, y: number, width: number, height: number) => void} image
 * @property {(x: number, y: number, width: number, height: number) => void} clip
 *   Limit the following operations to a rectangle, until `unclip`.
 * @property {() => void} unclip
 */

const FONT = "system-ui, sans-serif";

/** Operations on a canvas. @implements {Surface} */
export class CanvasSurface {
  /** @param {CanvasRenderingContext2D} context */
  constructor(context) {
    this.context = context;
  }

  /** @type {Surface["rect"]} */
  rect(x, y, width, height, colour) {
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  /** @type {Surface["frame"]} */
  frame(x, y, width, height, colour, stroke = 1) {
    this.context.setLineDash([]);
    this.context.strokeStyle = colour;
    this.context.lineWidth = stroke;
    this.context.strokeRect(x, y, width, height);
  }

  /** @type {Surface["line"]} */
  line(points, colour, stroke = 1, dash = []) {
    this.#path(points);
    this.context.strokeStyle = colour;
    this.context.lineWidth = stroke;
    this.context.setLineDash(dash);
    this.context.stroke();
  }

  /** @type {Surface["area"]} */
  area(points, colour) {
    this.#path(points);
    this.context.fillStyle = colour;
    this.context.fill();
  }

  /** @param {number[]} points */
  #path(points) {
    this.context.beginPath();
    for (let i = 0; i < points.length; i += 2) this.context.lineTo(points[i], points[i + 1]);
  }

  /** @type {Surface["circle"]} */
  circle(x, y, radius, colour, border) {
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fillStyle = colour;
    this.context.fill();
    if (!border) return;
    this.context.setLineDash([]);
    this.context.strokeStyle = border;
    this.context.lineWidth = 1.5;
    this.context.stroke();
  }

  /** @type {Surface["text"]} */
  text(text, x, y, { colour, size = 11, align = "start", bold = false, turn = 0, halo }) {
    const context = this.context;
    context.font = `${bold ? "bold " : ""}${size}px ${FONT}`;
    context.fillStyle = colour;
    context.textAlign = align === "middle" ? "center" : align;
    context.textBaseline = "middle";
    if (halo) {
      context.setLineDash([]);
      context.lineJoin = "round";
      context.lineWidth = 3;
      context.strokeStyle = halo;
      context.strokeText(text, x, y);
    }
    if (!turn) return void context.fillText(text, x, y);
    context.save();
    context.translate(x, y);
    context.rotate((turn * Math.PI) / 180);
    context.fillText(text, 0, 0);
    context.restore();
  }

  /** @type {Surface["image"]} */
  image(image, x, y, width, height) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(image, x, y, width, height);
  }

  /** @type {Surface["clip"]} */
  clip(x, y, width, height) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
  }

  unclip() {
    this.context.restore();
  }
}

/** Operations as elements of an SVG document. @implements {Surface} */
export class SvgSurface {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    this.width = width;
    this.height = height;
    /** @type {string[]} */
    this.elements = [];
    this.clips = 0;
  }

  /** @type {Surface["rect"]} */
  rect(x, y, width, height, colour) {
    this.#add("rect", { x, y, width, height, fill: colour });
  }

  /** @type {Surface["frame"]} */
  frame(x, y, width, height, colour, stroke = 1) {
    this.#add("rect", { x, y, width, height, fill: "none", stroke: colour, "stroke-width": stroke });
  }

  /** @type {Surface["line"]} */
  line(points, colour, stroke = 1, dash = []) {
    const pattern = dash.length ? { "stroke-dasharray": dash.join(" ") } : {};
    this.#add("polyline", { points: pointsText(points), fill: "none", stroke: colour, "stroke-width": stroke, ...pattern });
  }

  /** @type {Surface["area"]} */
  area(points, colour) {
    this.#add("polygon", { points: pointsText(points), fill: colour });
  }

  /** @type {Surface["circle"]} */
  circle(x, y, radius, colour, border) {
    this.#add("circle", { cx: x, cy: y, r: radius, fill: colour, ...(border ? { stroke: border, "stroke-width": 1.5 } : {}) });
  }

  /** @type {Surface["text"]} */
  text(text, x, y, { colour, size = 11, align = "start", bold = false, turn = 0, halo }) {
    const rotation = turn ? { transform: `rotate(${turn} ${rounded(x)} ${rounded(y)})` } : {};
    this.#add("text", {
      x, y, dy: "0.35em", fill: colour, "font-size": size, "text-anchor": align,
      ...(bold ? { "font-weight": "bold" } : {}), ...rotation,
      ...(halo ? { stroke: halo, "stroke-width": 3, "stroke-linejoin": "round", "paint-order": "stroke" } : {}),
    }, text);
  }

  /** @type {Surface["image"]} */
  image(image, x, y, width, height) {
    this.#add("image", { x, y, width, height, href: image.toDataURL("image/png"), style: "image-rendering:pixelated" });
  }

  /** @type {Surface["clip"]} */
  clip(x, y, width, height) {
    const name = `clip${this.clips++}`;
    this.elements.push(`<clipPath id="${name}"><rect x="${rounded(x)}" y="${rounded(y)}" width="${rounded(width)}" height="${rounded(height)}"/></clipPath><g clip-path="url(#${name})">`);
  }

  unclip() {
    this.elements.push("</g>");
  }

  /** Complete SVG document. */
  toString() {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" font-family="sans-serif">\n${this.elements.join("\n")}\n</svg>\n`;
  }

  /** @param {string} name @param {Record<string, string|number|undefined>} attributes @param {string} [content] */
  #add(name, attributes, content) {
    const list = Object.entries(attributes)
      .map(([key, value]) => value === undefined ? "" :
        ` ${key}="${typeof value === "number" ? rounded(value) : escapeXml(value)}"`)
      .join("");
    this.elements.push(content === undefined ? `<${name}${list}/>` : `<${name}${list}>${escapeXml(content)}</${name}>`);
  }
}

/** @param {number} value */
function rounded(value) {
  return Math.round(value * 100) / 100;
}

/** @param {number[]} points */
function pointsText(points) {
  return points.map(rounded).join(" ");
}

/** Escape text for XML and drop the control characters that XML forbids. @param {string} text */
export function escapeXml(text) {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}

/**
 * Shorten a text to a width, by an average glyph width of 0.56 of the font size.
 * @param {string} text @param {number} width Pixels. @param {number} [size]
 * @returns {string} Empty if fewer than two characters fit.
 */
export function fitText(text, width, size = 11) {
  const count = Math.floor(width / (size * 0.56));
  if (text.length <= count) return text;
  return count < 3 ? "" : `${text.slice(0, count - 1)}…`;
}
