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
  for (const [number, button] of figure.querySelectorAll(".legend button").entries()) {
    button.addEventListener("click", () => {
      const hide = !hidden.delete(number);
      if (hide) hidden.add(number);
      button.setAttribute("aria-pressed", String(!hide));
      figure.querySelectorAll(`[data-series="${number}"]`).forEach(part => part.style.display = hide ? "none" : "");
    });
  }
  for (const [number, drawing] of figure.querySelectorAll(".drawing").entries()) {
    watch(drawing, places[number], figure.dataset.kind === "intervals", values => values
      .filter(([series]) => !hidden.has(series)).map(([series, value]) => `${names[series]}: ${value}`));
  }
}

/** Shows beside the pointer what `told` makes of the values at the nearest place. */
function watch(drawing, places, down, told) {
  const here = drawing.querySelector(".here"), tip = drawing.querySelector(".tip");
  drawing.onpointermove = drawing.onpointerdown = event => {
    const box = drawing.getBoundingClientRect();
    const pointer = down ? (event.clientY - box.top) / box.height : (event.clientX - box.left) / box.width;
    const distance = ([share]) => Math.abs(share - pointer);
    const [share, title, values] = places.reduce((a, b) => distance(b) < distance(a) ? b : a);
    tip.textContent = [title, ...told(values)].filter(Boolean).join("\n");
    tip.style.cssText = down ? `top: ${100 * share}%; left: 0`
      : `top: 1rem; ${share > 0.5 ? "right" : "left"}: calc(${100 * (share > 0.5 ? 1 - share : share)}% + 12px)`;
    here.style.left = `${100 * share}%`;
    tip.hidden = false;
    here.hidden = down;
  };
  drawing.onpointerleave = () => tip.hidden = here.hidden = true;
}

// ---- The page ----

for (const table of document.querySelectorAll(".sortable")) {
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    heading.firstElementChild.addEventListener("click", () => sort(table, column, heading));
  }
}
document.querySelectorAll(".plot").forEach(animate);
