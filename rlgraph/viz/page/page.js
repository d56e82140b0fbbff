"use strict";
(() => {
  const stage = document.getElementById("stage");
  const told = document.getElementById("told");
  const nodes = JSON.parse(document.getElementById("nodes").textContent);
  const pictures = [...document.querySelectorAll(".picture")];
  const kind = document.getElementById("kind"), pass = document.getElementById("pass");
  const rows = [...document.querySelectorAll(".src")];
  const view = { x: 0, y: 0, scale: 1 };
  const current = () => pictures.find((picture) => !picture.hidden);

  // Where one looks at: drag, scroll, buttons.
  function show() {
    const picture = current();
    if (picture) picture.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.scale})`;
  }
  const size = () => current()?.querySelector("svg")?.viewBox.baseVal;
  // At first sight: all of it where its labels can be read at that size, else its beginning at one that can be read.
  const READABLE = innerWidth < 700 ? 0.7 : 0.9;
  function place(least, most) {
    const box = size();
    if (!box) return;
    const whole = Math.min(stage.clientWidth / box.width, stage.clientHeight / box.height);
    view.scale = Math.min(most, Math.max(whole, least));
    view.x = Math.max(0, (stage.clientWidth - box.width * view.scale) / 2);
    view.y = 0;
    show();
  }
  const begin = () => place(READABLE, 1.25);
  const fit = () => place(0.05, 2);
  // Moves the picture, which stays in sight.
  function move(x, y) {
    const box = size();
    if (!box) return;
    const wide = box.width * view.scale, tall = box.height * view.scale, rest = 80;
    view.x = Math.min(stage.clientWidth - rest, Math.max(rest - wide, view.x + x));
    view.y = Math.min(stage.clientHeight - rest, Math.max(rest - tall, view.y + y));
    show();
  }
  function zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(0.05, view.scale * factor));
    view.x = x - ((x - view.x) * scale) / view.scale;
    view.y = y - ((y - view.y) * scale) / view.scale;
    view.scale = scale;
    show();
  }
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const place = stage.getBoundingClientRect();
    // As on maps: with Ctrl, and with two fingers that move apart, which browsers report so.
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY * 0.004), event.clientX - place.left, event.clientY - place.top);
    else if (event.shiftKey) move(-event.deltaY, 0);
    else move(-event.deltaX, -event.deltaY);
  }, { passive: false });
  let held = null, moved = false;
  // Two fingers: their middle stays where it is in the picture.
  const fingers = new Map();
  let apart = 0;
  stage.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    apart = 0;
    held = { x: event.clientX - view.x, y: event.clientY - view.y, startX: event.clientX, startY: event.clientY };
    moved = false;
  });
  window.addEventListener("pointermove", (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
    if (fingers.size === 2) {
      const [a, b] = fingers.values(), area = stage.getBoundingClientRect(), now = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
      if (apart) zoom(now / apart, (a.clientX + b.clientX) / 2 - area.left, (a.clientY + b.clientY) / 2 - area.top);
      apart = now;
      held = null;
      moved = true;
      return;
    }
    if (!held) return;
    moved ||= Math.hypot(event.clientX - held.startX, event.clientY - held.startY) > 4;
    if (!moved) return;
    stage.classList.add("moving");
    view.x = event.clientX - held.x;
    view.y = event.clientY - held.y;
    show();
  });
  for (const end of ["pointerup", "pointercancel"]) {
    window.addEventListener(end, (event) => { fingers.delete(event.pointerId); held = null; stage.classList.remove("moving"); });
  }
  document.getElementById("fit").onclick = fit;
  document.getElementById("in").onclick = () => zoom(1.25, stage.clientWidth / 2, stage.clientHeight / 2);
  document.getElementById("out").onclick = () => zoom(0.8, stage.clientWidth / 2, stage.clientHeight / 2);
  kind.onchange = pass.onchange = () => turn();
  const panel = document.getElementById("panel");
  panel.onclick = () => {
    const shown = document.body.classList.toggle("alone");
    panel.setAttribute("aria-pressed", String(!shown));
    begin();
  };

  // What a box is: its text, what it waits for, its line of the program.
  function add(tag, text, name) {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    told.append(element);
  }
  function mark(lines) {
    rows.forEach((row) => row.classList.toggle("marked", lines.includes(Number(row.dataset.line))));
    document.querySelector(".src.marked")?.scrollIntoView({ block: "nearest" });
  }
  const HINT = "Choose a box to see what it is. Drag or scroll to move, Ctrl and scroll to zoom. Keys: / finds, arrows go from box to box, + \u2212 0 zoom, p hides the program.";
  let chosen = null;
  function choose(element, centred = false) {
    document.querySelectorAll(".node.chosen").forEach((found) => found.classList.remove("chosen"));
    const node = element && nodes[element.id];
    chosen = node ? element : null;
    told.replaceChildren();
    if (!node) {
      add("p", HINT, "hint");
      mark([]);
      return;
    }
    element.classList.add("chosen");
    add("h2", node.title);
    add("p", node.place ? `${node.kind}, ${node.place}` : node.kind);
    if (node.note) add("p", node.note);
    if (node.waits) add("p", `${node.waits}: ${node.reason}`, "waits");
    if (node.text) add("pre", node.text);
    mark(node.lines);
    history.replaceState(null, "", `#${encodeURIComponent(element.id)}`);
    if (centred) centre(element);
  }
  // Moves the picture so that a box is in the middle, if it is not well in sight.
  function centre(element) {
    const box = element.getBoundingClientRect(), area = stage.getBoundingClientRect(), edge = 24;
    const seen = box.left > area.left + edge && box.right < area.right - edge && box.top > area.top + edge && box.bottom < area.bottom - edge;
    if (!seen) move(area.x + area.width / 2 - box.x - Math.min(box.width, area.width) / 2, area.y + area.height / 2 - box.y - Math.min(box.height, area.height) / 2);
  }
  stage.addEventListener("click", (event) => { if (!moved) choose(event.target.closest(".node")); });

  // A value under the pointer lights up wherever it goes.
  stage.addEventListener("pointerover", (event) => {
    const line = event.target.closest(".line");
    const picture = current();
    picture?.classList.toggle("dim", Boolean(line));
    picture?.querySelectorAll(".line").forEach((found) => {
      found.classList.toggle("lit", Boolean(line) && found.dataset.value === line.dataset.value);
    });
  });

  // The other way: from a line of the program to its boxes, one after the other where it has several.
  const made = (row) => [...(current()?.querySelectorAll(".node") ?? [])].filter(
    (box) => nodes[box.id].lines.includes(Number(row.dataset.line)));
  const graphs = pictures.filter((picture) => !picture.dataset.kind);
  function turn() {
    const plan = pictures.find((picture) => picture.dataset.kind === kind.value);
    const shown = plan ?? graphs[pass.selectedIndex];
    pictures.forEach((picture) => { picture.hidden = picture !== shown; });
    document.getElementById("after").hidden = Boolean(plan) || graphs.length < 2;
    rows.forEach((row) => row.classList.toggle("known", made(row).length > 0));
    choose(null);
    begin();
    find();
  }
  rows.forEach((row) => {
    row.onclick = () => {
      const boxes = made(row);
      const next = boxes.findIndex((box) => box.classList.contains("chosen")) + 1;
      if (boxes.length) choose(boxes[next % boxes.length], true);
    };
  });

  // Search: boxes whose title or text has it; Enter goes from one to the next.
  const field = document.getElementById("find"), found = document.getElementById("found");
  let hits = [];
  function find() {
    const wanted = field.value.trim().toLowerCase(), picture = current();
    const boxes = [...(picture?.querySelectorAll(".node") ?? [])];
    hits = wanted ? boxes.filter((box) => `${nodes[box.id].title}\n${nodes[box.id].note}\n${nodes[box.id].text}`.toLowerCase().includes(wanted)) : [];
    boxes.forEach((box) => box.classList.toggle("hit", hits.includes(box)));
    picture?.classList.toggle("searched", wanted !== "");
    found.textContent = wanted ? `${hits.length} box${hits.length === 1 ? "" : "es"}` : "";
  }
  field.addEventListener("input", () => { find(); if (hits.length) choose(hits[0], true); });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && hits.length) choose(hits[(hits.indexOf(chosen) + (event.shiftKey ? hits.length - 1 : 1)) % hits.length], true);
    if (event.key === "Escape") { field.value = ""; find(); stage.focus(); }
  });

  // The nearest box in a direction; what lies aside counts as farther.
  function nearest(across, down) {
    const boxes = [...(current()?.querySelectorAll(".node") ?? [])];
    if (!chosen) return boxes[0];
    const middle = (box) => { const at = box.getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]; };
    const [x, y] = middle(chosen);
    const far = (box) => {
      const [to, low] = middle(box), ahead = (to - x) * across + (low - y) * down, aside = Math.abs((to - x) * down) + Math.abs((low - y) * across);
      return ahead > 4 ? ahead + 2 * aside : Infinity;
    };
    const best = boxes.reduce((near, box) => (far(box) < far(near) ? box : near), boxes[0]);
    return far(best) === Infinity ? chosen : best;
  }
  const middleOf = () => [stage.clientWidth / 2, stage.clientHeight / 2];
  const KEYS = {
    ArrowLeft: () => choose(nearest(-1, 0), true), ArrowRight: () => choose(nearest(1, 0), true),
    ArrowUp: () => choose(nearest(0, -1), true), ArrowDown: () => choose(nearest(0, 1), true),
    "+": () => zoom(1.25, ...middleOf()), "=": () => zoom(1.25, ...middleOf()), "-": () => zoom(0.8, ...middleOf()),
    0: fit, 1: begin, p: () => panel.click(), Escape: () => choose(null), "/": () => { field.focus(); field.select(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  // A link to a box: its id, or its title in the picture that is shown first.
  function follow() {
    const wanted = decodeURIComponent(location.hash.slice(1));
    if (!wanted) return;
    const titled = () => [...(current()?.querySelectorAll(".node") ?? [])].find((box) => nodes[box.id].title === wanted);
    const element = nodes[wanted] ? document.getElementById(wanted) : titled();
    const picture = element?.closest(".picture");
    if (!picture) return;
    if (picture.hidden) {
      if (picture.dataset.kind) kind.value = picture.dataset.kind;
      else {
        if (kind.options.length) kind.value = "dataflow";
        pass.selectedIndex = graphs.indexOf(picture);
      }
      turn();
    }
    choose(element, true);
  }
  addEventListener("hashchange", follow);
  addEventListener("resize", begin);
  turn();
  follow();
})();
