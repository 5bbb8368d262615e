// Overview: throughput, learning progress and losses.

import { bars, chart } from "./charts.js";
import { h, keep, put, say, set } from "./dom.js";
import {
  ago, clock, count, counted, exact, here, isNumber, percent, runPath, score, short, span, words,
} from "./format.js";
import { icon } from "./icons.js";
import { pageHead, runLink } from "./components.js";

export const watch = [];

export const page = {
  path: "/", name: "Overview",
  badge: "raised",
  icon: "M2 13.5h12M4 11V7.5M8 11V3M12 11V5.5",
};

/** Seconds after which a wait for runs is shown: every step ends with a short one. */
const RUNS_DELAY = 3;

const SETS = ["c2", "c3", "c5", "c4", "c1"];

export function open(root, { store }) {
  const alarms = h("ul", { class: "alarms", "aria-label": "Alarms" });
  const wait = h("p", { class: "wait", hidden: "" });
  const tiles = h("dl", { class: "tiles" });
  const charts = {
    runs: chart({ title: "Runs", unit: "per second" }),
    tokens: chart({ title: "Tokens", unit: "per second" }),
    busy: chart({ title: "Runners", unit: "busy of all" }),
    reward: chart({ title: "Reward", unit: "mean and range of a step" }),
    evals: chart({ title: "Evaluations", unit: "score of each set" }),
    flight: chart({ title: "In flight", unit: "runs" }),
  };
  const lists = {
    failed: failures(),
    retried: bars({ title: "Retries", empty: "No run was retried." }),
    lost: bars({ title: "Runner time", empty: "No attempt has ended." }),
    dropped: bars({ title: "Dropped", empty: "No experience was dropped." }),
  };
  put(root, pageHead("Overview", "Throughput, learning progress and losses."),
    wait, alarms, tiles,
    h("h2", null, "Learning"),
    h("div", { class: "charts two" }, charts.reward.element, charts.evals.element),
    h("h2", null, "Throughput"),
    h("div", { class: "charts" }, charts.runs.element, charts.tokens.element,
      charts.busy.element, charts.flight.element),
    h("h2", null, "Losses"),
    lists.failed.element,
    h("div", { class: "charts three" }, lists.retried.element, lists.lost.element,
      lists.dropped.element));

  function update() {
    const over = store.overview;
    if (!over) return;
    drawWait(wait, over);
    drawAlarms(alarms, over);
    drawTiles(tiles, store);
    drawMoving(charts, over);
    drawLearning(charts, over);
    drawLost(lists, over, store.now());
  }
  update();
  return { update };
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Shows what the job waits for, since when, until when, and the remedy. */
function drawWait(line, over) {
  const { wait } = over;
  const key = wait ? `${wait.reason} ${wait.message.split(" waits")[0]}` : "";
  if (line.wait !== key) {
    line.wait = key;
    line.shownAfter = here() + (wait?.reason === "runs" ? RUNS_DELAY : 0);
  }
  line.hidden = !wait || here() < line.shownAfter;
  if (line.hidden) return;
  if (!line.firstChild) put(line, h("strong"), h("span"), h("a"));
  const [sentence, times, run] = line.children;
  const until = isNumber(wait.until) ? `, until ${clock(wait.until)} (${wait.key})` : "";
  say(sentence, capital(wait.message));
  say(times, `; since ${clock(wait.since)}${until}. To do: ${wait.remedy}. `);
  // The longest run of a batch is named in the sentence.
  const named = wait.message.match(/: batch (.+) task (\d+) run (\d+)\b/);
  run.hidden = !named;
  if (named) {
    const [batch, task, number] = named.slice(1);
    set(run, "href", runPath({ batch, task, run: number }));
    say(run, "Open the run");
  } else set(run, "href", null);
}

/** Shows models without a usable server, and raised alarms. */
function drawAlarms(list, over) {
  const problems = (over.servers?.problems ?? []).map((problem) =>
    ({ kind: "no usable server", message: `${capital(problem)}.`, href: "/servers" }));
  const raised = (over.alarms ?? []).filter((alarm) => alarm.raised).slice(-6).reverse();
  list.hidden = raised.length + problems.length === 0;
  keep(list, [...problems, ...raised], (alarm) => alarm.kind + (alarm.at ?? alarm.message),
    (alarm) => h("li", { class: alarm.href ? "bad" : null }, icon("warn"), h("div", null,
      h("strong"), h("p", null, h("span"), " ",
        alarm.href ? h("a", { href: alarm.href }, "To the servers") : null))), (item, alarm) => {
      const [kind, message] = item.lastChild.children;
      say(kind, alarm.kind.replaceAll("_", " "));
      say(message.firstChild, isNumber(alarm.at) ? `${alarm.message} (since ${clock(alarm.at)})`
        : alarm.message);
      set(message, "title", isNumber(alarm.at) ? exact(alarm.at) : null);
    });
}

/** Failed runs by message: `draw(overview, now)`. */
function failures() {
  const list = h("ul", { class: "failures" });
  const none = h("p", { class: "none" }, "No run has failed.");
  const total = h("small");
  const all = h("a", { href: "/runs?state=failed" }, "All failed runs");
  const element = h("section", { class: "panel" }, h("div", { class: "chart-head" },
    h("h3", null, "Failures", total), all), list, none);
  return {
    element,
    draw(over, now) {
      const number = sum(over.runs?.failed);
      const groups = over.failures ?? [];
      const rest = number - groups.reduce((known, group) => known + group.count, 0);
      say(total, number ? `${counted(number, "run")}, by message` : "");
      none.hidden = number > 0;
      all.hidden = number === 0;
      list.hidden = number === 0;
      const more = rest > 0 ? [{ kind: "", message: "other messages", count: rest }] : [];
      keep(list, [...groups, ...more], (group) => `${group.kind} ${group.message}`, () =>
        h("li", null, h("b"), h("span", { class: "kind" }), h("span", { class: "what" }),
          h("a"), h("time")), (item, group) => {
        const [times, kind, message, run, since] = item.children;
        say(times, `${count(group.count)} ×`);
        say(kind, group.kind ? words(group.kind) : "");
        say(message, group.message || "no message");
        set(message, "title", group.message);
        run.hidden = !group.run;
        if (group.run) {
          runLink(run, group.run);
          set(run, "title", "The newest of these runs");
        }
        say(since, isNumber(group.at) ? `${ago(now - group.at)} ago` : "");
      });
    },
  };
}

function drawTiles(list, store) {
  const { overview: over, job } = store;
  const rates = ratesOf(over.samples ?? []);
  const runs = over.runs ?? {};
  const failed = sum(runs.failed);
  const ended = (runs.succeeded ?? 0) + failed;
  const rewards = over.rewards ?? [];
  const last = rewards.at(-1);
  const evals = newest(over.evals ?? []);
  const useful = over.waste?.seconds_useful ?? 0;
  const lost = sum(over.waste?.seconds_lost);
  const runners = over.runners ?? {};
  const all = ["idle", "busy", "starting", "cancelling", "broken"]
    .reduce((total, state) => total + (runners[state] ?? 0), 0);
  const tiles = [
    ["Reward", score(last?.mean), trend(rewards), "c1"],
    ...evals.slice(0, 1).map(([name, points]) => [`Eval ${name}`, score(points.at(-1).score),
      `from ${score(points[0].score)}`, "c2"]),
    ["Runs", short(rates.at(-1)?.done ?? 0), job?.live ? "per second" : "per second, last"],
    ["Tokens", short(rates.at(-1)?.tokens ?? 0), "per second"],
    ["In flight", count(runs.running), `${short(runs.pending)} waiting`],
    ["Runners", `${count(runners.busy)}`, `busy of ${count(all)}`],
    ["Succeeded", percent(ended ? runs.succeeded / ended : NaN),
      `${short(failed)} runs failed`],
    ["Wasted", percent(useful + lost ? lost / (useful + lost) : NaN), `${ago(lost)} of runners`],
  ];
  keep(list, tiles, (tile) => tile[0].split(" ")[0], () => h("div", { class: "tile" }, h("dt"),
    h("dd", null, h("b"), h("small"))), (element, [name, value, more, kind]) => {
    const [title, body] = element.children;
    say(title, name);
    say(body.firstChild, value);
    say(body.lastChild, more);
    set(element, "data-kind", kind);
  });
}

function trend(rewards) {
  if (rewards.length < 2) return rewards.length ? "first step" : "no step yet";
  const mean = (some) => some.reduce((total, one) => total + (one.mean ?? 0), 0) / some.length;
  const many = Math.min(8, rewards.length >> 1);
  const by = mean(rewards.slice(-many)) - mean(rewards.slice(-2 * many, -many));
  const way = Math.abs(by) < 0.0005 ? "steady" : `${by > 0 ? "▲" : "▼"} ${score(Math.abs(by))}`;
  return `${way}, ${counted(many, "step")}`;
}

const sum = (values) => Object.values(values ?? {}).reduce((total, value) => total + value, 0);

/** Evaluations by set, in the order of their first score. */
function newest(evals) {
  const sets = new Map();
  for (const one of evals) {
    if (!isNumber(one.score)) continue;
    if (!sets.has(one.set)) sets.set(one.set, []);
    sets.get(one.set).push(one);
  }
  return [...sets];
}

/** Returns rates per second: samples have cumulative counts. */
export function ratesOf(samples) {
  const width = Math.max(1, Math.ceil(samples.length / 150));
  const rates = [];
  for (let at = width; at < samples.length; at += width) {
    const [before, now] = [samples[at - width], samples[at]];
    const seconds = now.at - before.at;
    if (seconds <= 0) continue;
    const per = (field) => Math.max(0, ((now[field] ?? 0) - (before[field] ?? 0)) / seconds);
    const answers = per("answer_tokens");
    rates.push({ at: now.at, done: per("done"), failed: per("failed"), cancelled: per("cancelled"),
      answers, prompts: per("prompt_tokens"), tokens: answers + per("prompt_tokens") });
  }
  return rates;
}

function drawMoving(charts, over) {
  const samples = over.samples ?? [];
  const rates = ratesOf(samples);
  const points = (list, field) => list.map((one) => [one.at, one[field]]);
  const now = rates.at(-1);
  charts.runs.draw({
    lines: [
      { name: "done", kind: "good", points: points(rates, "done"), area: true },
      { name: "failed", kind: "bad", points: points(rates, "failed") },
      { name: "cancelled", kind: "cut", points: points(rates, "cancelled") },
    ],
    x: clock, y: short,
    summary: now && `${short(now.done)} done, ${short(now.failed)} failed and ` +
      `${short(now.cancelled)} cancelled per second at ${clock(now.at)}.`,
  });
  charts.tokens.draw({
    lines: [
      { name: "generated", kind: "c1", points: points(rates, "answers"), area: true },
      { name: "prompts", kind: "c3", points: points(rates, "prompts") },
    ],
    x: clock, y: short,
    summary: now && `${short(now.answers)} generated and ${short(now.prompts)} prompt ` +
      "tokens per second.",
  });
  const last = samples.at(-1);
  const some = samples.filter((_, at) => at % Math.max(1, Math.ceil(samples.length / 200)) === 0);
  charts.busy.draw({
    lines: [
      { name: "all", kind: "faint", points: points(some, "runners") },
      { name: "busy", kind: "c1", points: points(some, "busy"), area: true },
    ],
    x: clock, y: short,
    summary: last && `${count(last.busy)} of ${count(last.runners)} runners are busy.`,
  });
  charts.flight.draw({
    lines: [
      { name: "waiting", kind: "faint", points: points(some, "pending"), area: true },
      { name: "running", kind: "busy", points: points(some, "running") },
    ],
    x: clock, y: short,
    summary: last && `${count(last.running)} runs are running and ${count(last.pending)} are pending.`,
  });
}

function drawLearning(charts, over) {
  const rewards = (over.rewards ?? []).filter((one) => isNumber(one.mean));
  const band = rewards.filter((one) => isNumber(one.min) && isNumber(one.max));
  const step = (value) => `step ${Math.round(value)}`;
  const [first, last] = [rewards[0], rewards.at(-1)];
  charts.reward.draw({
    lines: [{ name: "mean", kind: "c1", points: rewards.map((one) => [one.step, one.mean]),
      band: band.map((one) => [one.step, one.min, one.max]) }],
    x: step, y: tick, whole: true, empty: "No step has ended",
    summary: last && `From ${score(first.mean)} at step ${first.step} to ${score(last.mean)} at ` +
      `step ${last.step}.`,
  });
  const sets = newest(over.evals ?? []);
  charts.evals.draw({
    lines: sets.slice(0, SETS.length).map(([name, points], at) => ({ name, kind: SETS[at],
      dots: true, points: points.map((one) => [one.step, one.score]) })),
    x: step, y: tick, whole: true, empty: "No evaluation yet",
    summary: sets.map(([name, points]) => `${name} from ${score(points[0].score)} to ` +
      `${score(points.at(-1).score)}`).join("; ") || undefined,
  });
}

const tick = (value) => String(+value.toFixed(3));

function drawLost(lists, over, now) {
  const runs = over.runs ?? {};
  const waste = over.waste ?? {};
  const times = (value) => `${count(value)} ×`;
  lists.failed.draw(over, now);
  lists.retried.draw(waste.retried, times, "warn", `${count(sum(waste.retried))} attempts`);
  const time = { useful: waste.seconds_useful ?? 0, ...(waste.seconds_lost ?? {}) };
  lists.lost.draw(time, span, (name) => (name === "useful" ? "good" : "cut"),
    `${span(sum(time))} in all`);
  const dropped = { ...(waste.experiences_dropped ?? {}) };
  for (const [reason, number] of Object.entries(runs.cancelled ?? {})) {
    dropped[`cancelled: ${reason}`] = number;
  }
  for (const [what, number] of Object.entries(over.dropped ?? {})) {
    dropped[`not recorded: ${what}`] = number;
  }
  lists.dropped.draw(dropped, times, "cut", `${count(sum(waste.experiences_dropped))} experiences`);
}
