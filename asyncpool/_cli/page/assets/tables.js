"use strict";
// The tables of functions and workers, and the crashes.  A row stays the same element as long
// as it is shown, so that what has the keyboard's focus keeps it.

class Table {
  // columns: [{title, class, and text(row), or make(cell) and update(cell, row)}]
  constructor(table, columns, keyOf) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.body = el("tbody");
    const heads = columns.map((column) => el("th", { scope: "col", class: column.class ?? "" }, column.title));
    table.replaceChildren(el("thead", {}, el("tr", {}, ...heads)), this.body);
  }

  draw(rows) {
    const kept = new Set(rows.map(this.keyOf));
    for (const [key, row] of this.rows) {
      if (kept.has(key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    rows.forEach((data, index) => {
      const row = this.rows.get(this.keyOf(data)) ?? this.add(data);
      row.data = data;
      row.element.classList.toggle("quiet", data.recent === false);
      this.columns.forEach((column, at) => {
        if (column.update) column.update(row.cells[at], data, row);
        else setText(row.cells[at], column.text(data));
      });
      if (this.body.children[index] !== row.element)
        this.body.insertBefore(row.element, this.body.children[index] ?? null);
    });
  }

  add(data) {
    const cells = this.columns.map((column, index) =>
      el(index ? "td" : "th", { class: column.class ?? "", scope: index ? null : "row" }));
    const row = { element: el("tr", {}, ...cells), cells, data };
    this.columns.forEach((column, at) => column.make?.(cells[at], row));
    this.rows.set(this.keyOf(data), row);
    return row;
  }
}

const RANGE = { width: 200, low: -3, high: 0 }; // powers of ten, in seconds

function rangeX(seconds) {
  const power = Math.min(RANGE.high, Math.max(RANGE.low, Math.log10(seconds || 1e-9)));
  return 6 + ((power - RANGE.low) / (RANGE.high - RANGE.low)) * (RANGE.width - 12);
}

// Makes the axis of all functions as long as their times need.
function scaleRange(head, rows) {
  const times = rows.flatMap((row) => row.run).filter((seconds) => seconds > 0);
  RANGE.low = Math.max(-7, Math.floor(Math.log10(Math.min(0.01, ...times))));
  RANGE.high = Math.max(RANGE.low + 2, Math.ceil(Math.log10(Math.max(...times, 1e-6))));
  const parts = [], every = RANGE.high - RANGE.low > 3 ? 2 : 1;
  for (let power = RANGE.low; power <= RANGE.high; power += every)
    parts.push(svg("text", { x: rangeX(10 ** power), y: 12,
      "text-anchor": power === RANGE.low ? "start" : power === RANGE.high ? "end" : "middle" },
      power < -3 ? `${10 ** (power + 6)} µs` : power < 0 ? `${10 ** (power + 3)} ms` : `${10 ** power} s`));
  const key = `${RANGE.low} ${RANGE.high}`;
  if (head.dataset.drawn === key) return;
  head.dataset.drawn = key;
  head.replaceChildren(svg("svg", { class: "range", width: RANGE.width, height: 16, "aria-hidden": "true" }, ...parts));
}

function updateRange(cell, row) {
  const [half, most, top] = row.run.map(rangeX), key = `${half} ${most} ${top} ${RANGE.low} ${RANGE.high} ${row.index}`;
  if (cell.dataset.drawn === key || !row.run[2]) return;
  cell.dataset.drawn = key;
  const parts = [];
  for (let power = RANGE.low; power <= RANGE.high; power += 1)
    parts.push(svg("line", { class: "grid", x1: rangeX(10 ** power), x2: rangeX(10 ** power), y1: 0, y2: 22 }));
  const colour = colourOf(row.index).slice(2);
  parts.push(svg("line", { class: `span ${colour}`, x1: half, x2: top, y1: 11, y2: 11 }),
    svg("circle", { class: `full ${colour}`, cx: half, cy: 11, r: 4.5 }),
    svg("circle", { class: `full ${colour}`, cx: most, cy: 11, r: 3 }),
    svg("circle", { class: `hollow ${colour}`, cx: top, cy: 11, r: 3.5 }));
  cell.replaceChildren(svg("svg", { class: "range", width: RANGE.width, height: 22, role: "img",
    "aria-label": "half, 95 % and 99 % of the jobs ran no longer than the three dots" }, ...parts));
}

const FUNCTION_COLUMNS = [
  { title: "Function",
    make: (cell) => cell.append(el("i", { class: "key" }), el("span", { class: "name" })),
    update: (cell, row) => {
      cell.firstChild.className = `key ${colourOf(row.index).slice(2)}`;
      setText(cell.lastChild, row.via === "submit" ? row.name : `${row.name} (${row.via})`);
      cell.lastChild.title = row.name;
    } },
  { title: "Jobs/s", class: "number", text: (row) => (row.recent ? short(row.rate) : "–") },
  { title: "Jobs", class: "number", text: (row) => count(row.jobs) },
  { title: "Failed", class: "number",
    update: (cell, row) => {
      setText(cell, row.failed ? count(row.failed) : "–");
      cell.classList.toggle("bad", row.failed > 0);
      cell.title = Object.entries(row.failures).map(([outcome, jobs]) => `${outcome}: ${count(jobs)}`).join(", ");
    } },
  { title: "Runs, p50", class: "number", text: (row) => duration(row.run[0]) },
  { title: "p95", class: "number", text: (row) => duration(row.run[1]) },
  { title: "p99", class: "number", text: (row) => duration(row.run[2]) },
  { title: "", class: "wide", update: updateRange },
  { title: "Waits, p95", class: "number", text: (row) => duration(row.wait[1]) },
];

function functionTable() {
  return new Table(byId("functions"), FUNCTION_COLUMNS, (row) => `${row.via} ${row.name}`);
}

function sparkCell(title, values, text, top) {
  return { title, class: "number spark",
    make: (cell, row) => {
      row[title] = svg("path", { class: "line f0" });
      cell.append(svg("svg", { width: 72, height: 20, "aria-hidden": "true" }, row[title]), el("span"));
    },
    update: (cell, data, row) => {
      const found = values(data.slot);
      setText(cell.lastChild, found.length ? text(found.at(-1)) : "–");
      sparkline(row[title], found, top(found));
    } };
}

function workerTable(page) {
  const isServer = page.isServer;
  const recent = (figure) => (slot) => page.points.slice(-120)
    .map((point) => point[figure][slot]).filter((value) => value !== undefined);
  const jobs = isServer
    ? [{ title: "Open", class: "number", text: (row) => count(row.connections) },
       { title: "In all", class: "number", text: (row) => count(row.handed) }]
    : [{ title: "Runs", class: "name", text: (row) => row.running.map(([, name]) => page.names[name]).join(", ") || "–" },
       { title: "For", class: "number", text: (row) => (row.running.length ? duration(Math.max(...row.running.map((job) => job[3]))) : "–") },
       { title: "Jobs", class: "number", text: (row) => count(row.jobs) }];
  return new Table(byId("workers"), [
    { title: "Slot", class: "number", text: (row) => `${row.slot}` },
    { title: "State", make: (cell) => cell.append(el("span", { class: "badge" })),
      update: (cell, row) => {
        const state = row.ready ? "ready" : row.state;
        setText(cell.firstChild, state);
        cell.firstChild.className = `badge ${state}`;
      } },
    { title: "Process", class: "number", text: (row) => `${row.pid ?? "–"}` },
    ...jobs,
    sparkCell("CPU", recent("cpu"), percent, () => 1),
    sparkCell("Memory", recent("memory"), bytes, (values) => 1.25 * Math.max(1, ...values)),
    { title: "Up", class: "number", text: (row) => (row.uptime ? duration(row.uptime) : "–") },
    { title: "", class: "actions", make: (cell, row) => page.workerButtons(cell, row), update: () => {} },
  ], (row) => row.slot);
}

// Those of a pool whose workers belong to agents.
const NODE_COLUMNS = [
  { title: "Node", class: "name", text: (row) => row.name },
  { title: "Slots from", class: "number", text: (row) => `${row.first_slot}` },
  { title: "State", make: (cell) => cell.append(el("span", { class: "badge" })),
    update: (cell, row) => {
      setText(cell.firstChild, row.suspected ? "silent" : "ready");
      cell.firstChild.className = `badge ${row.suspected ? "broken" : "ready"}`;
    } },
  { title: "Heard, ago", class: "number", text: (row) => duration(row.silent) },
  { title: "Jobs", class: "number", text: (row) => count(row.jobs) },
  { title: "Queued there", class: "number", text: (row) => count(row.queued) },
  { title: "Workers", class: "number", text: (row) => count(row.workers) },
  { title: "Busy", class: "number", text: (row) => count(row.busy) },
  { title: "Crashes", class: "number", text: (row) => (row.crashes ? count(row.crashes) : "–") },
  { title: "CPU time", class: "number", text: (row) => duration(row.cpu) },
  { title: "Memory", class: "number", text: (row) => bytes(row.memory) },
  { title: "Clock", class: "number", text: (row) => (row.clock_error === null ? "–" : `± ${duration(row.clock_error)}`) },
];

function nodeTable() {
  return new Table(byId("nodes"), NODE_COLUMNS, (row) => row.first_slot);
}

function crashElement(crash) {
  const title = crash.signal || (crash.exit_code === null ? crash.kind : `exit code ${crash.exit_code}`);
  const facts = [`pid ${crash.pid ?? "none"}`, `up ${duration(crash.uptime)}`, `kind: ${crash.kind}`];
  if (crash.job_id !== null) facts.push(`job ${crash.job_id}, attempt ${crash.attempt}`);
  if (crash.next_step) facts.push(`then: ${crash.next_step}`);
  const block = (name, text) => (text ? [el("h3", {}, name), el("pre", { tabindex: 0 }, text)] : []);
  return el("details", { class: "crash" },
    el("summary", {}, el("time", {}, clock(crash.at)), el("b", {}, title), el("span", {}, `slot ${crash.slot}`),
      el("span", { class: "name" }, crash.function)),
    el("p", { class: "muted small" }, facts.join(" · ")),
    ...(crash.detail ? [el("p", {}, crash.detail)] : []),
    ...block("Stack", crash.stack), ...block("Last lines of stderr", crash.stderr.join("\n")));
}
