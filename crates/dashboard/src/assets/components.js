// Components of several pages: states, links to runs, times, page heads.

import { h, say, set } from "./dom.js";
import { ago, exact, isNumber, runName, runPath, words } from "./format.js";

/** Style of a state; the text names the state too. */
const STATE_STYLES = {
  succeeded: "good", finished: "good", finalized: "good", done: "good", trained: "good",
  idle: "wait", pending: "wait", waiting: "wait", queued: "wait", stopped: "cut",
  running: "busy", busy: "busy", open: "busy", finalizing: "busy", starting: "busy",
  failed: "bad", broken: "bad", lost: "bad", stuck: "bad", error: "bad", unhealthy: "bad",
  "all failed": "bad", updating: "busy", draining: "busy", interrupted: "cut",
  cancelled: "cut", ended: "cut", cancelling: "cut", aborted: "cut",
  aborting: "cut", dropped: "cut",
};

/** State of a batch; a batch without any succeeded run is not good, whatever its state. */
export function batchState(batch) {
  const { succeeded = 0, failed = 0 } = batch.runs ?? {};
  return batch.state === "finalized" && succeeded === 0 && failed > 0 ? "all failed" : batch.state;
}

export const look = (state) => STATE_STYLES[state] ?? "wait";

export function badge(state) {
  const element = h("span", { class: "badge" });
  return badgeTo(element, state);
}

/** Shows a state in a badge. */
export function badgeTo(element, state) {
  set(element, "data-look", look(state));
  say(element, words(state));
  return element;
}

/** Sets the target of a link to a run. */
export function runLink(link, run) {
  set(link, "href", runPath(run));
  say(link, runName(run));
}

/** Shows the time since an event in a `time` element. */
export function sinceTo(element, at, now) {
  if (!isNumber(at)) {
    say(element, "–");
    set(element, "title", null);
    return;
  }
  say(element, `${ago(now - at)} ago`);
  set(element, "title", exact(at));
  set(element, "datetime", new Date(at * 1000).toISOString());
}

/** Head of a page: title, description, tools. */
export function pageHead(name, about, ...tools) {
  return h("div", { class: "page-head" }, h("div", null, h("h1", null, name),
    h("p", { class: "about" }, about)), tools.length ? h("div", { class: "tools" }, tools) : null);
}

/** Error of a query, with a retry button. */
export function trouble(error, again) {
  return h("div", { class: "trouble", role: "alert" },
    h("p", null, h("strong", null, "Loading failed. "), error.message),
    again ? h("button", { type: "button", onclick: again }, "Try again") : null);
}

/** Limits `load` to one call per interval, never concurrently, and not in a hidden page. */
export function refresher(load, every) {
  let busy = false;
  let wanted = false;
  let over = false;
  let last = 0;
  let timer = 0;
  async function turn() {
    if (busy || over) {
      wanted = true;
      return;
    }
    const wait = last + every - performance.now();
    if (wait > 0 || document.hidden) {
      clearTimeout(timer);
      timer = setTimeout(turn, Math.max(wait, document.hidden ? 1000 : 0));
      return;
    }
    busy = true;
    wanted = false;
    last = performance.now();
    try {
      await load();
    } finally {
      busy = false;
      if (wanted) turn();
    }
  }
  return {
    poke: turn,
    close() {
      over = true;
      clearTimeout(timer);
    },
  };
}

/** Stacked bar of [[name, number]], with a text for screen readers. */
export function stackTo(element, parts) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  while (element.children.length < parts.length) element.append(h("i"));
  parts.forEach(([name, value], at) => {
    const part = element.children[at];
    set(part, "data-look", look(name));
    part.style.flexGrow = value / total;
    part.hidden = value === 0;
  });
  const text = parts.filter(([, value]) => value).map(([name, value]) => `${value} ${name}`);
  set(element, "title", text.join(", "));
  set(element, "aria-label", text.join(", ") || "none");
  set(element, "role", "img");
}
