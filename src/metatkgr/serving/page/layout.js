// Where the names, lines and words of a small graph go, so that none lies on another.

const HALF_NODE = 19;
const ROW = 13;
const STEPS = [0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.2, 0.8];
const SHIFTS = [0, -8, 8, -16, 16, -24, 24];
const BENDS = [0, 40, -40, 80, -80, 120, -120, 170, -170];

/** Places of the names in columns, routes of the lines and of their words; as tight as it gets. */
export function arrange(columns, lines, width, room, upright) {
  const sized = lines.map((line) => ({ ...line, ...sizeOf(line) }));
  let found;
  for (let stretch = 1; stretch < 4; stretch *= 1.2) {
    const places = upright ? rowsOf(columns, width, stretch)
      : columnsAcross(columns, sized, width, room, stretch);
    found = { places, ...route(places, sized, width, room) };
    if (!found.clashes) break;
  }
  const boxes = [
    ...[...found.places.values()].map(({ y }) => [y - HALF_NODE, y + HALF_NODE]),
    ...found.routes.flatMap(({ at, reach }, n) => [
      [at.y - sized[n].high / 2, at.y + sized[n].high / 2], reach]),
  ];
  const top = Math.min(...boxes.map(([low]) => low)) - 6;
  const bottom = Math.max(...boxes.map(([, high]) => high)) + 6;
  return { places: found.places, routes: found.routes, top, bottom };
}

let ruler = null;

/** How much room words take, as they will be written. */
export function sizeOf({ words, asked }) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = `${asked ? 600 : 400} 11.5px ${getComputedStyle(document.body).fontFamily}`;
  const wide = Math.max(...words.map((row) => ruler.measureText(row).width)) + 10;
  return { wide, high: words.length * ROW + 8 };
}

/** One row below another, two names in each, the middle left to what links the first and last. */
function rowsOf(columns, width, stretch) {
  const places = new Map();
  const gap = 84 * stretch;
  let y = 0;
  for (const [n, column] of columns.entries()) {
    const end = n === 0 || n === columns.length - 1;
    column.forEach((name, i) => {
      if (!end && i && i % 2 === 0) y += gap;
      places.set(name, { x: end ? width / 2 : i % 2 ? width * 0.76 : width * 0.24, y });
    });
    y += gap;
  }
  return places;
}

/** From left to right; those between stand above and below the line from the first to the last. */
function columnsAcross(columns, lines, width, room, stretch) {
  const places = new Map();
  const ends = [columns[0][0], columns.at(-1)[0]];
  const direct = lines.find(({ asked, from, to }) =>
    !asked && ends.includes(from) && ends.includes(to) && from !== to);
  const above = 18 + HALF_NODE + (direct ? direct.high + 10 : 0);
  columns.forEach((column, n) => {
    const x = room / 2 + 4 + ((width - room - 8) * n) / Math.max(1, columns.length - 1);
    const end = n === 0 || n === columns.length - 1;
    column.forEach((name, i) => {
      const away = ((i % 2 ? 18 + HALF_NODE : above) + Math.floor(i / 2) * 66 + 14) * stretch;
      places.set(name, { x, y: end ? 0 : i % 2 ? away : -away });
    });
  });
  return places;
}

/** Lines that pass no name, and words that touch nothing; counts those for which there is no room. */
function route(places, lines, width, room) {
  const nodes = [...places.values()].map(({ x, y }) => box(x, y, room + 4, 2 * HALF_NODE + 4));
  const taken = [...nodes];
  const routes = [];
  let clashes = 0;
  const asked = lines.find((line) => line.asked);
  for (const line of lines) {
    const [from, to] = [places.get(line.from), places.get(line.to)];
    // Beside the dashed line of what is asked there is no room for another straight one.
    const beside = !line.asked && asked && [line.from, line.to].includes(asked.from)
      && [line.from, line.to].includes(asked.to);
    const bent = from === to ? loop(from) : bend(from, to, room, nodes, beside ? line.high : 0);
    let at = null;
    for (const shift of SHIFTS) {
      for (const t of STEPS) {
        const point = bent.along(t);
        const x = Math.min(Math.max(point.x, line.wide / 2 + 1), width - line.wide / 2 - 1);
        const here = box(x, point.y + shift, line.wide, line.high);
        if (!taken.some((other) => touch(here, other))) {
          at = { x, y: point.y + shift };
          taken.push(here);
          break;
        }
      }
      if (at) break;
    }
    if (!at) clashes += 1;
    const ys = [0, 0.25, 0.5, 0.75, 1].map((t) => bent.along(t).y);
    routes.push({
      path: bent.path, at: at ?? bent.along(0.5), reach: [Math.min(...ys), Math.max(...ys)],
    });
  }
  return { routes, clashes };
}

function box(x, y, wide, high) {
  return { left: x - wide / 2, right: x + wide / 2, top: y - high / 2, bottom: y + high / 2 };
}

function touch(one, other) {
  return one.left < other.right && other.left < one.right
    && one.top < other.bottom && other.top < one.bottom;
}

function loop({ x, y }) {
  const corner = (dx, dy) => ({ x: x + dx, y: y + dy });
  const [a, b, c, d] = [corner(-30, -19), corner(-56, -66), corner(56, -66), corner(30, -20)];
  const mix = (t, ...p) =>
    (1 - t) ** 3 * p[0] + 3 * t * (1 - t) ** 2 * p[1] + 3 * t ** 2 * (1 - t) * p[2] + t ** 3 * p[3];
  return {
    path: `M${a.x} ${a.y} C${b.x} ${b.y} ${c.x} ${c.y} ${d.x} ${d.y}`,
    along: (t) => ({ x: mix(t, a.x, b.x, c.x, d.x), y: mix(t, a.y, b.y, c.y, d.y) }),
  };
}

/** A line between two names, bent as little as it takes to pass the others. */
function bend(from, to, room, nodes, beside) {
  const ends = [from, to].map(({ x, y }) => box(x, y, room + 4, 2 * HALF_NODE + 4));
  const others = nodes.filter((node) => !ends.some((end) => touch(end, node)));
  const least = beside ? beside + 44 : 0;
  let first = null;
  for (const way of BENDS) {
    const curve = quadratic(from, to, room, beside ? (way < 0 ? way - least : way + least) : way);
    first ??= curve;
    const passes = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9].some((t) => {
      const { x, y } = curve.along(t);
      return others.some((node) => touch(box(x, y, 4, 4), node));
    });
    if (!passes) return curve;
  }
  return first;
}

function quadratic(from, to, room, bent) {
  // The same side, whichever end it starts from: upwards, or to the right.
  const [a, b] = from.x < to.x || (from.x === to.x && from.y < to.y) ? [from, to] : [to, from];
  const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
  const middle = {
    x: (a.x + b.x) / 2 + ((b.y - a.y) / length) * bent,
    y: (a.y + b.y) / 2 - ((b.x - a.x) / length) * bent,
  };
  const start = border(from, middle, room);
  const end = border(to, middle, room);
  const mix = (t, p, q, r) => (1 - t) ** 2 * p + 2 * t * (1 - t) * q + t ** 2 * r;
  return {
    path: `M${start.x} ${start.y} Q${middle.x} ${middle.y} ${end.x} ${end.y}`,
    along: (t) => ({ x: mix(t, start.x, middle.x, end.x), y: mix(t, start.y, middle.y, end.y) }),
  };
}

/** Where a line from `from` towards `to` leaves the box around `from`. */
function border(from, to, room) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const scale = Math.min(
    dx ? (room / 2 + 3) / Math.abs(dx) : Infinity, dy ? 22 / Math.abs(dy) : Infinity, 1);
  return { x: from.x + dx * scale, y: from.y + dy * scale };
}
