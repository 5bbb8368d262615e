// Tasks of a batch: each with the rewards of its runs.

import { ask } from "./api.js";
import { h, put, say, set } from "./dom.js";
import { count, isNumber, score, short, text } from "./format.js";
import { refresher, stackTo, trouble } from "./components.js";
import { table } from "./table.js";

export const watch = [];

const RUNS = ["succeeded", "failed", "cancelled", "running", "pending"];

/** Tasks of one query. */
const LIMIT = 500;

export const taskPath = (batch, task) => `/tasks/${encodeURIComponent(batch)}/${task}`;

export function open(root, { store, params, go, title }) {
  const query = new URLSearchParams(location.search);
  const order = { sort: query.get("sort") ?? "order", desc: query.get("desc") === "true" };
  const path = `/tasks/${encodeURIComponent(params.batch)}`;
  let page = null;
  const total = h("p", { class: "total", role: "status" });
  const place = h("div", { class: "fill" }, h("p", { class: "loading" }, "Loading …"));
  put(root,
    h("p", { class: "crumbs" }, h("a", { href: "/batches" }, "Batches"), " / ",
      h("a", { href: `/runs?batch=${encodeURIComponent(params.batch)}` }, "all runs")),
    h("div", { class: "page-head" }, h("div", null, h("h1", null, `Tasks of batch ${params.batch}`),
      h("p", { class: "about" }, "A task whose runs all have the same reward has nothing to " +
        "compare: its spread is 0.")), h("div", { class: "tools" }, total)), place);
  root.classList.add("whole");
  title(`Tasks of batch ${params.batch}`);
  const grid = table({
    label: `Tasks of batch ${params.batch}`,
    columns: columns(),
    open: (task) => go(taskPath(params.batch, task.task)),
    sorted: (name) => {
      order.desc = order.sort === name ? !order.desc : name !== "order";
      order.sort = name;
      const search = new URLSearchParams(order);
      history.replaceState(null, "", `${path}?${search}`);
      grid.top();
      load();
    },
    empty: () => h("p", null, "This batch has no task."),
  });
  const fresh = refresher(load, 3000);

  async function load() {
    try {
      page = await ask(`tasks/${encodeURIComponent(params.batch)}?sort=${order.sort}` +
        `&desc=${order.desc}&limit=${LIMIT}`);
      if (!grid.element.isConnected) put(place, grid.element);
      const tasks = page.tasks;
      say(total, page.total > tasks.length
        ? `the first ${count(tasks.length)} of ${count(page.total)} tasks`
        : `${count(page.total)} task${page.total === 1 ? "" : "s"}`);
      grid.draw({ total: tasks.length, get: (at) => tasks[at], ...order });
    } catch (error) {
      if (page) return;
      put(place, error.status === 404 ? h("p", { class: "empty" }, `Unknown batch ${params.batch}: ` +
        "not submitted, or dropped from the history. ", h("a", { href: "/batches" },
        "To all batches")) : trouble(error, load));
    }
  }

  load();
  return {
    update: (change) => change.overview && store.job?.live && page && fresh.poke(),
    key: grid.key,
    close() {
      fresh.close();
      root.classList.remove("whole");
    },
  };
}

function columns() {
  return [
    { label: "Task", width: 84, sort: "order", make: (cell) => cell.append(h("a")),
      fill: (cell, task) => {
        set(cell.firstChild, "href", taskPath(task.batch, task.task));
        set(cell.firstChild, "title", `Runs of task ${task.task} side by side`);
        say(cell.firstChild, task.task);
      } },
    { label: "Runs", class: "grow", make: (cell) => cell.append(h("span", { class: "stack" })),
      fill: (cell, task) => stackTo(cell.firstChild,
        RUNS.map((name) => [name, task.runs?.[name] ?? 0])) },
    { label: "Reward", width: 80, number: true, sort: "reward", fill: (cell, task) =>
      say(cell, score(task.reward)) },
    { label: "Range", width: 128, number: true, hide: 1, fill: (cell, task) =>
      say(cell, isNumber(task.min) ? `${score(task.min)} … ${score(task.max)}` : "–") },
    { label: "Spread", width: 80, number: true, sort: "spread", fill: (cell, task) =>
      say(cell, isNumber(task.min) ? score(task.max - task.min) : "–") },
    { label: "Tokens", width: 84, number: true, hide: 1, sort: "tokens", fill: (cell, task) =>
      say(cell, short(task.tokens)) },
    { label: "Failed", width: 76, number: true, hide: 1, sort: "failed", fill: (cell, task) =>
      say(cell, count(task.runs?.failed)) },
    { label: "Workflow", width: 170, hide: 2, fill: (cell, task) =>
      say(cell, text(task.workflow)) },
    { label: "Dropped", width: 120, hide: 2, fill: (cell, task) =>
      say(cell, text(task.dropped?.replaceAll("_", " "))) },
  ];
}
