"use strict";
// The page: takes what the dashboard sends, and draws all of it.

const MOST_POINTS = 600;
const MOST_JOBS = 12000;

class Page {
  constructor() {
    this.programs = [];
    this.selected = null;
    this.names = [];
    this.stream = new TaskStream(byId("stream"), this.names);
    this.paused = false;
    this.actions = false;
    this.reset();
    this.buttons();
    new ResizeObserver(() => this.redraw()).observe(byId("main"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  reset() {
    this.points = [];
    this.jobs = [];
    this.crashes = [];
    this.shown = null;
    this.isServer = null;
    this.names.length = 0;
    byId("crashes").replaceChildren();
  }

  buttons() {
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("theme", () => {
      useTheme(THEMES[(THEMES.indexOf(storedTheme()) + 1) % THEMES.length]);
      this.theme();
      this.redraw();
    });
    on("requests", () => dialogs.requests(this.selected));
    on("stacks", () => dialogs.stacks(this.selected));
    on("profile", () => dialogs.profile(this.selected));
    on("resize", () => dialogs.resize(this.selected, this.shown.program.workers));
    on("recycle", () => this.confirm("recycle", null));
    on("pause", () => {
      this.paused = !this.paused;
      byId("pause").setAttribute("aria-pressed", this.paused);
      setText(byId("pause"), this.paused ? "Go on" : "Pause");
      this.redraw();
    });
    for (const [label, seconds] of [["15 s", 15], ["1 min", 60], ["5 min", 300]]) {
      byId("spans").append(el("button", { "aria-pressed": seconds === this.stream.seconds, onclick: (event) => {
        this.stream.seconds = seconds;
        for (const button of byId("spans").children) button.setAttribute("aria-pressed", button === event.target);
        this.redraw();
      } }, label));
    }
    this.theme();
  }

  theme() {
    setText(byId("theme"), `Theme: ${storedTheme()}`);
  }

  confirm(action, slot) {
    const what = { kill: "Kill", recycle: "Recycle" }[action];
    const who = slot === null ? "all workers, one after another" : `the worker in slot ${slot}`;
    const effect = action === "kill" ? "Its job fails, or is tried again." : "Each finishes its jobs first.";
    dialogs.confirm(`${what} in ${this.selected}`, [`${what} ${who}? ${effect}`], what,
      () => dialogs.ask(this.selected, { action, slot }));
  }

  workerButtons(cell, row) {
    const slot = row.data.slot;
    cell.append(el("button", { onclick: () => dialogs.stacks(this.selected, slot), "aria-label": `Stack of slot ${slot}` }, "Stack"));
    if (!this.actions) return;
    for (const [action, label] of [["recycle", "Recycle"], ["kill", "Kill"]])
      cell.append(el("button", { onclick: () => this.confirm(action, slot), "aria-label": `${label} slot ${slot}` }, label));
  }

  take(shown) {
    if (shown.fresh) this.reset();
    this.shown = shown;
    if (shown.names) this.names.splice(0, Infinity, ...shown.names);
    this.points = [...this.points, ...shown.points].slice(-MOST_POINTS);
    this.jobs = [...this.jobs, ...shown.jobs].slice(-MOST_JOBS);
    this.crashes.push(...shown.crashes);
    for (const crash of shown.crashes) byId("crashes").prepend(crashElement(crash));
    while (byId("crashes").children.length > 50) byId("crashes").lastChild.remove();
  }

  redraw() {
    const { shown } = this;
    byId("figures").hidden = !shown?.cursor;
    if (!shown?.cursor || this.paused) return;
    const isServer = shown.program.kind === "cluster";
    if (isServer !== this.isServer) this.build(isServer);
    this.head(shown.program);
    this.tiles(shown);
    for (const chart of this.charts) chart.draw(this.points);
    this.workers.draw(shown.slots.filter((slot) => slot.pid !== null || slot.state === "parked"));
    const nodes = shown.program.nodes ?? [];
    byId("nodes-card").hidden = !nodes.length;
    this.nodes.draw(nodes);
    if (!isServer) this.drawJobs(shown);
    setText(byId("crashes-about"), this.crashes.length ? "the newest first" : shown.program.crashes ? "" : "none so far");
  }

  build(isServer) {
    this.isServer = isServer;
    const line = (label, colour, value) => ({ label, colour, value });
    const total = (figure) => (point) => sum(point[figure]);
    const responses = (...classes) => (point) => sum(classes.map((each) => point[each] ?? 0));
    const own = isServer
      ? [new Chart("Requests a second", rate, [
           line("answered", "f0", responses("1xx", "2xx", "3xx", "4xx", "5xx", "other")), line("4xx", "f2", responses("4xx")), line("5xx", "bad-line", responses("5xx"))]),
         new Chart("Response time of 99 in 100", duration, [line("p99", "f0", (point) => point.p99)]),
         new Chart("Connections a second", rate, [line("new", "f0", (point) => point.handed)]),
         new Chart("Open connections", short, [line("open", "f0", (point) => point.connections)]),
         new Chart("Workers", short, [line("ready", "f1", (point) => point.ready), line("wanted", "f-other", (point) => point.workers)])]
      : [new Chart("Throughput", rate, [line("done", "f0", (point) => point.ok + point.failed + point.other), line("failed", "bad-line", (point) => point.failed)]),
         new Chart("Queue", short, [line("jobs queued", "f0", (point) => point.queued)]),
         new Chart("Oldest in the queue", duration, [line("age", "f0", (point) => point.oldest_queued)]),
         new Chart("Workers", short, [line("busy", "f1", (point) => point.busy), line("wanted", "f-other", (point) => point.workers)])];
    this.charts = [...own,
      new Chart("Processors in use", short, [line("processors", "f0", total("cpu"))]),
      new Chart("Memory of the workers", bytes, [line("memory", "f0", total("memory"))])];
    byId("charts").replaceChildren(...this.charts.map((chart) => chart.card));
    byId("stream-card").hidden = byId("functions-card").hidden = isServer;
    this.functions = functionTable();
    this.workers = workerTable(this);
    this.nodes = nodeTable();
  }

  head(program) {
    setText(byId("name"), this.selected ?? program.name);
    const listed = this.programs.find((each) => each.name === this.selected);
    const state = listed && !listed.lives ? "ended" : program.state;
    byId("state").hidden = false;
    byId("state").className = `badge ${state}`;
    setText(byId("state"), state);
    setText(byId("about"), [this.isServer ? "server" : "pool", `process ${program.pid}`, ...(program.addresses ?? [])].join(" · "));
    byId("stacks").hidden = false;
    byId("profile").hidden = this.isServer;
    byId("requests").hidden = !this.isServer;
    for (const id of ["recycle", "resize"]) byId(id).hidden = !this.actions;
    byId("pause").hidden = false;
  }

  tiles(shown) {
    const { program } = shown, point = this.points.at(-1) ?? {};
    const memory = bytes(sum(point.memory ?? {}));
    const restarts = ["Restarts", count(program.restarts), `${count(program.crashes)} crashes`, program.crashes > 0];
    let tiles;
    if (this.isServer) {
      const { responses, open, timed_out: late = 0 } = program.requests ?? {};
      const failed = responses?.["5xx"] ? sum(responses["5xx"].counts) : 0;
      tiles = [...(responses && Object.keys(responses).length ? [
        ["Requests", rate(point.rate ?? 0), `${count(open ?? 0)} open`],
        ["99 in 100", duration(point.p99 ?? 0), "until the response was sent"],
        ["Failed", count(failed), late ? `5xx, ${count(late)} timed out` : "5xx", failed > 0]] : []),
        ["Connections", rate(point.handed ?? 0), `${count(program.handed)} in all`], ["Open", count(point.connections ?? 0), "connections"],
        ["Ready", `${point.ready ?? 0} of ${program.workers}`, "workers"], restarts, ["Memory", memory, `${short(sum(point.cpu ?? {}))} processors`]];
    } else {
      const failed = sum(shown.functions.map((row) => row.failed));
      const done = sum(shown.functions.map((row) => row.jobs));
      tiles = [
        ["Throughput", rate((point.ok ?? 0) + (point.failed ?? 0) + (point.other ?? 0)), `${count(done)} jobs done`],
        ["Queue", count(program.queued), program.queued ? `oldest ${duration(program.oldest_queued)}` : "nothing waits"],
        ["Busy", `${program.busy} of ${program.workers}`, "workers"],
        ["Failed", count(failed), done ? `${((100 * failed) / done).toPrecision(2)} % of all jobs` : "no job yet", failed > 0],
        restarts, ["Memory", memory, `${short(sum(point.cpu ?? {}))} processors`]];
    }
    const box = byId("tiles");
    while (box.children.length > tiles.length) box.lastChild.remove();
    while (box.children.length < tiles.length) box.append(el("div", {}, el("dt"), el("dd"), el("dd", { class: "muted small" })));
    tiles.forEach(([title, value, aside, bad], index) => {
      const [head, figure, small] = box.children[index].children;
      setText(head, title);
      setText(figure, value);
      setText(small, aside);
      box.children[index].classList.toggle("alarm", Boolean(bad));
    });
  }

  drawJobs(shown) {
    this.stream.draw({ jobs: this.jobs, slots: shown.slots, crashes: this.crashes, at: shown.at });
    scaleRange(byId("functions").tHead.rows[0].cells[7], shown.functions);
    this.functions.draw(shown.functions);
    setText(byId("functions-about"), "of the last minute; those that were idle are grey, with all their jobs");
    const { shown: told, ended, lost } = shown.sample;
    setText(byId("sample"), ended > told
      ? `A sample: ${count(told)} of ${count(ended)} jobs are drawn, since the dashboard began to watch.${lost ? ` ${count(lost)} updates were lost.` : ""}`
      : "Every job is drawn.");
    const seen = new Set(this.jobs.map((job) => job[1]));
    for (const slot of shown.slots) for (const job of slot.running) seen.add(job[1]);
    const named = [...seen].filter((index) => index < COLOURS).sort((one, other) => one - other);
    const items = named.map((index) => [colourOf(index).slice(2), this.names[index]]);
    if (seen.size > named.length) items.push(["f-other", `${seen.size - named.length} more`]);
    items.push(["failed-key", "failed"], ["crash-key", "crash"]);
    const key = JSON.stringify(items), legend = byId("legend");
    if (legend.dataset.drawn === key) return;
    legend.dataset.drawn = key;
    legend.replaceChildren(...items.map(([colour, name]) => el("li", {}, el("i", { class: `key ${colour}` }), name)));
  }
}

class Live {
  constructor() {
    this.page = new Page();
    this.source = null;
    this.items = new Map();
    window.addEventListener("hashchange", () => this.select(this.asked()));
    this.select(this.asked());
  }

  asked() {
    try {
      return decodeURIComponent(location.hash.slice(1)) || null;
    } catch {
      return null;
    }
  }

  select(name) {
    this.source?.close();
    this.page.selected = name;
    this.page.reset();
    this.page.redraw();
    this.connect();
  }

  connect() {
    this.source = new EventSource(`events?program=${encodeURIComponent(this.page.selected ?? "")}`);
    this.source.onmessage = (event) => this.take(JSON.parse(event.data));
    this.source.onerror = () => {
      setText(byId("connection"), "The dashboard does not answer");
      // A browser does not try again after an answer that is an error.
      if (this.source.readyState === EventSource.CLOSED) setTimeout(() => this.connect(), 2000);
    };
  }

  take(update) {
    const { page } = this;
    setText(byId("connection"), "");
    page.programs = update.programs;
    page.actions = update.actions;
    this.list();
    if (page.selected === null && update.programs.length) {
      const first = update.programs.find((program) => program.lives) ?? update.programs[0];
      history.replaceState(null, "", `#${encodeURIComponent(first.name)}`);
      return this.select(first.name);
    }
    if (update.shown) page.take(update.shown);
    this.note(update.problem);
    page.redraw();
  }

  note(problem) {
    const { page } = this, listed = page.programs.find((program) => program.name === page.selected);
    let text = problem || listed?.problem || "";
    if (!text && !page.programs.length)
      text = "No pool or server of yours runs with a control socket. Pool(control=True), or ASYNCPOOL_CONTROL=1, gives a pool one.";
    else if (!text && !listed) text = `${page.selected} does not run.`;
    else if (!text && !listed.lives) text = "It has ended. The page goes on when it is back.";
    byId("note").hidden = !text;
    setText(byId("note"), text);
  }

  list() {
    const { items, page } = this, names = new Set(page.programs.map((program) => program.name));
    for (const [name, item] of items) if (!names.has(name)) {
      item.remove();
      items.delete(name);
    }
    page.programs.forEach((program, index) => {
      if (!items.has(program.name))
        items.set(program.name, el("li", {}, el("a", { href: `#${encodeURIComponent(program.name)}` },
          el("i", { class: "dot" }), el("span", { class: "name" }, program.name), el("span", { class: "muted small" }))));
      const item = items.get(program.name), [dot, , aside] = item.firstChild.children;
      dot.className = `dot ${program.lives ? program.state : program.problem ? "broken" : "ended"}`;
      setText(aside, program.lives ? rate(program.rate) : program.problem ? "trouble" : "ended");
      if (program.name === page.selected) item.firstChild.setAttribute("aria-current", "page");
      else item.firstChild.removeAttribute("aria-current");
      if (byId("programs").children[index] !== item) byId("programs").insertBefore(item, byId("programs").children[index] ?? null);
    });
  }
}

new Live();
