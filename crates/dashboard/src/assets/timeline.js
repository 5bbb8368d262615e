// Timeline of steps, evaluations, weight syncs and training.

import { ask } from "./api.js";
import { framed, h, put, s, set } from "./dom.js";
import { clock, count, exact, span, words } from "./format.js";
import { icon } from "./icons.js";
import { badge, pageHead, refresher, trouble } from "./components.js";

export const watch = ["timeline"];

export const page = {
  path: "/timeline", name: "Timeline",
  icon: "M2 4h6M6 8h7M4 12h5",
};

const LABEL = 78;
const BAR = 20;
const GAP = 4;
const TOP = 26;
/** Maximum number of bars; those narrower than a pixel are merged. */
const MAX_DRAWN_SPANS = 1500;
const NAMES = { steps: "Steps", evals: "Evals", syncs: "Syncs", training: "Training" };

export function open(root, { store }) {
  let data = null;
  let lanes = [];
  let view = { from: 0, to: 1, follow: true, whole: true };
  let picked = null;
  const svg = s("svg", { class: "lanes", role: "img", "aria-label": "Timeline" });
  const stage = h("div", { class: "stage", tabindex: "0", role: "application",
    "aria-label": "Timeline: arrow keys move, plus and minus zoom, 0 shows everything" }, svg);
  const detail = h("div", { class: "picked", role: "status" }, h("span", { class: "soft" },
    "Point at a bar, or tap it, for details."));
  const button = (name, label, act) => h("button", {
    type: "button", class: "icon", "aria-label": label, title: label, onclick: act }, icon(name));
  const live = h("button", { type: "button", class: "chip", onclick: () => {
    view.follow = !view.follow;
    if (view.follow) fitTo(view.whole ? null : view.to - view.from);
    draw();
  } }, "Follow");
  const tools = [live, button("left", "Earlier", () => pan(-0.4)), button("minus", "Farther",
    () => zoom(1.6)), button("plus", "Nearer", () => zoom(1 / 1.6)), button("right", "Later",
    () => pan(0.4)), button("all", "Everything", whole)];
  const latest = h("tbody");
  const list = h("details", { class: "panel list", open: window.innerWidth > 760 },
    h("summary", null, "The same as a table"),
    h("table", null, h("caption", { class: "unseen" }, "The last 60 spans, the newest first"),
      h("thead", null, h("tr", null, ["What", "Lane", "State", "Began", "Took", "About"].map(
        (name, at) => h("th", { scope: "col", class: at > 3 ? "hide1" : null }, name)))), latest));
  const place = h("div", { class: "panel timeline" }, h("p", { class: "loading" }, "Loading …"));
  put(root, pageHead("Timeline", "Steps, evaluations, weight syncs and train " +
    "steps over time.", tools), place, detail, list);

  const fresh = refresher(load, 500);
  const draw = framed(paint);
  const sizes = new ResizeObserver(draw);
  sizes.observe(stage);

  async function load() {
    try {
      const first = data === null;
      data = await ask("timeline");
      lanes = (data.lanes ?? []).filter((lane) => lane.spans.length).map(packed);
      if (lanes.length === 0) {
        put(place, h("p", { class: "empty" }, "No step has begun."));
        return;
      }
      if (!stage.isConnected) put(place, stage);
      if (first) begin();
      if (view.whole) fitTo(null);
      else if (view.follow) fitTo(view.to - view.from);
      drawList();
      draw();
    } catch (error) {
      if (data === null) put(place, trouble(error, load));
    }
  }

  const end = () => (store.job?.live ? store.now() : data.now);
  const bounds = () => {
    const all = lanes.flatMap((lane) => lane.rows.flat());
    const from = Math.min(...all.map((one) => one.begin));
    const to = Math.max(...all.map((one) => one.end ?? end()));
    return [from, Math.max(to, from + 0.001)];
  };

  /** Shows the last `width` seconds, or everything. */
  function fitTo(width) {
    const [from, to] = bounds();
    const margin = (width ?? to - from) * 0.01;
    view.from = width ? to - width + margin : from - margin;
    view.to = to + margin;
  }

  /** Shows the latest part of a long job first. */
  function begin() {
    const spans = lanes[0].rows.flat().sort((a, b) => a.begin - b.begin);
    if (spans.length <= 16) return;
    view.whole = false;
    view.to = bounds()[1];
    view.from = spans.at(-8).begin;
  }

  function whole() {
    Object.assign(view, { follow: true, whole: true });
    fitTo(null);
    draw();
  }

  function zoom(by, at = 0.5) {
    const width = (view.to - view.from) * by;
    const middle = view.from + (view.to - view.from) * at;
    const wide = Math.max(0.01, width);
    view = { from: middle - wide * at, to: middle + wide * (1 - at), follow: false, whole: false };
    draw();
  }

  function pan(share) {
    const by = (view.to - view.from) * share;
    view = { from: view.from + by, to: view.to + by, follow: false, whole: false };
    draw();
  }

  function paint() {
    if (!data || !stage.isConnected) return;
    const width = Math.max(200, stage.clientWidth);
    const left = width < 480 ? 8 : LABEL;
    const x = (at) => left + ((width - left) * (at - view.from)) / (view.to - view.from);
    let y = TOP;
    const drawn = [];
    for (const lane of lanes) {
      const tall = lane.rows.length * (BAR + GAP);
      const title = s("text", { class: "lane", x: left > 8 ? 4 : 8, y: left > 8 ? y + 14 : y + 10 },
        NAMES[lane.name] ?? words(lane.name));
      if (left === 8) y += 14;
      drawn.push(s("g", { class: `lane-${lane.name}` }, title,
        lane.rows.map((row, at) => bars(row, x, y + at * (BAR + GAP), left, width))));
      y += tall + 12;
      drawn.push(s("line", { class: "grid", x1: 0, x2: width, y1: y - 6, y2: y - 6 }));
    }
    set(svg, "viewBox", `0 0 ${width} ${y}`);
    set(svg, "height", y);
    put(svg, axis(x, left, width, y), drawn);
    set(svg, "aria-label", `Timeline from ${clock(view.from)} to ${clock(view.to)}. ` +
      lanes.map((lane) => `${count(lane.total)} ${NAMES[lane.name] ?? lane.name}`).join(", "));
    set(live, "aria-pressed", view.follow);
    live.hidden = !store.job?.live;
  }

  function bars(row, x, y, left, width) {
    const drawn = [];
    let edge = -1;
    for (const one of row) {
      const begin = Math.max(left, x(one.begin));
      const stop = Math.min(width, x(one.end ?? end()));
      if (stop < left || begin > width || drawn.length > MAX_DRAWN_SPANS) continue;
      // Merges bars that cannot be distinguished.
      if (stop - begin < 1 && begin - edge < 1) continue;
      edge = stop;
      const wide = Math.max(1.5, stop - begin - 1);
      const label = wide > 7 * one.name.length + 8 ? one.name
        : wide > 7 * String(one.step).length + 6 ? String(one.step) : "";
      drawn.push(s("g", { class: `span ${one.state}${one.id === picked?.id ? " picked" : ""}`,
        onclick: () => pick(one), onpointerenter: () => pick(one) },
      s("rect", { x: begin, y, width: wide, height: BAR, rx: Math.min(3, wide / 2) }),
      label && s("text", { x: begin + 5, y: y + 14 }, label)));
    }
    return drawn;
  }

  function axis(x, left, width, tall) {
    const many = Math.max(2, Math.floor((width - left) / 110));
    const step = nearestStep((view.to - view.from) / many);
    const marks = [];
    for (let at = Math.ceil(view.from / step) * step; at < view.to; at += step) {
      if (x(at) < left + 4 || x(at) > width - 50) continue;
      marks.push(s("line", { class: "grid", x1: x(at), x2: x(at), y1: 18, y2: tall }),
        s("text", { class: "tick", x: x(at) + 4, y: 13 }, step < 1
          ? `${clock(at)}${(at % 1).toFixed(2).slice(1)}` : clock(at)));
    }
    return marks;
  }

  function pick(one) {
    picked = one;
    put(detail, badge(one.state), h("strong", null, one.name), h("span", null,
      `${clock(one.begin)} – ${one.end ? clock(one.end) : "now"}`), h("span", null,
      span((one.end ?? end()) - one.begin)), h("span", { class: "soft" }, one.detail ?? ""));
    draw();
  }

  function drawList() {
    const all = lanes.flatMap((lane) => lane.rows.flat().map((one) => [one, lane.name]));
    all.sort((a, b) => b[0].begin - a[0].begin);
    put(latest, all.slice(0, 60).map(([one, lane]) => h("tr", null,
      h("td", null, one.name), h("td", null, NAMES[lane] ?? lane), h("td", null, badge(one.state)),
      h("td", { title: exact(one.begin) }, clock(one.begin)),
      h("td", { class: "hide1" }, span((one.end ?? end()) - one.begin)),
      h("td", { class: "hide1" }, one.detail ?? ""))));
  }

  stage.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) < Math.abs(event.deltaY)) return;
    event.preventDefault();
    const box = stage.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) {
      zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, (event.clientX - box.left) / box.width);
    } else pan(event.deltaX / box.width);
  }, { passive: false });
  drag(stage, (share) => pan(-share));

  function key(event) {
    const acts = { "+": () => zoom(1 / 1.6), "=": () => zoom(1 / 1.6), "-": () => zoom(1.6),
      0: whole, ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2) };
    acts[event.key]?.();
    return event.key in acts;
  }

  load();
  return {
    key,
    update(change) {
      if (change.changed?.includes("timeline")) fresh.poke();
      else if (data && lanes.length && store.job?.live && view.follow) {
        fitTo(view.whole ? null : view.to - view.from);
        draw();
      }
    },
    close() {
      fresh.close();
      sizes.disconnect();
    },
  };
}

/** Distributes overlapping spans over rows. */
function packed(lane) {
  const rows = [];
  for (const span of lane.spans) {
    const one = named(span, lane.name);
    const row = rows.find((taken) => (taken.at(-1).end ?? Infinity) <= one.begin + 1e-6);
    if (row) row.push(one);
    else rows.push([one]);
  }
  return { name: lane.name, rows: rows.slice(0, 24), total: lane.spans.length };
}

const ONE = { steps: "step", syncs: "sync", training: "train" };

/** Adds the lane to the name of a span. */
function named(one, lane) {
  const word = lane === "evals" ? `eval ${one.step}` : ONE[lane] ?? lane;
  const name = one.name.startsWith(word) ? one.name : `${word} ${one.name}`;
  return { ...one, name };
}

const STEPS = [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  14400, 21600, 43200, 86400];

const nearestStep = (rough) =>
  STEPS.find((step) => step >= rough) ?? 86400 * Math.ceil(rough / 86400);

/** Reports drags as a share of the width. */
function drag(element, moved) {
  let from = null;
  element.addEventListener("pointerdown", (event) => {
    from = event.clientX;
  });
  element.addEventListener("pointermove", (event) => {
    if (from === null || event.buttons === 0) return;
    moved((event.clientX - from) / element.clientWidth);
    from = event.clientX;
  });
  for (const name of ["pointerup", "pointerleave", "pointercancel"]) {
    element.addEventListener(name, () => {
      from = null;
    });
  }
}
