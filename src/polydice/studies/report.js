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

// ---- Plots: a click on a name hides and shows it in all panels, and what is pointed at tells its numbers ----

function animate(figure) {
  const {names, places} = JSON.parse(figure.querySelector("script").textContent), hidden = new Set();
  const values = [...figure.querySelectorAll(".legend .value")];
  for (const [number, button] of figure.querySelectorAll(".legend button").entries()) {
    button.addEventListener("click", () => {
      const hide = !hidden.delete(number);
      if (hide) hidden.add(number);
      button.setAttribute("aria-pressed", String(!hide));
      figure.querySelectorAll(`[data-series="${number}"]`).forEach(part => part.style.display = hide ? "none" : "");
    });
  }
  for (const [number, drawing] of figure.querySelectorAll(".drawing").entries()) {
    const reading = drawing.nextElementSibling;
    follow(drawing, places[number], figure.dataset.kind === "intervals", (title, found) => {
      const told = found.filter(([series]) => !hidden.has(series));
      reading.textContent = [title, ...told.map(([series, value]) => `${names[series]}: ${value}`)].filter(Boolean).join("\n");
      values.forEach((each, series) => each.textContent = told.filter(([one]) => one === series).map(([, value]) => value).join(", "));
    });
  }
}

/** Has the place told that is nearest to the pointer, or that the arrow keys have come to. */
function follow(drawing, places, down, tell) {
  const here = drawing.querySelector(".here");
  let at = -1;
  const show = number => {
    at = number;
    const [share, title, values] = places[number] ?? [0, "", []];
    here.hidden = down || number < 0;
    here.style.left = `${100 * share}%`;
    tell(title, values);
  };
  drawing.onpointermove = drawing.onpointerdown = event => {
    const box = drawing.getBoundingClientRect();
    const pointer = down ? (event.clientY - box.top) / box.height : (event.clientX - box.left) / box.width;
    const distances = places.map(([share]) => Math.abs(share - pointer));
    show(distances.indexOf(Math.min(...distances)));
  };
  drawing.onpointerleave = drawing.onblur = () => show(-1);
  drawing.onkeydown = event => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (event.key === "Escape") show(-1);
    if (!step) return;
    event.preventDefault();
    show(Math.min(places.length - 1, Math.max(0, at + step)));
  };
}

// ---- The page ----

for (const table of document.querySelectorAll(".sortable")) {
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    heading.firstElementChild.addEventListener("click", () => sort(table, column, heading));
  }
}
document.querySelectorAll(".plot").forEach(animate);
