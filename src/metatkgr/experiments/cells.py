"""A cell of the grid of experiments, one training and its evaluation; and its row in a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from metatkgr.data.periods import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.errors import SettingsError

__all__ = [
    "ABLATIONS",
    "BASELINES",
    "EVIDENCE_PARTS",
    "RULES",
    "VARIANTS",
    "WALK_PARTS",
    "Cell",
    "Row",
    "row_order",
]

RULES = ("recurrency", "paths", "pagerank")
BASELINES = (
    "transe", "transr", "rotate", "renet", "regcn", "lan", "igen", "tgen", "metadygnn",
)  # fmt: skip
"""In the order of the paper's rows."""

VARIANTS = ("fine-tuning", "static-maml", "no-regulariser")
"""Ablations of MetaTKGR: values of its setting ``variant``."""
EVIDENCE_PARTS = {
    ("without", "contact"): "contacts by other relations are not seen",
    ("without", "walks"): "walks and PageRank only pick candidates",
    ("without", "peers"): "what peers answered is not seen",
    ("without", "frequency"): "counts of the place are not seen",
    ("without", "age"): "ages of candidates are not seen",
    ("support_share", "0"): "nothing is learned from the newest supports",
    ("epochs", "0"): "nothing is learned: weights as they start, near the rules",
    ("prior", "0"): "PageRank is not added to what was learned",
    ("members", "1"): "one set of weights",
    ("earlier_queries", "0"): "nothing is learned from late background entities",
    ("repeats_first", "false"): "repeats are weighed like the rest",
}
"""Ablations of the evidence model: a setting, the value with which a part is missing, and what that
means."""
WALK_PARTS = {
    (("hops", "0"),): "no walks: links are encoded and remembered",
    (("inner_steps", "8"),): "eight gradient steps besides, of learned sizes",
    (("hops", "0"), ("inner_steps", "8")): "those steps in place of walks",
}
"""Ablations of MetaTKGR's preset ``walks``: settings, and what they mean."""
ABLATIONS = {
    ("metatkgr", "default"): dict.fromkeys(VARIANTS, ""),
    ("metatkgr", "walks"): {
        ", ".join(map("=".join, part)): means for part, means in WALK_PARTS.items()
    },
    ("evidence", "default"): {"=".join(part): means for part, means in EVIDENCE_PARTS.items()},
}
"""What the ablations of a model with a preset are called, and what they mean, in the order of their
tables."""

_KINDS = {
    **dict.fromkeys(("dataset", "model", "preset", "visibility", "test_shots"), str),
    **dict.fromkeys(("shots", "seed"), int),
    "tiny": bool,
}
"""What the fields of a cell are."""
_LONGEST = 60
"""Characters of a model's name."""


@dataclass(frozen=True, order=True)
class Row:
    """A model as tables tell it apart from others: with its preset and changed settings."""

    model: str
    preset: str = "default"
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """As the first column of a table says it."""
        parts = [] if self.preset == "default" else [f"`{self.preset}`"]
        parts += [f"`{key}={value}`" for key, value in self.settings]
        return f"`{self.model}`" + (f", {', '.join(parts)}" if parts else "")

    @property
    def plain(self) -> str:
        """The same for a figure."""
        return self.label.replace("`", "")

    @property
    def variant(self) -> str | None:
        """The name of the ablation that it is; None: the full model."""
        chosen = dict(self.settings)
        if (self.model, self.preset) == ("metatkgr", "walks"):
            name = ", ".join(map("=".join, self.settings))
            return name if name in ABLATIONS[self.model, self.preset] else None
        if self.model != "evidence":
            return chosen.get("variant")
        missing = (f"{key}={value}" for key, value in EVIDENCE_PARTS if chosen.get(key) == value)
        return next(missing, None)


def row_order(row: Row) -> tuple[Any, ...]:
    """Rules, MetaTKGR, the baselines in the paper's order, others."""
    order = [*RULES, "metatkgr", *BASELINES]
    rank = order.index(row.model) if row.model in order else len(order)
    return rank, row.model, row.preset != "default", row.preset, row.settings


@dataclass(frozen=True)
class Cell:
    """What is trained and on what it is tested."""

    dataset: str
    """A name that ``data.sources.load`` knows."""
    model: str
    shots: int = 3
    """K while training; for a rule, which is not trained, the K of the test."""
    seed: int = 0
    preset: str = "default"
    settings: tuple[tuple[str, str], ...] = ()
    """Settings that win over the preset's, by name, in the order of their names."""
    visibility: str = Visibility.ENTITY_SPLIT.value
    test_shots: str = ""
    """K of the meta-validation and meta-test entities: a number, or 'random' (1 to 5, each entity
    its own); empty: that of the training. What is learned may have seen no more of them, so another
    K is another training."""
    tiny: bool = False
    """A training of seconds, to try the whole pipeline; its numbers mean nothing."""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if type(value) is not kind or (isinstance(value, int) and abs(value) >= 2**63):
                text = str(value)[:80]
                raise SettingsError(f"{name} of a cell is of type {kind.__name__}, not {text!r}")
        words = [self.dataset, self.model, self.preset]
        words += [word for pair in self.settings for word in pair]
        if not all(_is_text(word) for word in words) or len(self.model) > _LONGEST:
            raise SettingsError(f"a name of the cell cannot be that of a file: {words!a:.200}")
        if self.shots < 1:
            raise SettingsError(f"shots must be at least 1, not {self.shots}")
        Visibility.parse(self.visibility)
        # Spelt one way, a cell has one name.
        test = Shots.parse(self.test_shots or self.shots).label
        object.__setattr__(self, "test_shots", str(test))

    @property
    def name(self) -> str:
        """Unique among cells that are trained differently; fit for a path below a folder."""
        parts = [self.model]
        parts += [self.preset] if self.preset != "default" else []
        parts += [f"{key}={value}" for key, value in self.settings]
        parts += ["tiny"] if self.tiny else []
        parts.append(f"{self.shots}shot")
        parts += [f"test{self.test_shots}"] if self.test_shots != str(self.shots) else []
        parts += [self.visibility, f"seed{self.seed}"]
        return f"{_safe(self.dataset)}/{_safe('-'.join(parts))}"

    @property
    def row(self) -> Row:
        """The model with its preset and settings, as tables tell it apart from others."""
        return Row(self.model, self.preset, self.settings)

    @property
    def is_plain_test(self) -> bool:
        """Whether it is tested as it is trained: the same K, visibility ``entity-split``."""
        usual = self.visibility == Visibility.ENTITY_SPLIT.value
        return usual and self.test_shots == str(self.shots)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of JSON's types."""
        return asdict(self) | {"settings": dict(self.settings)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Cell:
        """What :meth:`to_json` gave; fields may be left out where they have a default."""
        try:
            values = dict(content)
            settings = {key: str(value) for key, value in dict(values.pop("settings", {})).items()}
            return cls(**values, settings=tuple(sorted(settings.items())))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"this is not a cell: {str(content)[:200]} ({error})") from None


def _is_text(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _safe(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "_", text)
