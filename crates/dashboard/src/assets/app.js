// Frame of the pages: routing, shared state, keyboard, colours.

import { ask } from "./api.js";
import { help } from "./dialog.js";
import { h, put, say, set } from "./dom.js";
import { score, words } from "./format.js";
import { icon } from "./icons.js";
import modules from "./pages.js";
import * as run from "./run.js";
import { Store } from "./store.js";
import * as task from "./task.js";
import * as tasks from "./tasks.js";

const PAGES = modules.map((module) => ({ ...module.page, module }));

/** Number of pages with a key: the first ones have the digits 1 to 9. */
const NUMBERED = Math.min(9, PAGES.length);

const $ = (id) => document.getElementById(id);
const store = new Store();
let shown = null;

/** Pages of single runs, tasks and batches. */
const DETAILS = [
  { of: /^\/runs\/([^/]+)\/(\d+)\/(\d+)$/, module: run, under: "/runs", name: "Run" },
  { of: /^\/tasks\/([^/]+)\/(\d+)$/, module: task, under: "/batches", name: "Task" },
  { of: /^\/tasks\/([^/]+)$/, module: tasks, under: "/batches", name: "Tasks" },
];

function find(path) {
  for (const detail of DETAILS) {
    const match = path.match(detail.of);
    if (!match) continue;
    const [batch, task, number] = match.slice(1).map(decodeURIComponent);
    return { ...detail, params: { batch, task, run: number } };
  }
  const found = PAGES.find((page) => page.path === path);
  return found ? { ...found, under: found.path, params: {} } : null;
}

/** Shows the page of the current path. */
async function show(focus) {
  shown?.handle?.close?.();
  shown = null;
  const root = $("view");
  const found = find(location.pathname);
  for (const link of $("nav").querySelectorAll("a")) {
    const current = link.pathname === found?.under;
    set(link, "aria-current", current ? "page" : null);
    if (current) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  if (!found) {
    document.title = "Not found · Rollway";
    put(root, h("h1", null, "Not found"), h("p", { class: "empty" },
      "Unknown page. ", h("a", { href: "/" }, "To the overview")));
    return;
  }
  const current = { handle: null, found };
  shown = current;
  root.replaceChildren();
  title(found.name);
  store.watch(found.module.watch ?? []);
  current.handle = found.module.open(root, { store, params: found.params, go, announce, toast, title });
  if (focus) {
    $("main").focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function title(name) {
  document.title = `${name} · ${store.job?.name ?? "Rollway"}`;
}

/** Goes to a path of this dashboard. */
function go(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  if (!replace) show(true);
}

function announce(text) {
  say($("live"), text);
}

let toasting = 0;

/** Shows the result of an action for a while. */
function toast(text, kind = "good") {
  const element = $("toast");
  put(element, icon(kind === "good" ? "check" : "warn"), h("span", null, text));
  element.dataset.kind = kind;
  element.hidden = false;
  clearTimeout(toasting);
  toasting = setTimeout(() => {
    element.hidden = true;
  }, 6000);
}

function drawNav() {
  put($("nav"), h("ul", null, PAGES.map((page, at) => h("li", null,
    h("a", { href: page.path, "aria-keyshortcuts": at < NUMBERED ? String(at + 1) : null },
      icon(page.icon), h("span", null, page.name),
      page.badge ? h("b", { id: page.badge, class: "count bad", hidden: true }) : null)))));
}

function drawJob() {
  const job = store.job;
  const place = $("job");
  if (!job) return;
  if (!place.firstChild) {
    put(place, h("p", { class: "name" }), h("p", { class: "state" }), h("progress", {
      max: "1", value: "0", "aria-label": "Steps done" }), h("p", { class: "steps" }));
  }
  const [name, state, bar, steps] = place.children;
  say(name, job.name);
  set(name, "title", job.job_dir);
  state.dataset.state = job.state;
  say(state, words(job.state));
  const known = Number.isFinite(job.total_steps) && job.total_steps > 0;
  bar.hidden = !known;
  if (known) bar.value = Math.min(1, (job.step ?? 0) / job.total_steps);
  const version = Number.isFinite(job.version) ? ` · v${job.version}` : "";
  set(steps, "title", version ? `model version ${job.version}` : null);
  say(steps, `step ${job.step ?? 0}${known ? ` of ${job.total_steps}` : ""}${version}`);
  const last = store.overview?.rewards?.at(-1);
  set(place, "title", last ? `reward ${score(last.mean)}` : null);
}

function drawCounts() {
  const over = store.overview;
  const stuck = store.stuck;
  const servers = over?.servers ?? {};
  const raised = (over?.alarms ?? []).filter((alarm) => alarm.raised).length
    + (servers.problems ?? []).length;
  const unusable = (servers.total ?? 0) - (servers.usable ?? 0);
  for (const [id, number, noun] of [["stuck", stuck, "stuck"], ["raised", raised, "alarms"],
    ["unusable", unusable, "not usable"]]) {
    const element = $(id);
    element.hidden = number === 0;
    say(element, number);
    set(element, "aria-label", `${number} ${noun}`);
  }
}

function drawBanner() {
  const banner = $("banner");
  const job = store.job;
  const showBanner = (kind, ...content) => {
    if (banner.dataset.message === content.join("")) return;
    banner.dataset.message = content.join("");
    banner.dataset.kind = kind;
    put(banner, kind ? [icon(kind === "calm" ? "done" : "warn"), h("span", null, content)] : null);
  };
  if (store.connection === "refused") {
    showBanner("bad", "The token is invalid: the job was restarted. Open the address " +
      "that it printed.");
  } else if (store.connection === "closed" && job?.live && job.state !== "running") {
    showBanner("calm", `The job is ${job.state} and its dashboard closed. ` +
      `rollway view ${job.job_dir} shows its record.`);
  } else if (store.connection === "closed" && job?.live) {
    showBanner("bad", "Disconnected. The last known state is shown; reconnecting …");
  } else if (!job && store.connection === "closed") {
    showBanner("bad", "The job does not respond; reconnecting …");
  } else if (job?.state === "failed") {
    showBanner("bad", `The job failed. ${job.message ?? ""}`);
  } else if (job && !job.live && job.state === "unknown") {
    showBanner("warn", "The job is not running and its end is unknown. This is its record.");
  } else if (job && !job.live) {
    showBanner("calm", `The job is ${job.state}. This is its record.`);
  } else if (job && job.state !== "running") {
    showBanner("calm", `The job is ${job.state}.`);
  } else {
    showBanner("", "");
  }
}

// Colours: of the system, light, dark.
const THEMES = ["system", "light", "dark"];

function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

function drawTheme() {
  const button = $("theme");
  put(button, icon(theme()));
  set(button, "aria-label", `Colours: ${theme()}. Change`);
  set(button, "title", `Colours: ${theme()}`);
}

function changeTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  drawTheme();
  announce(`Colours: ${next}`);
}

function key(event) {
  const typing = event.target.closest("input, select, textarea, [contenteditable]");
  const elsewhere = event.ctrlKey || event.metaKey || event.altKey;
  if (elsewhere || document.querySelector("dialog[open]")) return;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const number = Number(event.key);
  if (number >= 1 && number <= NUMBERED) go(PAGES[number - 1].path);
  else if (event.key === "?") help(NUMBERED);
  else if (event.key === "c") changeTheme();
  else if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) search.focus();
    else go("/runs");
  } else if (!shown?.handle?.key?.(event)) return;
  event.preventDefault();
}

function follow(event) {
  const link = event.target.closest("a[href]");
  const plain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button);
  if (!link || !plain || link.origin !== location.origin || link.target) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  go(link.pathname + link.search);
}

store.listen((change) => {
  if (change.job || change.overview) drawJob();
  drawCounts();
  if (change.alarm) announce(`Alarm: ${change.alarm}`);
  else if (change.wait) announce(change.wait);
  if (change.connection) announce(change.connection === "open" ? "Connected" : "Disconnected");
  drawBanner();
  if (shown?.handle?.update) shown.handle.update(change);
});

drawNav();
drawTheme();
$("theme").addEventListener("click", changeTheme);
$("help").addEventListener("click", () => help(NUMBERED));
document.addEventListener("keydown", key);
document.addEventListener("click", follow);
window.addEventListener("popstate", () => show(true));
store.start(ask).finally(() => show(false));
