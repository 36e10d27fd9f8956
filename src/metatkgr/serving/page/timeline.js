// The facts of an entity: a strip of dots over time, and a list.
import { draw, make, nameLink } from "./dom.js";

/** Dots at the dates of facts, higher where several share one; dates are spread by their order. */
export function timelineChart(facts, width) {
  const counts = new Map();
  for (const fact of facts) counts.set(fact[3], (counts.get(fact[3]) ?? 0) + 1);
  const dates = [...counts.keys()];
  const position = scale(dates);
  const most = Math.max(...counts.values());
  const room = { left: 10, right: width - 10, bottom: 58 };
  const picture = draw("svg", {
    viewBox: `0 0 ${width} 80`, role: "img",
    "aria-label": `${facts.length} facts from ${dates[0]} to ${dates.at(-1)}`,
  });
  picture.append(draw("line", {
    x1: room.left, x2: room.right, y1: room.bottom, y2: room.bottom, class: "axis",
  }));
  for (const [date, count] of counts) {
    const x = room.left + position(date) * (room.right - room.left);
    const height = 8 + 36 * (count / most) * Math.min(1, most / 6);
    picture.append(draw("rect", {
      x: x - 3, y: room.bottom - height, width: 6, height, rx: 3, class: "dot",
    }, draw("title", {}, `${date}: ${count} ${count === 1 ? "fact" : "facts"}`)));
  }
  if (dates.length === 1) {
    picture.append(draw("text", { x: width / 2, y: 75, "text-anchor": "middle", class: "small" },
      dates[0]));
  } else {
    picture.append(draw("text", { x: room.left, y: 75, class: "small" }, dates[0]));
    picture.append(draw("text", { x: room.right, y: 75, "text-anchor": "end", class: "small" },
      dates.at(-1)));
  }
  return picture;
}

/** 0..1 for each date: by the calendar, or for plain numbers by their size. */
function scale(dates) {
  const number = (date) => {
    if (/^[+-]?\d+$/.test(date)) return Number(date);
    const padded = /^\d{4}-\d{2}$/.test(date) ? `${date}-01` : date;
    return Date.parse(/T\d{2}$/.test(padded) ? `${padded}:00Z` : padded);
  };
  const values = dates.map(number);
  if (values.some(Number.isNaN)) {
    return (date) => (dates.length > 1 ? dates.indexOf(date) / (dates.length - 1) : 0.5);
  }
  const low = Math.min(...values);
  const span = Math.max(...values) - low;
  return (date) => (span ? (number(date) - low) / span : 0.5);
}

/** A fact whose names lead on, with what can be done to one that the service was told. */
export function factItem([subject, relation, object, time], actions = []) {
  return make("li", {},
    make("time", {}, time), nameLink(subject), " ", make("i", {}, relation), " ", nameLink(object),
    ...actions.map(([what, onclick]) => make("button", {
      type: "button", class: `plain ${what.toLowerCase().replace(" ", "-")}`, onclick,
      "aria-label": `${what}: ${subject} ${relation} ${object}, ${time}`,
    }, what)));
}
