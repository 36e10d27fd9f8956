// The page: who, what, when; forecasts; why.
import { $, make, nameLink, percent, say, show, shorten, write } from "./dom.js";
import { get, post, remove } from "./api.js";
import { prepareBacktest } from "./backtest.js";
import { files } from "./files.js";
import { evidenceGraph } from "./evidence.js";
import { searchBox } from "./search.js";
import { showQuality } from "./quality.js";
import { factItem, timelineChart } from "./timeline.js";

const FEW_FACTS = 12;
const NEAR_FACTS = 6;
const DATE_INPUTS = { day: "date", week: "date", hour: "text", month: "month" };
const state = { graph: null, entity: null, label: "", forecasts: [], turn: 0, whatIf: [], replaces: null };

const fail = (error) => say($("alert"), error.message);
const guard = (work) => (...given) => {
  say($("alert"), "");
  return work(...given).catch(fail);
};

// Where we are is in the address, so that it can be kept and sent, and Back works.

function goTo(view, entity = null, asked = {}) {
  const words = entity === null ? "" : `?${new URLSearchParams({ entity, ...asked })}`;
  const hash = `#${view}${words}`;
  if (location.hash === hash) follow();
  else location.hash = hash;
}

/** What the form asks, as it stands in the address: nothing that is as usual. */
function askedWords() {
  const words = {};
  if ($("relation").value) Object.assign(words, { relation: $("relation").value, side: $("side").value });
  if ($("at").value.trim() && $("at").value.trim() !== state.graph.next) words.at = $("at").value.trim();
  if ($("within").value.trim()) words.within = $("within").value.trim();
  return words;
}

const follow = guard(async () => {
  const [view, query] = location.hash.slice(1).split("?", 2);
  const chosen = ["quality", "backtest"].includes(view) ? view : "forecast";
  for (const name of ["forecast", "backtest", "quality"]) {
    show($(`view-${name}`), name === chosen);
    if (name === chosen) $(`tab-${name}`).setAttribute("aria-current", "page");
    else $(`tab-${name}`).removeAttribute("aria-current");
  }
  if (chosen === "quality") return showQuality();
  if (chosen === "backtest") return;
  const words = new URLSearchParams(query ?? "");
  const entity = words.get("entity");
  if (!entity) return closeEntity();
  $("relation").value = words.get("relation") ?? "";
  fillSides(words.get("side"));
  $("at").value = words.get("at") ?? state.graph.next;
  $("within").value = words.get("within") ?? "";
  if (entity !== state.entity) return openEntity(entity);
  await forecast();
});

// Who

function closeEntity() {
  state.entity = null;
  for (const id of ["question-card", "timeline-card", "forecast-card", "evidence-card"]) {
    show($(id), false);
  }
  show($("welcome"));
}

async function openEntity(name) {
  const { entities } = await get("/entities", { q: name, limit: 1 });
  const match = entities.find((found) => found.name === name) ?? entities[0];
  state.entity = name;
  state.label = match && match.name === name ? match.label : name;
  $("search").value = state.label;
  show($("welcome"), false);
  show($("question-card"));
  fillSides();
  await Promise.all([showTimeline(), forecast()]);
}

async function showTimeline() {
  show($("timeline-card"), false);
  if (supposed()) return;
  const { total, facts, ids } = await get("/facts", { entity: state.entity, limit: 1000 });
  const list = $("timeline");
  const latest = facts.map((fact, i) => [fact, ids[i]]).reverse();
  const item = ([fact, id]) => factItem(fact, id
    ? [["Correct", () => correct(id, fact)], ["Take back", guard(() => takeBack(id))]] : []);
  list.replaceChildren(...latest.slice(0, FEW_FACTS).map(item));
  const more = $("timeline-more");
  show(more, latest.length > FEW_FACTS);
  more.textContent = `Show all ${facts.length.toLocaleString("en")}`;
  more.onclick = () => {
    list.replaceChildren(...latest.map(item));
    show(more, false);
    list.focus();
  };
  show($("timeline-card"));
  write($("timeline-title"), `${state.label}: ${total.toLocaleString("en")} `
    + (total === 1 ? "fact" : "facts"));
  $("timeline-chart").replaceChildren(
    ...(facts.length ? [timelineChart(facts, Math.max(260, $("timeline-chart").clientWidth))] : []));
}

async function takeBack(id) {
  await remove(`/facts/${id}?${new URLSearchParams({ source: "the page" })}`);
  await about();
  const { entities } = await get("/entities", { q: state.entity, limit: 1 });
  if (entities.some((match) => match.name === state.entity)) {
    await Promise.all([showTimeline(), forecast()]);
  } else goTo("forecast");
}

/** The form, filled with a fact in whose place another comes. */
function correct(id, [subject, relation, object, time]) {
  $("new-facts").replaceChildren();
  toggleNew(true);
  state.replaces = id;
  $("new-name").value = subject;
  $("what-0").value = state.graph.relations.find((known) => known.label === relation).name;
  $("other-0").value = object;
  $("when-0").value = time;
  for (const field of ["new-more", "new-suppose-field"]) show($(field), false);
  write($("new-title"), "Who");
  write($("new-save"), "Save the correction");
}

/** Whether the entity is only supposed: nobody else knows of it. */
const supposed = () => state.whatIf.some((fact) => fact.isNew
  && [fact.subject, fact.object].includes(state.entity));

// What and when

function fillRelations() {
  const options = state.graph.relations.map((relation) =>
    make("option", { value: relation.name }, relation.label));
  $("relation").replaceChildren(
    make("option", { value: "" }, "Anything: its most likely next facts"), ...options);
}

function fillSides(side = null) {
  const relation = $("relation");
  const words = relation.selectedOptions[0]?.textContent ?? "";
  show($("side-field"), Boolean(relation.value));
  const chosen = side ?? ($("side").value || "object");
  const who = shorten(state.label, 30);
  $("side").replaceChildren(
    make("option", { value: "object" }, `${who} ${words} …?`),
    make("option", { value: "subject" }, `…? ${words} ${who}`));
  $("side").value = chosen;
}

function question() {
  const asked = { entity: state.entity, top: 10 };
  if ($("relation").value) {
    asked.relation = $("relation").value;
    asked.side = $("side").value;
  }
  if ($("at").value.trim()) asked.at = $("at").value.trim();
  const within = $("within").value.trim();
  if (within) asked.within = within;
  if (state.whatIf.length) asked.what_if = state.whatIf.map(({ isNew, ...fact }) => fact);
  return asked;
}

async function forecast() {
  state.turn += 1;
  const mine = state.turn;
  show($("forecast-card"));
  show($("evidence-card"), false);
  $("forecast-card").setAttribute("aria-busy", "true");
  $("forecast-status").textContent = "…";
  try {
    const answer = await post("/predict", { ...question(), explain: true });
    if (mine === state.turn) {
      showForecasts(answer);
      sayCondition(answer.query);
    }
  } catch (error) {
    if (mine !== state.turn) return;
    write($("forecast-title"), `What next for ${state.label}?`);
    for (const id of ["forecasts", "when", "calibration"]) $(id).replaceChildren();
    $("forecast-status").textContent = "No forecast.";
    throw error;
  } finally {
    $("forecast-card").removeAttribute("aria-busy");
  }
}

/** Beside every number, what it is a chance of. */
function sayCondition(query) {
  const condition = query.within ? "that it comes in this time"
    : query.relation === null ? "of its next fact" : "given that such a fact happens";
  for (const number of $("forecasts").querySelectorAll(".percent:not(:has(small))")) {
    number.append(make("small", {}, condition));
  }
}

/** The forecast fact: [subject, relation, object]. */
function ends(item) {
  return item.side === "subject"
    ? [item.label, item.relation, state.label] : [state.label, item.relation, item.label];
}

/** Rows for what the forecasts leave. */
function rest(query, other, someoneNew, comes) {
  if (typeof other !== "number") return [];
  const row = (what, small, chance, condition = null) => make("li", { class: "rest" },
    make("span", {}, what, small ? make("small", {}, small) : null),
    make("span", { class: "percent" }, percent(chance), condition && make("small", {}, condition)));
  const rows = [row("anything else",
    typeof someoneNew === "number" ? `someone new: ${percent(someoneNew)}` : null, other)];
  if (query.within) rows.push(row("nothing such", null, 1 - comes, "that none comes in this time"));
  return rows;
}

function showForecasts({ query, forecasts, other, someone_new: someoneNew, comes, when, calibration }) {
  state.forecasts = forecasts;
  const until = query.until && query.until !== query.at ? ` to ${query.until}` : "";
  write($("forecast-title"), query.relation === null
    ? `What next for ${state.label}?`
    : ends({ ...query, label: "…" }).join(" ") + "?");
  $("forecast-status").textContent = forecasts.length
    ? `${query.at}${until}, by ${query.model}. Choose one to see why.`
    : `${query.at}${until}: nothing to tell.`;
  $("forecasts").replaceChildren(...forecasts.map((item, i) => {
    const bar = make("span", { class: "bar" });
    bar.style.width = `${Math.min(100, 100 * item.probability)}%`;
    const small = query.relation === null ? ends(item).join(" ") : null;
    return make("li", {}, make("button", {
      type: "button", "aria-pressed": "false", "aria-controls": "evidence-card",
      onclick: () => choose(i, true),
    },
    make("span", { class: "place" }, String(item.rank)),
    make("span", {}, item.label, small ? make("small", {}, small) : null),
    make("span", { class: "percent" }, percent(item.probability)),
    make("span", { class: "track" }, bar)));
  }), ...rest(query, other, someoneNew, comes));
  const error = calibration?.ece;
  const off = typeof error === "number"
    ? ` Fitted to past questions; the first was off by ${percent(error)} on average.` : "";
  $("calibration").textContent = query.within
    ? `Probabilities: that the next such fact comes from ${query.at} to ${query.until}.`
    : `Probabilities: given that such a fact happens.${off}`;
  say($("when"), when.length ? "Such a fact comes by "
    + `${when.map(([date, chance]) => `${date}: ${percent(chance)}`).join(", by ")}.` : "");
  if (forecasts.length) choose(0, false);
}

// Why

function choose(i, move) {
  const item = state.forecasts[i];
  [...$("forecasts").querySelectorAll("button")].forEach((button, n) =>
    button.setAttribute("aria-pressed", n === i));
  state.near = [];
  $("evidence-title").replaceChildren("Why ", nameLink(item.entity, item.label), "?");
  show($("evidence-card"));
  const reasons = item.reasons;
  show($("evidence-note"), reasons.some(({ kind }) => kind !== "vectors"));
  drawWhy(item);
  $("evidence").replaceChildren(...(reasons.length ? grouped(reasons)
    : [make("li", {}, "This model gives no reasons for it.")]));
  if (move) {
    $("evidence-title").focus({ preventScroll: true });
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    $("evidence-card").scrollIntoView({ behavior: still ? "auto" : "smooth", block: "nearest" });
  }
}

/** The picture of a forecast's reasons, and of what was asked for beside them. */
function drawWhy(item) {
  const [subject, relation, object] = ends(item);
  const width = Math.max(280, Math.floor($("evidence-card").clientWidth - 36));
  const asked = { subject, relation, object, time: item.at };
  const shown = [...item.reasons, ...state.near];
  const expand = guard((name) => showNear(item, name));
  $("evidence-graph").replaceChildren(...(shown.some((reason) => reason.facts.length)
    ? [evidenceGraph(shown, state.label, item.label, asked, width, expand)] : []));
}

/** Draw the latest facts of a name in the picture too. */
async function showNear(item, name) {
  const { facts } = await get("/facts", { entity: name, limit: NEAR_FACTS });
  state.near.push({ kind: "near", weight: 0, count: facts.length, facts });
  drawWhy(item);
  const label = `More facts of ${name}`;
  [...$("evidence-graph").querySelectorAll(".expands")]
    .find((node) => node.getAttribute("aria-label") === label)?.focus({ preventScroll: true });
}

/** What speaks for it, what against it, and what was looked at and made no difference. */
function grouped(reasons) {
  const items = (some) => some.map(reasonItem);
  const group = (title, some) => some.length
    ? [make("li", { class: "group" }, make("h3", {}, title)), ...items(some)] : [];
  const weighs = (reason) => reason.weight !== 0 || reason.kind === "vectors";
  const none = reasons.filter((reason) => !weighs(reason));
  if (none.length === reasons.length) return group("Together; each alone makes no difference", none);
  return [
    ...group("Because", reasons.filter((reason) => weighs(reason) && reason.weight >= 0)),
    ...group("Against", reasons.filter((reason) => reason.weight < 0)),
    ...(none.length ? [make("li", { class: "group" }, make("details", {},
      make("summary", {}, `Looked at, made no difference: ${none.length}`),
      make("ul", {}, ...items(none))))] : []),
  ];
}

function reasonItem(reason) {
  const facts = reason.facts.map(([subject, relation, object, time]) => make("li", {}, `${time}: `,
    nameLink(subject), ` ${relation} `, nameLink(object)));
  const against = reason.weight < 0;
  const meaning = `how much less likely ${against ? "with" : "without"} it`;
  return make("li", { class: against ? "against" : null },
    reason.kind === "vectors" ? null
      : make("span", { class: "weight", title: meaning }, percent(Math.abs(reason.weight))),
    reason.text.replace(/^against: /, ""),
    facts.length ? make("details", {},
      make("summary", {}, facts.length === 1 ? "the fact" : `the ${facts.length} facts`),
      make("ul", {}, ...facts)) : null);
}

// A new entity

function dateInput(id, value) {
  const type = DATE_INPUTS[state.graph.unit] ?? "text";
  return make("input", { id, type, value, placeholder: state.graph.next, required: true });
}

function addFactRow() {
  const group = $("new-facts");
  const n = group.children.length;
  const field = (name, text, input) =>
    [make("label", { for: `${name}-${n}` }, text), input];
  group.append(make("fieldset", { class: "new-fact" },
    make("legend", {}, `Fact ${n + 1}`),
    ...field("way", "Who does it", make("select", { id: `way-${n}` },
      make("option", { value: "object" }, "the newcomer → the other"),
      make("option", { value: "subject" }, "the other → the newcomer"))),
    ...field("what", "What", make("select", { id: `what-${n}` },
      ...state.graph.relations.map((r) => make("option", { value: r.name }, r.label)))),
    ...field("other", "The other", make("input", {
      id: `other-${n}`, type: "text", maxlength: 500, autocomplete: "off", required: true,
      list: `others-${n}`, oninput: (event) => suggest(event.target, $(`others-${n}`)),
    })),
    make("datalist", { id: `others-${n}` }),
    ...field("when", "When", dateInput(`when-${n}`, state.graph.last))));
}

async function suggest(input, list) {
  const words = input.value.trim();
  if (words.length < 2) return;
  const { entities } = await get("/entities", { q: words, limit: 8 }).catch(() => ({ entities: [] }));
  list.replaceChildren(...entities.map((match) => make("option", { value: match.label })));
}

function newFacts(name) {
  const facts = [];
  for (let n = 0; n < $("new-facts").children.length; n += 1) {
    const other = $(`other-${n}`).value.trim();
    if (!other) continue;
    const [subject, object] = $(`way-${n}`).value === "object" ? [name, other] : [other, name];
    facts.push({ subject, relation: $(`what-${n}`).value, object, time: $(`when-${n}`).value.trim() });
  }
  return facts;
}

async function saveNew(sure = false) {
  const name = $("new-name").value.trim();
  const facts = newFacts(name);
  const problem = !name ? "Give it a name." : !facts.length ? "Give at least one fact." : "";
  say($("new-error"), problem);
  show($("new-confirm"), false);
  if (problem) return;
  if ($("new-suppose").checked && !state.replaces) {
    suppose(await marked(name, facts));
  } else {
    try {
      const told = state.replaces ? { ...facts[0], replaces: state.replaces } : { facts };
      await post("/facts", { ...told, source: "the page", confirm_new: sure, allow_far: sure });
    } catch (error) {
      say($("new-error"), error.message);
      // Asked back: a name that is nearly a known one, or a date far ahead.
      show($("new-confirm"), error.status === 409);
      return;
    }
  }
  $("new-facts").replaceChildren();
  $("new-name").value = "";
  toggleNew(false);
  await about();
  // What was just told may be later than the date that was asked about.
  $("at").value = state.graph.next;
  state.entity = null;
  goTo("forecast", name);
  $("forecast-title").focus();
}

// What if

async function marked(name, facts) {
  const { entities } = await get("/entities", { q: name, limit: 1 });
  const isNew = !entities.some((match) => match.name === name || match.label === name);
  return facts.map((fact) => ({ ...fact, isNew }));
}

function suppose(facts) {
  state.whatIf = facts;
  show($("what-if"), facts.length > 0);
  write($("what-if-text"), `What if? Supposing, and not saving: ${facts.map((fact) =>
    `${fact.subject} ${fact.relation} ${fact.object}, ${fact.time}`).join("; ")}.`);
}

function toggleNew(open) {
  show($("new-form"), open);
  $("new-toggle").setAttribute("aria-expanded", open);
  if (state.replaces) {
    state.replaces = null;
    $("new-facts").replaceChildren();
    $("new-name").value = "";
    for (const field of ["new-more", "new-suppose-field"]) show($(field));
    write($("new-title"), "Name of the new entity");
    write($("new-save"), "Save and forecast");
  }
  if (open && !$("new-facts").children.length) addFactRow();
  if (open) $("new-name").focus();
}

// Start

async function about() {
  const graph = await get("/graph");
  state.graph = graph;
  const count = (n) => n.toLocaleString("en");
  write($("about"), `${graph.dataset || "facts"}: ${count(graph.facts)} facts, `
    + `${count(graph.entities)} entities, ${graph.first} to ${graph.last}; model ${graph.model}`);
  const at = $("at");
  at.type = DATE_INPUTS[graph.unit] ?? "text";
  at.placeholder = graph.next;
  if (!at.value) at.value = graph.next;
  prepareBacktest(graph, at.type, fail);
}

async function starters() {
  const { entities } = await get("/newcomers");
  $("starters").replaceChildren(...entities.map((match) => make("li", {}, make("button", {
    type: "button", class: "plain", onclick: () => goTo("forecast", match.name),
  }, match.label))));
}

async function start() {
  searchBox((match) => goTo("forecast", match.name), fail);
  $("relation").addEventListener("change", () => fillSides());
  $("question").addEventListener("submit", (event) => {
    event.preventDefault();
    goTo("forecast", state.entity, askedWords());
  });
  $("new-toggle").addEventListener("click", () => toggleNew($("new-form").hidden));
  $("new-more").addEventListener("click", () => {
    addFactRow();
    $("new-facts").lastElementChild.querySelector("select").focus();
  });
  $("new-form").addEventListener("submit", (event) => {
    event.preventDefault();
    guard(saveNew)();
  });
  $("new-confirm").addEventListener("click", () => guard(saveNew)(true));
  $("new-suppose").addEventListener("change", () => write($("new-save"),
    $("new-suppose").checked ? "Suppose and forecast" : "Save and forecast"));
  $("what-if-stop").addEventListener("click", () => {
    const gone = supposed();
    suppose([]);
    if (gone) goTo("forecast");
    else guard(forecast)();
  });
  files(about, fail);
  window.addEventListener("hashchange", follow);
  await about();
  fillRelations();
  await starters();
  await follow();
  document.documentElement.dataset.ready = "yes";
}

guard(start)();
