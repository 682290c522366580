"use strict";
// The jobs by worker: a lane for each slot, colour by function, failures marked.

// Short jobs stay visible, and long ones stay apart.
function widthOf(width) {
  return width > 5 ? width - 1 : Math.max(1.5, width);
}

class TaskStream {
  // jobs: [id, function, slot, lane, begin, end, wait, outcome, attempts]
  constructor(canvas, names) {
    this.canvas = canvas;
    this.names = names;
    this.seconds = 60;
    this.chosen = null;
    this.boxes = [];
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("blur", () => this.leave());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  draw(data) {
    this.data = data;
    const { slots, jobs, at } = data;
    const from = at - this.seconds;
    const lanes = new Map();
    const laneOf = (slot, lane) => lanes.get(slot)?.rows.get(lane);
    const add = (slot, lane) => {
      if (!lanes.has(slot)) lanes.set(slot, { rows: new Map() });
      lanes.get(slot).rows.set(lane, 0);
    };
    const seen = jobs.filter((job) => job[5] >= from && job[2] !== null);
    slots.forEach((slot) => { if (slot.pid !== null) add(slot.slot, 0); });
    seen.forEach((job) => add(job[2], job[3] ?? 0));
    const rows = sum([...lanes.values()].map((slot) => slot.rows.size));
    const height = Math.min(26, Math.max(3, Math.floor(440 / Math.max(1, rows))));
    let y = 4;
    for (const slot of [...lanes.keys()].sort((one, other) => one - other)) {
      const entry = lanes.get(slot);
      entry.y = y;
      for (const lane of [...entry.rows.keys()].sort((one, other) => one - other)) {
        entry.rows.set(lane, y);
        y += height;
      }
      entry.end = y;
      y += rows <= 24 ? 4 : 1;
    }
    this.fit(y + 20);
    const width = this.canvas.clientWidth, left = 34;
    const x = (time) => left + ((Math.max(time, from) - from) / (at - from || 1)) * (width - left - 4);
    Object.assign(this, { from, lanes, height, x, left, width, bottom: y });
    this.boxes = this.place(seen, laneOf);
    this.paint();
  }

  fit(height) {
    const ratio = devicePixelRatio || 1, width = this.canvas.clientWidth;
    if (this.canvas.style.height !== `${height}px`) this.canvas.style.height = `${height}px`;
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  place(seen, laneOf) {
    const { slots, at, crashes } = this.data;
    const boxes = seen.map((job) => ({
      job, slot: job[2], y: laneOf(job[2], job[3] ?? 0), x: this.x(job[4]),
      width: widthOf(this.x(job[5]) - this.x(job[4])), colour: colourOf(job[1]),
      failed: FAILURES.has(job[7]), lines: this.tell(job) }));
    for (const slot of slots) {
      slot.running.forEach(([id, name, attempt, seconds], index) => {
        const rows = [...this.lanes.get(slot.slot)?.rows.values() ?? []];
        if (!rows.length) return;
        boxes.push({ slot: slot.slot, y: rows[Math.min(index, rows.length - 1)], x: this.x(at - seconds),
          width: this.width - 4 - this.x(at - seconds), colour: colourOf(name), runs: true,
          lines: () => [this.names[name], `job ${id} runs for ${duration(seconds)}`, `slot ${slot.slot}, attempt ${attempt}`] });
      });
    }
    for (const crash of crashes) {
      const lane = this.lanes.get(crash.slot);
      if (crash.at < this.from || !lane) continue;
      boxes.push({ slot: crash.slot, y: lane.y, x: this.x(crash.at) - 4, width: 8, crash: true,
        lines: () => [`Crash: ${crash.signal || crash.kind}`, `slot ${crash.slot}, pid ${crash.pid}`, crash.function] });
    }
    return boxes.sort((one, other) => one.x - other.x);
  }

  tell(job) {
    const [id, name, slot, lane, begin, end, wait, outcome, attempts] = job;
    return () => [this.names[name], `${outcome} after ${duration(end - begin)}, waited ${duration(wait)}`,
      `job ${id}, slot ${slot}${lane ? `, lane ${lane}` : ""}${attempts > 1 ? `, attempt ${attempts}` : ""}`, clock(end)];
  }

  paint() {
    const { context, boxes, height } = this;
    const bar = Math.max(2, height - (height > 6 ? 2 : 0.5));
    context.clearRect(0, 0, this.width, this.canvas.height);
    context.font = `11px ${css("--sans")}`;
    context.textBaseline = "middle";
    context.fillStyle = css("--lane");
    for (const entry of this.lanes.values())
      context.fillRect(this.left, entry.y, this.width - this.left - 4, entry.end - entry.y - (height > 6 ? 2 : 0));
    this.paintAxis(context);
    const colours = new Map();
    const colour = (name) => colours.get(name) ?? colours.set(name, css(name)).get(name);
    for (const box of boxes) {
      if (box.crash) continue;
      context.globalAlpha = box.runs ? 0.45 : 1;
      context.fillStyle = colour(box.colour);
      context.fillRect(box.x, box.y, box.width, bar);
    }
    context.globalAlpha = 1;
    context.fillStyle = css("--bad");
    // On top of all others: there may be one among thousands.
    for (const box of boxes)
      if (box.failed) context.fillRect(box.x - 0.5, box.y, Math.max(3, box.width + 1), Math.min(bar, Math.max(3, bar * 0.35)));
    boxes.filter((box) => box.crash).forEach((box) => this.paintCrash(box.x + 4, box.y, bar));
    this.paintChosen();
  }

  paintAxis(context) {
    context.fillStyle = css("--muted");
    let free = -1;
    for (const [slot, entry] of [...this.lanes].sort((one, other) => one[0] - other[0])) {
      const middle = (entry.y + entry.end) / 2 - 1;
      if (middle - 6 < free) continue;
      context.textAlign = "right";
      context.fillText(slot, this.left - 8, middle);
      free = middle + 6;
    }
    const { at } = this.data, ticks = this.width < 500 ? 2 : 4;
    for (let tick = 0; tick <= ticks; tick += 1) {
      const time = this.from + ((at - this.from) * tick) / ticks;
      context.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
      const text = tick === ticks ? "now" : `${duration(at - time)} ago`;
      context.fillText(text, this.x(time), this.bottom + 10);
    }
  }

  paintCrash(x, y, bar) {
    const { context } = this, size = 4.5, middle = y + bar / 2;
    context.fillStyle = css("--card");
    context.fillRect(x - 6.5, middle - 6.5, 13, 13);
    context.strokeStyle = css("--bad");
    context.lineWidth = 2.4;
    context.beginPath();
    context.moveTo(x - size, middle - size);
    context.lineTo(x + size, middle + size);
    context.moveTo(x + size, middle - size);
    context.lineTo(x - size, middle + size);
    context.stroke();
  }

  paintChosen() {
    const box = this.chosen;
    if (!box) return;
    this.context.strokeStyle = css("--ink");
    this.context.lineWidth = 1.5;
    this.context.strokeRect(box.x - 1.5, box.y - 1.5, Math.max(4, box.width) + 3, this.height + 1);
  }

  choose(box, clientX, clientY) {
    this.chosen = box;
    this.paint();
    if (!box) return tip.hide();
    const frame = this.canvas.getBoundingClientRect();
    tip.show(clientX ?? frame.left + box.x, clientY ?? frame.top + box.y, box.lines());
  }

  point(event) {
    if (!this.lanes) return;
    const frame = this.canvas.getBoundingClientRect();
    const x = event.clientX - frame.left, y = event.clientY - frame.top;
    let best = null, least = 4;
    for (const box of this.boxes) {
      if (y < box.y || y >= box.y + this.height) continue;
      const away = Math.max(box.x - x, x - box.x - box.width, box.crash ? -1 : 0);
      if (away <= least) [best, least] = [box, away];
    }
    if (best || this.chosen) this.choose(best, event.clientX, event.clientY);
  }

  key(event) {
    const { boxes } = this, last = boxes.length - 1;
    if (event.key === "Escape") return this.leave();
    if (!boxes.length || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    // A new drawing has other boxes of the same jobs.
    let next = boxes[last];
    const from = this.chosen;
    if (event.key === "Home") next = boxes[0];
    else if (from && event.key.match(/Left|Right/)) {
      const lane = boxes.filter((box) => box.y === from.y);
      const before = lane.filter((box) => box.x < from.x).at(-1), after = lane.find((box) => box.x > from.x);
      next = (event.key === "ArrowLeft" ? before : after) ?? from;
    } else if (from && event.key !== "End") {
      const down = event.key === "ArrowDown";
      const others = boxes.filter((box) => (down ? box.y > from.y : box.y < from.y));
      const y = down ? Math.min(...others.map((box) => box.y)) : Math.max(...others.map((box) => box.y));
      next = others.filter((box) => box.y === y).reduce((best, box) =>
        Math.abs(box.x - from.x) < Math.abs(best.x - from.x) ? box : best, others.find((box) => box.y === y)) ?? from;
    }
    this.choose(next);
    tip.say(next.lines());
  }

  leave() {
    if (this.chosen) this.choose(null);
  }
}
