"""Settings say themselves which values they take, and refuse others with a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest

from metatkgr.errors import SettingsError
from metatkgr.models import available, create
from metatkgr.settings import Amount, Count, Range, Rate, Settings, Share, Weight, parse_settings


@dataclass(frozen=True)
class Example(Settings):
    """One field of each kind."""

    dimension: Count = 128
    patience: Amount = 4
    rate: Rate = 0.1
    pull: Weight = 0.0
    share: Share = 0.5
    dropout: Annotated[float, Range(0, below=1)] = 0.2
    loss: Literal["softmax", "hinge"] = "softmax"
    learn: bool = False
    free: int = 0


@dataclass(frozen=True)
class Wider(Example):
    """Inherits fields, changes one, and has a check of its own."""

    dimension: Annotated[int, Range(2, 8)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension % 2:
            raise ValueError(f"dimension must be even, not {self.dimension}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dimension": 0}, "dimension must be at least 1, not 0"),
        ({"dimension": 10**12}, "dimension must be at most 1,000,000, not 1000000000000"),
        ({"patience": -1}, "patience must not be negative, not -1"),
        ({"rate": 0.0}, r"rate must be above 0, not 0\.0"),
        ({"pull": -0.5}, r"pull must not be negative, not -0\.5"),
        ({"share": 1.5}, r"share must be at most 1, not 1\.5"),
        ({"dropout": 1.0}, r"dropout must be below 1, not 1\.0"),
        ({"loss": "square"}, "loss must be one of softmax, hinge, not 'square'"),
        *[({name: math.nan}, name) for name in ("rate", "pull", "share", "dropout")],
    ],
)
def test_a_value_out_of_range_is_named_with_what_would_fit(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        Example(**given)
    with pytest.raises(SettingsError, match=told.split(" must")[0]):
        parse_settings(Example, given)


def test_the_ends_of_a_range_belong_to_it_or_not() -> None:
    ends = {"dimension": 10**6, "patience": 0, "pull": 0.0, "share": 1.0, "dropout": 0.0}
    made = Example(**ends)  # type: ignore[arg-type]
    assert made.share == 1
    assert Example(rate=1e30, free=-(10**30)).free < 0


def test_text_becomes_what_the_field_takes() -> None:
    text = {"dimension": "7", "rate": "1e-3", "learn": "yes", "loss": "hinge"}
    assert parse_settings(Example, text) == Example(7, rate=0.001, learn=True, loss="hinge")
    assert parse_settings(Example, {"dimension": 3.0}).dimension == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dimensions": 3}, "Example has no field 'dimensions'; did you mean dimension"),
        ({"dimension": 2.5}, "dimension takes int, not '2.5'"),
        ({"dimension": True}, "dimension takes int, not 'True'"),
        ({"rate": "inf"}, "rate takes float, not 'inf'"),
        ({"loss": 3}, "loss takes str, not '3'"),
        ({"learn": "perhaps"}, "learn is a switch: write true or false, not 'perhaps'"),
    ],
)
def test_what_is_no_setting_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        parse_settings(Example, given)


def test_a_field_that_is_declared_again_has_its_new_range() -> None:
    assert Wider(dimension=8).patience == 4
    for dimension, told in ((10, "at most 8"), (3, "must be even")):
        with pytest.raises(ValueError, match=told):
            Wider(dimension=dimension)
    with pytest.raises(ValueError, match="patience must not be negative"):
        Wider(patience=-1)


@pytest.mark.parametrize("name", sorted(available()))
def test_every_number_of_a_model_has_an_upper_bound(name: str) -> None:
    hints = get_type_hints(type(create(name).settings), include_extras=True)
    for field, hint in hints.items():
        kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if kind in (int, float):
            ranges = [note for note in notes if isinstance(note, Range)]
            assert any(min(r.high, r.below) < math.inf for r in ranges), f"{name}.{field}"


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("metatkgr", {"budget": 10**6}),
        ("metatkgr", {"inner_steps": 10**6}),
        ("metatkgr", {"support_negatives": 10**6}),
        ("metatkgr", {"layers": 100}),
        ("metatkgr", {"layers": 4, "budget": 100}),
        ("metadygnn", {"budget": 100}),
        ("renet", {"history": 10**6}),
        ("regcn", {"history": 10**6}),
        ("lan", {"neighbours": 10**6}),
        ("tgen", {"samples": 10**6}),
        ("pagerank", {"steps": 10**6}),
        ("evidence", {"near": 10**6}),
    ],
)
def test_what_would_make_an_evaluation_endless_is_refused(
    model: str, given: dict[str, Any]
) -> None:
    """Weights do not show these, so a stranger's run could ask for any; each took over 40 s or
    6 GB on a graph of 2,000 facts."""
    with pytest.raises(SettingsError, match="must be at most"):
        create(model, given)
