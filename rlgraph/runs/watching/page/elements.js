"use strict";
// Makes elements and texts. A text of a run becomes a text node, never markup.
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...inside.filter((child) => child !== null && child !== undefined));
  return made;
}

function drawn(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

const byId = (id) => document.getElementById(id);
const hue = (number) => `--hue: var(--c${number % 8})`;

// A number with as many digits as a person reads: 0.00012, 3.142, 12,345.
function shortNumber(value) {
  if (value === null || value === undefined) return "\u2013";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

function shortSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "\u2013";
  if (seconds < 0.001) return `${Number((seconds * 1e6).toPrecision(2))} \u00b5s`;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 100) return `${Number(seconds.toPrecision(3))} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function ago(seconds) {
  const since = Math.max(0, Date.now() / 1000 - seconds);
  if (since < 90) return "just now";
  if (since < 5400) return `${Math.round(since / 60)} min ago`;
  return since < 129600 ? `${Math.round(since / 3600)} h ago` : `${Math.round(since / 86400)} days ago`;
}

// A text with what was searched for marked in it.
function marked(text, wanted) {
  const parts = [], small = text.toLowerCase(), needle = wanted.toLowerCase();
  // Letters whose small form has another length would put marks at wrong places.
  if (!needle || small.length !== text.length) return [text];
  let at = 0;
  for (let next = small.indexOf(needle); next >= 0; next = small.indexOf(needle, at)) {
    parts.push(text.slice(at, next), element("mark", {}, text.slice(next, next + needle.length)));
    at = next + needle.length;
  }
  return [...parts, text.slice(at)];
}
