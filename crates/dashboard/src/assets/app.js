// The frame around the pages: which page an address names, what everybody shares, keys, colours.

import { ask } from "./api.js";
import * as batches from "./batches.js";
import * as bias from "./bias.js";
import { help } from "./dialog.js";
import { h, put, say, set } from "./dom.js";
import { score, words } from "./format.js";
import { icon } from "./icons.js";
import * as overview from "./overview.js";
import * as run from "./run.js";
import * as runners from "./runners.js";
import * as runs from "./runs.js";
import { Store } from "./store.js";
import * as timeline from "./timeline.js";

const PAGES = [
  { path: "/", name: "Overview", icon: "overview", page: overview },
  { path: "/timeline", name: "Timeline", icon: "timeline", page: timeline },
  { path: "/batches", name: "Batches", icon: "batches", page: batches },
  { path: "/runners", name: "Runners", icon: "runners", page: runners },
  { path: "/runs", name: "Runs", icon: "runs", page: runs },
  { path: "/bias", name: "Bias", icon: "bias", page: bias },
];

const $ = (id) => document.getElementById(id);
const store = new Store();
let shown = null;

function find(path) {
  const detail = path.match(/^\/runs\/([^/]+)\/(\d+)\/(\d+)$/);
  if (detail) {
    const [batch, task, number] = detail.slice(1).map(decodeURIComponent);
    return { page: run, under: "/runs", name: "Run", params: { batch, task, run: number } };
  }
  const found = PAGES.find((page) => page.path === path);
  return found ? { ...found, under: found.path, params: {} } : null;
}

/** Shows the page of the address. */
async function show(focus) {
  shown?.handle?.close?.();
  shown = null;
  const root = $("view");
  const found = find(location.pathname);
  for (const link of $("nav").querySelectorAll("a")) {
    set(link, "aria-current", link.pathname === found?.under ? "page" : null);
  }
  if (!found) {
    document.title = "Not found · Rollway";
    put(root, h("h1", null, "Nothing is here"), h("p", { class: "empty" },
      "No page has this address. ", h("a", { href: "/" }, "To the overview")));
    return;
  }
  const mine = { handle: null, found };
  shown = mine;
  root.replaceChildren();
  title(found.name);
  store.watch(found.page.watch ?? []);
  mine.handle = found.page.open(root, { store, params: found.params, go, announce, toast, title });
  if (focus) {
    $("main").focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function title(name) {
  document.title = `${name} · ${store.job?.name ?? "Rollway"}`;
}

/** Goes to an address of this dashboard. */
function go(path, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  if (!replace) show(true);
}

function announce(text) {
  say($("live"), text);
}

let toasting = 0;

/** Shows what came of an action, for a while. */
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
    h("a", { href: page.path, "aria-keyshortcuts": String(at + 1) },
      icon(page.icon), h("span", null, page.name),
      page.path === "/runners" ? h("b", { id: "stuck", class: "count bad", hidden: true }) : null,
      page.path === "/" ? h("b", { id: "raised", class: "count bad", hidden: true }) : null)))));
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
  set(steps, "title", version ? `version ${job.version} of the weights` : null);
  say(steps, `step ${job.step ?? 0}${known ? ` of ${job.total_steps}` : ""}${version}`);
  const last = store.overview?.rewards?.at(-1);
  set(place, "title", last ? `reward ${score(last.mean)}` : null);
}

function drawCounts() {
  const over = store.overview;
  const stuck = store.stuck;
  const raised = (over?.alarms ?? []).filter((alarm) => alarm.raised).length;
  for (const [id, number, noun] of [["stuck", stuck, "stuck"], ["raised", raised, "alarms"]]) {
    const element = $(id);
    element.hidden = number === 0;
    say(element, number);
    set(element, "aria-label", `${number} ${noun}`);
  }
}

function drawBanner() {
  const banner = $("banner");
  const job = store.job;
  const say_ = (kind, ...content) => {
    if (banner.dataset.words === content.join("")) return;
    banner.dataset.words = content.join("");
    banner.dataset.kind = kind;
    put(banner, kind ? [icon(kind === "calm" ? "done" : "warn"), h("span", null, content)] : null);
  };
  if (store.stands === "refused") {
    say_("bad", "The token is not valid any more: the job was started again. Open the address " +
      "that it printed.");
  } else if (store.stands === "closed" && job?.live && job.state !== "running") {
    say_("calm", `The job is ${job.state}, and its dashboard with it. ` +
      `rollway view ${job.job_dir} shows what it recorded.`);
  } else if (store.stands === "closed" && job?.live) {
    say_("bad", "Disconnected. What you see is the last that was heard; trying again …");
  } else if (!job && store.stands === "closed") {
    say_("bad", "The job does not answer; trying again …");
  } else if (job?.state === "failed") {
    say_("bad", `The job failed. ${job.message ?? ""}`);
  } else if (job && !job.live && job.state === "unknown") {
    say_("warn", "The job is not running, and did not say how it ended. This is what it recorded.");
  } else if (job && !job.live) {
    say_("calm", `The job is ${job.state}. This is what it recorded.`);
  } else if (job && job.state !== "running") {
    say_("calm", `The job is ${job.state}.`);
  } else {
    say_("", "");
  }
}

// Colours: as the system says, light, dark.
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
    // It holds until the page is closed.
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
  if (number >= 1 && number <= PAGES.length) go(PAGES[number - 1].path);
  else if (event.key === "?") help();
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

store.listen((what) => {
  if (what.job || what.overview) drawJob();
  drawCounts();
  if (what.alarm) announce(`Alarm: ${what.alarm}`);
  if (what.stands) announce(what.stands === "open" ? "Connected" : "Disconnected");
  drawBanner();
  if (shown?.handle?.update) shown.handle.update(what);
});

drawNav();
drawTheme();
$("theme").addEventListener("click", changeTheme);
$("help").addEventListener("click", help);
document.addEventListener("keydown", key);
document.addEventListener("click", follow);
window.addEventListener("popstate", () => show(true));
store.start(ask).finally(() => show(false));
