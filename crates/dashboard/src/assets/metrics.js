// Metrics of steps, evaluations and the trainer as small curves.

import { ask } from "./api.js";
import { chart } from "./charts.js";
import { h, keep, put, say, set } from "./dom.js";
import { count, counted, isNumber, short } from "./format.js";
import { pageHead, refresher, trouble } from "./components.js";

export const watch = [];

export const page = {
  path: "/series", name: "Metrics",
  icon: "M2 2v12h12M4.500 10.500l3-4 2.500 2 3.500-5",
};

/** Curves that are drawn at first, and with each request for more. */
const PART = 24;
/** Names in the list. */
const LISTED = 400;
/** Groups that come first. */
const FIRST = ["rollout", "trainer", "eval", "bench"];
const STATS = new Set(["mean", "min", "max", "std"]);

/** Curves by name: mean, minimum and maximum of one metric are one curve. */
export function curvesOf(metrics) {
  const curves = new Map();
  for (const metric of metrics) {
    const cut = metric.name.lastIndexOf("/");
    const stat = cut > 0 ? metric.name.slice(cut + 1) : "";
    const isStat = STATS.has(stat);
    const name = isStat ? metric.name.slice(0, cut) : metric.name;
    if (!curves.has(name)) curves.set(name, { name, group: name.split("/")[0], of: {} });
    curves.get(name).of[isStat ? stat : "value"] = metric;
  }
  const rank = (group) => (FIRST.indexOf(group) + FIRST.length + 1) % (FIRST.length + 1);
  // Constant metrics come last in their group.
  const flat = (one) => Number(Object.values(one.of).every(({ first, last }) => first === last));
  return [...curves.values()].sort((a, b) => rank(a.group) - rank(b.group)
    || a.group.localeCompare(b.group) || flat(a) - flat(b) || a.name.localeCompare(b.name));
}

/** Numbers of any size: 0.347, 12,500, 3.1e-5 */
export function number(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size > 0 && size < 0.001) return value.toExponential(1);
  if (size >= 100_000) return short(value);
  return size >= 1000 ? count(value) : String(+value.toPrecision(size < 100 ? 3 : 4));
}

export function open(root, { store }) {
  const query = new URLSearchParams(location.search);
  const filter = { text: query.get("text") ?? "", group: query.get("group") ?? "" };
  let metrics = null;
  let many = PART;
  const made = new Map();
  const total = h("p", { class: "total", role: "status" });
  const search = h("input", { type: "search", id: "search", value: filter.text,
    placeholder: "Part of a name", oninput: () => {
      filter.text = search.value;
      again();
    } });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show metrics of" });
  const place = h("div", null, h("p", { class: "loading" }, "Loading …"));
  const curves = h("div", { class: "charts three small" });
  const more = h("button", { type: "button", onclick: () => {
    many += PART;
    draw();
  } });
  const rows = h("tbody");
  const listed = h("summary", null, "All names");
  const list = h("details", { class: "panel list" }, listed, h("table", { class: "plain names" },
    h("caption", { class: "unseen" }, "Metrics with their first and last values"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Name"),
      ["First", "Last", "Step", "Values"].map((name, at) => h("th", { scope: "col",
        class: at === 0 || at === 3 ? "number hide1" : "number" }, name)))), rows));
  const none = h("p", { class: "empty" });
  put(root, pageHead("Metrics", "Values of every step, evaluation and train step. The band is the " +
    "range from minimum to maximum.", total),
  h("form", { class: "filters", role: "search", "aria-label": "Metrics",
    onsubmit: (event) => event.preventDefault() },
  h("label", { class: "field wide", for: "search" }, h("span", null, "Search"), search), chips),
  place);
  const fresh = refresher(load, 3000);

  function again() {
    const params = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
    history.replaceState(null, "", params.size ? `/series?${params}` : "/series");
    many = PART;
    draw();
  }

  async function load() {
    try {
      const known = await ask("metrics");
      if (known === metrics) return;
      metrics = known;
      await draw();
    } catch (error) {
      if (metrics === null) put(place, trouble(error, load));
    }
  }

  async function draw() {
    if (metrics === null) return;
    if (!curves.isConnected) put(place, none, h("h2", { class: "unseen" }, "Curves"),
      curves, more, list);
    const all = curvesOf(metrics);
    const part = filter.text.trim().toLowerCase();
    const found = all.filter((one) => one.name.toLowerCase().includes(part));
    drawChips(found);
    const chosen = found.filter((one) => !filter.group || one.group === filter.group);
    const shown = chosen.slice(0, many);
    say(total, counted(chosen.length, "metric"));
    none.hidden = chosen.length > 0;
    say(none, all.length ? "No metric matches." : "No step has ended yet.");
    list.hidden = all.length === 0;
    more.hidden = chosen.length <= many;
    say(more, `Show ${Math.min(PART, chosen.length - many)} more`);
    drawList(part);
    keep(curves, shown, (one) => one.name, make, () => {});
    await fill(shown);
  }

  function make(one) {
    const figure = chart({ title: one.name, height: 104 });
    made.set(one.name, figure);
    return figure.element;
  }

  /** Loads and draws the values of the shown curves. */
  async function fill(shown) {
    const names = shown.flatMap((one) => Object.entries(one.of)
      .filter(([stat]) => stat !== "std" || !one.of.mean).map(([, metric]) => metric.name));
    const parts = [];
    for (let at = 0; at < names.length; at += 90) parts.push(names.slice(at, at + 90));
    const loaded = await Promise.all(parts.map((some) =>
      ask(`series?names=${encodeURIComponent(some.join("\n"))}`)));
    const points = new Map(loaded.flat().map((one) => [one.name, one.points]));
    for (const one of shown) drawCurve(made.get(one.name), one, points);
  }

  function drawChips(found) {
    const by = new Map([["", found.length]]);
    for (const { group } of found) by.set(group, (by.get(group) ?? 0) + 1);
    if (filter.group && !by.has(filter.group)) by.set(filter.group, 0);
    keep(chips, [...by], ([group]) => `g${group}`, ([group]) => h("button", { type: "button",
      class: "chip", onclick: () => {
        filter.group = group;
        again();
      } }, h("span"), h("b")), (chip, [group, times]) => {
      say(chip.firstChild, group || "all");
      say(chip.lastChild, count(times));
      set(chip, "aria-pressed", group === filter.group);
    });
  }

  function drawList(part) {
    const some = metrics.filter((one) => one.name.toLowerCase().includes(part));
    say(listed, some.length > LISTED ? `The first ${LISTED} of ${count(some.length)} names`
      : `All ${counted(some.length, "name")}`);
    keep(rows, some.slice(0, LISTED), (one) => one.name, (one) => h("tr", null,
      h("th", { scope: "row" }, one.name), h("td", { class: "number hide1" }),
      h("td", { class: "number" }), h("td", { class: "number" }),
      h("td", { class: "number hide1" })), (row, one) => {
      const [, first, last, step, times] = row.children;
      say(first, number(one.first));
      say(last, number(one.last));
      say(step, count(one.step));
      say(times, count(one.count));
    });
  }

  load();
  return {
    update: (change) => change.overview && store.job?.live && fresh.poke(),
    close: fresh.close,
  };
}

function drawCurve(figure, one, points) {
  const of = (stat) => (one.of[stat] ? points.get(one.of[stat].name) ?? [] : []);
  const main = one.of.mean ? "mean" : one.of.value ? "value" : Object.keys(one.of)[0];
  const high = new Map(of("max"));
  const band = main === "mean" ? of("min").filter(([step]) => high.has(step))
    .map(([step, low]) => [step, low, high.get(step)]) : [];
  const { first, last, step } = one.of[main];
  figure.draw({
    lines: [{ name: main, kind: one.group === "trainer" ? "c5" : one.group === "eval" ? "c3" : "c1",
      points: of(main), band }],
    x: (value) => `step ${Math.round(value)}`, y: number, whole: true, zero: false,
    now: number(last), empty: "No value",
    summary: `From ${number(first)} to ${number(last)} at step ${step}.`,
  });
}
