// Configuration of the job, without secrets.

import { ask } from "./api.js";
import { h, keep, put, say, set } from "./dom.js";
import { count } from "./format.js";
import { pageHead, trouble } from "./components.js";

export const watch = [];

export const page = {
  path: "/config", name: "Configuration",
  icon: "M2 4.500h7M12.500 4.500H14M2 11.500h1.500M7 11.500h7M10.750 2.750v3.500M5.250 9.750v3.500",
};

/** All values by key: `buffer.batch_size`. Empty lists and objects are values. */
export function flat(value, key = "") {
  const inside = value !== null && typeof value === "object" ? Object.entries(value) : [];
  if (inside.length === 0) return key ? [[key, value]] : [];
  return inside.flatMap(([name, one]) => flat(one, key ? `${key}.${name}` : name));
}

export function open(root) {
  const query = new URLSearchParams(location.search);
  const filter = { text: query.get("text") ?? "", all: query.get("all") ?? "" };
  let report = null;
  const total = h("p", { class: "total", role: "status" });
  const search = h("input", { type: "search", id: "search", value: filter.text,
    placeholder: "Part of a key or value", oninput: () => {
      filter.text = search.value;
      draw();
    } });
  const chip = (name, value) => h("button", { type: "button", class: "chip", onclick: () => {
    filter.all = value;
    draw();
  } }, name);
  const chips = [chip("set for this job", ""), chip("all keys", "1")];
  const place = h("div", null, h("p", { class: "loading" }, "Loading …"));
  const sections = h("div", { class: "sections" });
  const none = h("p", { class: "empty" });
  put(root, pageHead("Configuration", "Values of this job. Secrets are hidden.", total),
    h("form", { class: "filters", role: "search", "aria-label": "Configuration",
      onsubmit: (event) => event.preventDefault() },
    h("label", { class: "field wide", for: "search" }, h("span", null, "Search"), search),
    h("div", { class: "chips", role: "group", "aria-label": "Show" }, chips)), place);

  function draw() {
    if (!report) return;
    const params = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
    history.replaceState(null, "", params.size ? `/config?${params}` : "/config");
    if (!sections.isConnected) put(place, none, sections);
    set(chips[0], "aria-pressed", !filter.all);
    set(chips[1], "aria-pressed", Boolean(filter.all));
    const changed = new Set(report.changed);
    const all = flat(report.config ?? {});
    const part = filter.text.trim().toLowerCase();
    const shown = all.filter(([key, value]) => (filter.all || changed.has(key))
      && `${key} ${JSON.stringify(value)}`.toLowerCase().includes(part));
    say(total, `${count(changed.size)} of ${count(all.length)} keys set`);
    none.hidden = shown.length > 0;
    say(none, all.length ? "No key matches." : "The configuration was not recorded.");
    // Keys without a section come first.
    const groups = new Map(shown.some(([key]) => !key.includes(".")) ? [["job", []]] : []);
    for (const one of shown) {
      const [name, ...rest] = one[0].split(".");
      const group = rest.length ? name : "job";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(one);
    }
    keep(sections, [...groups], ([group]) => group, ([group]) => section(group),
      (element, [group, values]) => fill(element, group, values, changed));
  }

  async function load() {
    try {
      report = await ask("config");
      draw();
    } catch (error) {
      put(place, trouble(error, load));
    }
  }
  load();
  return {};
}

function section(group) {
  return h("section", { class: "panel" }, h("h2", null, group), h("table", { class: "plain config" },
    h("caption", { class: "unseen" }, `Keys of ${group}`),
    h("thead", { class: "unseen" }, h("tr", null, h("th", { scope: "col" }, "Key"),
      h("th", { scope: "col" }, "Value"))), h("tbody")));
}

function fill(element, group, values, changed) {
  const body = element.querySelector("tbody");
  keep(body, values, ([key]) => key, ([key]) => h("tr", null,
    h("th", { scope: "row", title: key }, key.startsWith(`${group}.`)
      ? key.slice(group.length + 1) : key), h("td", null, h("code"))), (row, [key, value]) => {
    const shown = typeof value === "string" ? value : JSON.stringify(value);
    say(row.lastChild.firstChild, shown === "" ? "\"\"" : shown);
    set(row, "class", changed.has(key) ? "changed" : null);
  });
}
