// One run in detail: attempts, model calls, experiences.

import { act, ask } from "./api.js";
import { confirm } from "./dialog.js";
import { h, put, s } from "./dom.js";
import { clock, count, exact, isNumber, runName, score, span, text, words } from "./format.js";
import { icon } from "./icons.js";
import { badge, look, refresher, sinceTo, trouble } from "./components.js";
import { taskPath } from "./tasks.js";
import { trajectory } from "./tokens.js";

export const watch = [];

const OVER = new Set(["succeeded", "failed", "cancelled"]);

export function open(root, { store, params, toast, title }) {
  let shown = null;
  const name = runName(params);
  const path = `runs/${encodeURIComponent(params.batch)}/${params.task}/${params.run}`;
  const facts = h("dl", { class: "facts panel" });
  const state = h("span", { class: "state-of" });
  const cancel = h("button", { type: "button", class: "danger", hidden: true, onclick: end },
    icon("stop"), "Cancel this run");
  const note = h("div");
  const attempts = h("div", { class: "attempts" });
  const now = h("div");
  const what = h("div", { class: "experiences" });
  const body = h("div", null, note, facts, h("h2", null, "Attempts and model calls"), attempts,
    now, h("h2", null, "Trajectory"), what);
  const place = h("div", null, h("p", { class: "loading" }, "Loading …"));
  put(root,
    h("p", { class: "crumbs" }, h("a", { href: "/runs" }, "Runs"), " / ",
      h("a", { href: `/runs?batch=${encodeURIComponent(params.batch)}` }, `batch ${params.batch}`),
      " / ", h("a", { href: taskPath(params.batch, params.task) }, `task ${params.task}`)),
    h("div", { class: "page-head" }, h("div", null, h("h1", null, `Run ${params.run} `, state)),
      h("div", { class: "tools" }, h("a", { class: "button",
        href: taskPath(params.batch, params.task) }, icon("beside"), "Compare the runs of this task"),
      cancel)), place);
  title(`Run ${name}`);
  const fresh = refresher(load, 1000);

  async function load() {
    try {
      const run = await ask(path);
      if (run !== shown) draw(run, shown);
      shown = run;
      drawNow(now, await runnerOf(run));
    } catch (error) {
      if (shown) return;
      put(place, error.status === 404
        ? h("p", { class: "empty" }, `Unknown run ${name}: not submitted, or dropped ` +
          "from the history. ", h("a", { href: "/runs" }, "To all runs"))
        : trouble(error, load));
    }
  }

  /** Returns the runner that executes this run. */
  async function runnerOf(run) {
    if (run.state !== "running" || !store.job?.live) return null;
    const runners = await ask("runners");
    return runners.find((one) =>
      one.batch === run.batch && one.task === run.task && one.run === run.run);
  }

  function draw(run, before) {
    if (!body.isConnected) put(place, body);
    const over = OVER.has(run.state);
    cancel.hidden = over || !store.job?.live;
    put(state, badge(run.state));
    // A run that succeeded has the message of an earlier attempt, which is below.
    put(note, run.message && run.state !== "succeeded"
      ? h("p", { class: "message", "data-look": look(run.state) }, run.message) : null);
    drawFacts(facts, run, store.now());
    drawAttempts(attempts, run, store.now());
    // Unchanged experiences are not redrawn while they are read.
    if (JSON.stringify(before?.experiences) !== JSON.stringify(run.experiences)) {
      put(what, run.experiences?.length ? run.experiences.map((one, at) =>
        trajectory(one, at, run.experiences.length)) : null);
    }
    if (!run.experiences?.length) {
      put(what, h("p", { class: "empty" }, run.experiences_message ?? (over
        ? "This run has no experience." : "Available after the end of the run.")));
    }
  }

  async function end() {
    const sure = await confirm({
      title: `Cancel run ${name}?`,
      words: "It is stopped and not retried. Other runs of its task continue. " +
        "This cannot be undone.",
      yes: "Cancel the run",
    });
    if (!sure) return;
    cancel.disabled = true;
    try {
      const done = await act(`${path}/cancel`);
      toast(done.message || `Run ${name} is being cancelled.`);
    } catch (error) {
      toast(`Run ${name} was not cancelled: ${error.message}`, "bad");
    }
    cancel.disabled = false;
    fresh.poke();
  }

  load();
  return {
    update: (change) => change.overview && store.job?.live && shown && !OVER.has(shown.state)
      && fresh.poke(),
    close: fresh.close,
  };
}

function drawFacts(list, run, now) {
  const time = h("time");
  sinceTo(time, run.begin, now);
  const of = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  put(list, of("Reward", h("b", null, score(run.reward))), of("Took", span(run.seconds)),
    of("Tokens", count(run.tokens)), of("Turns", count(run.turns)),
    of("Version", text(run.version)), of("Attempts", count(run.attempts?.length)),
    of("Began", time), of("Workflow", `${text(run.workflow)}${run.kind ? `, ${run.kind}` : ""}`));
}

/** All attempts on one time scale, with their calls. */
function drawAttempts(place, run, now) {
  const all = run.attempts ?? [];
  if (all.length === 0) {
    put(place, h("p", { class: "empty" }, "No attempt has started."));
    return;
  }
  const from = Math.min(...all.map((one) => one.sent_at));
  const to = Math.max(from + 0.001, ...all.map((one) => one.ended ?? (OVER.has(run.state)
    ? one.began ?? one.sent_at : now)));
  const bar = (begin, middle, end, kind) => {
    const at = (time) => (100 * (time - from)) / (to - from);
    const stop = end ?? to;
    return h("td", { class: "fall" }, s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none",
      "aria-hidden": "true" },
    isNumber(middle) && s("rect", { class: "queue", x: at(begin), y: 3.5, height: 3,
      width: Math.max(0, at(middle) - at(begin)) }),
    s("rect", { class: `busy ${kind}`, x: at(middle ?? begin), y: 1.5, height: 7,
      width: Math.max(0.4, at(stop) - at(middle ?? begin)) })));
  };
  const since = (at) => (isNumber(at) ? `+${span(at - from)}` : "–");
  put(place, h("div", { class: "panel" }, h("table", { class: "calls" },
    h("caption", { class: "unseen" }, `Attempts and model calls, from ${exact(from)} on`),
    h("thead", null, h("tr", null,
      ["What", "Outcome", "Began", "Took", "Tokens", "Version", "When"].map((name, at) => h("th", {
        scope: "col", class: [at > 1 && at < 6 ? "number" : "", at === 5 || at === 2 ? "hide1" : "",
          at === 6 ? "fall" : ""].filter(Boolean).join(" ") || null }, name)))),
    h("tbody", null, all.map((one, number) => [
      h("tr", { class: "attempt" },
        h("th", { scope: "row" }, `Attempt ${number + 1}`,
          h("small", null, ` on runner ${one.runner}${one.location ? ` (${one.location})` : ""}`)),
        h("td", null, badge(one.outcome)),
        h("td", { class: "number hide1", title: exact(one.sent_at) }, clock(one.sent_at)),
        h("td", { class: "number" }, span((one.ended ?? to) - (one.began ?? one.sent_at))),
        h("td", { class: "number" }, ""), h("td", { class: "number hide1" }, ""),
        bar(one.sent_at, one.began, one.ended, look(one.outcome))),
      one.message && h("tr", { class: "message-row" }, h("td", { colspan: "7" }, one.message)),
      (one.calls ?? []).map((call, at) => h("tr", null,
        h("th", { scope: "row", class: "call" }, `Call ${at + 1}`,
          h("small", null, ` ${call.model}${call.server ? ` · ${call.server}` : ""}`)),
        h("td", null, statusOf(call)),
        h("td", { class: "number hide1", title: exact(call.began) }, since(call.began)),
        h("td", { class: "number" }, span((call.ended ?? to) - call.began)),
        h("td", { class: "number", title: "prompt → completion" },
          `${count(call.prompt_tokens)} → ${count(call.answer_tokens)}`),
        h("td", { class: "number hide1" }, text(call.version)),
        bar(call.began, call.sent, call.ended, call.status >= 400 ? "bad" : "call"))),
    ])))));
}

function statusOf(call) {
  if (!isNumber(call.ended)) return badge("running");
  return h("span", { class: call.status >= 400 ? "status bad" : "status" }, text(call.status));
}

function drawNow(place, runner) {
  put(place, runner?.stage ? h("p", { class: "now" }, h("strong", null, "Now "),
    words(runner.stage), isNumber(runner.stage_for) ? ` for ${span(runner.stage_for)}` : "",
    runner.code_location ? [" at ", h("code", null, runner.code_location)] : null) : null);
}
