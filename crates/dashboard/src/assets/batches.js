// Batches with their states, and the button that aborts one.

import { act, ask } from "./api.js";
import { confirm } from "./dialog.js";
import { h, put, say, set } from "./dom.js";
import { count, score, span, text } from "./format.js";
import {
  badgeTo, batchState, pageHead, refresher, sinceTo, stackTo, trouble,
} from "./components.js";
import { rowsOf, table } from "./table.js";

export const watch = ["batches"];

export const page = {
  path: "/batches", name: "Batches",
  icon: "M8 2 14 5 8 8 2 5zM2 8l6 3 6-3M2 11l6 3 6-3",
};

const RUNS = ["succeeded", "failed", "cancelled", "running", "pending"];
const OVER = new Set(["finalized", "aborted", "ended"]);

export function open(root, { store, go, toast, announce }) {
  let all = null;
  const total = h("p", { class: "total", role: "status" });
  const place = h("div", { class: "fill" }, h("p", { class: "loading" }, "Loading …"));
  put(root, pageHead("Batches", "Every batch with its state and its runs.", total), place);
  root.classList.add("whole");

  const grid = table({
    label: "Batches, the newest first",
    columns: columns(store, end),
    open: (batch) => go(`/tasks/${encodeURIComponent(batch.batch)}`),
    empty: () => h("p", null, "No batch was submitted yet."),
  });
  const fresh = refresher(load, 500);

  async function load() {
    try {
      const batches = await ask("batches");
      const first = all === null;
      all = batches;
      if (first || !grid.element.isConnected) put(place, grid.element);
      say(total, rowsOf(all.length, "batch").replace(/batchs/, "batches"));
      grid.draw({ total: all.length, get: (at) => all[at] });
    } catch (error) {
      if (all === null) put(place, trouble(error, load));
    }
  }

  async function end(batch) {
    const left = (batch.runs.running ?? 0) + (batch.runs.pending ?? 0);
    const sure = await confirm({
      title: `Abort batch ${batch.batch}?`,
      words: `${count(left)} of its runs have not ended and will be cancelled. This cannot be undone.`,
      yes: "Abort the batch",
      boxes: [{ name: "keep_partial", label: "Keep the results of its finished runs",
        checked: true }],
    });
    if (!sure) return;
    try {
      await act(`batches/${encodeURIComponent(batch.batch)}/abort`, sure);
      toast(`Batch ${batch.batch} is being aborted.`);
    } catch (error) {
      toast(`Batch ${batch.batch} was not aborted: ${error.message}`, "bad");
    }
    announce("");
    fresh.poke();
  }

  load();
  return {
    update: (change) => {
      if (change.changed?.includes("batches")) fresh.poke();
      else if (change.job && all) grid.draw({ total: all.length, get: (at) => all[at] });
    },
    key: grid.key,
    close() {
      fresh.close();
      root.classList.remove("whole");
    },
  };
}

function columns(store, end) {
  return [
    { label: "Batch", width: 108, make: (cell) => cell.append(h("a")), fill: (cell, batch) => {
      set(cell.firstChild, "href", `/tasks/${encodeURIComponent(batch.batch)}`);
      set(cell.firstChild, "title", `Tasks of batch ${batch.batch}`);
      say(cell.firstChild, batch.batch);
    } },
    { label: "Kind", width: 70, hide: 1, fill: (cell, batch) => say(cell, text(batch.kind)) },
    { label: "State", width: 104, make: (cell) => cell.append(h("span", { class: "badge" })),
      fill: (cell, batch) => badgeTo(cell.firstChild, batchState(batch)) },
    { label: "Runs", class: "grow", make: (cell) => cell.append(h("span", { class: "stack" })),
      fill: (cell, batch) => stackTo(cell.firstChild,
        RUNS.map((name) => [name, batch.runs?.[name] ?? 0])) },
    { label: "Done", width: 122, number: true, hide: 1, fill: (cell, batch) => {
      const runs = batch.runs ?? {};
      const all = RUNS.reduce((sum, name) => sum + (runs[name] ?? 0), 0);
      say(cell, `${count(all - (runs.running ?? 0) - (runs.pending ?? 0))} / ${count(all)}`);
    } },
    { label: "Tasks", width: 70, number: true, hide: 3, fill: (cell, batch) =>
      say(cell, count(batch.tasks)) },
    { label: "Reward", width: 76, number: true, hide: 1, fill: (cell, batch) =>
      say(cell, score(batch.reward)) },
    { label: "Began", width: 96, hide: 2, make: (cell) => cell.append(h("time")),
      fill: (cell, batch) => sinceTo(cell.firstChild, batch.began, store.now()) },
    { label: "Took", width: 92, number: true, hide: 1, fill: (cell, batch) =>
      say(cell, span((batch.ended ?? store.now()) - batch.began)) },
    { label: "Blocked by", width: 160, hide: 2, fill: (cell, batch) => {
      say(cell, text(batch.waiting_for));
      set(cell, "title", batch.waiting_for);
    } },
    { label: "", width: 78, class: "act", make: (cell) => cell.append(h("button", {
      type: "button", class: "small danger", onclick: (event) => end(event.target.batch),
    }, "Abort")),
    fill: (cell, batch) => {
      const button = cell.firstChild;
      button.batch = batch;
      button.hidden = !store.job?.live || Boolean(batch.ended) || OVER.has(batch.state);
      set(button, "aria-label", `Abort batch ${batch.batch}`);
    } },
  ];
}
