"""Settings from the command line, from TOML and from JSON."""

from __future__ import annotations

import json
import math
import random
from functools import cache
from typing import Any

from fuzz.fuzzing import fuzzer, scratch
from fuzz.mutation import damage_bytes, damage_value, odd_text, odd_value
from metatkgr.cli.options import Reading, parse_assignments
from metatkgr.data.periods import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.models import available, create
from metatkgr.models.registry import keep_tuned, tuned_settings
from metatkgr.serving.limits import Limits, ServiceSettings

_NUMBERS = ["0", "1", "-1", "2", "3", "64", "1e-3", "0.5", "1e9", "nan", "inf", "-0.0", "1e400"]


@cache
def _fields() -> dict[str, list[str]]:
    import dataclasses

    return {
        name: [f.name for f in dataclasses.fields(create(name).settings)] for name in available()
    }


@fuzzer(share=14)
def set_options(rng: random.Random) -> None:
    """``--set key=value`` for any model: a model with finite numbers, or a sentence."""
    name = rng.choice(list(_fields())) if rng.random() < 0.97 else odd_text(rng)
    texts = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        key = rng.choice(_fields().get(name) or ["epochs"])
        if rng.random() < 0.1:
            key = odd_text(rng)
        value = rng.choice(_NUMBERS) if rng.random() < 0.7 else odd_text(rng)
        texts.append(f"{key}={value}" if rng.random() < 0.97 else odd_text(rng))
    preset = "default" if rng.random() < 0.9 else rng.choice(("paper", "tuned", odd_text(rng)))
    model = create(name, parse_assignments(texts), preset=preset)
    assert model.name == name
    _check_numbers(vars(model.settings))


@fuzzer(share=8)
def settings_values(rng: random.Random) -> None:
    """Settings from a file, whose values are of any type: accepted ones have the field's type."""
    name = rng.choice(list(_fields()))
    fields = _fields()[name] or ["epochs"]
    given = {rng.choice(fields): odd_value(rng) for _ in range(rng.choice((1, 1, 2)))}
    model = create(name, given)
    usual = vars(create(name).settings)
    for key, value in vars(model.settings).items():
        allowed = (int, float) if isinstance(usual[key], float) else (type(usual[key]),)
        assert isinstance(value, allowed), f"{key}={value!r} was accepted"
    _check_numbers(vars(model.settings))


def _check_numbers(settings: dict[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, float):
            assert math.isfinite(value), f"{key}={value} was accepted"


@fuzzer(share=5)
def tuned_files(rng: random.Random) -> None:
    """``tuned.toml``: what is kept is found again, whatever else the file holds."""
    path = scratch() / "tuned.toml"
    text = '# chosen\n[transe.YAGO]\nlearning_rate = 0.01\n\n[transe."a b"]\nepochs = 3\n'
    data = text.encode()
    draw = rng.random()
    if draw < 0.6:
        data = damage_bytes(rng, data)
    elif draw < 0.7:
        data = b"x = " + rng.choice((b"[" * 5000, b"9" * 5000, b'"\\uD800"', b"{a={a={", b"1e9999"))
    path.write_bytes(data)
    if rng.random() < 0.5:
        chosen = {"learning_rate": 0.5, "epochs": 3}
        dataset = odd_text(rng).replace("\ud800", "")
        keep_tuned(path, "lan", dataset, chosen)
        assert tuned_settings("lan", dataset, path) == chosen
    assert isinstance(tuned_settings("transe", "YAGO", path), dict)


@fuzzer(share=6)
def command_words(rng: random.Random) -> None:
    """Words of the command line that are read before anything is done."""

    def word(*usual: Any) -> Any:
        return rng.choice(usual) if rng.random() < 0.5 else odd_text(rng)

    kind = rng.randrange(5)
    if kind == 0:
        shots = Shots.parse(rng.choice((word("3", "1-5", "random", "2-4"), odd_value(rng))))
        assert 1 <= shots.low <= shots.high
    elif kind == 1:
        Visibility.parse(word("entity-split", "streaming", "frozen"))
    elif kind == 2:
        given = dict.fromkeys(("header", "ids", "most_bytes", "skip_bad_rows", "bad_rows_report"))
        words = {
            "columns": word(None, "0,1,2,3"),
            "delimiter": word(None, "tab"),
            "clip": word(None, "1..2"),
            "unit": word("auto", "day"),
        }
        Reading.of(**given, **words)
    elif kind == 3:
        ServiceSettings(
            word("127.0.0.1", "0.0.0.0", "::1", "localhost"),
            rng.choice((0, 8000, -1, 70000)),
            word(None, "a" * 20),
        )
    else:
        limits = Limits(*(rng.choice((1, 0, -1, 2.5, float("nan"))) for _ in "1234"))
        assert limits.concurrency > 0


@fuzzer(share=3)
def worlds(rng: random.Random) -> None:
    """Names of datasets: ``world:FACTS:SEED`` and paths that lead nowhere."""
    from metatkgr.data import sources

    usual = ["world:", "world:x", "world:-5", "world:0:0:0", "world:1e3", "nothing.csv", "YAGOO"]
    text = rng.choice(usual) if rng.random() < 0.4 else odd_text(rng)
    if text.startswith("world") and len(text) < 6:
        text = "world:"
    path = (
        scratch() / text.replace("/", "_")[:100]
        if rng.random() < 0.3 and "\0" not in text
        else text
    )
    sources.load(str(path))


@fuzzer(share=2)
def json_settings(rng: random.Random) -> None:
    """A cell's settings as JSON text."""
    from metatkgr.experiments.cells import Cell

    content = {"dataset": "world", "model": "lan", "settings": {"epochs": 1}, "shots": 3, "seed": 0}
    cell = Cell.from_json(json.loads(json.dumps(damage_value(rng, content))))
    assert cell.name.count("/") == 1
    assert ".." not in cell.name.split("/")
    assert Cell.from_json(cell.to_json()) == cell
