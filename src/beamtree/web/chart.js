"use strict";
// The chart: every constituent of any beam in a triangle, the words below, the darker the more probable.

const CHART_FONT = '12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
const LEGEND = [0.1, 0.25, 0.5, 0.75, 1];

/** The chart of a side. Column: where the constituent's middle lies; row: how many words it has, the whole on top. */
function drawChart(side, label, describe) {
  const { tokens } = side;
  const size = tokens.length;
  const widths = tokens.map((token) => measure(token, CHART_FONT));
  const room = 720 / size; // short words need no broad cells, but some room for a number
  const cell = within(Math.max(...widths) + 8, within(room, 18, 36), within(room, 18, 72));
  const row = within(480 / size, 3, 26);
  const upright = widths.some((width) => width > cell - 4);
  const margin = upright ? 10 : Math.max(10, (Math.max(...widths) - cell) / 2 + 4);
  const below = upright ? Math.min(Math.max(...widths), 160) + 12 : 22;
  const bottom = 10 + (size - 1) * row;
  const legendTop = bottom + below + 8;
  const width = Math.max(2 * margin + size * cell, 2 * margin + 200);
  const height = legendTop + 34;
  const drawing = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "group",
    "aria-label": label });
  const corners = [[margin, bottom], [margin + size * cell, bottom], [margin + (size * cell) / 2 + cell / 2, 10],
    [margin + (size * cell) / 2 - cell / 2, 10]];
  drawing.append(drawn("polygon", { points: corners.join(" "), class: "triangle" }));
  const order = [...side.chart].sort((a, b) => a[1] - a[0] - (b[1] - b[0]) || a[0] - b[0]);
  const cells = order.map(([start, end, value]) => {
    const x = margin + ((start + end) / 2) * cell - cell / 2;
    const y = bottom - (end - start - 1) * row;
    const group = drawn("g", { class: "constituent cell", "data-span": spanKey(start, end), role: "img", tabindex: -1,
      "aria-label": describe(start, end) },
    drawn("rect", { x: x + 0.5, y: y + 0.5, width: cell - 1, height: Math.max(row - 1, 2.5), class: "heat",
      "fill-opacity": Math.max(value, 0.04).toFixed(3) }));
    if (cell >= 34 && row >= 14) {
      group.append(drawn("text", { x: x + cell / 2, y: y + row / 2 + 4, "text-anchor": "middle",
        class: value > 0.5 ? "value on-dark" : "value" }, value.toFixed(2)));
    }
    return group;
  });
  drawing.append(...cells, ...tokens.map((token, position) => {
    const x = margin + (position + 0.5) * cell;
    const place = upright
      ? { transform: `translate(${x + 4} ${bottom + 8}) rotate(90)`, "text-anchor": "start" }
      : { x, y: bottom + 16, "text-anchor": "middle" };
    return drawn("text", { ...place, class: "label", "data-leaf": position }, shortened(token, upright ? 160 : cell));
  }), legend(margin, legendTop));
  cells.at(-1)?.setAttribute("tabindex", 0);
  drawing.addEventListener("keydown", (event) => walkChart(event, order, cells));
  return drawing;
}

function shortened(token, room) {
  let text = token;
  while (text.length > 2 && measure(text, CHART_FONT) > room) text = `${text.slice(0, -2)}…`;
  return text;
}

function legend(x, y) {
  const group = drawn("g", { "aria-hidden": "true" });
  LEGEND.forEach((value, index) => {
    const left = x + index * 38;
    group.append(drawn("rect", { x: left, y, width: 37, height: 10, class: "heat", "fill-opacity": value }),
      drawn("text", { x: left + 18, y: y + 22, "text-anchor": "middle", class: "label" }, String(value)));
  });
  return group;
}

/** Arrow keys in a chart: sideways along the constituents, up and down to the nearest longer and shorter one. */
function walkChart(event, order, cells) {
  const index = cells.indexOf(event.target);
  if (index < 0) return;
  const [start, end] = order[index];
  const nearest = (fits) => order
    .map((other, place) => ({ place, length: other[1] - other[0], away: Math.abs(other[0] + other[1] - start - end) }))
    .filter(({ length }) => fits(length - (end - start)))
    .sort((a, b) => Math.abs(a.length - end + start) - Math.abs(b.length - end + start) || a.away - b.away)[0]?.place;
  const chosen = {
    ArrowLeft: () => index - 1,
    ArrowRight: () => index + 1,
    ArrowUp: () => nearest((more) => more > 0),
    ArrowDown: () => nearest((more) => more < 0),
    Home: () => 0,
    End: () => cells.length - 1,
  }[event.key];
  if (!chosen) return;
  event.preventDefault();
  event.stopPropagation();
  const cell = cells[chosen()];
  if (cell) moveFocus(cells, cell);
}
