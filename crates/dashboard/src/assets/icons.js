// Icons, 16 by 16, in the colour of the text.

import { s } from "./dom.js";

const PATHS = {
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
  beside: "M2.500 3h4v10h-4zM9.500 3h4v10h-4z",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
};

/** Returns an icon by name, or of an SVG path. */
export function icon(name) {
  return s("svg", {
    class: "glyph", viewBox: "0 0 16 16", width: "16", height: "16", "aria-hidden": "true",
  }, s("path", {
    d: PATHS[name] ?? name, fill: "none", stroke: "currentColor", "stroke-width": "1.5",
    "stroke-linecap": "round", "stroke-linejoin": "round",
  }));
}
