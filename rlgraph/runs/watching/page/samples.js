// The samples of runs: from the server, or, in an exported file, from the page itself.
const PAGE = 30;

// What the server answers to `samples.json`, of the samples that an exported page has.
function exportedSamples(rows, asked) {
  const steps = [...new Set(rows.map((row) => row.step))];
  if (!steps.length) return { rows: [], step: 0, steps: [0, 0], next: null, total: 0 };
  const ends = [steps.at(-1), steps[0]], begin = Number(asked.next || 0);
  let chosen, step;
  if (asked.search) {
    const wanted = asked.search.toLowerCase();
    chosen = rows.filter((row) => `${row.prompt}\0${row.answer}`.toLowerCase().includes(wanted));
    step = ends[0];
  } else {
    const near = asked.step ? Number(asked.step) : ends[1];
    step = steps.reduce((best, other) => (Math.abs(other - near) < Math.abs(best - near) ? other : best));
    chosen = rows.filter((row) => row.step === step);
    const value = (row) => (typeof row.reward === "number" ? row.reward : -Infinity);
    if (asked.order === "best") chosen.sort((a, b) => value(b) - value(a));
    if (asked.order === "worst") chosen.sort((a, b) => value(a) - value(b));
  }
  const next = begin + PAGE < chosen.length ? begin + PAGE : null;
  return { rows: chosen.slice(begin, begin + PAGE), step, steps: ends, next, total: asked.search ? null : chosen.length, known: steps };
}

class Samples {
  constructor(state) {
    this.state = state;
    this.page = null;
    this.asking = 0;
    const again = () => this.show();
    byId("sample-run").addEventListener("change", again);
    byId("order").addEventListener("change", again);
    byId("sample-step").addEventListener("change", again);
    byId("search").addEventListener("input", () => {
      clearTimeout(this.waiting);
      this.waiting = setTimeout(again, 200);
    });
    byId("search").addEventListener("keydown", (event) => { if (event.key === "Enter") again(); });
    byId("step-before").addEventListener("click", () => this.move(-1));
    byId("step-after").addEventListener("click", () => this.move(1));
    byId("more").addEventListener("click", () => this.show(this.page.next));
  }

  runs(runs) {
    const chosen = byId("sample-run").value;
    byId("sample-run").replaceChildren(...runs.map((run, at) => element("option", { value: at }, run.name)));
    byId("sample-run").hidden = runs.length < 2;
    byId("sample-run").value = chosen || "0";
  }

  // To the step before or after that has samples.
  move(by) {
    if (!this.page) return;
    const known = this.page.known, at = known && known.indexOf(this.page.step);
    byId("sample-step").value = known ? known[Math.min(Math.max(at - by, 0), known.length - 1)] : this.page.step + by;
    this.show();
  }

  async show(next = null) {
    clearTimeout(this.waiting);
    const asked = { run: byId("sample-run").value || "0", order: byId("order").value, step: byId("sample-step").value,
      search: byId("search").value, next: next === null ? "" : String(next) };
    const number = ++this.asking;
    let page;
    try {
      page = this.state.live ? await (await fetch(`samples.json?${new URLSearchParams(asked)}`)).json()
        : exportedSamples(this.state.samples[Number(asked.run)], asked);
    } catch {
      byId("sample-note").textContent = "The server does not answer: has `rlgraph watch` ended?";
      return;
    }
    // Answers may come in another order than they were asked for.
    if (number !== this.asking) return;
    this.page = page;
    if (next === null) byId("rows").replaceChildren();
    byId("rows").append(...page.rows.map((row) => sampleCard(row, asked.search)));
    this.note(asked.search);
  }

  // How many rows an exported page has of how many the run has kept.
  inFile() {
    const run = Number(byId("sample-run").value || 0), [here, kept] = [this.state.samples[run].length, this.state.kept[run]];
    return `${here.toLocaleString("en")} of ${kept.toLocaleString("en")} rows`;
  }

  note(wanted) {
    const page = this.page, [first, last] = page.steps, count = byId("rows").children.length;
    const note = byId("sample-note");
    byId("sample-step").disabled = byId("order").disabled = wanted !== "";
    byId("more").hidden = page.next === null;
    byId("more").textContent = wanted ? "Search on" : "More";
    byId("step-before").disabled = wanted !== "" || page.step <= first;
    byId("step-after").disabled = wanted !== "" || page.step >= last;
    if (!last) note.textContent = "No samples: the run has kept none, or has not come to its first step.";
    else if (wanted) {
      const many = `${count} sample${count === 1 ? "" : "s"}`;
      const where = this.state.live ? (page.next === null ? "in all steps" : `back to step ${page.step.toLocaleString("en")}`) : `among the ${this.inFile()}`;
      note.textContent = `${count ? many : "Nothing found"} ${where}`;
    } else {
      byId("sample-step").value = page.step;
      byId("sample-step").min = first;
      byId("sample-step").max = last;
      note.textContent = `Step ${page.step.toLocaleString("en")} of ${first.toLocaleString("en")} to ${last.toLocaleString("en")}, ${page.total} rows kept${this.state.live ? "" : `; this file has ${this.inFile()}`}`;
    }
  }
}

function sampleCard(row, wanted) {
  const facts = element("div", { class: "facts" });
  if (row.reward !== null) facts.append(element("span", { class: "reward" }, `reward ${shortNumber(row.reward)}`));
  const scores = Object.entries(row.scores);
  if (scores.length > 1 || row.reward === null) facts.append(...scores.map(([name, value]) => element("span", {}, `${name} ${shortNumber(value)}`)));
  if (wanted) facts.append(element("span", {}, `step ${row.step.toLocaleString("en")}`));
  facts.append(element("span", {}, `${row.length.toLocaleString("en")} token${row.length === 1 ? "" : "s"}`),
    element("span", {}, `weights ${row.version}`), element("span", {}, row.row));
  return element("article", { class: "card sample" }, facts, textBlock("prompt", row.prompt, wanted), textBlock("answer", row.answer, wanted));
}

// A text behind its name; a long one is folded until somebody asks for it.
function textBlock(name, text, wanted) {
  const shown = element("pre", {}, ...marked(text, wanted));
  const block = element("div", { class: `text ${name}` }, element("span", {}, name), shown);
  if (text.length < 700 && text.split("\n").length <= 8) return block;
  shown.classList.add("folded");
  const button = element("button", { class: "fold", "aria-expanded": "false", onclick: () => {
    const folded = shown.classList.toggle("folded");
    button.textContent = folded ? "Show all" : "Show less";
    button.setAttribute("aria-expanded", String(!folded));
  } }, "Show all");
  block.append(button);
  return block;
}
