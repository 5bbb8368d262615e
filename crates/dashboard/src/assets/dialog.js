// Confirmation dialogs, and the list of keys.

import { h, unique } from "./dom.js";

/**
 * Asks for confirmation. Resolves to null, or to the values of the boxes by name.
 * `options`: title, words (text), yes (label of the button), boxes: [{name, label, checked}].
 */
export function confirm({ title, words, yes, boxes = [] }) {
  return new Promise((resolve) => {
    const name = unique("title");
    const about = unique("about");
    const form = h("form", { method: "dialog" },
      h("h2", { id: name }, title),
      h("p", { id: about }, words),
      boxes.map((box) => h("label", { class: "box" },
        h("input", { type: "checkbox", name: box.name, checked: box.checked }),
        h("span", null, box.label))),
      h("div", { class: "buttons" },
        h("button", { value: "no", class: "quiet", autofocus: true }, "Keep it running"),
        h("button", { value: "yes", class: "danger" }, yes)));
    open(form, name, about, (value) => {
      const ticked = boxes.map((box) => [box.name, form.elements[box.name].checked]);
      resolve(value === "yes" ? Object.fromEntries(ticked) : null);
    });
  });
}

function open(content, name, about, closed) {
  const before = document.activeElement;
  const dialog = h("dialog", { "aria-labelledby": name, "aria-describedby": about }, content);
  dialog.addEventListener("close", () => {
    closed?.(dialog.returnValue);
    dialog.remove();
    before?.focus?.();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close("no");
  });
  document.body.append(dialog);
  dialog.showModal();
}

const KEYS = [
  ["/", "Search runs"],
  ["j k", "Next and previous row of a table"],
  ["Enter", "Open the row"],
  ["+ − 0", "Timeline: nearer, farther, everything"],
  ["← →", "Timeline: earlier, later; tokens: previous, next"],
  ["c", "Colours: system, light, dark"],
  ["?", "This list"],
  ["Esc", "Close, or leave the search"],
];

/** Lists the keys; `pages` is the number of pages in the menu. */
export function help(pages) {
  if (document.querySelector("dialog[open]")) return;
  const name = unique("title");
  open(h("form", { method: "dialog" },
    h("h2", { id: name }, "Keys"),
    h("dl", { class: "keys" }, [[`1 … ${pages}`, "Go to a page, in the order of the menu"], ...KEYS].map(([key, about]) => h("div", null,
      h("dt", null, key.split(" ").map((one) => (one === "…" ? " … " : h("kbd", null, one)))),
      h("dd", null, about)))),
    h("div", { class: "buttons" }, h("button", { class: "primary", autofocus: true }, "Close"))),
  name, name);
}
