/** Decode the columns of the page: base64 of gzip of little-endian arrays, one column a line. */

/** @typedef {import("./format.js").Column} Column */
/** @typedef {import("./format.js").Values} Values */

const BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const SIX_BITS = new Uint8Array(128);
for (let i = 0; i < 64; i++) SIX_BITS[BASE64.charCodeAt(i)] = i;

const ARRAYS = {
  u8: Uint8Array, u16: Uint16Array, i32: Int32Array, u32: Uint32Array, f64: Float64Array,
};

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
    const bytes = await inflate(decodeBase64(this.text, begin, newline < 0 ? this.text.length : newline));
    const values = new ARRAYS[column.type](bytes);
    if (values.length !== column.length) {
      throw new Error(`column ${column.column} has ${values.length} values instead of ${column.length}`);
    }
    return column.delta ? prefixSums(values) : values;
  }
}

/**
 * Decode text[begin, end) from base64. A loop over character codes: `Uint8Array.from(atob(text), f)`
 * is fifty times slower for columns of megabytes.
 * @param {string} text
 * @param {number} begin
 * @param {number} end
 */
export function decodeBase64(text, begin, end) {
  while (end > begin && (text.charCodeAt(end - 1) === 61 || text.charCodeAt(end - 1) <= 32)) end--;
  const length = end - begin;
  const bytes = new Uint8Array(Math.floor((length * 3) / 4));
  let position = 0;
  let i = begin;
  for (; i + 3 < end; i += 4) {
    const group =
      (SIX_BITS[text.charCodeAt(i)] << 18) | (SIX_BITS[text.charCodeAt(i + 1)] << 12) |
      (SIX_BITS[text.charCodeAt(i + 2)] << 6) | SIX_BITS[text.charCodeAt(i + 3)];
    bytes[position++] = group >> 16;
    bytes[position++] = (group >> 8) & 255;
    bytes[position++] = group & 255;
  }
  if (end - i >= 2) {
    const first = SIX_BITS[text.charCodeAt(i)], second = SIX_BITS[text.charCodeAt(i + 1)];
    bytes[position++] = (first << 2) | (second >> 4);
    if (end - i === 3) {
      bytes[position++] = ((second & 15) << 4) | (SIX_BITS[text.charCodeAt(i + 2)] >> 2);
    }
  }
  return bytes;
}

/** @param {Uint8Array<ArrayBuffer>} bytes @returns {Promise<ArrayBuffer>} */
async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** @param {Values} differences */
function prefixSums(differences) {
  const sums = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < sums.length; i++) sums[i] = sum += differences[i];
  return sums;
}
