"""The page in a real browser: by keyboard, on a phone, in the dark, with hostile names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import browser as system_browser
from local_service import app_of, listening
from metatkgr.data.facts import Facts
from metatkgr.serving.auth import add_token
from metatkgr.serving.limits import ServiceSettings

if reason := system_browser.why_not():
    pytest.skip(reason, allow_module_level=True)

TURNED = "bank \u202eknab"
"""Its second half is read backwards where nobody takes care."""
HOSTILE = "<img src=x onerror=\"document.title='owned'\">'\"&amp;</script>"
PHONE = {"width": 360, "height": 740}

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def url(world: Facts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening(app_of(world, tmp_path_factory.mktemp("page") / "facts.sqlite")) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with system_browser.chromium() as found:
        yield found


@pytest.fixture
def open_page(chromium: Any, url: str) -> Iterator[Open]:
    """Open the service's page; whatever it complains about, or asks of others, is a failure."""
    contexts = []
    wrong: list[str] = []

    def go(path: str = "/", address: str = url, **how: Any) -> Any:
        context = chromium.new_context(reduced_motion="reduce", **how)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("console", lambda m: "Security Policy" in m.text and wrong.append(m.text))
        page.on("request", lambda r: r.url.startswith(address) or wrong.append(f"outside: {r.url}"))
        page.goto(address + path)
        return page

    yield go
    for context in contexts:
        context.close()
    assert wrong == []


def ready(page: Any) -> Any:
    page.wait_for_selector("html[data-ready]")
    return page


def fits(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_by_keyboard_from_a_name_to_the_reasons(open_page: Open, world: Facts) -> None:
    page = ready(open_page())
    name = world.entities.label(0)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    while page.evaluate("document.activeElement.id") != "search":
        page.keyboard.press("Tab")
    page.keyboard.type(name[:-2].lower())
    page.wait_for_selector("#match-0")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#search", "aria-activedescendant") == "match-0"
    page.keyboard.press("Enter")
    page.wait_for_selector("#forecasts button")
    assert page.inner_text("#forecast-title") == f"What next for {name}?"
    assert name in page.inner_text("#timeline li >> nth=0")
    buttons = page.locator("#forecasts button")
    assert buttons.count() == 10
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#forecasts li:nth-child(2)') !== null"):
            break
    page.keyboard.press("Enter")
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"
    label = buttons.nth(1).locator("span >> nth=1").inner_text().splitlines()[0]
    assert page.inner_text("#evidence-title") == f"Why {label}?"
    assert page.evaluate("document.activeElement.id") == "evidence-title"
    assert page.locator("#evidence li").count() >= 1


def test_a_name_in_the_picture_shows_more_of_its_facts(open_page: Open, world: Facts) -> None:
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}"))
    page.wait_for_selector("#evidence-graph .expands")
    nodes = page.locator("#evidence-graph rect.node")
    before = nodes.count()
    first = page.locator("#evidence-graph .expands:not(:has(rect.entity))").first
    label = first.get_attribute("aria-label")
    first.press("Enter")
    nodes.nth(before).wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == label
    # Another forecast begins with its own reasons.
    page.click("#forecasts button >> nth=0")
    nodes.nth(before).wait_for(state="detached")
    assert nodes.count() == before
    assert fits(page)


def test_a_question_with_relation_side_and_date(open_page: Open, world: Facts) -> None:
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}"))
    page.select_option("#relation", world.relations[0])
    page.select_option("#side", "subject")
    page.fill("#at", "2017-03-06")
    page.fill("#within", "3")
    page.click("#question button")
    page.wait_for_selector("#forecast-title:has-text('…')")
    assert "2017-03-06 to 2017-03-20" in page.inner_text("#forecast-status")
    page.fill("#at", "1900-01-01")
    page.click("#question button")
    page.wait_for_selector("#alert:not([hidden])")
    assert "before the graph begins" in page.inner_text("#alert")


def test_a_newcomer_is_typed_in_and_forecast(open_page: Open, world: Facts) -> None:
    page = ready(open_page())
    page.click("#new-toggle")
    page.click("#new-form button.strong")
    assert "name" in page.inner_text("#new-error")
    page.fill("#new-name", "Newly Typed")
    _, relation, club, _ = world.describe(0)
    page.select_option("#what-0", relation)
    page.fill("#other-0", club)
    page.click("#new-more")
    page.select_option("#way-1", "subject")
    page.fill("#other-1", "Another Newcomer")
    page.click("#new-form button.strong")
    page.wait_for_selector("#forecasts button")
    assert page.inner_text("#forecast-title") == "What next for Newly Typed?"
    assert page.inner_text("#timeline-title") == "Newly Typed: 2 facts"
    assert page.locator("#evidence-graph svg").count() == 1
    # The address holds the question: Back leaves it, a reload keeps it.
    page.reload()
    page.wait_for_selector("#forecasts button")
    page.go_back()
    page.wait_for_selector("#welcome:not([hidden])")


def test_hostile_names_are_text(open_page: Open, world: Facts) -> None:
    page = ready(open_page())
    page.click("#new-toggle")
    page.fill("#new-name", HOSTILE)
    page.fill("#other-0", "<svg onload=alert(1)>")
    page.click("#new-form button.strong")
    page.wait_for_selector("#forecasts button")
    assert page.inner_text("#forecast-title") == f"What next for {HOSTILE}?"
    assert page.title() == "metatkgr"
    assert page.locator("main img, main script").count() == 0
    page.fill("#search", "<img")
    page.wait_for_selector("#match-0")
    assert page.inner_text("#match-0").startswith(HOSTILE)
    page.click("#new-toggle")
    page.fill("#new-name", TURNED)
    page.fill("#other-0", TURNED + "!")
    page.click("#new-form button.strong")
    page.wait_for_selector("#forecast-title:has-text('bank')")
    assert page.inner_text("#forecast-title") == "What next for bank \\u202eknab?"
    assert "\u202e" not in page.inner_text("main")


def test_the_model_is_shown_beside_the_rules_and_over_time(open_page: Open) -> None:
    page = ready(open_page("/#quality"))
    page.wait_for_selector("#quality-table table", timeout=30_000)
    assert page.locator("#quality-table tbody th").all_inner_texts() == ["paths", "recurrency"]
    assert page.locator("#quality-lines polyline").count() == 2
    assert page.locator("#reliability rect").count() in (0, 10)
    assert page.get_attribute("#tab-quality", "aria-current") == "page"
    assert "60 of " in page.inner_text("#quality-status")


def test_it_fits_a_phone(open_page: Open, world: Facts) -> None:
    page = ready(open_page(viewport=PHONE, has_touch=True, is_mobile=True))
    assert fits(page)
    page.fill("#search", world.entities[0])
    page.tap("#match-0")
    page.wait_for_selector("#forecasts button")
    page.wait_for_selector("#timeline li")
    assert fits(page)
    # A finger needs 44 pixels.
    sizes = page.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter(e => e.offsetParent)"
        ".map(e => e.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 44
    page.goto(page.url.partition("#")[0] + "#quality")
    page.wait_for_selector("#quality-table table", timeout=30_000)
    assert fits(page)


LUMINANCE = """
(pair) => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const probe = document.body.appendChild(document.createElement("i"));
  const [one, two] = pair.map((name) => {
    probe.style.color = `var(${name})`;
    return light(getComputedStyle(probe).color);
  });
  probe.remove();
  return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_in_light_and_dark(open_page: Open, scheme: str) -> None:
    page = ready(open_page(color_scheme=scheme))
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(back[4:].split(",")[0]) < 128) == (scheme == "dark")
    pairs = [("text", "back"), ("text", "card"), ("quiet", "card"), ("quiet", "back")]
    pairs += [("strong", "card"), ("on-strong", "strong"), ("bad", "bad-back"), ("mark", "card")]
    for pair in pairs:
        contrast = page.evaluate(LUMINANCE, [f"--{name}" for name in pair])
        assert contrast >= 4.5, f"{pair} in {scheme}: {contrast:.1f}"


def test_every_control_has_a_name(open_page: Open, world: Facts) -> None:
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}"))
    page.wait_for_selector("#forecasts button")
    page.click("#new-toggle")
    page.click(".files summary")
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, select, button, [role=img]')]"
        ".filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.innerText?.trim()))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []


def test_a_service_with_a_token_asks_for_it_once(
    open_page: Open, world: Facts, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.toml"
    token = add_token(tokens, "reader", "read")
    app = app_of(world, tmp_path / "facts.sqlite", ServiceSettings(token_file=tokens))
    with listening(app) as address:
        page = open_page(address=address)
        page.wait_for_selector("#token-dialog[open]")
        page.fill("#token", "wrong")
        with page.expect_response(lambda answer: answer.status == 401):
            page.keyboard.press("Enter")
        page.wait_for_selector("#token-error:not([hidden])")
        assert "wrong" in page.inner_text("#token-error")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        ready(page)
        page.reload()
        ready(page)
        assert "world" in page.inner_text("#about")


ALIKE = [[["Ana", f"meets for the {n}th time", "Bo", f"2018-01-0{n}"]] for n in range(1, 6)]
BOTH_WAYS = [[["Bo", "calls", "Ana", "2018-02-02"]], [["Ana", "calls", "Bo", "2018-02-01"]]]
WALKS = [
    [
        ["Ana", "scores against", f"Club {k}", "2018-01-02"],
        [f"Player {k}{j}", "scores against", f"Club {k}", "2018-01-03"],
        [f"Player {k}{j}", "scores against", "Bo", "2018-01-04"],
    ]
    for k in range(3)
    for j in range(2)
]
ELSEWHERE = [
    [["Bo", "competes in", "A league with a rather long name", "2018-02-01"]],
    [["Cy", "plays for", "Bo", "2018-02-01"], ["Cy", "plays for", "Bo", "2018-01-01"]],
    [["Ana", "plays for", "Di", "2018-02-01"], ["Ana", "plays for", "Ana", "2018-02-01"]],
    [["Di", "competes in", "A league with a rather long name", "2018-02-05"]],
]
TOUCHING = """async ({ facts, width }) => {
  const { evidenceGraph } = await import("/page/evidence.js");
  const reasons = facts.map((some, n) => ({ facts: some, weight: 1 / (n + 1) }));
  const asked = { subject: "Ana", relation: "plays for", object: "Bo", time: "2018-03-01" };
  const picture = evidenceGraph(reasons, "Ana", "Bo", asked, width);
  document.body.style.width = `${width}px`;
  document.body.replaceChildren(picture);
  const words = [...picture.querySelectorAll("text.words")];
  const all = [...words, ...picture.querySelectorAll("rect.node")].map((part) => {
    const { x, y, width: wide, height: high } = part.getBBox();
    const name = part.parentNode.textContent;
    return { name, left: x, right: x + wide, top: y, bottom: y + high };
  });
  const view = picture.viewBox.baseVal;
  const wrong = all.filter((one) => one.left < 0 || one.right > view.width || one.top < view.y
    || one.bottom > view.y + view.height).map((one) => `${one.name} leaves the picture`);
  all.forEach((one, n) => all.slice(n + 1).forEach((other) => {
    if (one.left < other.right && other.left < one.right
        && one.top < other.bottom && other.top < one.bottom) {
      wrong.push(`${one.name} touches ${other.name}`);
    }
  }));
  return { wrong, words: words.length };
}"""


@pytest.mark.parametrize("width", [320, 560, 900])
def test_no_words_of_the_evidence_touch(open_page: Open, width: int) -> None:
    page = open_page(viewport={"width": width + 20, "height": 900})
    page.wait_for_selector("html[data-ready]")
    for facts in (ALIKE, BOTH_WAYS, WALKS, ELSEWHERE, ALIKE + WALKS, BOTH_WAYS + ELSEWHERE):
        found = page.evaluate(TOUCHING, {"facts": facts, "width": width})
        assert found["wrong"] == []
        assert found["words"] >= 2


def test_every_number_says_what_it_is_a_chance_of(open_page: Open, world: Facts) -> None:
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}"))
    page.wait_for_selector("#forecasts .percent small")
    said = set(page.locator("#forecasts .percent small").all_inner_texts())
    assert said == {"of its next fact"}
    page.select_option("#relation", world.relations[0])
    page.click("#question button")
    page.wait_for_selector("#forecasts .percent small:has-text('given')")
    numbers = page.locator("#forecasts .percent").count()
    said_now = page.locator("#forecasts .percent small").all_inner_texts()
    assert said_now == ["given that such a fact happens"] * numbers


def test_the_question_is_in_the_link(open_page: Open, world: Facts) -> None:
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}"))
    page.wait_for_selector("#forecasts button")
    page.select_option("#relation", world.relations[0])
    page.select_option("#side", "subject")
    page.fill("#at", "2017-03-06")
    page.fill("#within", "2")
    page.click("#question button")
    page.wait_for_selector("#forecast-status:has-text('2017-03-06 to 2017-03-13')")
    other = ready(open_page("/#" + page.url.partition("/#")[2]))
    other.wait_for_selector("#forecast-status:has-text('2017-03-06 to 2017-03-13')")
    assert other.input_value("#relation") == world.relations[0]
    assert other.input_value("#side") == "subject"
    assert other.inner_text("#forecast-title") == page.inner_text("#forecast-title")


def test_an_unknown_name_leaves_nothing_of_the_question_before(
    open_page: Open, world: Facts
) -> None:
    """Before, the facts and the dates of who was asked about last stood below the error."""
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}&within=4"))
    page.wait_for_selector("#forecasts button")
    page.evaluate("location.hash = '#forecast?entity=No%20Such%20Name'")
    page.wait_for_selector("#forecast-status:has-text('No forecast')")
    assert "No Such Name" in page.inner_text("#forecast-title")
    assert not page.is_visible("#timeline-card")
    assert page.inner_text("#when") + page.inner_text("#calibration") == ""


def test_names_lead_to_their_entities(open_page: Open, world: Facts) -> None:
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}"))
    page.wait_for_selector("#evidence-title a")
    answer = page.inner_text("#evidence-title a")
    page.click("#evidence-title a")
    page.wait_for_selector(f"#forecast-title:has-text({answer!r})")
    other = page.locator("#timeline a.name").filter(has_not_text=answer).first
    name = other.inner_text()
    other.click()
    page.wait_for_selector(f"#forecast-title:has-text({name!r})")


def typed(page: Any, name: str, other: str) -> None:
    page.click("#new-toggle")
    page.fill("#new-name", name)
    page.fill("#other-0", other)


def test_a_typo_is_asked_back_confirmed_and_taken_back(open_page: Open, world: Facts) -> None:
    page = ready(open_page())
    known = max(world.entities, key=len)
    typo = known[:-2] + known[-1]
    typed(page, typo, world.entities[1])
    page.click("#new-save")
    page.wait_for_selector("#new-confirm:not([hidden])")
    assert f"did you mean '{known}'" in page.inner_text("#new-error")
    page.click("#new-confirm")
    page.wait_for_selector(f"#timeline-title:has-text({typo + ': 1 fact'!r})")
    page.click("#timeline .take-back")
    page.wait_for_selector("#welcome:not([hidden])")
    page.fill("#search", typo)
    page.wait_for_selector("#match-0")
    assert page.locator("#match-0").inner_text().startswith(known)


def test_what_if_is_forecast_and_not_saved(open_page: Open, world: Facts) -> None:
    page = ready(open_page())
    before = page.inner_text("#about")
    typed(page, "Only Supposed", world.entities[1])
    page.check("#new-suppose")
    page.click("#new-save")
    page.wait_for_selector("#forecast-title:has-text('What next for Only Supposed?')")
    page.wait_for_selector("#forecasts button")
    assert "Only Supposed" in page.inner_text("#what-if")
    assert page.inner_text("#about") == before
    page.click("#what-if-stop")
    page.wait_for_selector("#welcome:not([hidden])")
    page.fill("#search", "Only Supposed")
    page.wait_for_selector("#matches li")
    assert "Only Supposed" not in page.inner_text("#matches")


def test_a_file_of_facts_goes_in_and_comes_out(
    open_page: Open, world: Facts, tmp_path: Path
) -> None:
    page = ready(open_page())
    _, relation, club, _ = world.describe(0)
    fact = f"From A File,{relation},{club},{world.calendar.label(world.steps - 1)}"
    table = tmp_path / "more.csv"
    table.write_text(f"subject,relation,object,time\n{fact}\n")
    page.click(".files summary")
    page.set_input_files("#upload", table)
    page.wait_for_selector("#upload-status:has-text('1 facts added')")
    with page.expect_download() as saved:
        page.click("#export")
    assert fact in Path(saved.value.path()).read_text()
    with page.expect_download() as saved:
        page.click("#export-changes")
    assert "more.csv" in Path(saved.value.path()).read_text()


def test_a_period_is_replayed_on_the_page(open_page: Open) -> None:
    page = ready(open_page("/#backtest"))
    page.fill("#backtest-questions", "20")
    page.click("#backtest button")
    page.wait_for_selector("#backtest-table tbody tr", timeout=60_000)
    # What other tests have told is there too: some may be about somebody not yet known.
    said = page.inner_text("#backtest-status")
    asked, unasked = re.search(r"^(\d+) questions from", said), re.search(r"(\d+) more were", said)
    assert asked is not None, said
    assert int(asked[1]) + (int(unasked[1]) if unasked else 0) == 20
    assert page.locator("#backtest-table tbody tr").count() == int(asked[1])
    assert page.locator("#backtest-bars svg").count() == 1
    assert fits(page)


def test_quality_is_told_in_plain_words_with_an_axis(open_page: Open) -> None:
    page = ready(open_page("/#quality"))
    page.wait_for_selector("#quality-table table", timeout=30_000)
    assert "meta-" not in page.inner_text("#view-quality")
    # Round numbers, in the picture of the models and in that of the probabilities.
    fifths = [f"{n / 5:.1f}" for n in range(6)]
    for place, marks in (
        ("#quality-bars", fifths),
        ("#reliability", [f"{20 * n} %" for n in range(6)]),
    ):
        many = page.locator(f"{place} .axis").count()
        words = page.locator(f"{place} .axis + text").all_text_contents()
        assert many >= 2
        assert words == marks[:many]


PATHS = """async () => {
  const { evidenceGraph } = await import("/page/evidence.js");
  const facts = ["b", "c"].flatMap((z) =>
    [["a", "r", "y", "1"], [z, "r", "y", "2"], [z, "r", "x", "3"]]);
  const asked = { subject: "a", relation: "r", object: "x", time: "9" };
  const reasons = [{ kind: "path", weight: 0.5, count: 16, facts }];
  return evidenceGraph(reasons, "a", "x", asked, 800, () => {}).textContent;
}"""


def test_the_picture_of_walks_tells_the_count_of_the_words(open_page: Open) -> None:
    """16 others took them, of whom two are drawn; before, the picture said 2."""
    page = ready(open_page())
    said = page.evaluate(PATHS)
    assert "2 of 16×, last 2" in said
    assert "2 of 16×, last 3" in said
    assert "of 16×, last 1" not in said


REPEATS = """async () => {
  const { evidenceGraph } = await import("/page/evidence.js");
  const own = [["a", "r", "x", "1"], ["a", "r", "x", "2"]];
  const asked = { subject: "a", relation: "r", object: "x", time: "9" };
  const reasons = [
    { kind: "repeat", weight: 1, count: 2, facts: own },
    { kind: "frequency", weight: 0.1, count: 3, facts: [...own, ["b", "r", "x", "1"]] }];
  return evidenceGraph(reasons, "a", "x", asked, 800, () => {}).textContent;
}"""


def test_the_picture_of_a_repeat_tells_the_count_of_its_words(open_page: Open) -> None:
    """Twice by itself and once by another; before, the picture said "2 of 3×" and "1 of 3×"."""
    said = ready(open_page()).evaluate(REPEATS)
    assert "2×, last 2" in said
    assert " of " not in said


def test_a_weight_says_what_it_is(open_page: Open, world: Facts) -> None:
    page = ready(open_page(f"/#forecast?entity={quote(world.entities[0])}"))
    page.wait_for_selector("#evidence .weight")
    assert "less likely" in page.inner_text("#evidence-note")
    # What made no difference is no "because".
    assert page.inner_text("#evidence h3 >> nth=0") == "Because"
    assert "< 0.1 %" not in page.locator("#evidence > li > .weight").all_inner_texts()


def test_within_a_time_every_number_has_its_condition_and_the_time_a_distribution(
    open_page: Open, world: Facts
) -> None:
    where = {"entity": world.entities[0], "relation": world.relations[0], "within": "9"}
    page = ready(open_page(f"/#forecast?{urlencode(where)}"))
    page.wait_for_selector("#forecasts .percent small")
    said = page.locator("#forecasts .percent small").all_inner_texts()
    assert said[-1] == "that none comes in this time"
    assert set(said[:-1]) == {"that it comes in this time"}
    assert page.inner_text("#when").count("by ") == len((1, 2, 4, 8, 9))


def test_a_fact_is_corrected_on_the_page(open_page: Open, world: Facts) -> None:
    page = ready(open_page())
    typed(page, "Wrongly Typed", world.entities[1])
    page.click("#new-save")
    page.wait_for_selector("#timeline .correct")
    page.click("#timeline .correct")
    assert page.input_value("#new-name") == "Wrongly Typed"
    page.fill("#other-0", world.entities[2])
    page.click("#new-save")
    page.wait_for_selector(f"#timeline li:has-text({world.entities.label(2)!r})")
    assert page.locator("#timeline li").count() == 1
    assert page.inner_text("#timeline-title") == "Wrongly Typed: 1 fact"
    assert fits(page)


def test_the_interface_is_described_without_a_network(open_page: Open) -> None:
    page = ready(open_page("/docs"))
    assert "POST /predict" in page.inner_text("#paths")
    assert "DELETE /facts/{number}" in page.inner_text("#paths")
    page.click("section:has(h2:text-is('POST /predict')) summary >> nth=0")
    assert "what_if" in page.inner_text("section:has(h2:text-is('POST /predict')) pre >> nth=0")
    assert fits(page)
