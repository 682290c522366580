"use strict";
// Lines over time, small lines in tables, and what the pointer or a key tells of them.

const tip = {
  show(x, y, lines) {
    const box = byId("tip");
    box.replaceChildren(...lines.map((line) => el("div", {}, line)));
    box.hidden = false;
    const left = Math.min(x + 14, innerWidth - box.offsetWidth - 8);
    const above = y - box.offsetHeight - 12;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${above > 8 ? above : y + 18}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
  say(lines) {
    setText(byId("spoken"), lines.join(", "));
  },
};

// Seconds without a point after which a line is interrupted: the program was away.
const GAP = 5;

function pathOf(points, x, y) {
  let path = "";
  let before = null;
  for (const point of points) {
    const value = y(point);
    if (value === null) continue;
    const joined = before !== null && point.at - before < GAP;
    path += `${joined ? "L" : "M"}${x(point.at).toFixed(1)} ${value.toFixed(1)}`;
    before = point.at;
  }
  return path;
}

// The end of an axis: a round number, in bytes or else in tens.
function roundTop(value, format) {
  if (!(value > 0)) return 1;
  const unit = format === bytes ? 1024 ** Math.floor(Math.log(value) / Math.log(1024)) : 1;
  const power = unit * 10 ** Math.floor(Math.log10(value / unit));
  return [1, 2, 4, 5, 10].find((step) => step * power >= value) * power;
}

class Chart {
  // title, format; lines: [{label, colour, value(point)}]
  constructor(title, format, lines) {
    this.format = format;
    this.lines = lines;
    this.points = [];
    this.chosen = null;
    this.now = el("output", { class: "now" });
    this.svg = svg("svg", {
      class: "chart", tabindex: 0, role: "img", "aria-label": `${title}. The arrow keys tell values.`,
      onpointermove: (event) => this.point(event.clientX, event.clientY),
      onpointerleave: () => this.leave(), onblur: () => this.leave(),
      onkeydown: (event) => this.key(event),
    });
    const legend = lines.length < 2 ? [] : lines.map((line) =>
      el("li", {}, el("i", { class: `key ${line.colour}` }), line.label));
    this.card = el("div", { class: "card" },
      el("div", { class: "card-head" }, el("h2", {}, title), el("ul", { class: "legend" }, ...legend), this.now),
      this.svg);
  }

  draw(points) {
    this.points = points;
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width || points.length < 2) return;
    const last = points.at(-1), from = Math.max(points[0].at, last.at - 300);
    const shown = points.filter((point) => point.at >= from);
    const values = shown.flatMap((point) => this.lines.map((line) => line.value(point) ?? 0));
    const top = roundTop(Math.max(...values), this.format);
    const labels = [top, top / 2].map((value) => this.format(value));
    const left = 8 + 6.4 * Math.max(...labels.map((label) => label.length)), bottom = height - 18;
    const x = (at) => left + ((at - from) / (last.at - from || 1)) * (width - left - 6);
    const y = (value) => bottom - (value / top) * (bottom - 8);
    Object.assign(this, { x, y, left, bottom, shown });
    const parts = [0, 0.5, 1].map((share) => svg("line", {
      class: share ? "grid" : "axis", x1: left, x2: width - 6, y1: y(top * share), y2: y(top * share) }));
    labels.forEach((label, index) => parts.push(svg("text", {
      x: left - 6, y: y(top / (index + 1)) + 4, "text-anchor": "end" }, label)));
    parts.push(svg("text", { x: left, y: height - 3 }, `${duration(last.at - from)} ago`),
      svg("text", { x: width - 6, y: height - 3, "text-anchor": "end" }, "now"));
    for (const line of this.lines) {
      const path = pathOf(shown, x, (point) => y(line.value(point) ?? 0));
      if (this.lines.length === 1 && !path.slice(1).includes("M"))
        parts.push(svg("path", { class: `area ${line.colour}`, d: `${path}L${x(last.at)} ${bottom}L${x(shown[0].at)} ${bottom}Z` }));
      parts.push(svg("path", { class: `line ${line.colour}`, d: path }));
    }
    this.cursor = svg("line", { class: "cursor", y1: 8, y2: bottom, visibility: "hidden" });
    this.svg.replaceChildren(...parts, this.cursor);
    setText(this.now, this.format(this.lines[0].value(last) ?? 0));
  }

  point(clientX, clientY) {
    if (!this.shown?.length) return;
    const box = this.svg.getBoundingClientRect(), at = clientX - box.left;
    this.chosen = this.shown.reduce((best, point, index) =>
      Math.abs(this.x(point.at) - at) < Math.abs(this.x(this.shown[best].at) - at) ? index : best, 0);
    this.tell(clientX, clientY);
  }

  tell(clientX, clientY) {
    const point = this.shown[this.chosen], x = this.x(point.at);
    fill(this.cursor, { x1: x, x2: x, visibility: "visible" }, []);
    const lines = [clock(point.at), ...this.lines.map((line) =>
      `${line.label}: ${this.format(line.value(point) ?? 0)}`)];
    const box = this.svg.getBoundingClientRect();
    tip.show(clientX ?? box.left + x, clientY ?? box.top + 20, lines);
    return lines;
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.leave();
    if (!step || !this.shown?.length) return;
    event.preventDefault();
    const last = this.shown.length - 1;
    this.chosen = Math.min(last, Math.max(0, (this.chosen ?? last + 1) + step));
    tip.say(this.tell());
  }

  leave() {
    this.chosen = null;
    this.cursor?.setAttribute("visibility", "hidden");
    tip.hide();
  }
}

// A line of 72 x 20 for a row of a table.
function sparkline(path, values, top) {
  const step = 70 / Math.max(1, values.length - 1);
  const d = values.map((value, index) =>
    `${index ? "L" : "M"}${(1 + index * step).toFixed(1)} ${(18 - (Math.min(value, top) / top) * 16).toFixed(1)}`).join("");
  if (path.getAttribute("d") !== d) path.setAttribute("d", d);
}
