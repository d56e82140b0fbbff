// The plan's picture with what was measured, who waited for whom, memory, and ages of rows.
function shortBytes(bytes) {
  if (bytes === null || bytes === undefined) return "\u2013";
  const at = bytes >= 1e9 ? [1e9, "GB"] : bytes >= 1e6 ? [1e6, "MB"] : [1e3, "kB"];
  return `${Number((bytes / at[0]).toPrecision(3))} ${at[1]}`;
}

const runTitle = (title, run) => (state.runs.length > 1 ? `${title} \u00b7 ${run.name}` : title);

// The picture as wide as its card where that is not too small to read; else the card scrolls.
function planPicture(run) {
  const parsed = new DOMParser().parseFromString(run.plan, "image/svg+xml").documentElement;
  const svg = document.importNode(parsed, true), natural = svg.viewBox.baseVal.width;
  const box = element("div", { class: "picture", tabindex: "0", role: "group", "aria-label": `The plan of ${run.name}` }, svg);
  const told = element("pre", { class: "told", hidden: true });
  // Beside its tables where it fits there, else above them.
  const beside = document.querySelector("main").clientWidth - 520, wide = innerWidth <= 1000 || natural > beside;
  const scale = Math.min(1, Math.max((wide ? chartWidth(1e6) : beside) / natural, 0.8));
  svg.setAttribute("width", Math.round(natural * scale));
  svg.setAttribute("height", Math.round(svg.viewBox.baseVal.height * scale));
  const choose = (node) => {
    svg.querySelectorAll(".chosen").forEach((chosen) => chosen.classList.remove("chosen"));
    node.classList.add("chosen");
    told.hidden = false;
    told.textContent = node.querySelector("title").textContent;
  };
  for (const node of svg.querySelectorAll(".node")) {
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", "button");
    node.addEventListener("click", () => choose(node));
    node.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(node); });
  }
  return [wide, box, told];
}

function waitsTable(run) {
  const rows = Object.entries(run.waits).flatMap(([pool, waited]) => Object.entries(waited).sort((a, b) => b[1] - a[1]).slice(0, 8)
    .map(([whom, seconds]) => [pool, whom, seconds])).filter((row) => row[2] > 0);
  if (!rows.length) return element("p", { class: "muted" }, "Nobody waited: all work is done in one process, or by one pool.");
  const most = Math.max(...rows.map((row) => row[2]));
  return element("table", {}, element("thead", {}, element("tr", {}, ...["pool", "waited for"].map((name) => element("th", {}, name)), element("th", { class: "number" }, "a step"), element("th", {}))),
    element("tbody", {}, ...rows.map(([pool, whom, seconds]) => element("tr", {}, element("td", {}, pool), element("td", {}, whom),
      element("td", { class: "number" }, shortSeconds(seconds)), element("td", { class: "bar" }, element("i", { style: `${hue(1)}; width: ${(100 * seconds) / most}%` }))))));
}

function memoryTable(run) {
  if (!run.memory.length) return element("p", { class: "muted" }, "No memory measured yet.");
  const most = Math.max(...run.memory.flatMap((pool) => [pool.capacity ?? 0, pool.predicted ?? 0, ...pool.processes.map((process) => process[1])]));
  const bar = (bytes, name) => element("i", { class: name, style: `${hue(0)}; width: ${(100 * bytes) / most}%` });
  const rows = run.memory.flatMap((pool) => [
    pool.predicted ? element("tr", {}, element("td", {}, `${pool.pool}, predicted`), element("td", { class: "number muted" }, shortBytes(pool.predicted)), element("td", { class: "bar" }, bar(pool.predicted, "predicted"))) : null,
    ...pool.processes.map(([name, bytes]) => element("tr", {}, element("td", {}, `${pool.pool}, ${name}`), element("td", { class: "number" }, shortBytes(bytes)), element("td", { class: "bar" }, bar(bytes, "")))),
    pool.others ? element("tr", {}, element("td", {}, `${pool.pool}, ${pool.others} others`), element("td", { class: "number" }, `${shortBytes(pool.least)} or more`), element("td", {})) : null].filter(Boolean));
  return element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "process"), element("th", { class: "number" }, "at most"), element("th", {}))), element("tbody", {}, ...rows));
}

function showPlan() {
  const several = state.runs.length > 1;
  byId("plan").replaceChildren(...shownRuns().flatMap(({ run, number }) => {
    const head = several ? [element("h2", { class: "run-name" }, element("span", { class: "dot", style: hue(number) }), run.name)] : [];
    const [wide, ...drawing] = run.plan ? planPicture(run) : [false];
    const picture = drawing.length ? element("article", { class: "card plan" }, ...drawing) : emptyText("No picture: the program has no plan, or the run is of an earlier version.");
    const beside = element("div", { class: "beside" },
      element("article", { class: "card" }, element("h2", {}, "Who waits for whom"), waitsTable(run)),
      element("article", { class: "card" }, element("h2", {}, "Memory"), memoryTable(run),
        element("p", { class: "muted" }, "The most that a process has had on its device; on a CPU, in its machine's memory.")));
    return [...head, element("div", { class: wide ? "planned wide" : "planned" }, picture, beside)];
  }));
}

// Rows of runs whose steps overlap, by how old they were.
function agesOfRows() {
  return shownRuns().filter(({ run }) => run.ages.x.length).map(({ run }) => {
    const named = Object.fromEntries(Object.entries(run.ages.rows).map(([age, rows]) => [age, rows]));
    const total = Object.values(run.ages.total).reduce((sum, rows) => sum + rows, 0), most = Math.max(...Object.values(run.ages.total));
    const rows = Object.entries(run.ages.total).map(([age, count], place) => element("tr", {},
      element("td", {}, element("span", { class: "dot", style: `${hue(place)}; display: inline-block; margin-right: 8px` }), `${age} version${age === "1" ? "" : "s"}`),
      element("td", { class: "number" }, count.toLocaleString("en")), element("td", { class: "number muted" }, `${Number(((100 * count) / total).toPrecision(3))}%`),
      element("td", { class: "bar" }, element("i", { style: `${hue(place)}; width: ${(100 * count) / most}%` }))));
    const table = element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "behind"), element("th", { class: "number" }, "rows"), element("th", {}), element("th", {}))), element("tbody", {}, ...rows));
    return element("div", { class: "grid two ages" },
      element("article", { class: "card" }, element("h2", {}, runTitle("Ages of rows by step", run)), stackChart(run.ages.x, named, chartWidth(560), 280, "Rows of each age by step").svg),
      element("article", { class: "card" }, element("h2", {}, runTitle("Ages of all rows", run)), table,
        element("p", { class: "muted" }, "By how many versions the weights that were trained were ahead of those that had sampled a row, when it was first trained on.")));
  });
}
