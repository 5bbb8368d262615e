// Selection bias: trained runs compared with dispatched ones.

import { ask } from "./api.js";
import { h, put, s, unique } from "./dom.js";
import { count, counted, isNumber, percent, short, span } from "./format.js";
import { pageHead, refresher, trouble } from "./components.js";

export const watch = [];

export const page = {
  path: "/bias", name: "Selection bias",
  icon: "M2 13.5h12M2.5 13c2 0 2-8 4-8s2.5 8 5 8M6 13c1.5 0 2-10 3.5-10S12 13 13.5 13",
};

const FIELDS = {
  tokens: { title: "Length", unit: "generated tokens", say: short, more: "longer",
    less: "shorter" },
  seconds: { title: "Duration", unit: "seconds of a run", say: span, more: "slower",
    less: "faster" },
};
const GROUPS = [
  ["dispatched", "faint", "sent to a runner"],
  ["trained", "good", "used for training"],
  ["failed", "bad", "failed without further retry"],
  ["cancelled", "cut", "cancelled or dropped"],
];

export function open(root, { store }) {
  let shown = null;
  const place = h("div", null, h("p", { class: "loading" }, "Loading …"));
  put(root, pageHead("Selection bias", "If long or slow runs are lost more often, the " +
    "model is trained on a different distribution."), place);
  const fresh = refresher(load, 5000);

  async function load() {
    try {
      const bias = await ask("bias");
      if (bias === shown) return;
      shown = bias;
      const fields = (bias.fields ?? []).filter((field) => bias.groups?.[field]?.dispatched?.count);
      put(place, fields.length ? fields.map((field) => section(field, bias.groups[field]))
        : h("p", { class: "empty" }, "No run has ended yet."));
    } catch (error) {
      if (!shown) put(place, trouble(error, load));
    }
  }
  load();
  return {
    update: (change) => change.overview && store.job?.live && fresh.poke(),
    close: fresh.close,
  };
}

function section(name, groups) {
  const field = FIELDS[name] ?? { title: name, unit: "", say: short, more: "more", less: "less" };
  const all = GROUPS.filter(([group]) => groups[group]);
  const others = all.filter(([group]) => group !== "dispatched" && groups[group].count > 0);
  const id = unique("bias");
  return h("section", { class: "bias", "aria-labelledby": id },
    h("h2", { id }, field.title, h("small", null, field.unit)),
    h("p", { class: "verdict" }, verdict(groups, field)),
    h("div", { class: "charts three" }, others.map(([group, kind, about]) =>
      histogram(group, kind, about, groups, field))),
    h("div", { class: "panel" }, h("table", { class: "plain" },
      h("caption", { class: "unseen" }, `${field.title} by outcome`),
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Runs"),
        ["Count", "Mean", "10 %", "Median", "90 %", "Mean against dispatched"].map((label, at) =>
          h("th", { scope: "col",
            class: at === 2 || at === 4 ? "number hide1" : "number" }, label)))),
      h("tbody", null, all.map(([group, kind]) => h("tr", null,
        h("th", { scope: "row" }, h("span", { class: `key ${kind}` }, group)),
        h("td", { class: "number" }, count(groups[group].count)),
        ["mean", "p10", "p50", "p90"].map((key) => h("td", {
          class: key === "p10" || key === "p90" ? "number hide1" : "number" },
        isNumber(groups[group][key]) ? field.say(groups[group][key]) : "–")),
        h("td", { class: "number" }, group === "dispatched" ? "" : against(groups, group))))))));
}

function change(groups, group) {
  const [mine, all] = [groups[group]?.mean, groups.dispatched?.mean];
  return isNumber(mine) && all ? mine / all - 1 : null;
}

function against(groups, group) {
  const by = change(groups, group);
  return by === null ? "–" : `${by >= 0 ? "+" : "−"}${percent(Math.abs(by), 0)}`;
}

/** Summarizes the numbers in a sentence. */
function verdict(groups, field) {
  const trained = change(groups, "trained");
  const lost = ["failed", "cancelled"].reduce((sum, group) => sum + (groups[group]?.count ?? 0), 0);
  const share = percent(lost / groups.dispatched.count);
  if (trained === null) {
    return `Nothing was trained on yet; ${counted(lost, "run")} (${share}) lost.`;
  }
  const by = Math.abs(trained);
  const way = trained > 0 ? field.more : field.less;
  const means = by < 0.01 ? "Trained runs are like the dispatched ones."
    : `Trained runs are ${percent(by, 0)} ${way} than the dispatched ones.`;
  return `${means} ${share} of all failed or were cancelled.`;
}

/** Histogram of a group in front of all dispatched runs, as shares of their totals. */
function histogram(group, kind, about, groups, field) {
  const [mine, all] = [groups[group].histogram ?? [], groups.dispatched.histogram ?? []];
  const [width, height, floor] = [320, 130, 108];
  const shares = (bins, total) => bins.map((bin) => (total ? bin.count / total : 0));
  const [front, back] = [shares(mine, groups[group].count), shares(all, groups.dispatched.count)];
  const top = Math.max(0.001, ...front, ...back) * 1.04;
  const bin = width / Math.max(1, all.length);
  const y = (share) => floor - (floor - 6) * (share / top);
  const name = unique("histogram");
  const edges = all.length ? [all[0].from, all[all.length >> 1].from, all.at(-1).to] : [];
  const steps = back.map((share, at) => `${at ? "L" : "M"}${at * bin} ${y(share).toFixed(1)}` +
    `L${(at + 1) * bin} ${y(share).toFixed(1)}`).join("");
  return h("figure", { class: "chart panel" },
    h("div", { class: "chart-head" }, h("h3", null, group, h("small", null, about)),
      h("p", { class: "legend", "aria-hidden": "true" }, h("span", { class: `key ${kind}` }, group),
        h("span", { class: "key faint" }, "dispatched"))),
    s("svg", { class: "plot histogram", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-labelledby": name },
    front.map((share, at) => share > 0 && s("rect", { class: `bin ${kind}`, x: at * bin + 0.75,
      width: Math.max(0.5, bin - 1.5), y: y(share), height: floor - y(share) },
    s("title", null, `${field.say(mine[at].from)} to ${field.say(mine[at].to)}: ` +
      `${counted(mine[at].count, "run")}, ${percent(share)}`))),
    s("path", { class: "outline", d: steps }),
    s("line", { class: "grid", x1: 0, x2: width, y1: floor, y2: floor }),
    edges.map((edge, at) => s("text", { class: "tick", y: height - 6, x: [0, width / 2, width][at],
      "text-anchor": ["start", "middle", "end"][at] }, field.say(edge)))),
    h("p", { class: "unseen", id: name }, `${group}: ${counted(groups[group].count, "run")}, ` +
      `mean ${field.say(groups[group].mean)}, against ${field.say(groups.dispatched.mean)} of ` +
      "all dispatched runs."));
}
