// The evidence of one forecast as a small graph: who is asked about, the answer, and what links them.
import { draw, shorten } from "./dom.js";
import { arrange, sizeOf } from "./layout.js";

const MOST_LINKS = 9;

/** Facts of the reasons, repeated ones as one link with its dates and the weight of its reasons. */
function linksOf(reasons, entity) {
  const links = new Map();
  for (const reason of reasons) {
    // Where all facts are drawn, their own counts tell the number that the words tell.
    const drawn = reason.kind === "path" ? reason.facts.length >> 1 : reason.facts.length;
    for (const [subject, relation, object, time] of reason.facts) {
      const key = JSON.stringify([subject, relation, object]);
      const link = links.get(key)
        ?? { subject, relation, object, times: new Set(), count: 0, all: 0, weight: 0 };
      link.times.add(time);
      // Of very many facts some are sent; the picture tells the number that the words tell.
      const own = subject === entity || object === entity;
      const many = { repeat: "count", contact: "all",
        // Of others, not of the one who is asked about, tell the words of walks and of a slot.
        frequency: own ? null : "all", path: own ? null : "all" }[reason.kind];
      link.count = Math.max(link.count, link.times.size);
      if (many && reason.count > drawn) link[many] = Math.max(link[many], reason.count);
      link.weight = Math.max(link.weight, reason.weight);
      links.set(key, link);
    }
  }
  return [...links.values()];
}

/** Names that stand in the same links to the same others become one: "Mivon Yaronhart + 2". */
function gather(links, entity, answer, most) {
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
      subject: from.together, relation: link.relation, object: to.together, times: [], count: 0, all: 0,
      weight: 0,
      names: [...from.names, ...to.names],
    };
    one.times.push(...link.times);
    one.count += link.count;
    one.all = Math.max(one.all, link.all);
    one.weight = Math.max(one.weight, link.weight);
    merged.set(key, one);
  }
  return [...merged.values()].sort((x, y) => y.weight - x.weight).slice(0, most);
}

/** How often: "135×"; where the words tell of more than is drawn, "20 of 135×". */
function often({ count, all }) {
  const more = all > count ? ` of ${all.toLocaleString("en")}` : "";
  return `${count.toLocaleString("en")}${more}×`;
}

function dates(link) {
  const sorted = [...link.times].sort();
  return Math.max(link.count, link.all ?? 0) === 1 ? sorted[0] : `${often(link)}, last ${sorted.at(-1)}`;
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

/** Links between the same two names as one line; every line has its words, asked or known. */
function bundle(links, asked) {
  const lines = new Map();
  for (const link of links) {
    const key = JSON.stringify([link.subject, link.object].sort());
    const line = lines.get(key) ?? { from: link.subject, to: link.object, links: [], weight: 0 };
    line.links.push(link);
    line.weight = Math.max(line.weight, link.weight);
    lines.set(key, line);
  }
  return [{ from: asked.subject, to: asked.object, links: [asked], asked: true, weight: 1 },
    ...lines.values()];
}

/** What is written at a line: one link in two rows, several in a row each. */
function wordsOf(line, upright, most) {
  if (line.links.length === 1) {
    const [link] = line.links;
    return [shorten(link.relation, most) + (line.asked ? "?" : ""), shorten(dates(link), most + 6)];
  }
  const [there, back] = upright ? "↓↑" : "→←";
  const mixed = line.links.some(({ subject }) => subject !== line.from);
  return line.links.map((link) => {
    const { subject, relation, times, count } = link;
    const way = mixed ? `${(subject === line.from) === line.onwards ? there : back} ` : "";
    return `${way}${shorten(relation, most)} ${count > 1 ? often(link) : times[0]}`;
  });
}

/**
 * A picture of the reasons; `asked` is the forecast fact itself, drawn dashed. Who presses a name
 * has `expand` called with it: facts of kind "near" are drawn beside the reasons.
 */
export function evidenceGraph(reasons, entity, answer, asked, width, expand) {
  const near = reasons.filter(({ kind }) => kind === "near").flatMap(({ facts }) => facts).length;
  const links = gather(linksOf(reasons, entity), entity, answer, MOST_LINKS + near);
  const columns = columnsOf(links, entity, answer);
  const order = new Map(columns.flat().map((name, place) => [name, place]));
  const lines = bundle(links, { ...asked, times: [asked.time], count: 1 }).filter(
    ({ from, to }) => order.has(from) && order.has(to));
  const write = (upright, most) => {
    for (const line of lines) {
      line.onwards = order.get(line.from) <= order.get(line.to);
      line.words = wordsOf(line, upright, most);
    }
  };
  write(false, 28);
  // Side by side there must be room for words between the columns.
  const widest = Math.max(...lines.map((line) => sizeOf(line).wide)) + 14;
  const spare = (width - (columns.length - 1) * widest) / columns.length;
  const upright = width < 480 || spare < 84;
  if (upright) write(true, Math.max(12, Math.floor(width / 18)));
  const room = Math.min(168, upright ? width / 2 - 40 : spare);
  const { places, routes, top, bottom } = arrange(columns, lines, width, room, upright);
  const picture = draw("svg", {
    viewBox: `0 ${top} ${width} ${bottom - top}`, role: "group",
    "aria-label": `${links.length} facts that link ${shorten(entity, 60)} and ${shorten(answer, 60)}`,
  });
  picture.append(draw("defs", {}, arrow("arrow", "arrow"), arrow("asked-arrow", "asked-arrow")));
  routes.forEach(({ path }, n) => picture.append(edge(lines[n], path)));
  for (const [name, place] of places) {
    picture.append(node(name, place, room, entity, answer, expand));
  }
  // Words last, so that no line runs through them.
  routes.forEach(({ at }, n) => picture.append(label(lines[n], at)));
  return picture;
}

function edge(line, path) {
  const head = `url(#${line.asked ? "asked-arrow" : "arrow"})`;
  return draw("path", {
    d: path, class: line.asked ? "asked" : "edge",
    "stroke-width": line.asked ? 2 : 1 + 2.5 * Math.min(1, Math.max(0, line.weight)),
    "marker-end": line.links.some(({ subject }) => subject === line.from) ? head : null,
    "marker-start": line.links.some(({ subject }) => subject !== line.from) ? head : null,
  }, draw("title", {}, line.links.flatMap((link) => [
    `${link.subject} ${link.relation} ${link.object} (${dates(link)})`,
    ...(link.names?.length > 2 ? link.names : []),
  ]).join("\n")));
}

function arrow(id, kind) {
  return draw("marker", {
    id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9,
    orient: "auto-start-reverse", markerUnits: "userSpaceOnUse",
  }, draw("path", { d: "M0 0 8 4 0 8z", class: kind }));
}

function node(name, { x, y }, room, entity, answer, expand) {
  const kind = name === entity ? "node entity" : name === answer ? "node answer" : "node";
  // Several as one have no facts in common to show.
  const how = / \+ \d+$/.test(name) ? {} : {
    class: "expands", role: "button", tabindex: "0", "aria-label": `More facts of ${name}`,
    onclick: () => expand(name),
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      expand(name);
    },
  };
  return draw("g", how,
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

function label(line, at) {
  const { words, asked } = line;
  const { wide, high } = sizeOf(line);
  const first = at.y - (words.length - 1) * 6.5 + 4;
  const kind = asked ? "asked-text words" : "small words";
  return draw("g", {},
    // No line shows through the words.
    draw("rect", {
      x: at.x - wide / 2 + 2, y: at.y - high / 2 + 4, width: wide - 4, height: high - 8, rx: 4,
      class: "paper",
    }),
    draw("text", { x: at.x, y: first, "text-anchor": "middle", class: kind },
      ...words.map((row, n) => draw("tspan", { x: at.x, dy: n ? 13 : 0 }, row))));
}
