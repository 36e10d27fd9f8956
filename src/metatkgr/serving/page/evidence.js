// The evidence of one forecast as a small graph: who is asked about, the answer, and what links them.
import { draw, shorten } from "./dom.js";

const MOST_LINKS = 9;

/** Facts of the reasons, repeated ones as one link with its dates and the weight of its reasons. */
function linksOf(reasons) {
  const links = new Map();
  for (const reason of reasons) {
    for (const [subject, relation, object, time] of reason.facts) {
      const key = JSON.stringify([subject, relation, object]);
      const link = links.get(key) ?? { subject, relation, object, times: new Set(), weight: 0 };
      link.times.add(time);
      link.weight = Math.max(link.weight, reason.weight);
      links.set(key, link);
    }
  }
  return [...links.values()];
}

/** Names that stand in the same links to the same others become one: "Mivon Yaronhart + 2". */
function gather(links, entity, answer) {
  const roles = new Map();
  const role = (name, words) => {
    if (name !== entity && name !== answer) roles.set(name, [...(roles.get(name) ?? []), words]);
  };
  for (const { subject, relation, object } of links) {
    role(subject, JSON.stringify(["subject", relation, object]));
    role(object, JSON.stringify(["object", relation, subject]));
  }
  const groups = new Map();
  for (const [name, words] of roles) {
    const key = words.sort().join();
    groups.set(key, [...(groups.get(key) ?? []), name]);
  }
  const called = new Map();
  for (const names of groups.values()) {
    const together = names.length > 1 ? `${names[0]} + ${names.length - 1}` : names[0];
    for (const name of names) called.set(name, { together, names });
  }
  const merged = new Map();
  for (const link of links) {
    const [from, to] = [link.subject, link.object].map((name) =>
      called.get(name) ?? { together: name, names: [name] });
    const key = JSON.stringify([from.together, link.relation, to.together]);
    const one = merged.get(key) ?? {
      subject: from.together, relation: link.relation, object: to.together, times: [], weight: 0,
      names: [...from.names, ...to.names],
    };
    one.times.push(...link.times);
    one.weight = Math.max(one.weight, link.weight);
    merged.set(key, one);
  }
  return [...merged.values()].sort((x, y) => y.weight - x.weight).slice(0, MOST_LINKS);
}

function dates(times) {
  const sorted = [...times].sort();
  return sorted.length === 1 ? sorted[0] : `${sorted.length}×, last ${sorted.at(-1)}`;
}

/** Column of every name: 0 the asking entity, last the answer, between them by distance. */
function columnsOf(links, entity, answer) {
  const distance = new Map([[entity, 0]]);
  const queue = [entity];
  while (queue.length) {
    const name = queue.shift();
    for (const { subject, object } of links) {
      for (const [near, far] of [[subject, object], [object, subject]]) {
        if (near === name && !distance.has(far) && far !== answer) {
          distance.set(far, distance.get(name) + 1);
          queue.push(far);
        }
      }
    }
  }
  for (const { subject, object } of links) {
    for (const name of [subject, object]) if (!distance.has(name)) distance.set(name, 1);
  }
  const between = [...distance].filter(([name]) => name !== entity && name !== answer);
  const depth = Math.min(3, Math.max(0, ...between.map(([, far]) => far)));
  const columns = Array.from({ length: depth + 2 }, () => []);
  columns[0].push(entity);
  for (const [name, far] of between) columns[Math.min(far, depth)].push(name);
  if (answer !== entity) columns[depth + 1].push(answer);
  return columns;
}

/** Where every name stands, and how large the picture is; the middle is left to direct links. */
function layout(columns, width, direct, room, upright) {
  const places = new Map();
  const between = columns.slice(1, -1);
  const lane = 44 + direct * 40;
  if (upright) {
    const side = width / 4 - 8;
    let y = 24;
    places.set(columns[0][0], { x: width / 2, y });
    y += 70 + direct * 16;
    for (const column of between) {
      column.forEach((name, i) => {
        places.set(name, { x: i % 2 ? width - side : side, y: y + (i % 2) * 34 });
        if (i % 2 || i === column.length - 1) y += 80 + direct * 14;
      });
    }
    if (!between.length) y += 30 + direct * 30;
    for (const name of columns.at(-1)) places.set(name, { x: width / 2, y: y + 6 });
    return { places, height: y + 36 };
  }
  const most = Math.max(0, ...between.map((column) => column.length));
  const half = Math.ceil(most / 2) * 66;
  const height = Math.max(130, (most ? lane + 2 * half : lane + 60));
  columns.forEach((column, n) => {
    const x = room / 2 + 4 + ((width - room - 8) * n) / (columns.length - 1);
    column.forEach((name, i) => {
      const end = n === 0 || n === columns.length - 1;
      const away = lane / 2 + 33 + Math.floor(i / 2) * 66;
      places.set(name, { x, y: end ? height / 2 : height / 2 + (i % 2 ? away : -away) });
    });
  });
  return { places, height };
}

/** A picture of the reasons; `asked` is the forecast fact itself, drawn dashed. */
export function evidenceGraph(reasons, entity, answer, asked, width) {
  const links = gather(linksOf(reasons), entity, answer);
  const upright = width < 480;
  const columns = columnsOf(links, entity, answer);
  const direct = links.filter(({ subject, object }) =>
    [subject, object].includes(entity) && [subject, object].includes(answer)).length + 1;
  const room = upright ? Math.min(150, width / 2 - 40)
    : Math.min(168, width / columns.length - 16);
  const { places, height } = layout(columns, width, direct, room, upright);
  const heights = [...places.values()].map((place) => place.y);
  const top = upright ? 0 : Math.max(0, Math.min(...heights) - Math.max(28, direct * 22));
  const bottom = upright ? height : Math.min(height, Math.max(...heights) + Math.max(28, direct * 22));
  const picture = draw("svg", {
    viewBox: `0 ${top} ${width} ${bottom - top}`, role: "img",
    "aria-label": `${links.length} facts that link ${shorten(entity, 60)} and ${shorten(answer, 60)}`,
  });
  picture.append(draw("defs", {}, arrow("arrow", "arrow"), arrow("asked-arrow", "asked-arrow")));
  const counts = new Map();
  const labels = [];
  const all = [{ ...asked, asked: true, times: [asked.time], weight: 1 }, ...links];
  for (const link of all) {
    const pair = JSON.stringify([link.subject, link.object].sort());
    const number = counts.get(pair) ?? 0;
    counts.set(pair, number + 1);
    const from = places.get(link.subject);
    const to = places.get(link.object);
    if (!from || !to) continue;
    const { path, at } = curve(from, to, number, room, link.subject < link.object ? 1 : -1, upright);
    picture.append(draw("path", {
      d: path, class: link.asked ? "asked" : "edge",
      "stroke-width": link.asked ? 2 : 1 + 2.5 * Math.min(1, Math.max(0, link.weight)),
      "marker-end": `url(#${link.asked ? "asked-arrow" : "arrow"})`,
    }, draw("title", {}, [
      `${link.subject} ${link.relation} ${link.object} (${dates(link.times)})`,
      ...(link.names?.length > 2 ? link.names : []),
    ].join("\n"))));
    labels.push({ link, at });
  }
  for (const [name, place] of places) picture.append(node(name, place, room, entity, answer));
  // Words last, so that no line runs through them.
  const taken = [...places.values()].map((place) => ({ x: place.x, y: place.y, half: room / 2 }));
  for (const { link, at } of labels) picture.append(label(link, at, taken, upright));
  return picture;
}

function arrow(id, kind) {
  return draw("marker", {
    id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, orient: "auto",
    markerUnits: "userSpaceOnUse",
  }, draw("path", { d: "M0 0 8 4 0 8z", class: kind }));
}

/** Where a line from `from` towards `to` leaves the box around `from`. */
function border(from, to, room) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  const scale = Math.min(
    dx ? (room / 2 + 3) / Math.abs(dx) : Infinity, dy ? 22 / Math.abs(dy) : Infinity, 1);
  return { x: from.x + dx * scale, y: from.y + dy * scale };
}

function curve(from, to, number, room, sign, upright) {
  if (from === to) {
    const { x, y } = from;
    return {
      path: `M${x - 30} ${y - 19} C${x - 50} ${y - 70} ${x + 50} ${y - 70} ${x + 30} ${y - 20}`,
      at: { x, y: y - 58 },
    };
  }
  const bend = (number % 2 ? -1 : 1) * Math.ceil(number / 2) * 44 * sign;
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const middle = {
    x: (from.x + to.x) / 2 - ((to.y - from.y) / length) * bend,
    y: (from.y + to.y) / 2 + ((to.x - from.x) / length) * bend,
  };
  const start = border(from, middle, room);
  const end = border(to, middle, room);
  // Side by side there is no room for the words of upright lines: they stand at different heights.
  const t = upright && number ? 0.5 + (number % 2 ? -0.24 : 0.24) : 0.5;
  const along = (a, b, c) => (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t ** 2 * c;
  return {
    path: `M${start.x} ${start.y} Q${middle.x} ${middle.y} ${end.x} ${end.y}`,
    at: { x: along(start.x, middle.x, end.x), y: along(start.y, middle.y, end.y) + 2 },
  };
}

function node(name, { x, y }, room, entity, answer) {
  const kind = name === entity ? "node entity" : name === answer ? "node answer" : "node";
  return draw("g", {},
    draw("title", {}, name),
    draw("rect", { x: x - room / 2, y: y - 19, width: room, height: 38, rx: 12, class: kind }),
    draw("text", {
      x, y: y + 4.5, "text-anchor": "middle", class: name === entity ? "on-strong" : null,
    }, fitting(name, Math.floor(room / 8.6))));
}

/** A name cut to so many letters; how many stand behind it stays. */
function fitting(name, most) {
  const [, first, more] = /^(.*?)( \+ \d+)?$/s.exec(name);
  return shorten(first, most - (more ?? "").length) + (more ?? "");
}

function label(link, at, taken, upright) {
  const most = upright ? 20 : 28;
  const words = shorten(link.relation, most);
  const when = shorten(dates(link.times), most + 6);
  const half = Math.max(words.length, when.length) * 3;
  const place = { x: at.x, y: at.y, half };
  const clash = (other) =>
    Math.abs(other.x - place.x) < other.half + half && Math.abs(other.y - place.y) < 27;
  for (let tries = 0; tries < 8 && taken.some(clash); tries += 1) {
    place.y = at.y + (tries % 2 ? -1 : 1) * Math.ceil((tries + 1) / 2) * 14;
  }
  taken.push(place);
  const kind = link.asked ? "asked-text halo" : "small halo";
  return draw("text", { x: place.x, y: place.y, "text-anchor": "middle", class: kind },
    draw("tspan", { x: place.x, dy: -2 }, link.asked ? `${words}?` : words),
    draw("tspan", { x: place.x, dy: 13 }, when));
}
