// Makes pictures smaller: at most 256 colours, chosen by how often they occur, and packed tightly.

import { deflateSync, inflateSync, crc32 as crc } from "node:zlib";

const MARK = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);

/** Returns the picture with a palette, or as it was if that is not smaller. */
export function smaller(bytes) {
  const { width, height, pixels } = read(bytes);
  const { colours, indices } = palette(pixels);
  const rows = Buffer.alloc((width + 1) * height);
  for (let y = 0; y < height; y += 1) {
    indices.copy(rows, y * (width + 1) + 1, y * width, (y + 1) * width);
  }
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  const packed = Buffer.concat([MARK, chunk("IHDR", head), chunk("PLTE", colours),
    chunk("IDAT", deflateSync(rows, { level: 9, memLevel: 9 })), chunk("IEND", Buffer.alloc(0))]);
  return packed.length < bytes.length ? packed : bytes;
}

function chunk(name, data) {
  const body = Buffer.concat([Buffer.from(name, "latin1"), data]);
  const whole = Buffer.alloc(body.length + 8);
  whole.writeUInt32BE(data.length, 0);
  body.copy(whole, 4);
  whole.writeUInt32BE(checksum(body), body.length + 4);
  return whole;
}

/** Older versions of Node.js have no checksum of their own. */
function checksum(data) {
  if (crc) return crc(data);
  let sum = 0xffffffff;
  for (const byte of data) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return (sum ^ 0xffffffff) >>> 0;
}

/** Reads the pixels of a picture as a browser writes it: 8 bits, with or without transparency. */
function read(bytes) {
  const data = [];
  let at = 8;
  let head;
  while (at < bytes.length) {
    const length = bytes.readUInt32BE(at);
    const name = bytes.toString("latin1", at + 4, at + 8);
    if (name === "IHDR") head = bytes.subarray(at + 8, at + 8 + length);
    if (name === "IDAT") data.push(bytes.subarray(at + 8, at + 8 + length));
    at += length + 12;
  }
  const [width, height] = [head.readUInt32BE(0), head.readUInt32BE(4)];
  const parts = { 2: 3, 6: 4 }[head[9]];
  if (head[8] !== 8 || !parts || head[12]) throw new Error("an unusual picture");
  const raw = inflateSync(Buffer.concat(data));
  const line = width * parts;
  const out = Buffer.alloc(line * height);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (line + 1)];
    for (let x = 0; x < line; x += 1) {
      const left = x >= parts ? out[y * line + x - parts] : 0;
      const above = y ? out[(y - 1) * line + x] : 0;
      const corner = y && x >= parts ? out[(y - 1) * line + x - parts] : 0;
      out[y * line + x] = raw[y * (line + 1) + 1 + x] + guess(filter, left, above, corner);
    }
  }
  const pixels = new Uint32Array(width * height);
  for (let i = 0; i < pixels.length; i += 1) {
    pixels[i] = (out[i * parts] << 16) | (out[i * parts + 1] << 8) | out[i * parts + 2];
  }
  return { width, height, pixels };
}

function guess(filter, left, above, corner) {
  if (filter === 1) return left;
  if (filter === 2) return above;
  if (filter === 3) return (left + above) >> 1;
  if (filter !== 4) return 0;
  const near = left + above - corner;
  const [a, b, c] = [Math.abs(near - left), Math.abs(near - above), Math.abs(near - corner)];
  return a <= b && a <= c ? left : b <= c ? above : corner;
}

function palette(pixels) {
  const often = new Map();
  for (const pixel of pixels) often.set(pixel, (often.get(pixel) ?? 0) + 1);
  const sorted = [...often].sort((a, b) => b[1] - a[1]).map(([colour]) => colour);
  // Those that are there most, and of the rest one of each sort, so that no colour of its own
  // becomes grey.
  const chosen = sorted.slice(0, 96);
  const sort = (colour) => colour & 0xf0f0f0;
  const seen = new Set(chosen.slice(0, 24).map(sort));
  for (const colour of sorted.slice(96)) {
    if (chosen.length < 256 && !seen.has(sort(colour))) {
      seen.add(sort(colour));
      chosen.push(colour);
    }
  }
  const index = new Map(chosen.map((colour, at) => [colour, at]));
  for (const colour of sorted.filter((one) => !index.has(one))) {
    let [best, least] = [0, Infinity];
    chosen.forEach((other, at) => {
      const by = [16, 8, 0].reduce((sum, shift) =>
        sum + (((colour >> shift) & 255) - ((other >> shift) & 255)) ** 2, 0);
      if (by < least) [best, least] = [at, by];
    });
    index.set(colour, best);
  }
  const colours = Buffer.from(chosen.flatMap((colour) =>
    [(colour >> 16) & 255, (colour >> 8) & 255, colour & 255]));
  return { colours, indices: Buffer.from(Uint8Array.from(pixels, (pixel) => index.get(pixel))) };
}
