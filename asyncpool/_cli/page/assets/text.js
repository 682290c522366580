"use strict";
// Elements, and numbers as text.  All text goes into text nodes: names, stderr and stacks
// come from processes that may have written anything.

const SVG = "http://www.w3.org/2000/svg";

function byId(id) {
  return document.getElementById(id);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function count(number) {
  return Math.round(number).toLocaleString("en");
}

function short(number) {
  if (number >= 1e6) return `${(number / 1e6).toPrecision(3)} M`;
  if (number >= 1e4) return `${(number / 1e3).toPrecision(3)} k`;
  if (number >= 100 || Number.isInteger(number)) return count(number);
  return number >= 1 ? number.toFixed(1) : number.toPrecision(2);
}

function rate(number) {
  return `${short(number)}/s`;
}

function duration(seconds) {
  if (!(seconds > 0)) return "0 s";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(seconds < 0.01 ? 2 : 3)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function bytes(size) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (size >= 1000 && power < units.length - 1) {
    size /= 1024;
    power += 1;
  }
  return `${size >= 100 || power === 0 ? Math.round(size) : size.toFixed(1)} ${units[power]}`;
}

function percent(share) {
  return `${Math.round(share * 100)} %`;
}

function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

function sum(values) {
  return Object.values(values).reduce((total, value) => total + value, 0);
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// There are seven colours; the functions that came first have them.
const COLOURS = 7;

function colourOf(index) {
  return index < COLOURS ? `--f${index}` : "--f-other";
}

const FAILURES = new Set(["raised", "crashed", "timeout"]);
