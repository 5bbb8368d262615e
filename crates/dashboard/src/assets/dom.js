// DOM helpers: elements are created once and changed only where something differs.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element: attributes, `on…` listeners, `class`, and children (text, elements, lists). */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Creates an SVG element. */
export function s(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
}

/** Sets the text of an element if it differs. */
export function say(element, text) {
  const value = String(text ?? "");
  if (element.textContent !== value) element.textContent = value;
}

/** Sets an attribute if it differs. */
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

/** Replaces all children. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/**
 * Synchronizes children with items: created by `make(item)`, identified by `key(item)`, updated by
 * `change(child, item)`.
 */
export function keep(parent, items, key, make, change) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    change?.(child, item);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  for (const child of known.values()) child.remove();
}

let ids = 0;

/** Returns a unique id. */
export function unique(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}

/** Calls a function at most once per frame, with the last arguments. */
export function framed(act) {
  let last = null;
  return (...args) => {
    const waits = last !== null;
    last = args;
    if (waits) return;
    requestAnimationFrame(() => {
      const now = last;
      last = null;
      act(...now);
    });
  };
}
