// The page of runs: which view is shown, and what is in it.
const state = JSON.parse(byId("data").textContent);
const TABS = ["curves", "samples", "rewards", "plan", "time", "events"];
const FIRST_METRICS = 12, EVERY_MS = 2000;
const view = { tab: "curves", metrics: null, wide: null, hidden: new Set(), filter: "" };
const samples = new Samples(state);

// What is chosen is in the address, so that it can be kept and sent.
function readAddress() {
  const kept = new URLSearchParams(location.hash.slice(1));
  if (TABS.includes(kept.get("tab"))) view.tab = kept.get("tab");
  if (kept.has("metrics")) view.metrics = new Set(kept.getAll("metrics"));
  byId("log").checked = kept.has("log");
  byId("smooth").value = kept.get("smooth") ?? 0;
}

function keepAddress() {
  const kept = new URLSearchParams();
  if (view.tab !== "curves") kept.set("tab", view.tab);
  if (byId("log").checked) kept.set("log", "1");
  if (Number(byId("smooth").value)) kept.set("smooth", byId("smooth").value);
  for (const name of view.metrics ?? []) kept.append("metrics", name);
  history.replaceState(null, "", `#${kept}`);
}

// The width of a chart in a card of a grid whose cards are no narrower than `least`, so that its texts are not scaled.
function chartWidth(least) {
  const room = document.querySelector("main").clientWidth - (innerWidth <= 640 ? 24 : 40), gap = 14;
  const columns = Math.max(1, Math.floor((room + gap) / (least + gap)));
  return Math.floor((room - gap * (columns - 1)) / columns) - 30;
}

const shownRuns = () => state.runs.map((run, number) => ({ run, number })).filter(({ number }) => !view.hidden.has(number));

// Header

function runStatus(run) {
  const steps = `step ${run.steps.toLocaleString("en")}${run.planned ? ` of ${run.planned.toLocaleString("en")}` : ""}`;
  if (!run.steps) return run.ended ? `no steps, ${run.ended.outcome}` : "no steps yet";
  if (run.ended) return `${steps}, ${run.ended.outcome} ${ago(run.last_s)}`;
  return run.last_s ? `${steps}, last heard of ${ago(run.last_s)}` : steps;
}

function showHeader() {
  byId("runs").replaceChildren(...state.runs.map((run, number) => {
    const failed = run.ended && run.ended.outcome !== "finished";
    const about = Object.entries(run.settings).map(([name, value]) => `${name}: ${value}`).join("\n");
    const tick = state.runs.length < 2 ? element("span", { class: "dot" })
      : element("input", { type: "checkbox", checked: !view.hidden.has(number), "aria-label": `Show ${run.name}`, onchange: (event) => {
        view.hidden[event.target.checked ? "delete" : "add"](number);
        showView();
      } });
    return element("label", { class: "run", style: hue(number), title: `${run.path}\n${about}` }, tick, element("strong", {}, run.name),
      element("span", { class: failed ? "bad" : "muted" }, runStatus(run)));
  }));
}

function showTab(tab, focus = false) {
  view.tab = tab;
  for (const name of TABS) {
    const button = byId(`tab-${name}`), chosen = name === tab;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    byId(name).hidden = !chosen;
    if (chosen && focus) button.focus();
  }
  keepAddress();
  showView();
}

function showView() {
  ({ curves: showCurves, samples: () => { if (!samples.page) samples.show(); }, rewards: showRewards, plan: showPlan, time: showTime, events: showEvents })[view.tab]();
}

// Curves

const isMachine = (name) => name === "seconds" || name.startsWith("sync/") || name.startsWith("sleep/");

function allMetrics() {
  const names = [...new Set(state.runs.flatMap((run) => Object.keys(run.metrics)))];
  return [...names.filter((name) => !isMachine(name)), ...names.filter(isMachine)];
}

const chosenMetrics = (names) => view.metrics ?? new Set(names.slice(0, FIRST_METRICS));

function showCurves() {
  const names = allMetrics(), chosen = chosenMetrics(names), wanted = view.filter.toLowerCase();
  byId("choice").hidden = names.length < 2;
  byId("metrics").replaceChildren(...names.map((name) => element("button", { "aria-pressed": String(chosen.has(name)), onclick: () => {
    const now = new Set(chosen);
    now[now.has(name) ? "delete" : "add"](name);
    view.metrics = now;
    keepAddress();
    showCurves();
    [...byId("metrics").children].find((button) => button.textContent === name)?.focus();
  } }, name)));
  // Whoever searches means all of them, not those that are shown already.
  const shown = names.filter((name) => (wanted ? name.toLowerCase().includes(wanted) : chosen.has(name)));
  byId("grid").replaceChildren(...(shown.length ? shown.map(metricCard) : [emptyText(names.length ? "No such metric." : "No steps yet.")]));
}

const emptyText = (text) => element("p", { class: "empty card wide" }, text);

function metricCard(name) {
  const lines = shownRuns().filter(({ run }) => run.metrics[name]).map(({ run, number }) => ({ name: run.name, number, x: run.x, ...run.metrics[name] }));
  const wide = view.wide === name;
  const values = element("div", { class: "values", "aria-live": "off" });
  const button = element("button", { "aria-label": wide ? "Smaller" : "Larger", onclick: () => {
    view.wide = wide ? null : name;
    showCurves();
    [...document.querySelectorAll("#grid h2")].find((head) => head.textContent === name)?.parentElement.querySelector("button").focus();
  } }, wide ? "\u2013" : "+");
  const card = element("article", { class: wide ? "card wide" : "card", "data-metric": name }, element("div", { class: "head" }, element("h2", {}, name), button), values);
  const odd = shownRuns().filter(({ run }) => run.not_finite[name] !== undefined);
  const size = wide ? [chartWidth(1e6), 420] : [chartWidth(400), 190];
  const chart = curveChart(lines, { width: size[0], height: size[1], log: byId("log").checked, smooth: Number(byId("smooth").value), label: `${name} by step` });
  followPointer(chart, values, size[1]);
  card.append(chart.svg);
  if (odd.length) card.append(element("div", { class: "bad" }, odd.map(({ run }) => `${state.runs.length > 1 ? `${run.name}: ` : ""}NaN or infinite in step ${run.not_finite[name].toLocaleString("en")}`).join(", ")));
  return card;
}

// Shows the numbers of the step below the pointer, or that arrow keys have come to; of the last one at first.
function followPointer(chart, values, height) {
  const steps = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const cross = drawn("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  let at = steps.length - 1;
  chart.svg.append(cross);
  const show = (step) => {
    const texts = chart.lines.map((line) => {
      let place = line.x.length - 1;
      if (step !== null) line.x.forEach((x, other) => { if (Math.abs(x - step) < Math.abs(line.x[place] - step)) place = other; });
      return element("span", { style: hue(line.number), class: state.runs.length < 2 ? "plain" : "" }, shortNumber(line.curve[place]));
    });
    if (step !== null) texts.unshift(element("span", { class: "plain" }, `step ${step.toLocaleString("en")}`));
    values.replaceChildren(...texts);
    cross.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step !== null) ["x1", "x2"].forEach((name) => cross.setAttribute(name, chart.x(step)));
  };
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect(), width = chart.svg.viewBox.baseVal.width;
    const x = ((event.clientX - box.x) / box.width) * width;
    at = steps.reduce((best, step, other) => (Math.abs(chart.x(step) - x) < Math.abs(chart.x(steps[best]) - x) ? other : best), 0);
    if (steps.length) show(steps[at]);
  });
  chart.svg.addEventListener("pointerleave", () => show(null));
  chart.svg.addEventListener("blur", () => show(null));
  chart.svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -steps.length, End: steps.length }[event.key];
    if (!by || !steps.length) return;
    event.preventDefault();
    at = Math.min(Math.max(at + by, 0), steps.length - 1);
    show(steps[at]);
  });
  chart.svg.setAttribute("tabindex", "0");
  show(null);
}

// Rewards, time, events

function showRewards() {
  const cards = shownRuns().flatMap(({ run, number }) => Object.entries(run.spreads).map(([name, spread]) => {
    const last = spread.quantiles.map((values) => values.at(-1));
    const title = state.runs.length > 1 ? `${name} \u00b7 ${run.name}` : name;
    return element("article", { class: "card" }, element("div", { class: "head" }, element("h2", {}, title)),
      element("div", { class: "values" }, element("span", { class: "plain" }, `last: least ${shortNumber(last[0])}, median ${shortNumber(last[Math.floor(last.length / 2)])}, greatest ${shortNumber(last.at(-1))}`)),
      spreadChart(spread, number, chartWidth(560), 280, `Spread of ${name} by step`).svg);
  }));
  const about = element("p", { class: "muted" }, "How the scores of all rows of a step spread: the line is the median; half of the rows lie in the strongest band, eight of ten in the next, all in the faintest.");
  byId("rewards").replaceChildren(...(cards.length ? [about, element("div", { class: "grid two" }, ...cards)] : [emptyText("No scores: the runs have none, or keep no samples.")]), ...agesOfRows());
}

function showTime() {
  const several = state.runs.length > 1;
  byId("time").replaceChildren(...shownRuns().flatMap(({ run, number }) => {
    const seconds = { ...run.work.seconds }, last = { ...run.work.last }, head = several ? [element("h2", { class: "run-name" }, element("span", { class: "dot", style: hue(number) }), run.name)] : [];
    const names = Object.keys(last).filter((name) => last[name] > 0).sort((a, b) => last[b] - last[a]);
    if (!names.length) return [...head, emptyText("No seconds measured yet.")];
    // What takes next to nothing is put together: a step has dozens of pieces of work.
    const total = names.reduce((sum, name) => sum + last[name], 0), small = names.slice(2).filter((name) => last[name] < 0.005 * total);
    if (small.length > 1) {
      const rest = `${small.length} others`;
      names.splice(names.length - small.length, small.length, rest);
      last[rest] = small.reduce((sum, name) => sum + last[name], 0);
      seconds[rest] = run.work.x.map((_, at) => small.reduce((sum, name) => sum + (seconds[name][at] ?? 0), 0));
    }
    const ordered = Object.fromEntries(names.map((name) => [name, seconds[name]]));
    const predicted = run.predicted, most = Math.max(...names.flatMap((name) => [last[name], predicted[name] ?? 0]));
    const foretold = Object.keys(predicted).length > 0;
    const rows = names.map((name, place) => element("tr", {},
      element("td", {}, element("span", { class: "dot", style: `${hue(place)}; display: inline-block; margin-right: 8px` }), name),
      element("td", { class: "number" }, shortSeconds(last[name])),
      foretold ? element("td", { class: "number muted" }, shortSeconds(predicted[name])) : null,
      element("td", { class: "bar" }, element("i", { style: `${hue(place)}; width: ${(100 * last[name]) / most}%` }),
        predicted[name] ? element("i", { class: "predicted", style: `width: ${(100 * predicted[name]) / most}%` }) : null)));
    const table = element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "work"), element("th", { class: "number" }, "measured"),
      foretold ? element("th", { class: "number" }, "predicted") : null, element("th", {}))), element("tbody", {}, ...rows));
    const cards = [element("article", { class: "card" }, element("h2", {}, "Seconds of work by step"), stackChart(run.work.x, ordered, chartWidth(560), 280, "Seconds of work by step").svg),
      element("article", { class: "card" }, element("h2", {}, "Mean of the last 50 steps"), table,
        element("p", { class: "muted" }, `Seconds of work. Where pools work at the same time, they add up to more than the step takes on the clock: ${shortSeconds(run.step_s)}.`))];
    return [...head, element("div", { class: "grid two" }, ...cards)];
  }));
}

const EVENT_NAMES = { run_started: "started", checkpoint_saved: "checkpoint", restarted: "restarted", note: "note", run_ended: "ended" };

function eventText(event) {
  if (event.kind === "run_started") return event.done ? `goes on after step ${event.done}` : Object.entries(event.phases).map(([name, steps]) => `${steps} steps of ${name}`).join(", ");
  if (event.kind === "restarted") return `${event.error}\n${event.text}`;
  return String(event.text ?? event.path ?? "");
}

function showEvents() {
  const listed = shownRuns().flatMap(({ run, number }) => run.events.map((event) => ({ event, run, number }))).sort((a, b) => b.event.time_s - a.event.time_s);
  const rows = listed.map(({ event, run, number }) => {
    const name = event.kind === "run_ended" ? event.outcome : EVENT_NAMES[event.kind] ?? event.kind;
    const mark = state.runs.length > 1 ? element("span", { class: "dot", style: `${hue(number)}; display: inline-block; margin-right: 8px`, title: run.name }) : null;
    return element("tr", {}, element("td", {}, mark, new Date(event.time_s * 1000).toLocaleString()), element("td", {}, `step ${event.step}`),
      element("td", {}, element("span", { class: `kind ${event.kind === "run_ended" ? event.outcome : event.kind}` }, name)), element("td", {}, eventText(event)));
  });
  const damaged = shownRuns().filter(({ run }) => run.damaged).map(({ run }) => element("p", { class: "bad" }, `${run.name}: ${run.damaged} damaged line${run.damaged > 1 ? "s" : ""} left out`));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...["when", "step", "what", ""].map((name) => element("th", {}, name)))), element("tbody", {}, ...rows));
  byId("events").replaceChildren(...damaged, rows.length ? element("div", { class: "card" }, table) : emptyText("Nothing has happened yet."));
}

// Begin

for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
document.querySelector("nav").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by) showTab(TABS[(TABS.indexOf(view.tab) + by + TABS.length) % TABS.length], true);
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const tab = TABS[Number(event.key) - 1];
  if (tab) showTab(tab, true);
  if (event.key === "/" && ["curves", "samples"].includes(view.tab)) {
    event.preventDefault();
    byId(view.tab === "curves" ? "filter" : "search").focus();
  }
});
for (const id of ["smooth", "log"]) byId(id).addEventListener("input", () => { keepAddress(); showCurves(); });
byId("filter").addEventListener("input", () => { view.filter = byId("filter").value; showCurves(); });

let resized = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => { if (view.tab !== "samples") showView(); });
});

// Whoever holds a card by the pointer or the keyboard keeps it: what is new is drawn when they let go.
const isHeld = () => document.querySelector("main svg:hover, main svg:focus, #metrics button:focus") !== null;

async function askForNews() {
  try {
    const news = await (await fetch(`data.json?${new URLSearchParams({ stamp: JSON.stringify(state.stamp) })}`)).json();
    if (news.runs && !isHeld()) {
      Object.assign(state, news);
      showHeader();
      if (view.tab !== "samples") showView();
      document.dispatchEvent(new Event("news"));
    }
  } catch {
    // The server has ended: what is shown stays.
  }
  setTimeout(askForNews, EVERY_MS);
}

readAddress();
showHeader();
samples.runs(state.runs);
showTab(view.tab);
if (state.live) setTimeout(askForNews, EVERY_MS);
