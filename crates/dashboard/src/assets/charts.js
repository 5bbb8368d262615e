// Curves and bars as SVG that scales with its container.

import { h, put, s, say, set, unique } from "./dom.js";
import { isNumber } from "./format.js";

const HEIGHT = 132;
const PAD = { left: 40, right: 10, top: 8, bottom: 20 };

/**
 * A chart of lines over numbers: `draw({lines: [{name, kind, points: [[x, y]], band: [[x, lo, hi]],
 * area}], x: format, y: format, from, to, now, summary})`. `now` replaces the unit; the summary is
 * for screen readers.
 */
export function chart({ title, unit = "", height = HEIGHT }) {
  const name = unique("chart");
  const svg = s("svg", { class: "plot", role: "img", "aria-labelledby": name, height });
  const words = h("p", { class: "unseen", id: name }, title);
  const legend = h("p", { class: "legend", "aria-hidden": "true" });
  const readout = h("output", { class: "readout", "aria-hidden": "true" });
  const about = h("small", null, unit);
  const head = h("h3", { title }, title, about);
  const figure = h("figure", { class: "chart panel" }, h("div", { class: "chart-head" }, head,
    readout, legend), svg, words);
  let last = null;
  let width = 0;
  const redraw = () => last && width && paint(svg, last, width, height);
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now === width) return;
    width = now;
    redraw();
  }).observe(svg);
  svg.addEventListener("pointermove", (event) => last && point(svg, last, event, readout));
  svg.addEventListener("pointerleave", () => {
    say(readout, "");
    svg.querySelector(".cursor")?.remove();
  });
  return {
    element: figure,
    draw(data) {
      last = data;
      if (data.now !== undefined) say(about, data.now);
      say(words, `${title}. ${data.summary ?? "No values yet."}`);
      const named = data.lines.filter((line) => line.name && data.lines.length > 1);
      const key = named.map((line) => line.name + line.kind).join();
      if (legend.dataset.key !== key) {
        legend.dataset.key = key;
        put(legend, named.map((line) => h("span", { class: `key ${line.kind}` }, line.name)));
      }
      redraw();
    },
  };
}

/** Range of the value axis, with round marks. */
export function nice(low, high, marks = 3) {
  if (!(high > low)) {
    high = low + (Math.abs(low) || 1);
  }
  const rough = (high - low) / marks;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((by) => by * power).find((by) => by >= rough * 0.999);
  const from = Math.floor(low / step) * step;
  const to = Math.ceil(high / step - 1e-9) * step;
  const at = [];
  for (let value = from; value <= to + step / 2; value += step) at.push(+value.toPrecision(12));
  return { from, to, at };
}

function extent(data) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const line of data.lines) {
    for (const [x, y] of line.points) {
      if (!isNumber(y)) continue;
      left = Math.min(left, x);
      right = Math.max(right, x);
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
    for (const [, lo, hi] of line.band ?? []) {
      low = Math.min(low, lo);
      high = Math.max(high, hi);
    }
  }
  return { left, right, low, high };
}

function paint(svg, data, width, height) {
  set(svg, "viewBox", `0 0 ${width} ${height}`);
  const seen = extent(data);
  if (seen.right === -Infinity) {
    put(svg, s("text", { x: width / 2, y: height / 2, class: "none", "text-anchor": "middle" },
      data.empty ?? "No value"));
    data.scale = null;
    return;
  }
  const floor = data.zero === false ? seen.low : Math.min(0, seen.low);
  const axis = nice(data.from ?? floor, data.to ?? seen.high);
  const right = seen.right > seen.left ? seen.right : seen.left + 1;
  const inner = width - PAD.left - PAD.right;
  const tall = height - PAD.top - PAD.bottom;
  const x = (value) => PAD.left + (inner * (value - seen.left)) / (right - seen.left);
  const y = (value) => PAD.top + tall * (1 - (value - axis.from) / (axis.to - axis.from));
  data.scale = { x, left: seen.left, right, width };
  put(svg,
    axis.at.map((value) => [
      s("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }),
      s("text", { class: "tick", x: PAD.left - 6, y: y(value) + 3.5, "text-anchor": "end" },
        data.y(value)),
    ]),
    ticks(data, seen.left, right, inner).map(([value, label, anchor]) => s("text", {
      class: "tick", x: x(value), y: height - 5, "text-anchor": anchor }, label)),
    data.lines.map((line) => [
      line.band?.length > 1
        && s("path", { class: `band ${line.kind}`, d: bandPath(line.band, x, y) }),
      line.area && line.points.length > 1
        && s("path", { class: `area ${line.kind}`, d: areaPath(line.points, x, y, y(axis.from)) }),
      s("path", { class: `line ${line.kind}`, d: path(line.points, x, y) }),
      dots(line, x, y),
    ]));
}

function ticks(data, left, right, inner) {
  const many = Math.max(2, Math.min(5, Math.floor(inner / 90)));
  const all = [];
  if (data.whole) {
    // Steps are integers; round ones get a mark.
    const round = nice(left, right, many).at.filter((value) => value >= left && value <= right
      && Number.isInteger(value));
    return round.map((value) => [value, data.x(value), value === left ? "start"
      : value > right - (right - left) * 0.06 ? "end" : "middle"]);
  }
  for (let at = 0; at < many; at += 1) {
    const value = left + ((right - left) * at) / (many - 1);
    const anchor = at === 0 ? "start" : at === many - 1 ? "end" : "middle";
    const label = data.x(value);
    if (all.at(-1)?.[1] !== label) all.push([value, label, anchor]);
  }
  return all;
}

function path(points, x, y) {
  let drawn = "";
  let pen = "M";
  for (const [at, value] of points) {
    if (!isNumber(value)) {
      pen = "M";
      continue;
    }
    drawn += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return drawn;
}

function areaPath(points, x, y, floor) {
  const known = points.filter(([, value]) => isNumber(value));
  if (known.length < 2) return "";
  const close = `L${x(known.at(-1)[0]).toFixed(1)} ${floor}L${x(known[0][0]).toFixed(1)} ${floor}Z`;
  return path(known, x, y) + close;
}

function bandPath(band, x, y) {
  const upper = band.map(([at, , high]) => [at, high]);
  const lower = band.map(([at, low]) => [at, low]).reverse();
  return `${path(upper, x, y)}${path(lower, x, y).replace("M", "L")}Z`;
}

function dots(line, x, y) {
  const known = line.points.filter(([, value]) => isNumber(value));
  const few = line.dots || known.length === 1 ? known : known.slice(-1);
  if (few.length > 60) return [];
  return few.map(([at, value]) => s("circle", {
    class: `dot ${line.kind}`, cx: x(at), cy: y(value),
    r: line.dots && known.length > 1 ? 2.2 : 3 }));
}

/** Shows the values under the pointer. */
function point(svg, data, event, readout) {
  if (!data.scale) return;
  const { x, left, right, width } = data.scale;
  const box = svg.getBoundingClientRect();
  const share = (((event.clientX - box.left) * width) / box.width - x(left)) / (x(right) - x(left));
  const at = left + (right - left) * Math.min(1, Math.max(0, share));
  const said = [];
  let where = null;
  for (const line of data.lines) {
    const found = nearest(line.points, at);
    if (!found) continue;
    where ??= found[0];
    said.push(`${data.lines.length > 1 ? `${line.name} ` : ""}${data.y(found[1])}`);
  }
  if (where === null) return;
  say(readout, `${data.x(where)}: ${said.join(", ")}`);
  let cursor = svg.querySelector(".cursor");
  if (!cursor) {
    cursor = s("line", { class: "cursor", y1: PAD.top, y2: svg.clientHeight - PAD.bottom });
    svg.append(cursor);
  }
  set(cursor, "x1", x(where));
  set(cursor, "x2", x(where));
}

function nearest(points, at) {
  let best = null;
  for (const candidate of points) {
    if (!isNumber(candidate[1])) continue;
    if (!best || Math.abs(candidate[0] - at) < Math.abs(best[0] - at)) best = candidate;
  }
  return best;
}

/** A list of names with bars, longest first: `draw({name: number}, format, kind)`. */
export function bars({ title, empty }) {
  const list = h("ul", { class: "bars" });
  const none = h("p", { class: "none" }, empty);
  const total = h("small");
  const element = h("section", { class: "panel" }, h("h3", null, title, total), list, none);
  return {
    element,
    draw(values, format, kind, sum) {
      const all = Object.entries(values ?? {}).filter(([, value]) => value > 0);
      all.sort((a, b) => b[1] - a[1]);
      const most = all[0]?.[1] ?? 1;
      none.hidden = all.length > 0;
      list.hidden = all.length === 0;
      say(total, sum ?? "");
      while (list.children.length > all.length) list.lastChild.remove();
      all.forEach(([name, value], at) => {
        if (!list.children[at]) {
          list.append(h("li", null, h("span", { class: "what" }), h("span", { class: "how" }),
            h("i", { "aria-hidden": "true" })));
        }
        const [what, how, bar] = list.children[at].children;
        say(what, name.replaceAll("_", " "));
        say(how, format(value));
        set(bar, "class", typeof kind === "function" ? kind(name) : kind);
        bar.style.width = `${Math.max(0.5, (100 * value) / most).toFixed(1)}%`;
      });
    },
  };
}
