// Inference servers: health, load, tokens per second and errors.

import { ask } from "./api.js";
import { bars } from "./charts.js";
import { h, keep, put, say, set } from "./dom.js";
import { ago, clock, count, counted, exact, isNumber, short, text, words } from "./format.js";
import { badge, badgeTo, pageHead, refresher, trouble } from "./components.js";
import { table } from "./table.js";

export const watch = ["servers"];

export const page = {
  path: "/servers", name: "Servers",
  badge: "unusable",
  icon: "M3 2.500h10V7H3zM3 9h10v4.500H3zM10.500 4.800h.01M10.500 11.300h.01M5 4.800h2.500" +
    "M5 11.300h2.500",
};

/** Height of the table: all rows, up to a part of the window. */
const height = (rows) => `min(52vh, ${(Math.max(1, rows) + 1) * 34 + 3}px)`;

const sum = (servers, field) => servers.reduce((total, one) => total + (one[field] ?? 0), 0);

const errorsOf = (server) => Object.values(server.errors ?? {}).reduce((a, b) => a + b, 0);

/** Name of an error kind: `http_503` → HTTP 503 */
export const errorName = (kind) => words(kind).replace(/^http (\d)/, "HTTP $1");

export function open(root, { store }) {
  let report = null;
  let picked = null;
  const facts = h("p", { class: "total", role: "status" });
  const place = h("div", null, h("p", { class: "loading" }, "Loading …"));
  const detail = h("section", { class: "panel server", "aria-label": "Selected server" });
  put(root, pageHead("Servers", "Health, load and errors of the inference servers.", facts), place);

  const grid = table({
    label: "Inference servers, those that are not usable first",
    columns: columns(store, choose),
    mark: (server) => (server.usable ? "" : "stuck"),
    open: choose,
    empty: () => h("p", null, "No server is known: the job uses none, or has not begun."),
  });
  const fresh = refresher(load, 1000);

  async function load() {
    try {
      report = await ask("servers");
      draw();
    } catch (error) {
      if (report === null) put(place, trouble(error, load));
    }
  }

  function draw() {
    if (!grid.element.isConnected) put(place, grid.element, detail);
    const servers = report.servers;
    grid.element.style.height = height(servers.length);
    grid.draw({ total: servers.length, get: (at) => servers[at] });
    const usable = servers.filter((server) => server.usable).length;
    // Calls wait for a model, not for one of its servers.
    const waiting = [...new Map(servers.map((one) => [one.model, one.waiting])).values()]
      .reduce((total, one) => total + one, 0);
    const live = store.job?.live;
    say(facts, servers.length === 0 ? "" : [`${usable} of ${servers.length} usable`,
      live ? `${count(sum(servers, "in_flight"))} in flight` : null,
      live ? `${count(waiting)} queued` : null,
      live ? `${short(sum(servers, "tokens_per_second"))} tokens/s`
        : `last known state, ${clock(report.at)}`].filter(Boolean).join(" · "));
    const shown = servers.find((one) => keyOf(one) === picked) ?? servers[0];
    detail.hidden = !shown;
    if (shown) drawDetail(detail, shown, store);
  }

  function choose(server) {
    picked = keyOf(server);
    draw();
  }

  load();
  return {
    update: (change) => (change.changed?.includes("servers") || change.job) && fresh.poke(),
    key: grid.key,
    close: fresh.close,
  };
}

const keyOf = (server) => `${server.model} ${server.url}`;

function drawDetail(panel, server, store) {
  if (!panel.firstChild) {
    const errors = bars({ title: "Errors", empty: "No error." });
    panel.errors = errors;
    put(panel, h("h2", null), h("p", { class: "message", hidden: true }),
      h("div", { class: "server-parts" }, h("dl", { class: "facts" }), errors.element,
        h("section", { class: "panel" }, h("h3", null, "Last error", h("small")),
          h("p", { class: "last-error" }))));
  }
  const [title, why, parts] = panel.children;
  const [list, , last] = parts.children;
  put(title, server.url, " ", badge(server.state));
  why.hidden = !server.message;
  set(why, "data-look", server.usable ? null : "bad");
  say(why, server.message ?? "");
  const live = store.job?.live;
  const all = [
    ["Model", `${server.model}${server.trained ? ", trained" : ""}`],
    ["Name at the server", text(server.server_model)],
    ["Kind", text(server.engine)],
    ["Version", text(server.version)],
    ["In flight", live ? count(server.in_flight) : "–"],
    ["Queued for its model", live ? count(server.waiting) : "–"],
    ["Tokens per second", short(server.tokens_per_second)],
    ["Tokens", short(server.tokens)],
    ["Requests", count(server.requests)],
    ["Weight updates", count(server.weight_updates)],
    ["Last response", isNumber(server.last_seen)
      ? live ? `${ago(store.now() - server.last_seen)} ago` : clock(server.last_seen) : "never"],
  ];
  keep(list, all, ([name]) => name, ([name]) => h("div", null, h("dt", null, name), h("dd")),
    (item, [, value]) => say(item.lastChild, value));
  const named = Object.entries(server.errors ?? {}).map(([kind, number]) =>
    [errorName(kind), number]);
  panel.errors.draw(Object.fromEntries(named), (value) => `${count(value)} ×`, "bad",
    named.length ? counted(errorsOf(server), "error") : "");
  const error = server.last_error;
  say(last.firstChild.lastChild, error ? `${errorName(error.kind)}, ${clock(error.at)}` : "");
  set(last.firstChild.lastChild, "title", error ? exact(error.at) : null);
  say(last.lastChild, error?.message ?? "No error.");
}

function columns(store, choose) {
  const live = (value) => (store.job?.live ? count(value) : "–");
  return [
    { label: "Server", class: "grow", make: (cell) => cell.append(h("button", {
      type: "button", class: "plain-link", onclick: (event) => choose(event.target.server) })),
    fill: (cell, server) => {
      cell.firstChild.server = server;
      say(cell.firstChild, server.url.replace(/^https?:\/\//, ""));
      set(cell, "title", server.url);
    } },
    { label: "State", width: 108, make: (cell) => cell.append(h("span", { class: "badge" })),
      fill: (cell, server) => badgeTo(cell.firstChild, server.state) },
    { label: "Model", width: 124, hide: 1, fill: (cell, server) => say(cell, text(server.model)) },
    { label: "Version", width: 74, number: true, hide: 1, fill: (cell, server) =>
      say(cell, text(server.version)) },
    { label: "In flight", width: 80, number: true, fill: (cell, server) =>
      say(cell, live(server.in_flight)) },
    { label: "Queued", width: 74, number: true, hide: 2, fill: (cell, server) =>
      say(cell, live(server.waiting)) },
    { label: "Tokens/s", width: 82, number: true, hide: 1, fill: (cell, server) =>
      say(cell, short(server.tokens_per_second)) },
    { label: "Errors", width: 72, number: true, fill: (cell, server) => {
      const number = errorsOf(server);
      say(cell, count(number));
      set(cell, "title", Object.entries(server.errors ?? {}).map(([kind, times]) =>
        `${errorName(kind)}: ${times}`).join(", ") || null);
    } },
    { label: "Last error", class: "grow", hide: 2, make: (cell) => cell.append(h("span"),
      h("small")),
    fill: (cell, server) => {
      const error = server.last_error;
      say(cell.firstChild, error ? `${errorName(error.kind)} ` : "–");
      say(cell.lastChild, error ? error.message : "");
      set(cell, "title", error ? `${exact(error.at)}: ${error.message}` : null);
    } },
  ];
}
