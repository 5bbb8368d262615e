// Runners with their current stage, stuck ones first.

import { ask } from "./api.js";
import { h, keep, put, say, set } from "./dom.js";
import { ago, count, counted, isNumber, text, words } from "./format.js";
import { badgeTo, look, pageHead, refresher, runLink, trouble } from "./components.js";
import { table } from "./table.js";

export const watch = ["runners"];

export const page = {
  path: "/runners", name: "Runners",
  badge: "stuck",
  icon: "M3 3h10v4H3zM3 9h10v4H3zM5.5 5h.01M5.5 11h.01",
};

export function open(root, { store, go, announce }) {
  let all = null;
  let only = new URLSearchParams(location.search).get("state") ?? "";
  let stuckBefore = 0;
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show runners that are" });
  const place = h("div", { class: "fill" }, h("p", { class: "loading" }, "Loading …"));
  put(root, pageHead("Runners", "Current stage of each runner, stuck ones first."),
    chips, place);
  root.classList.add("whole");
  const grid = table({
    label: "Runners, stuck ones first",
    columns: columns(store),
    mark: (runner) => (runner.stuck ? "stuck" : ""),
    open: (runner) => isNumber(runner.task) && go(`/runs/${encodeURIComponent(runner.batch)}/` +
      `${runner.task}/${runner.run}`),
    empty: () => h("p", null, only ? `No runner is ${words(only)}.` :
      store.job?.live ? "No runner has been started yet." : "No runner: the job has ended."),
  });
  const fresh = refresher(load, 500);

  function draw() {
    const fits = (runner) => !only || (only === "stuck" ? runner.stuck : runner.state === only);
    const some = all.filter(fits);
    grid.draw({ total: some.length, get: (at) => some[at] });
    drawChips();
  }

  function drawChips() {
    const by = new Map([["", all.length]]);
    const stuck = all.filter((runner) => runner.stuck).length;
    if (stuck || only === "stuck") by.set("stuck", stuck);
    for (const runner of all) by.set(runner.state, (by.get(runner.state) ?? 0) + 1);
    keep(chips, [...by], ([state]) => `s${state}`, ([state]) => h("button", {
      type: "button", class: "chip", onclick: () => choose(state) }, h("span"), h("b")),
    (chip, [state, number]) => {
      say(chip.firstChild, state ? words(state) : "all");
      say(chip.lastChild, count(number));
      set(chip, "aria-pressed", state === only);
      set(chip, "data-look", state ? look(state) : null);
    });
    if (stuck > stuckBefore) announce(`${counted(stuck, "runner")} stuck`);
    stuckBefore = stuck;
  }

  function choose(state) {
    only = state;
    const query = state ? `?state=${encodeURIComponent(state)}` : "";
    history.replaceState(null, "", `/runners${query}`);
    grid.top();
    draw();
  }

  async function load() {
    try {
      const runners = await ask("runners");
      all = runners;
      if (!grid.element.isConnected) put(place, grid.element);
      draw();
    } catch (error) {
      if (all === null) put(place, trouble(error, load));
    }
  }

  load();
  return {
    update: (change) => change.changed?.includes("runners") && fresh.poke(),
    key: grid.key,
    close() {
      fresh.close();
      root.classList.remove("whole");
    },
  };
}

function columns(store) {
  return [
    { label: "Runner", width: 70, fill: (cell, runner) => {
      say(cell, runner.runner);
      set(cell, "title", isNumber(runner.incarnation) ? `incarnation ${runner.incarnation}` : null);
    } },
    { label: "State", width: 88, make: (cell) => cell.append(h("span", { class: "badge" })),
      fill: (cell, runner) => badgeTo(cell.firstChild, runner.stuck ? "stuck" : runner.state) },
    { label: "Current stage", class: "grow", make: (cell) => cell.append(h("span"), h("small")),
      fill: (cell, runner) => {
        say(cell.firstChild, text(runner.stage ?? runner.message));
        say(cell.lastChild, isNumber(runner.stage_for) ? ` for ${ago(runner.stage_for)}` : "");
        set(cell, "title", [runner.stage, runner.code_location, runner.message].filter(Boolean).join(": ") || null);
      } },
    { label: "Run", width: 132, hide: 1, make: (cell) => cell.append(h("a"), h("span")),
      fill: (cell, runner) => {
        const has = isNumber(runner.task);
        cell.firstChild.hidden = !has;
        if (has) runLink(cell.firstChild, runner);
        else set(cell.firstChild, "href", null);
        say(cell.lastChild, has ? "" : "–");
      } },
    { label: "Age", width: 66, number: true, fill: (cell, runner) => say(cell, ago(runner.age)) },
    { label: "Attempt", width: 72, number: true, hide: 3, fill: (cell, runner) =>
      say(cell, text(runner.attempt)) },
    { label: "Model", width: 112, hide: 2, fill: (cell, runner) => {
      say(cell, text(runner.model));
      set(cell, "title", runner.server);
    } },
    { label: "Calls", width: 62, number: true, hide: 2, fill: (cell, runner) =>
      say(cell, count(runner.calls)) },
    { label: "Node", width: 170, hide: 2, fill: (cell, runner) => {
      say(cell, text(runner.location));
      set(cell, "title", runner.location);
    } },
    { label: "Heartbeat", width: 96, number: true, hide: 1, fill: (cell, runner) =>
      say(cell, isNumber(runner.last_heartbeat)
        ? `${ago(store.now() - runner.last_heartbeat)} ago` : "–") },
  ];
}
