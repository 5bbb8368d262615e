// The runs of one task side by side: rewards, lengths, ends, and where their messages differ.

import { ask } from "./api.js";
import { h, put } from "./dom.js";
import { count, counted, isNumber, runPath, score, short, span, text } from "./format.js";
import { badge, refresher, trouble } from "./components.js";

export const watch = [];

/** Letters of a shared text that are kept before a difference. */
const CONTEXT = 120;

const OPEN = new Set(["pending", "running"]);

export function open(root, { store, params, title }) {
  let shown = null;
  const batch = encodeURIComponent(params.batch);
  const place = h("div", null, h("p", { class: "loading" }, "Loading …"));
  put(root, h("p", { class: "crumbs" }, h("a", { href: "/batches" }, "Batches"), " / ",
    h("a", { href: `/tasks/${batch}` }, `batch ${params.batch}`)),
  h("div", { class: "page-head" }, h("div", null, h("h1", null, `Task ${params.task}`),
    h("p", { class: "about" }, "The runs of one task side by side."))), place);
  title(`Task ${params.batch} · ${params.task}`);
  const fresh = refresher(load, 2000);

  async function load() {
    try {
      const task = await ask(`tasks/${batch}/${params.task}`);
      if (task === shown) return;
      shown = task;
      put(place, facts(task), h("h2", null, "Runs"), runs(task), h("h2", null, "Messages"),
        conversations(task.members));
    } catch (error) {
      if (shown) return;
      put(place, error.status === 404
        ? h("p", { class: "empty" }, `Unknown task ${params.task} of batch ${params.batch}: not ` +
          "submitted, or dropped from the history. ", h("a", { href: "/batches" },
          "To all batches"))
        : trouble(error, load));
    }
  }

  load();
  return {
    update: (change) => change.overview && store.job?.live && shown
      && shown.members.some((run) => OPEN.has(run.state)) && fresh.poke(),
    close: fresh.close,
  };
}

function facts(task) {
  const of = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  const range = isNumber(task.min) ? `${score(task.min)} … ${score(task.max)}` : "–";
  return h("dl", { class: "facts panel" }, of("Mean reward", h("b", null, score(task.reward))),
    of("Range", range), of("Mean tokens", short(task.tokens)),
    of("Runs", count(task.members.length + task.more)), of("Kind", text(task.kind)),
    of("Workflow", text(task.workflow)),
    task.dropped ? of("Experiences", `dropped: ${task.dropped.replaceAll("_", " ")}`) : null);
}

function runs(task) {
  const most = Math.max(1e-9, ...task.members.map((run) => Math.abs(run.reward ?? 0)));
  const longest = Math.max(1, ...task.members.map((run) => run.tokens ?? 0));
  const bar = (value, of, kind) => h("span", { class: "meter", "aria-hidden": "true" },
    isNumber(value) ? meter(Math.abs(value) / of, value < 0 ? "bad" : kind) : null);
  return h("div", { class: "panel" }, h("table", { class: "plain group" },
    h("caption", { class: "unseen" }, "Runs of the task"),
    h("thead", null, h("tr", null, [["Run"], ["State"], ["Reward", "number"], ["", "hide1"],
      ["Tokens", "number"], ["", "hide1"], ["Turns", "number hide1"], ["Took", "number hide1"],
      ["Version", "number hide2"], ["End", "hide1"]].map(([name, kind]) => h(name ? "th" : "td",
      { scope: name ? "col" : null, class: kind ?? null }, name)))),
    h("tbody", null, task.members.map((run) => h("tr", null,
      h("th", { scope: "row" }, h("a", { href: runPath(run) }, `Run ${run.run}`)),
      h("td", null, badge(run.state)),
      h("td", { class: "number" }, score(run.reward)),
      h("td", { class: "hide1" }, bar(run.reward, most, "c1")),
      h("td", { class: "number" }, count(run.tokens)),
      h("td", { class: "hide1" }, bar(run.tokens, longest, "c3")),
      h("td", { class: "number hide1" }, count(run.turns)),
      h("td", { class: "number hide1" }, span(run.seconds)),
      h("td", { class: "number hide2" }, text(run.version)),
      h("td", { class: "end hide1", title: run.message }, ending(run)))))),
  task.more ? h("p", { class: "soft" }, `${counted(task.more, "more run")} not shown.`) : null);
}

function meter(share, kind) {
  const bar = h("i", { class: kind });
  bar.style.width = `${Math.max(1, 100 * Math.min(1, share)).toFixed(1)}%`;
  return bar;
}

/** How a run ended, in a line. */
function ending(run) {
  if (OPEN.has(run.state)) return run.state;
  if (run.state !== "succeeded") return (run.message ?? "–").split("\n")[0];
  return run.attempts > 1 ? `after ${run.attempts} attempts` : "at the first attempt";
}

const same = (a, b) => a && b && a.role === b.role && a.text === b.text;

/** Number of messages that all runs have in common. */
export function commonMessages(conversations) {
  const [first, ...others] = conversations;
  if (!first || others.length === 0) return 0;
  const at = first.findIndex((message, index) => !others.every((one) =>
    same(message, one[index])));
  return at < 0 ? first.length : at;
}

/** Length of the text that all start with. */
export function commonLength(texts) {
  const [first = "", ...others] = texts;
  let at = 0;
  while (at < first.length && others.every((one) => one[at] === first[at])) at += 1;
  return at;
}

function conversations(members) {
  const known = members.filter((run) => run.messages.length > 0);
  if (known.length === 0) {
    return h("p", { class: "empty" }, "No run of this task has recorded messages.");
  }
  const common = commonMessages(known.map((run) => run.messages));
  const differing = known.map((run) => run.messages[common]).filter(Boolean);
  const shared = differing.length > 1 && differing.every((one) => one.role === differing[0].role)
    ? commonLength(differing.map((one) => one.text)) : 0;
  const verdict = known.length === 1 ? "One run has recorded messages."
    : differing.length === 0 ? `All ${known.length} runs have the same ${common} messages.`
      : common === 0 ? "The runs differ from the first message on."
        : `The first ${common === 1 ? "message is" : `${common} messages are`} the same in all ` +
          `${known.length} runs; message ${common + 1} is the first that differs.`;
  return [h("p", { class: "verdict" }, verdict),
    common > 0 ? h("details", { class: "panel list" },
      h("summary", null, common === 1 ? "The shared message" : `The ${common} shared messages`),
      chat(known[0].messages.slice(0, common), 0)) : null,
    h("div", { class: "columns" }, known.map((run) => h("section", { class: "panel",
      "aria-label": `Run ${run.run}` },
    h("div", { class: "chart-head" }, h("h3", null, h("a", { href: runPath(run) },
      `Run ${run.run}`), h("small", null, `reward ${score(run.reward)} · ` +
        `${count(run.tokens)} tokens`)), badge(run.state)),
    run.messages.length > common ? chat(run.messages.slice(common), shared)
      : h("p", { class: "soft" }, "No further message."),
    run.truncated ? h("p", { class: "soft" }, "Truncated: this is the beginning.") : null)))];
}

/** Messages; of the first one the shared beginning is faint and shortened. */
function chat(messages, shared) {
  return h("ol", { class: "chat narrow" }, messages.map((message, at) => {
    const same = at === 0 ? shared : 0;
    const before = message.text.slice(0, same);
    const kept = before.length > CONTEXT ? `… ${before.slice(-CONTEXT)}` : before;
    return h("li", { class: `from-${message.role}` }, h("span", { class: "role" },
      text(message.role)), h("div", { class: "said" }, kept ? h("span", { class: "same",
      title: `${same} letters are the same in all runs` }, kept) : null,
    message.text.slice(same)));
  }));
}
