"use strict";

// ---- Tables: a click on a heading sorts, a second one turns the order round; what has no number stays below ----

function sort(table, column, heading) {
  const body = table.tBodies[0], rows = [...body.rows];
  const number = row => row.cells[column].dataset.order;
  const numeric = rows.some(row => number(row) !== undefined);
  const before = heading.getAttribute("aria-sort");
  const order = before ? (before === "ascending" ? "descending" : "ascending") : numeric ? "descending" : "ascending";
  const sign = order === "ascending" ? 1 : -1;
  const compare = (a, b) => numeric
    ? (number(a) === undefined) - (number(b) === undefined) || sign * (number(a) - number(b)) || 0
    : sign * a.cells[column].textContent.localeCompare(b.cells[column].textContent);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  body.append(...rows.sort(compare));
}

// ---- Plots: drawn anew as wide as there is room; names are set as text, so that none of them can be markup ----

const MARGIN = {left: 46, right: 10, top: 22, bottom: 42}, HEIGHT = 270, ROW = 34, APART = 0.04;

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function html(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** An element in a loss's colour; black is for what must be seen best, on dark ground too. */
function coloured(name, colour, attributes) {
  const made = element(name, attributes);
  made.style.setProperty("--colour", colour === "#000000" ? "var(--ink)" : colour);
  return made;
}

const shown = value => String(+value.toPrecision(4)).replace("-", "−");

/** About five round numbers between low and high. */
function ticks(low, high, count = 5) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999) * power;
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, index) => +((first + index) * step).toPrecision(12));
}

/** The least and the greatest, with a little room, of numbers that may all be the same. */
function range(values, room) {
  const low = Math.min(...values), high = Math.max(...values);
  const spare = room * (high - low) || Math.abs(high) * 0.05 || 1;
  return [low - spare, high + spare];
}

/** Puts a plot with a legend in the place of its picture. */
function animate(figure) {
  const plot = JSON.parse(figure.querySelector("script").textContent);
  const hidden = new Set(), panels = html("div", "panels");
  const draws = plot.panels.map(panel => {
    const box = html("div", "panel"), tip = html("div", "tip");
    const svg = element("svg", {role: "img", "aria-label": `${plot.title} ${panel.title}`});
    tip.hidden = true;
    if (panel.title) box.append(html("h4", "", panel.title));
    box.append(svg, tip);
    panels.append(box);
    return () => (plot.kind === "intervals" ? drawIntervals : drawLines)({plot, panel, box, svg, tip, hidden});
  });
  const draw = () => draws.forEach(each => each());
  if (plot.kind !== "intervals") figure.append(legend(plot, hidden, draw));
  figure.append(panels);
  figure.classList.add("scripted");
  addEventListener("resize", draw);
  draw();
}

/** A button for each name, which hides and shows it in all panels. */
function legend(plot, hidden, draw) {
  const buttons = html("div", "legend");
  const series = new Map(plot.panels.flatMap(panel => panel.series.map(each => [each.name, each])));
  for (const [name, each] of series) {
    const button = html("button", ""), key = element("svg", {viewBox: "0 0 26 8", "aria-hidden": "true"});
    key.append(plot.kind === "scatter" ? coloured("circle", each.colour, {class: "dot", cx: 13, cy: 4, r: 3.5})
      : coloured("path", each.colour, {class: `line${each.dashed ? " dashed" : ""}`, d: "M0 4H26"}));
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(key, name);
    button.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      draw();
    });
    buttons.append(button);
  }
  return buttons;
}

function drawLines({plot, panel, box, svg, tip, hidden}) {
  const series = panel.series.filter(each => !hidden.has(each.name));
  const width = box.clientWidth, right = width - MARGIN.right, bottom = HEIGHT - MARGIN.bottom;
  const points = panel.series.flatMap(each => each.points), seen = series.flatMap(each => each.points);
  const [first, last] = panel.ticks.length ? [-0.4, panel.ticks.length - 0.6] : range(points.map(p => p[0]), 0.02);
  const [low, high] = range((seen.length ? seen : points).flatMap(p => p.slice(1)), 0.05);
  const x = value => MARGIN.left + (right - MARGIN.left) * (value - first) / (last - first);
  const y = value => bottom - (bottom - MARGIN.top) * (value - low) / (high - low);
  const parts = [];
  for (const value of ticks(low, high)) {
    parts.push(element("line", {class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value)}),
      element("text", {x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end"}, shown(value)));
  }
  const names = panel.ticks.length ? panel.ticks.map((name, at) => [at, name]) : numbers(first, last, plot.kind);
  for (const [at, name] of names) {
    parts.push(element("text", {x: x(at), y: bottom + 18, "text-anchor": "middle"}, name));
  }
  parts.push(element("text", {x: right, y: HEIGHT - 6, "text-anchor": "end"}, panel.x),
    element("text", {x: 0, y: 12}, panel.y));
  for (const [index, each] of series.entries()) {
    const aside = panel.ticks.length ? APART * (index - (series.length - 1) / 2) : 0;
    parts.push(...drawSeries(each, plot.kind, value => x(value + aside), y));
  }
  const here = element("line", {class: "here", y1: MARGIN.top, y2: bottom, visibility: "hidden"});
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.replaceChildren(...parts, here);
  const places = [...new Set(seen.map(p => p[0]))];
  watch(svg, box, tip, here, (left) => {
    if (!places.length) return null;
    const at = places.reduce((a, b) => Math.abs(x(b) - left) < Math.abs(x(a) - left) ? b : a);
    const lines = series.flatMap(each => each.points.filter(p => p[0] === at).map(p => [each.name, p]));
    const name = panel.ticks.length ? panel.ticks[at] : shown(at);
    const told = lines.map(([loss, point]) => `${loss}: ${described(point)}`);
    return {at: x(at), text: [`${panel.x} ${name}`, ...told].join("\n")};
  });
}

const numbers = (first, last, kind) => ticks(first, last)
  .filter(value => kind === "points" || Number.isInteger(value)).map(value => [value, shown(value)]);
const described = ([, value, low, high]) => shown(value) + (low === high ? "" : ` (${shown(low)} to ${shown(high)})`);

function drawSeries({points, colour, dashed}, kind, x, y) {
  const at = ([place, value]) => `${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
  const path = corners => `M${corners.map(at).join("L")}`;
  const line = coloured("path", colour, {class: `line${dashed ? " dashed" : ""}`, d: path(points)});
  if (kind === "curves") {
    const around = [...points.map(p => [p[0], p[3]]), ...points.map(p => [p[0], p[2]]).reverse()];
    return [coloured("path", colour, {class: "band", d: path(around) + "Z"}), line];
  }
  return [...(kind === "scatter" ? [] : [line]), ...points.flatMap(([place, value, low, high]) => [
    coloured("path", colour, {class: "line", d: path([[place, low], [place, high]])}),
    coloured("circle", colour, {class: "dot", cx: x(place), cy: y(value), r: 3.5}),
  ])];
}

function drawIntervals({panel, box, svg, tip}) {
  const width = box.clientWidth, longest = Math.max(...panel.ticks.map(name => name.length));
  const left = Math.min(longest * 6.8 + 17, width * 0.45), right = width - MARGIN.right;
  const bottom = ROW * panel.ticks.length + MARGIN.top, height = bottom + MARGIN.bottom;
  const [low, high] = panel.cut || range([0, ...panel.series.flatMap(each => each.points[0].slice(2))], 0.04);
  const x = value => left + (right - left) * (Math.min(Math.max(value, low), high) - low) / (high - low);
  const y = place => MARGIN.top + ROW * (place + 0.5);
  const room = Math.floor((left - 10) / 6.8 / 2);  // a long name is cut in its middle: it may differ at its end
  const short = name => name.length > 2 * room ? `${name.slice(0, room - 1)}…${name.slice(-room)}` : name;
  const parts = ticks(low, high, Math.max(2, width / 90)).flatMap(value => [
    element("line", {class: value === 0 ? "zero" : "grid", x1: x(value), x2: x(value), y1: MARGIN.top, y2: bottom}),
    element("text", {x: x(value), y: bottom + 18, "text-anchor": "middle"}, shown(value)),
  ]);
  parts.push(element("text", {x: right, y: height - 6, "text-anchor": "end"}, panel.y));
  for (const each of panel.series) {
    const [place, value, from, to] = each.points[0];
    parts.push(element("text", {x: left - 8, y: y(place) + 4, "text-anchor": "end"}, short(each.name)),
      coloured("path", each.colour, {class: "line", d: `M${x(from)} ${y(place)}H${x(to)}`}),
      drawValue(each.colour, value, Math.sign(value - Math.min(Math.max(value, low), high)), x(value), y(place)),
      ...(from < low ? [arrow(each.colour, x(low), y(place), 1)] : []),
      ...(to > high ? [arrow(each.colour, x(high), y(place), -1)] : []));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
  watch(svg, box, tip, null, (_, down) => {
    const each = panel.series[Math.floor((down - MARGIN.top) / ROW)];
    return each ? {at: x(each.points[0][1]), text: `${each.name}: ${described(each.points[0])}`} : null;
  });
}

/** A dot, or the number of one that lies beyond an edge. */
const drawValue = (colour, value, beyond, x, y) => beyond
  ? element("text", {x: x - 12 * beyond, y: y - 5, "text-anchor": beyond < 0 ? "start" : "end"},
    `${beyond < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`)
  : coloured("circle", colour, {class: "dot", cx: x, cy: y, r: 5});

/** The end of an interval that goes on beyond an edge. */
const arrow = (colour, x, y, inward) =>
  coloured("path", colour, {class: "dot", d: `M${x} ${y}l${8 * inward} -5v10z`});

/** Shows beside the pointer what `find` gives for its place. */
function watch(svg, box, tip, here, find) {
  const mark = attributes => Object.entries(here ? attributes : {}).forEach(each => here.setAttribute(...each));
  svg.onpointermove = svg.onpointerdown = event => {
    const {left, top} = svg.getBoundingClientRect(), found = find(event.clientX - left, event.clientY - top);
    if (!found) return svg.onpointerleave();
    tip.hidden = false;
    tip.textContent = found.text;
    const over = found.at > box.clientWidth / 2;
    tip.style.left = over ? "auto" : `${found.at + 12}px`;
    tip.style.right = over ? `${box.clientWidth - found.at + 12}px` : "auto";
    tip.style.top = `${svg.offsetTop + MARGIN.top}px`;
    mark({x1: found.at, x2: found.at, visibility: "visible"});
  };
  svg.onpointerleave = () => {
    tip.hidden = true;
    mark({visibility: "hidden"});
  };
}

// ---- The page ----

for (const table of document.querySelectorAll(".sortable")) {
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    heading.firstElementChild.addEventListener("click", () => sort(table, column, heading));
  }
}
document.querySelectorAll(".plot").forEach(animate);
