// Reads the safetensors format: 8 bytes of header length, a JSON header, then the numbers row by row, little-endian,
// as every machine with a browser holds them.
// https://github.com/huggingface/safetensors#format

/**
 * @param {ArrayBuffer} buffer one safetensors body
 * @returns {{metadata: Object<string, string>, tensors: Map<string, {shape: number[], values: Float32Array}>}} whole
 *   numbers in an Int32Array
 * @throws {RangeError} the body is shorter than it says, or holds a kind of number that is not read here
 */
export function readSafetensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name !== "__metadata__") tensors.set(name, readTensor(buffer, 8 + length, entry));
  }
  return { metadata: header.__metadata__ ?? {}, tensors };
}

function readTensor(buffer, start, { dtype, shape, data_offsets: [from, to] }) {
  const bytes = buffer.slice(start + from, start + to); // a copy starts at offset 0, so any number may be read in it
  if (bytes.byteLength !== to - from) throw new RangeError("the answer ends too early");
  if (!(dtype in READERS)) throw new RangeError(`numbers of type ${dtype} are not read here`);
  return { shape, values: READERS[dtype](bytes) };
}

const READERS = {
  F16: (bytes) => decodeHalves(new Uint16Array(bytes)),
  F32: (bytes) => new Float32Array(bytes),
  I32: (bytes) => new Int32Array(bytes),
};

let halves = null; // every float16 as float32, made at the first use: 256 KiB, and decoding is one look-up a number

function decodeHalves(encoded) {
  halves ??= Float32Array.from({ length: 65536 }, (_, bits) => decodeHalf(bits));
  const decoded = new Float32Array(encoded.length);
  for (let index = 0; index < encoded.length; index += 1) decoded[index] = halves[encoded[index]];
  return decoded;
}

/** One IEEE 754 binary16. */
export function decodeHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
