// All runs: the job filters and sorts, the table draws the visible rows.

import { ask } from "./api.js";
import { h, put, say, set } from "./dom.js";
import { count, runPath, score, span, text } from "./format.js";
import { badgeTo, pageHead, refresher, runLink, sinceTo, trouble } from "./components.js";
import { MAX_ROWS, rowsOf, table } from "./table.js";

export const watch = [];

export const page = {
  path: "/runs", name: "Runs",
  icon: "M2.5 4h11M2.5 8h11M2.5 12h7",
};

/** Rows of one query, and maximum number of cached blocks. */
const BLOCK = 100;
const BLOCKS = 24;
const STATES = ["pending", "running", "succeeded", "failed", "cancelled"];
const FILTERS = ["text", "state", "kind", "batch", "task", "min_reward", "max_reward"];
const FIELDS = [...FILTERS, "sort", "desc"];

export function open(root, { store, go, announce }) {
  const filter = Object.fromEntries(FIELDS.map((field) =>
    [field, new URLSearchParams(location.search).get(field) ?? ""]));
  let blocks = new Map();
  let total = null;
  let round = 0;
  let failed = null;
  /** The job has searched a part of the messages. */
  let searching = false;
  let seen = [0, 0];
  const loading = new Map();
  const total_ = h("p", { class: "total", role: "status" }, " ");
  const place = h("div", { class: "fill" }, h("p", { class: "loading" }, "Loading …"));
  const search = h("input", { type: "search", id: "search", value: filter.text,
    placeholder: "Batch, task, workflow, failure, prompt, answer",
    oninput: later(() => setFilter("text", search.value)) });
  const choose = (name, label, values) => h("label", { class: "field" }, h("span", null, label),
    h("select", { name, onchange: (event) => setFilter(name, event.target.value) },
      h("option", { value: "" }, "any"), values.map((value) =>
        h("option", { value, selected: filter[name] === value }, value))));
  const field = (name, label, mode, isValid = () => true) => h("label", { class: "field" },
    h("span", null, label), h("input", { name, value: filter[name], size: "7", inputmode: mode,
      oninput: later((event) => {
        const value = event.target.value.trim();
        set(event.target, "aria-invalid", isValid(value) ? null : "true");
        if (isValid(value)) setFilter(name, value);
      }) }));
  const clear = h("button", { type: "button", class: "quiet", onclick: () => {
    for (const name of FIELDS) filter[name] = "";
    for (const input of form.querySelectorAll("input, select")) input.value = "";
    again();
  } }, "Clear");
  const form = h("form", { class: "filters", role: "search", "aria-label": "Runs",
    onsubmit: (event) => event.preventDefault() },
  h("label", { class: "field wide", for: "search" }, h("span", null, "Search"), search),
  choose("state", "State", STATES), choose("kind", "Kind", ["train", "eval"]),
  field("batch", "Batch", "text"), field("task", "Task", "numeric"),
  field("min_reward", "Min reward", "decimal", isDecimal),
  field("max_reward", "Max reward", "decimal", isDecimal), clear);
  put(root, pageHead("Runs", "Every run of every task.", total_), form, place);
  root.classList.add("whole");

  const grid = table({
    label: "Runs",
    columns: columns(store),
    open: (run) => go(runPath(run)),
    range: want,
    sorted: sortBy,
    empty: () => (searching ? h("p", null, "Searching …") :
      filtered() ? [h("p", null, "No run matches."), clear.cloneNode(true)] :
      h("p", null, "No run was submitted yet.")),
  });
  grid.element.addEventListener("click", (event) => {
    if (event.target.closest(".none button")) clear.click();
  });
  const fresh = refresher(refresh, 2000);

  const filtered = () => FILTERS.some((name) => filter[name]);

  function query(offset, limit) {
    const params = new URLSearchParams();
    for (const name of FIELDS) if (filter[name]) params.set(name, filter[name]);
    if (!filter.sort) {
      params.set("sort", "begin");
      params.set("desc", "true");
    }
    params.set("offset", offset);
    params.set("limit", limit);
    return `runs?${params}`;
  }

  function setFilter(name, value) {
    if (filter[name] === value) return;
    filter[name] = value;
    again();
  }

  /** Restarts with a changed query. */
  function again() {
    const params = new URLSearchParams(FIELDS.filter((name) => filter[name])
      .map((name) => [name, filter[name]]));
    history.replaceState(null, "", params.size ? `/runs?${params}` : "/runs");
    for (const one of loading.values()) one.abort();
    loading.clear();
    round += 1;
    blocks = new Map();
    clear.disabled = !filtered();
    grid.top();
    load(0);
  }

  function sortBy(name) {
    const turn = filter.sort === name && filter.desc === "true";
    filter.sort = name;
    filter.desc = turn ? "" : "true";
    again();
  }

  /** Loads the missing rows of a visible range. */
  function want(from, to) {
    seen = [Math.floor(from / BLOCK), Math.floor(Math.max(from, to - 1) / BLOCK)];
    for (let at = seen[0]; at <= seen[1]; at += 1) {
      if (!blocks.has(at) && !loading.has(at) && at * BLOCK < (total ?? 1)) load(at);
    }
    for (const [at, one] of loading) {
      if (at < seen[0] - 1 || at > seen[1] + 1) {
        one.abort();
        loading.delete(at);
      }
    }
  }

  async function load(at) {
    const mine = round;
    const stop = new AbortController();
    loading.set(at, stop);
    try {
      const page = await ask(query(at * BLOCK, BLOCK), stop.signal);
      if (mine !== round) return;
      blocks.delete(at);
      blocks.set(at, page.runs);
      if (blocks.size > BLOCKS) blocks.delete(blocks.keys().next().value);
      show(page.total, page.searching);
      // The job has searched a part of the messages, and continues with the next query.
      if (page.searching) setTimeout(() => mine === round && load(at), 50);
    } catch (error) {
      if (error.name === "AbortError" || mine !== round) return;
      failed = error;
      if (total === null || blocks.size === 0) put(place, trouble(error, again));
    } finally {
      if (loading.get(at) === stop) loading.delete(at);
    }
  }

  function show(number, goesOn) {
    const changed = total !== number;
    total = number;
    searching = goesOn;
    failed = null;
    if (!grid.element.isConnected) put(place, grid.element);
    say(total_, rowsOf(total, "run") + (searching ? ", searching …" : ""));
    if (changed && !searching && filtered()) announce(`${count(total)} runs found`);
    grid.draw({
      total: Math.min(total, MAX_ROWS), sort: filter.sort, desc: filter.desc === "true",
      get: (at) => blocks.get(Math.floor(at / BLOCK))?.[at % BLOCK],
    });
  }

  /** Asks again for what is looked at; all else is asked for when it is. */
  async function refresh() {
    for (const at of blocks.keys()) if (at < seen[0] || at > seen[1]) blocks.delete(at);
    for (let at = seen[0]; at <= seen[1]; at += 1) if (!loading.has(at)) await load(at);
  }

  again();
  return {
    update: (change) => (change.overview || failed) && store.job?.live && fresh.poke(),
    key: grid.key,
    close() {
      round += 1;
      for (const one of loading.values()) one.abort();
      fresh.close();
      root.classList.remove("whole");
    },
  };
}

/** A number, or nothing. */
const isDecimal = (value) => value === "" || Number.isFinite(Number(value));

/** Debounces input. */
function later(act) {
  let timer = 0;
  return (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(event), 180);
  };
}

function columns(store) {
  return [
    { label: "Batch · task · run", width: "clamp(148px, 14vw, 210px)", sort: "order",
      make: (cell) => cell.append(h("a")),
      fill: (cell, run) => {
        runLink(cell.firstChild, run);
        set(cell.firstChild, "title",
          `Run ${run.run} of task ${run.task}, batch ${run.batch}`);
      } },
    { label: "State", width: 114, sort: "state", make: (cell) =>
      cell.append(h("span", { class: "badge" })),
    fill: (cell, run) => badgeTo(cell.firstChild, run.state) },
    { label: "Reward", width: 80, number: true, sort: "reward", fill: (cell, run) =>
      say(cell, score(run.reward)) },
    { label: "Took", width: 86, number: true, hide: 1, sort: "seconds", fill: (cell, run) =>
      say(cell, span(run.seconds)) },
    { label: "Tokens", width: 80, number: true, hide: 1, sort: "tokens", fill: (cell, run) =>
      say(cell, count(run.tokens)) },
    { label: "Turns", width: 62, number: true, hide: 3, fill: (cell, run) =>
      say(cell, count(run.turns)) },
    { label: "Attempts", width: 86, number: true, hide: 2, sort: "attempts", fill: (cell, run) =>
      say(cell, count(run.attempts)) },
    { label: "Version", width: 76, number: true, hide: 2, fill: (cell, run) =>
      say(cell, text(run.version)) },
    { label: "Kind", width: 62, hide: 3, fill: (cell, run) => say(cell, text(run.kind)) },
    { label: "Runner", width: 72, number: true, hide: 3, fill: (cell, run) =>
      say(cell, text(run.runner)) },
    { label: "Began", width: 100, hide: 1, sort: "begin", make: (cell) => cell.append(h("time")),
      fill: (cell, run) => sinceTo(cell.firstChild, run.begin, store.now()) },
    { label: "Workflow and message", class: "grow", hide: 1, make: (cell) =>
      cell.append(h("span"), h("small")),
    fill: (cell, run) => {
      say(cell.firstChild, text(run.workflow));
      // The message of a run that succeeded is that of an earlier attempt.
      const message = run.state === "succeeded" && run.message ? `retried after ${run.message}`
        : run.message;
      say(cell.lastChild, message ? ` ${message}` : "");
      set(cell, "title", [run.workflow, message].filter(Boolean).join(": ") || null);
    } },
  ];
}
