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
  function fit() {
    const svg = current()?.querySelector("svg");
    if (!svg) return;
    const box = svg.viewBox.baseVal;
    view.scale = Math.min(1, stage.clientWidth / box.width, Math.max(0.55, stage.clientHeight / box.height));
    view.x = Math.max(0, (stage.clientWidth - box.width * view.scale) / 2);
    view.y = 0;
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
    zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - place.left, event.clientY - place.top);
  }, { passive: false });
  let held = null, moved = false;
  stage.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX - view.x, y: event.clientY - view.y, startX: event.clientX, startY: event.clientY };
    moved = false;
  });
  window.addEventListener("pointermove", (event) => {
    if (!held) return;
    moved ||= Math.hypot(event.clientX - held.startX, event.clientY - held.startY) > 4;
    if (!moved) return;
    stage.classList.add("moving");
    view.x = event.clientX - held.x;
    view.y = event.clientY - held.y;
    show();
  });
  window.addEventListener("pointerup", () => { held = null; stage.classList.remove("moving"); });
  document.getElementById("fit").onclick = fit;
  document.getElementById("in").onclick = () => zoom(1.25, stage.clientWidth / 2, stage.clientHeight / 2);
  document.getElementById("out").onclick = () => zoom(0.8, stage.clientWidth / 2, stage.clientHeight / 2);
  kind.onchange = pass.onchange = turn;

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
  function choose(element) {
    document.querySelectorAll(".node.chosen").forEach((found) => found.classList.remove("chosen"));
    const node = element && nodes[element.id];
    told.replaceChildren();
    if (!node) {
      add("p", "Click on a box to see what it is. Drag to move, scroll to zoom.", "hint");
      mark([]);
      return;
    }
    element.classList.add("chosen");
    add("h2", node.title);
    add("p", node.place ? `${node.kind}, ${node.place}` : node.kind);
    if (node.waits) add("p", `${node.waits}: ${node.reason}`, "waits");
    if (node.text) add("pre", node.text);
    mark(node.lines);
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
  function turn() {
    const graphs = pictures.filter((picture) => !picture.dataset.kind);
    const plan = pictures.find((picture) => picture.dataset.kind === kind.value);
    const shown = plan ?? graphs[pass.selectedIndex];
    pictures.forEach((picture) => { picture.hidden = picture !== shown; });
    document.getElementById("after").hidden = Boolean(plan) || graphs.length < 2;
    rows.forEach((row) => row.classList.toggle("known", made(row).length > 0));
    choose(null);
    fit();
  }
  rows.forEach((row) => {
    row.onclick = () => {
      const boxes = made(row);
      const next = boxes.findIndex((box) => box.classList.contains("chosen")) + 1;
      if (boxes.length) choose(boxes[next % boxes.length]);
    };
  });

  window.addEventListener("resize", fit);
  turn();
})();
