// The search box: a combobox whose list is asked from the service while one types.
import { $, make, show } from "./dom.js";
import { get } from "./api.js";

/** Call `choose(match)` when an entity is picked, `fail(error)` when the service refuses. */
export function searchBox(choose, fail) {
  const input = $("search");
  const list = $("matches");
  let found = [];
  let at = -1;
  let timer = null;
  let turn = 0;

  const close = () => {
    show(list, false);
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    at = -1;
  };
  const pick = (match) => {
    turn += 1;
    clearTimeout(timer);
    input.value = match.label;
    close();
    choose(match);
  };
  const mark = (next) => {
    at = next;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", i === at));
    if (at < 0) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", `match-${at}`);
      list.children[at].scrollIntoView({ block: "nearest" });
    }
  };
  const open = (matches) => {
    found = matches;
    at = -1;
    const items = found.map((match, i) => make("li", {
      id: `match-${i}`, role: "option", "aria-selected": "false",
      onmousedown: (event) => event.preventDefault(),
      onclick: () => pick(match),
    }, match.label, make("small", {},
      match.facts ? `${match.facts.toLocaleString("en")} facts, ${match.first} to ${match.last}`
        : "no facts yet")));
    if (!items.length) items.push(make("li", { role: "option", "aria-disabled": "true" },
      make("small", {}, "Nobody of that name; “New entity” adds one")));
    list.replaceChildren(...items);
    show(list);
    input.setAttribute("aria-expanded", "true");
  };
  const ask = async () => {
    const words = input.value.trim();
    if (!words) return close();
    turn += 1;
    const mine = turn;
    try {
      const { entities } = await get("/entities", { q: words, limit: 8 });
      if (mine === turn) open(entities);
    } catch (error) {
      if (mine === turn) fail(error);
    }
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, 120);
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const last = found.length - 1;
    if (event.key === "Escape") close();
    else if (list.hidden) {
      if (event.key === "ArrowDown" || event.key === "Enter") ask();
      else return;
    } else if (event.key === "ArrowDown") mark(at < last ? at + 1 : 0);
    else if (event.key === "ArrowUp") mark(at > 0 ? at - 1 : last);
    else if (event.key === "Enter" && found.length) pick(found[Math.max(at, 0)]);
    else return;
    event.preventDefault();
  });
}
