// Small helpers. Names are hostile input: text only ever becomes text nodes and attributes.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

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
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function show(element, visible = true) {
  element.hidden = !visible;
}

export function say(element, text) {
  element.textContent = text;
  show(element, Boolean(text));
}

export function shorten(text, most) {
  const letters = Array.from(text);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text;
}

export const percent = (share) =>
  share >= 0.0995 ? `${(share * 100).toFixed(0)} %`
    : share >= 0.0005 ? `${(share * 100).toFixed(1)} %` : "< 0.1 %";
