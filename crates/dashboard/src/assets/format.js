// Formatting of numbers, times and names.

import { h } from "./dom.js";

const NONE = "–";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const clockOf = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 12,345 */
export const count = (value) => (isNumber(value) ? grouped.format(value) : NONE);

/** 1 run, 2 runs */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** 999, 1.2k, 34k, 5.6M */
export function short(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  for (const [limit, unit, by] of [[999.5, "", 1], [999500, "k", 1e3], [9.995e8, "M", 1e6]]) {
    if (size < limit) {
      const scaled = value / by;
      const isWhole = unit === "" && Number.isInteger(value);
      const digits = !isWhole && Math.abs(scaled) < 9.95 ? 1 : 0;
      return scaled.toFixed(digits) + unit;
    }
  }
  return `${(value / 1e9).toFixed(1)}G`;
}

/** Rewards and scores: 0.347 */
export function score(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  const text = size >= 1000 ? short(value) : value.toFixed(size >= 100 ? 1 : 3);
  return text === "-0.000" ? "0.000" : text;
}

/** 12.3 % */
export const percent = (value, digits = 1) =>
  isNumber(value) ? `${(100 * value).toFixed(digits)} %` : NONE;

/** Durations in two units at most: 20 ms, 1.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h */
export function span(seconds) {
  if (!isNumber(seconds)) return NONE;
  const past = Math.max(0, seconds);
  if (past < 0.0995) return `${Math.round(past * 1000)} ms`;
  if (past < 9.95) return `${past.toFixed(1)} s`;
  const whole = Math.round(past);
  const two = (a, unit, b, less) => (b ? `${a} ${unit} ${b} ${less}` : `${a} ${unit}`);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86400) return two(Math.floor(whole / 3600), "h", Math.floor(whole / 60) % 60, "min");
  return two(Math.floor(whole / 86400), "d", Math.floor(whole / 3600) % 24, "h");
}

/** Durations in one unit, for values that change often: 12 s, 3 min, 2 h */
export function ago(seconds) {
  if (!isNumber(seconds)) return NONE;
  const past = Math.max(0, Math.round(seconds));
  if (past < 60) return `${past} s`;
  if (past < 3600) return `${Math.floor(past / 60)} min`;
  if (past < 86400) return `${Math.floor(past / 3600)} h`;
  return `${Math.floor(past / 86400)} d`;
}

/** 16 Nov 2026, 10:37:22 */
export const exact = (at) => (isNumber(at) ? day.format(new Date(at * 1000)) : NONE);

/** 10:37:22 */
export const clock = (at) => (isNumber(at) ? clockOf.format(new Date(at * 1000)) : NONE);

/** A time as a `time` element: relative to `now`, exact on hover. */
export function moment(at, now) {
  if (!isNumber(at)) return h("span", null, NONE);
  const iso = new Date(at * 1000).toISOString();
  return h("time", { datetime: iso, title: exact(at) }, `${ago(now - at)} ago`);
}

/** `runner_lost` → runner lost */
export const words = (name) => String(name ?? "").replaceAll("_", " ") || NONE;

/** Text or a dash. */
export const text = (value) =>
  value === null || value === undefined || value === "" ? NONE : String(value);

/** Path of a run. */
export const runPath = (run) =>
  `/runs/${encodeURIComponent(run.batch)}/${run.task}/${run.run}`;

/** Name of a run: batch · task · run */
export const runName = (run) => `${run.batch} · ${run.task} · ${run.run}`;

/** Seconds since 1970, by this browser's clock. */
export const here = () => Date.now() / 1000;
