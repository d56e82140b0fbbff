// Draws charts as SVG: curves with bands, quantiles, stacked seconds. Below are places in the picture's own units.
const LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;

// About so many round numbers from one to another.
function roundTicks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const at = [1, 2, 5, 10].findIndex((factor) => factor * power >= raw * 0.999);
  let ticks = [];
  // A smaller step where the round one meets the range only once or twice.
  for (const step of [1, 2, 5, 10].slice(0, at + 1).reverse().concat(0.5).map((factor) => factor * power)) {
    ticks = [];
    for (let at = Math.ceil(low / step - 1e-6); at * step <= high + 1e-6 * step; at++) ticks.push(Number((at * step).toPrecision(12)));
    if (ticks.length > 2) break;
  }
  return ticks;
}

// Powers of ten where there are two or more between, else round numbers.
function logTicks(low, high) {
  const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9), ticks = [];
  const every = Math.max(1, Math.ceil((to - from) / 4));
  for (let power = from; power <= to; power += every) ticks.push(Number(`1e${power}`));
  return ticks.length >= 2 ? ticks : roundTicks(low, high, 3).filter((tick) => tick > 0);
}

// Texts of ticks with as many digits as tell them apart.
function tickTexts(ticks) {
  for (let digits = 4; digits <= 12; digits++) {
    const texts = digits === 4 ? ticks.map(shortNumber) : ticks.map((tick) => String(Number(tick.toPrecision(digits))));
    if (new Set(texts).size === ticks.length) return texts;
  }
  return ticks.map(String);
}

// A frame with axes over the numbers of a chart; x and y place a number.
function frame(width, height, xs, ys, log, label) {
  let [low, high] = ys.length ? [Math.min(...ys), Math.max(...ys)] : [log ? 0.1 : 0, 1];
  // Numbers that differ by rounding alone are the same: there are no ticks between them.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) {
    const around = Math.abs(low) * 0.1 || 1;
    [low, high] = log ? [low / 2, high * 2] : [low - around, high + around];
  } else if (!log) {
    const room = (high - low) * 0.05;
    [low, high] = [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }
  const first = xs.length ? Math.min(...xs) : 0, last = xs.length ? Math.max(...xs) : 1;
  const scale = (value) => (log ? Math.log10(value) : value), span = scale(high) - scale(low);
  const ticks = log ? logTicks(low, high) : roundTicks(low, high, 4), texts = tickTexts(ticks);
  const left = Math.max(LEFT, 12 + 6.6 * Math.max(0, ...texts.map((text) => text.length)));
  const x = (step) => left + (width - left - RIGHT) * (last === first ? 0.5 : (step - first) / (last - first));
  const y = (value) => height - BOTTOM - (height - TOP - BOTTOM) * ((scale(value) - scale(low)) / span);
  const svg = drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  ticks.forEach((tick, at) => {
    svg.append(drawn("line", { class: "gridline", x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
    svg.append(drawn("text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, texts[at]));
  });
  const steps = last === first ? [first] : roundTicks(first, last, Math.max(3, Math.floor(width / 70))).filter(Number.isInteger);
  for (const step of steps) {
    const at = x(step), text = step.toLocaleString("en"), half = text.length * 3.2;
    const anchor = at + half > width ? "end" : at - half < left - 20 ? "start" : "middle";
    svg.append(drawn("text", { x: at, y: height - 4, "text-anchor": anchor }, text));
  }
  return { svg, x, y, first, last };
}

// The exponential mean of a curve, corrected for its start; gaps stay gaps.
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0, share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

function pathOf(points) {
  let path = "", down = false;
  for (const point of points) {
    if (point === null) down = false;
    else {
      path += `${down ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      down = true;
    }
  }
  return path;
}

// The area between two curves of the same steps, where both have numbers.
function areaOf(upper, lower) {
  const places = upper.map((_, at) => at).filter((at) => upper[at] !== null && lower[at] !== null);
  if (places.length < 2) return "";
  return `${pathOf(places.map((at) => upper[at]))}L${pathOf(places.reverse().map((at) => lower[at])).slice(1)}Z`;
}

// lines: {name, number, x, mean, min, max}. Returns the chart and what shows the numbers of a step, or of the last one.
function curveChart(lines, options) {
  const { width, height, log, smooth, label } = options;
  const usable = (value) => value !== null && (!log || value > 0);
  const shown = lines.map((line) => ({ ...line, curve: smoothed(line.mean, smooth) }));
  // With smoothing the band would be of what is not drawn: it shows what the curve was made of.
  const ys = shown.flatMap((line) => [...line.min, ...line.max, ...line.curve].filter(usable));
  const chart = frame(width, height, lines.flatMap((line) => line.x), ys, log, label);
  for (const line of shown) {
    const points = (values) => values.map((value, at) => (usable(value) ? [chart.x(line.x[at]), chart.y(value)] : null));
    const band = smooth || line.min.some((value, at) => value !== line.max[at]);
    if (band) {
      const area = smooth ? pathOf(points(line.mean)) : areaOf(points(line.max), points(line.min));
      chart.svg.append(drawn("path", smooth ? { class: "curve", style: `${hue(line.number)}; opacity: .28; stroke-width: 1`, d: area } : { class: "band", style: hue(line.number), d: area }));
    }
    const curve = points(line.curve), there = curve.filter((point) => point !== null);
    if (there.length === 1) chart.svg.append(drawn("circle", { class: "lone", style: hue(line.number), cx: there[0][0], cy: there[0][1], r: 3.5 }));
    else chart.svg.append(drawn("path", { class: "curve", style: hue(line.number), d: pathOf(curve) }));
  }
  return { ...chart, lines: shown };
}

// quantiles: of each share of rows a curve, the least first. Three bands around the middle one.
function spreadChart(spread, number, width, height, label) {
  const all = spread.quantiles, middle = Math.floor(all.length / 2);
  const chart = frame(width, height, spread.x, all.flat().filter((value) => value !== null), false, label);
  const points = (values) => values.map((value, at) => (value === null ? null : [chart.x(spread.x[at]), chart.y(value)]));
  for (let at = 0; at < middle; at++) {
    const d = areaOf(points(all[all.length - 1 - at]), points(all[at]));
    chart.svg.append(drawn("path", { class: at ? "band inner" : "band", style: hue(number), d }));
  }
  chart.svg.append(drawn("path", { class: "curve", style: hue(number), d: pathOf(points(all[middle])) }));
  return chart;
}

// seconds: of each work a curve; they are put on top of one another.
function stackChart(steps, seconds, width, height, label) {
  const names = Object.keys(seconds), sums = steps.map(() => 0), layers = [];
  for (const name of names) {
    const below = [...sums];
    seconds[name].forEach((value, at) => { sums[at] += value ?? 0; });
    layers.push([below, [...sums]]);
  }
  const chart = frame(width, height, steps, [0, ...sums], false, label);
  layers.forEach(([below, above], number) => {
    const points = (values) => values.map((value, at) => [chart.x(steps[at]), chart.y(value)]);
    chart.svg.append(drawn("path", { class: "stack", style: hue(number), d: areaOf(points(above), points(below)) }));
  });
  return chart;
}
