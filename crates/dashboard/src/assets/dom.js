// Elements, without a framework: made once, changed only where something differs.

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element: attributes, `on…` listeners, `class`, and children (text, elements, lists). */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Makes an element of a drawing. */
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

/** Replaces the text of an element, if it is another one. */
export function say(element, text) {
  const words = String(text ?? "");
  if (element.textContent !== words) element.textContent = words;
}

/** Replaces an attribute, if it is another one. */
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
 * Keeps a list of children in step with items: each is made once by `make(item)`, found again by
 * `key(item)`, and changed by `change(child, item)`.
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

/** Returns an id that nobody else has. */
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
