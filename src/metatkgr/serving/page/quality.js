// The second view: the model beside the rules, and over time.
import { $, draw, make, say, show } from "./dom.js";
import { get } from "./api.js";

const number = (value) => (value === null ? "–" : value.toFixed(3));
let waiting = null;

export async function showQuality() {
  clearTimeout(waiting);
  const report = await get("/quality");
  const status = $("quality-status");
  if (report.status === "computing") {
    say(status, "Being measured in the background …");
    waiting = setTimeout(() => {
      if (!$("view-quality").hidden) showQuality().catch((error) => say(status, error.message));
    }, 1500);
    return;
  }
  if (report.status !== "ready") {
    say(status, report.status === "off" ? "This service does not measure its quality."
      : `Could not be measured: ${report.detail}`);
    return;
  }
  const drawn = report.questions < report.of_questions
    ? `${report.questions.toLocaleString("en")} of ${report.of_questions.toLocaleString("en")}`
    : report.questions.toLocaleString("en");
  say(status, "How near the top the right answer stands (1: always first, 0.5: second on average; "
    + `the mean reciprocal rank), on ${drawn} questions about newcomers that the model had not `
    + `learned from, each known by its first ${report.shots} facts. Whiskers: 95 % intervals.`);
  const width = Math.max(300, Math.floor($("quality-bars").clientWidth));
  $("quality-bars").replaceChildren(bars(report.models, width));
  show($("over-time-title"), report.spans.length > 1);
  $("quality-lines").replaceChildren(
    ...(report.spans.length > 1 ? [lines(report, width)] : []));
  $("quality-table").replaceChildren(table(report.models));
  show($("quality-table"));
  showReliability(report.calibration ?? {}, width);
}

/** For each band of ranks: what it was said to hold, and how often the answer was there. */
function showReliability({ ranks = [], queries, ece, ece_ranks: eceRanks }, width) {
  show($("reliability-title"), ranks.length > 0);
  if (!ranks.length) return;
  say($("reliability-status"), `On the last of ${queries.toLocaleString("en")} past questions: what `
    + "the forecasts of each rank were said to have together (bar), and how often the answer was "
    + `there (line). Off by ${(100 * ece).toFixed(1)} points at rank 1, by `
    + `${(100 * eceRanks).toFixed(1)} over all ranks.`);
  const left = 110;
  const room = width - left - 110;
  const most = upTo(ranks.flatMap(([, said, seen]) => [said, seen]));
  const bottom = ranks.length * 28 + 6;
  const part = (value) => `${(100 * value).toFixed(1)} %`;
  const picture = draw("svg", {
    viewBox: `0 0 ${width} ${bottom + 28}`, role: "img",
    "aria-label": ranks.map(([rank, said, seen]) =>
      `${rank ? `rank ${rank} on` : "someone new"}: said ${part(said)}, was ${part(seen)}`).join("; "),
  });
  picture.append(...axis(most, (value) => left + (room * value) / most, bottom,
    (value) => `${Math.round(100 * value)} %`));
  ranks.forEach(([rank, said, seen], i) => {
    const y = 6 + i * 28;
    const next = ranks[i + 1]?.[0];
    const name = !rank ? "someone new" : !next ? `rank ${rank} on`
      : next === rank + 1 ? `rank ${rank}` : `rank ${rank}–${next - 1}`;
    const x = left + (room * seen) / most;
    picture.append(
      draw("text", { x: left - 10, y: y + 15, "text-anchor": "end" }, name),
      draw("rect", {
        x: left, y, width: Math.max(1, (room * said) / most), height: 20, rx: 4, class: "fill-1",
        "fill-opacity": 0.6,
      }),
      draw("line", { x1: x, x2: x, y1: y - 2, y2: y + 22, class: "whisker" }),
      draw("text", { x: left + room + 6, y: y + 15, class: "small" },
        `${part(said)} / ${part(seen)}`));
  });
  $("reliability").replaceChildren(picture);
}

/** Where an axis ends: the next fifth above all values. */
function upTo(values) {
  return Math.ceil(Math.max(0.05, ...values) * 5) / 5;
}

/** Lines and numbers at every fifth; `place` says where a value stands. */
function axis(most, place, bottom, words) {
  const marks = Array.from({ length: Math.round(most * 5) + 1 }, (_, n) => n / 5);
  return marks.flatMap((value) => [
    draw("line", { x1: place(value), x2: place(value), y1: 4, y2: bottom, class: "axis" }),
    draw("text", { x: place(value), y: bottom + 18, "text-anchor": "middle", class: "small" },
      words(value)),
  ]);
}

function bars(models, width) {
  const most = upTo(models.map((model) => model.high ?? model.mrr ?? 0));
  const left = 110;
  const room = width - left - 60;
  const height = models.length * 44 + 36;
  const picture = draw("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": models.map((m) => `${m.name} ${number(m.mrr)}`).join(", "),
  });
  const size = (value) => (room * value) / most;
  picture.append(...axis(most, (value) => left + size(value), models.length * 44 + 6, (v) => v.toFixed(1)));
  models.forEach((model, i) => {
    const y = 8 + i * 44;
    picture.append(
      draw("text", { x: left - 10, y: y + 20, "text-anchor": "end" }, model.name),
      draw("rect", {
        x: left, y, width: Math.max(1, size(model.mrr ?? 0)), height: 30, rx: 6,
        class: `fill-${(i % 4) + 1}`, "fill-opacity": i ? 0.55 : 0.95,
      }),
      draw("text", { x: left + size(model.high ?? model.mrr ?? 0) + 8, y: y + 20 },
        number(model.mrr)));
    if (model.low !== null) {
      picture.append(draw("line", {
        x1: left + size(model.low), x2: left + size(model.high), y1: y + 15, y2: y + 15,
        class: "whisker",
      }));
    }
  });
  return picture;
}

function lines({ models, spans }, width) {
  const box = { left: 40, right: width - 14, top: 34, bottom: 214 };
  const most = Math.max(0.05, ...spans.flatMap((span) => Object.values(span.mrr)));
  const x = (i) => box.left + ((box.right - box.left) * i) / (spans.length - 1);
  const y = (value) => box.bottom - ((box.bottom - box.top) * value) / most;
  const picture = draw("svg", {
    viewBox: `0 0 ${width} 244`, role: "img",
    "aria-label": `Mean reciprocal rank from ${spans[0].first} to ${spans.at(-1).last}`,
  });
  for (const part of [0, 0.5, 1]) {
    picture.append(
      draw("line", {
        x1: box.left, x2: box.right, y1: y(most * part), y2: y(most * part), class: "axis",
      }),
      draw("text", { x: box.left - 6, y: y(most * part) + 4, "text-anchor": "end", class: "small" },
        (most * part).toFixed(2)));
  }
  let legend = box.left;
  models.forEach((model, i) => {
    const kind = (i % 4) + 1;
    const points = spans.map((span, n) => `${x(n)},${y(span.mrr[model.name] ?? 0)}`).join(" ");
    picture.append(draw("polyline", { points, class: `series line-${kind}` }));
    spans.forEach((span, n) => {
      const value = span.mrr[model.name] ?? 0;
      picture.append(draw("circle", { cx: x(n), cy: y(value), r: 3.5, class: `fill-${kind}` },
        draw("title", {}, `${model.name}, ${span.first} to ${span.last}: ${number(value)} `
          + `(${span.queries} questions)`)));
    });
    picture.append(
      draw("line", { x1: legend, x2: legend + 26, y1: 12, y2: 12, class: `series line-${kind}` }),
      draw("text", { x: legend + 32, y: 16 }, model.name));
    legend += 58 + model.name.length * 7.5;
  });
  picture.append(
    draw("text", { x: box.left, y: 236, class: "small" }, spans[0].first),
    draw("text", { x: box.right, y: 236, "text-anchor": "end", class: "small" }, spans.at(-1).last));
  return picture;
}

function table(models) {
  const names = ["model", "MRR", "95 % interval", "Hits@1", "Hits@3", "Hits@10"];
  const rows = models.map((model) => [
    model.name, number(model.mrr), `${number(model.low)} – ${number(model.high)}`,
    number(model.hits_1), number(model.hits_3), number(model.hits_10),
  ]);
  return make("table", {},
    make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {},
      ...row.map((cell, i) => make(i ? "td" : "th", i ? {} : { scope: "row" }, cell))))));
}
