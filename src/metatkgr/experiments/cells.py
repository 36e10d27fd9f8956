"""A cell of the grid of experiments: one training, and the evaluation of its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from metatkgr.data.shots import Shots
from metatkgr.data.visibility import Visibility
from metatkgr.errors import SettingsError

__all__ = ["Cell"]

_LONGEST = 60
"""Characters of a model's name."""


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
        for names, kind in (("dataset model preset visibility test_shots", str), ("tiny", bool)):
            for name in names.split():
                if not isinstance(value := getattr(self, name), kind):
                    raise SettingsError(f"{name} of a cell is a {kind.__name__}, not {value!r}")
        words = (
            self.dataset,
            self.model,
            self.preset,
            *(w for pair in self.settings for w in pair),
        )
        if not all(_is_text(word) for word in words) or len(self.model) > _LONGEST:
            raise SettingsError(f"a name of the cell cannot be that of a file: {words!a:.200}")
        for name in ("shots", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
                raise SettingsError(f"{name} of a cell is a whole number, not {str(value)[:80]!r}")
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
    def variant(self) -> str:
        """The model with its preset and settings, as a row of a table is called."""
        parts = [] if self.preset == "default" else [self.preset]
        parts += [f"{key}={value}" for key, value in self.settings]
        return " ".join([self.model, *parts])

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
