// Small drawings, 16 by 16, in the colour of the text.

import { s } from "./dom.js";

const PATHS = {
  overview: "M2 13.5h12M4 11V7.5M8 11V3M12 11V5.5",
  timeline: "M2 4h6M6 8h7M4 12h5",
  batches: "M8 2 14 5 8 8 2 5zM2 8l6 3 6-3M2 11l6 3 6-3",
  runners: "M3 3h10v4H3zM3 9h10v4H3zM5.5 5h.01M5.5 11h.01",
  runs: "M2.5 4h11M2.5 8h11M2.5 12h7",
  bias: "M2 13.5h12M2.5 13c2 0 2-8 4-8s2.5 8 5 8M6 13c1.5 0 2-10 3.5-10S12 13 13.5 13",
  light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15" +
    "M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  dark: "M13.5 9.5A6 6 0 1 1 6.5 2.5a5 5 0 0 0 7 7z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  check: "M3 8.5 6.5 12 13 4.5",
  done: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M5 8.2l2.2 2.2L11.2 6",
  warn: "M8 2 14.5 13.5h-13zM8 6.5v3.2M8 11.700h.01",
  stop: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M5.5 5.5l5 5M10.5 5.5l-5 5",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  left: "M10 3 5 8l5 5",
  right: "M6 3l5 5-5 5",
  all: "M2 8h12M2 8l3-3M2 8l3 3M14 8l-3-3M14 8l-3 3",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
};

export function icon(name) {
  return s("svg", {
    class: "glyph", viewBox: "0 0 16 16", width: "16", height: "16", "aria-hidden": "true",
  }, s("path", {
    d: PATHS[name], fill: "none", stroke: "currentColor", "stroke-width": "1.5",
    "stroke-linecap": "round", "stroke-linejoin": "round",
  }));
}
