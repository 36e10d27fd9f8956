// Small helpers. Names are hostile input: text only ever becomes text nodes and attributes, and what
// would turn around the words beside it is shown instead.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** A text whose control characters (of direction, too) are shown as JSON would write them. */
export const visible = (text) => String(text).replace(
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g,
  (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** An element with attributes and children; strings become text nodes. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    // A value goes back to the service: it stays as it is.
    else element.setAttribute(name, name === "value" ? value : visible(value));
  }
  element.append(...children.filter((child) => child !== null)
    .map((child) => typeof child === "string" ? visible(child) : child));
  return element;
}

export function show(element, visible = true) {
  element.hidden = !visible;
}

export function write(element, text) {
  element.textContent = visible(text);
}

export function say(element, text) {
  write(element, text);
  show(element, Boolean(text));
}

export function shorten(text, most) {
  const letters = Array.from(text);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
}

export const percent = (share) =>
  share >= 0.0995 ? `${(share * 100).toFixed(0)} %`
    : share >= 0.0005 ? `${(share * 100).toFixed(1)} %` : "< 0.1 %";

/** A name that leads to its entity. */
export const nameLink = (name, text = name) =>
  make("a", { href: `#forecast?${new URLSearchParams({ entity: name })}`, class: "name" }, text);
