/** Decode the columns of the page: text of zlib of byte planes, one column a line; see `columns.py`. */

/** @typedef {import("./format.js").Column} Column */
/** @typedef {import("./format.js").ColumnReference} ColumnReference */
/** @typedef {import("./format.js").Values} Values */

/** Value of each character: all printable ASCII characters but those with a meaning in HTML. */
const DIGIT = new Uint8Array(128);
for (let code = 0x20, digit = 0; code < 0x7f; code++) if (!"\"&<>".includes(String.fromCharCode(code))) DIGIT[code] = digit++;

/** Text of the column block, with the position of each line. */
export class ColumnBlock {
  /** @param {string} text One column a line; a first empty line is ignored. */
  constructor(text) {
    this.text = text;
    /** @type {number[]} */
    this.lineStart = [];
    let position = text.startsWith("\n") ? 1 : 0;
    while (position < text.length) {
      this.lineStart.push(position);
      const next = text.indexOf("\n", position);
      if (next < 0) break;
      position = next + 1;
    }
  }

  /**
   * Return the values of a column; a difference column becomes its prefix sums as Float64Array.
   * Throws an Error that names the column if the line is absent or has another length.
   * @param {Column} column
   * @returns {Promise<Values>}
   */
  async read(column) {
    if (Array.isArray(column)) return Float64Array.from(column);
    const begin = this.lineStart[column.column];
    if (begin === undefined) throw new Error(`column ${column.column} is absent`);
    const newline = this.text.indexOf("\n", begin);
    const text = this.text.slice(begin, newline < 0 ? this.text.length : newline);
    const planes = await inflate(decodeText(text, column.bytes)).catch(() => {
      throw new Error(`column ${column.column} is damaged`);
    });
    if (planes.byteLength !== column.length * column.width) {
      throw new Error(`column ${column.column} has ${planes.byteLength / column.width} values instead of ${column.length}`);
    }
    if (column.type === "f64") return new Float64Array(planes);
    const values = joinPlanes(new Uint8Array(planes), column);
    if (column.values) return valuesAt(values, column.values);
    return column.delta ? prefixSums(values) : values;
  }
}

/**
 * Decode pairs of characters with 13 bits each, the lowest bits first.
 * @param {string} text @param {number} length  Number of bytes; the last group is padded.
 */
export function decodeText(text, length) {
  const codes = new TextEncoder().encode(text);
  const bytes = new Uint8Array(length);
  let bits = 0, count = 0, position = 0;
  for (let i = 0; i + 1 < codes.length; i += 2) {
    bits |= (DIGIT[codes[i]] * 91 + DIGIT[codes[i + 1]]) << count;
    count += 13;
    while (count >= 8) {
      bytes[position++] = bits;
      bits >>>= 8;
      count -= 8;
    }
  }
  return bytes;
}

/** @param {Uint8Array<ArrayBuffer>} bytes @returns {Promise<ArrayBuffer>} */
async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** Join the bytes of each value; in a signed column the lowest bit is the sign. @param {Uint8Array<ArrayBuffer>} planes @param {ColumnReference} column @returns {Values} */
function joinPlanes(planes, { length, width, type }) {
  const isSigned = type === "int";
  if (width === 1 && !isSigned) return planes;
  const values = width > 4 ? new Float64Array(length) : isSigned ? new Int32Array(length) : width === 2 ? new Uint16Array(length) : new Uint32Array(length);
  if (width > 4) {
    for (let plane = width - 1; plane >= 0; plane--) {
      for (let i = 0, at = plane * length; i < length; i++, at++) values[i] = values[i] * 256 + planes[at];
    }
    if (isSigned) for (let i = 0; i < length; i++) values[i] = values[i] % 2 ? -(values[i] + 1) / 2 : values[i] / 2;
    return values;
  }
  for (let plane = 0; plane < width; plane++) {
    const shift = 8 * plane;
    for (let i = 0, at = plane * length; i < length; i++, at++) values[i] |= planes[at] << shift;
  }
  if (isSigned) for (let i = 0; i < length; i++) values[i] = (values[i] >>> 1) ^ -(values[i] & 1);
  return values;
}

/** @param {Values} places @param {number[]} table */
function valuesAt(places, table) {
  const fits = table.every((value) => Math.abs(value) < 2 ** 31);
  const values = fits ? new Int32Array(places.length) : new Float64Array(places.length);
  for (let i = 0; i < values.length; i++) values[i] = table[places[i]];
  return values;
}

/** @param {Values} differences */
function prefixSums(differences) {
  const sums = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < sums.length; i++) sums[i] = sum += differences[i];
  return sums;
}
