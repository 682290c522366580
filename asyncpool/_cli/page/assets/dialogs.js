"use strict";
// What is asked for at a click: stacks, a profile as a flame graph, and actions.

const dialogs = {
  open(title, ...content) {
    setText(byId("dialog-title"), title);
    byId("dialog-body").replaceChildren(...content);
    if (!byId("dialog").open) byId("dialog").showModal();
  },

  async ask(program, question) {
    try {
      const response = await fetch("ask", { method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ program, ...question }) });
      return await response.json();
    } catch (error) {
      return { error: `The dashboard does not answer: ${error.message}` };
    }
  },

  async stacks(program, slot = null) {
    const title = slot === null ? "Stacks of all workers" : `Stack of slot ${slot}`;
    dialogs.open(title, el("p", { class: "muted" }, "Asking the workers…"));
    const reply = await dialogs.ask(program, slot === null ? { action: "stacks" } : { action: "stacks", slot });
    if (reply.error) return dialogs.open(title, el("p", { class: "note" }, reply.error));
    const found = Object.entries(reply.stacks).filter(([number]) => slot === null || Number(number) === slot);
    const shown = found.flatMap(([number, text]) => [el("h3", {}, `Slot ${number}`), el("pre", { tabindex: 0 }, text || "idle")]);
    dialogs.open(title, ...(shown.length ? shown : [el("p", {}, "No worker runs a job.")]));
  },

  async requests(program) {
    const title = "Open requests";
    dialogs.open(title, el("p", { class: "muted" }, "Asking the workers…"));
    const reply = await dialogs.ask(program, { action: "requests" });
    if (reply.error) return dialogs.open(title, el("p", { class: "note" }, reply.error));
    const shown = reply.requests.map((it) => el("details", {},
      el("summary", {}, `${it.method} ${it.path}`, el("span", { class: "muted small" },
        ` for ${duration(it.age)}, from ${it.client}, slot ${it.worker}`)),
      el("pre", { tabindex: 0 }, it.stack ?? "It runs in a thread.")));
    dialogs.open(title, ...(shown.length ? shown : [el("p", {}, "No request is open.")]));
  },

  async profile(program, slot = null) {
    const seconds = 5, title = slot === null ? "Profile of all workers" : `Profile of slot ${slot}`;
    dialogs.open(title, el("p", { class: "muted" }, `Sampling for ${seconds} s…`));
    const reply = await dialogs.ask(program, { action: "profile", seconds, ...(slot === null ? {} : { slot }) });
    if (reply.error) return dialogs.open(title, el("p", { class: "note" }, reply.error));
    const graph = el("div", { class: "flame" });
    const about = el("p", { class: "muted small" }, `${count(reply.samples ?? 0)} samples in ${duration(reply.seconds ?? seconds)}; a click, or Enter, zooms`);
    dialogs.open(title, about, graph);
    flame(graph, flameTree(reply.stacks));
  },

  confirm(title, text, button, act) {
    const result = el("p", { class: "muted", role: "status" });
    dialogs.open(title, el("p", {}, ...text), el("button", { class: "danger", onclick: async () => {
      setText(result, "Asked…");
      const reply = await act();
      if (reply.error) setText(result, reply.error);
      else byId("dialog").close();
    } }, button), result);
  },

  resize(program, workers) {
    const input = el("input", { type: "number", min: 1, max: 4096, value: workers, id: "wanted" });
    dialogs.confirm(`Resize ${program}`, [el("label", { for: "wanted" }, "Workers "), input], "Resize",
      () => dialogs.ask(program, { action: "resize", workers: Number(input.value) }));
  },
};

function flameTree(stacks) {
  const root = { name: "all", value: 0, children: new Map() };
  for (const [stack, samples] of stacks) {
    root.value += samples;
    let node = root;
    for (const name of stack.split(";")) {
      if (!node.children.has(name)) node.children.set(name, { name, value: 0, children: new Map(), parent: node });
      node = node.children.get(name);
      node.value += samples;
    }
  }
  return root;
}

function flame(box, top) {
  const rows = [];
  const place = (node, depth, left, share) => {
    if (share < 0.002) return;
    const part = percent(node.value / top.value);
    const button = el("button", { class: `frame w${depth % 4}`, title: `${node.name}: ${count(node.value)} samples, ${part}`,
      onclick: () => flame(box, node) }, node.name);
    button.style.left = `${left * 100}%`;
    button.style.width = `${share * 100}%`;
    (rows[depth] ??= el("div", { class: "flame-row" })).append(button);
    let at = left;
    for (const child of node.children.values()) {
      const width = (share * child.value) / node.value;
      place(child, depth + 1, at, width);
      at += width;
    }
  };
  if (!top.value) return box.replaceChildren(el("p", {}, "No worker ran a job."));
  place(top, 0, 0, 1);
  const back = top.parent ? [el("button", { class: "back", onclick: () => flame(box, top.parent) }, "Zoom out")] : [];
  box.replaceChildren(...back, ...rows);
}
