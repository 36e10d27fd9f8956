// The view that looks back: a period replayed, what was said beside what happened.
import { $, draw, make, nameLink, percent, say, show } from "./dom.js";
import { post } from "./api.js";

/** Fill the form with the last tenth of the graph's time; dates as it writes them. */
export function prepareBacktest(graph, type, fail) {
  for (const [id, value] of [["backtest-from", graph.recent], ["backtest-to", graph.last]]) {
    $(id).type = type;
    if (!$(id).value) $(id).value = value;
  }
  $("backtest").onsubmit = (event) => {
    event.preventDefault();
    replay().catch((error) => {
      say($("backtest-status"), "");
      fail(error);
    });
  };
}

async function replay() {
  say($("backtest-status"), "Replaying …");
  const done = await post("/backtest", {
    from: $("backtest-from").value.trim(), to: $("backtest-to").value.trim(),
    questions: Number($("backtest-questions").value) || 60,
  });
  const first = done.metrics["hits@1"];
  const ten = done.metrics["hits@10"];
  say($("backtest-status"), done.questions
    ? `${done.questions} questions from ${done.from} to ${done.to}: the first forecast happened `
      + `${percent(first)} of the time, one of the first ten ${percent(ten)}. `
      + (done.unaskable ? `${done.unaskable} more were about somebody not yet known.` : "")
    : "Nothing could be asked: nobody had been heard of before.");
  $("backtest-bars").replaceChildren(...(done.reliability.length
    ? [bars(done.reliability, Math.max(300, Math.floor($("backtest-bars").clientWidth)))] : []));
  $("backtest-table").replaceChildren(table(done.rows));
  show($("backtest-table"), done.rows.length > 0);
}

/** Said beside happened, for forecasts of each size; from 0 to 100 %. */
function bars(bins, width) {
  const left = 120;
  const room = width - left - 50;
  const bottom = bins.length * 46 + 6;
  const picture = draw("svg", {
    viewBox: `0 0 ${width} ${bottom + 44}`, role: "img",
    "aria-label": bins.map((bin) =>
      `said ${percent(bin.said)}, happened ${percent(bin.happened)}`).join("; "),
  });
  for (const part of [0, 0.5, 1]) {
    const x = left + room * part;
    picture.append(draw("line", { x1: x, x2: x, y1: 2, y2: bottom, class: "axis" }),
      draw("text", { x, y: bottom + 16, "text-anchor": "middle", class: "small" }, `${100 * part} %`));
  }
  bins.forEach((bin, i) => {
    const y = 4 + i * 46;
    picture.append(
      draw("text", { x: left - 10, y: y + 22, "text-anchor": "end", class: "small" },
        `${100 * bin.low} to ${100 * bin.high} %`),
      draw("rect", { x: left, y, width: Math.max(1, room * bin.said), height: 16, class: "fill-1" },
        draw("title", {}, `said ${percent(bin.said)}`)),
      draw("rect", {
        x: left, y: y + 18, width: Math.max(1, room * bin.happened), height: 16, class: "fill-2",
      }, draw("title", {}, `happened ${percent(bin.happened)} of ${bin.forecasts}`)));
  });
  picture.append(
    draw("rect", { x: left, y: bottom + 26, width: 12, height: 12, class: "fill-1" }),
    draw("text", { x: left + 18, y: bottom + 36, class: "small" }, "said"),
    draw("rect", { x: left + 70, y: bottom + 26, width: 12, height: 12, class: "fill-2" }),
    draw("text", { x: left + 88, y: bottom + 36, class: "small" }, "happened"));
  return picture;
}

function table(rows) {
  const names = ["date", "question", "forecast", "happened", "place"];
  return make("table", { class: "words" },
    make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {},
      make("th", { scope: "row" }, row.at),
      make("td", {}, row.side === "object" ? nameLink(row.entity) : "…", ` ${row.relation} `,
        row.side === "object" ? "…" : nameLink(row.entity)),
      make("td", {}, row.forecasts.length
        ? `${row.forecasts[0][0]} (${percent(row.forecasts[0][1])})` : "–"),
      make("td", {}, nameLink(row.happened),
        row.probability === null ? "" : ` (${percent(row.probability)})`),
      make("td", {}, row.rank === null ? "> 100" : String(row.rank))))));
}
