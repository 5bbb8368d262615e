// Table that draws only the visible rows.

import { framed, h, say, set, unique } from "./dom.js";
import { count } from "./format.js";

/** Height of a row in pixels, as in the style sheet. */
const ROW = 34;
/** Rows that are drawn beyond the edges. */
const MARGIN_ROWS = 6;
/** Browsers cannot draw taller elements; further rows need a filter. */
export const MAX_ROWS = 800_000;

/**
 * Creates a table. `columns`: [{label, width (pixels, or a length of CSS), hide (1: not on
 * phones, 2: not on tablets, 3: not on laptops),
 * number, sort, make(cell), fill(cell, item, index)}]; callbacks: `open(item)` for a click,
 * `range(from, to)` for the visible rows, `sorted(field)` for a click on a head.
 */
export function table({ label, columns, open, range, sorted, mark, empty }) {
  const caption = unique("caption");
  const heads = columns.map(head);
  const body = h("tbody");
  const above = h("tr", { class: "gap", "aria-hidden": "true" }, h("td"));
  const below = h("tr", { class: "gap", "aria-hidden": "true" }, h("td"));
  const grid = h("table", { "aria-labelledby": caption, "aria-rowcount": "1" },
    h("caption", { class: "unseen", id: caption }, label),
    h("thead", null, h("tr", { "aria-rowindex": "1" }, heads)), body);
  const none = h("div", { class: "none", hidden: true });
  const element = h("div", { class: "scroller", tabindex: "0", role: "region",
    "aria-label": label }, grid, none);
  const state = { total: 0, get: () => null, first: 0, rows: [], active: -1, items: [] };

  function head(column) {
    const inside = column.sort
      ? h("button", { type: "button", onclick: () => sorted?.(column.sort) }, column.label)
      : column.label || h("span", { class: "unseen" }, "Actions");
    const cell = h("th", { scope: "col", class: classes(column) }, inside);
    const { width } = column;
    if (width) cell.style.width = typeof width === "number" ? `${width}px` : width;
    return cell;
  }

  function make() {
    return h("tr", null, columns.map((column) => {
      const cell = h("td", { class: classes(column) });
      column.make?.(cell);
      return cell;
    }));
  }

  function paint() {
    const space = Math.max(ROW, element.clientHeight - ROW);
    const seen = Math.ceil(space / ROW);
    const total = Math.min(state.total, MAX_ROWS);
    const top = Math.floor(element.scrollTop / ROW);
    const first = Math.max(0, Math.min(top - MARGIN_ROWS, total - seen - 2 * MARGIN_ROWS));
    const many = Math.max(0, Math.min(total - first, seen + 2 * MARGIN_ROWS));
    state.first = first;
    while (state.rows.length < many) state.rows.push(make());
    const spare = state.rows.splice(many);
    for (const row of spare) row.remove();
    height(above, first);
    height(below, total - first - many);
    if (body.firstChild !== above) body.replaceChildren(above, ...state.rows, below);
    else state.rows.forEach((row) => row.parentNode || body.insertBefore(row, below));
    state.items = state.rows.map((row, at) => fill(row, first + at));
    set(grid, "aria-rowcount", state.total + 1);
    none.hidden = state.total > 0;
    if (state.total === 0 && empty) none.replaceChildren(...[empty()].flat());
    range?.(first, first + many);
  }

  function fill(row, index) {
    const item = state.get(index);
    set(row, "aria-rowindex", index + 2);
    set(row, "class", [item ? "" : "waits", index === state.active ? "active" : "",
      item ? mark?.(item) ?? "" : ""].join(" ").trim() || null);
    columns.forEach((column, at) => {
      const cell = row.children[at];
      if (item) column.fill(cell, item, index);
      else if (!column.make) say(cell, at === 0 ? "…" : "");
    });
    return item;
  }

  function height(row, rows) {
    row.hidden = rows <= 0;
    row.style.height = `${Math.max(0, rows) * ROW}px`;
  }

  function move(to) {
    const total = Math.min(state.total, MAX_ROWS);
    if (total === 0) return;
    state.active = Math.max(0, Math.min(total - 1, to));
    const y = state.active * ROW;
    const space = element.clientHeight - ROW;
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + ROW > element.scrollTop + space) element.scrollTop = y + ROW - space;
    paint();
    const row = state.rows[state.active - state.first];
    (row?.querySelector("a, button") ?? element).focus({ preventScroll: true });
  }

  const later = framed(paint);
  element.addEventListener("scroll", later, { passive: true });
  new ResizeObserver(later).observe(element);
  body.addEventListener("click", (event) => {
    if (event.target.closest("a, button, input") || getSelection()?.toString()) return;
    const row = event.target.closest("tr");
    const item = state.items[state.rows.indexOf(row)];
    if (item) open?.(item);
  });

  return {
    element,
    /** Shows rows: `get(index)` returns an item, or nothing while it is loading. */
    draw({ total, get, sort, desc }) {
      state.total = total;
      state.get = get;
      columns.forEach((column, at) => {
        const is = column.sort && column.sort === sort;
        set(heads[at], "aria-sort", is ? (desc ? "descending" : "ascending") : null);
      });
      later();
    },
    top() {
      element.scrollTop = 0;
      state.active = -1;
    },
    /** Handles keys that move between rows; returns whether it was one. */
    key(event) {
      const by = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
      const scrolls = event.key.startsWith("Arrow") && state.active < 0;
      if (!by || scrolls) return false;
      move(state.active + by);
      return true;
    },
  };
}

function classes(column) {
  const all = [column.number ? "number" : "", column.hide ? `hide${column.hide}` : "",
    column.class ?? ""];
  return all.filter(Boolean).join(" ") || null;
}

/** Number of rows as text. */
export const rowsOf = (total, noun) =>
  total > MAX_ROWS ? `${count(total)} ${noun}s, the first ${count(MAX_ROWS)} below` :
    `${count(total)} ${noun}${total === 1 ? "" : "s"}`;
