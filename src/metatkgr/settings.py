"""Settings: frozen dataclasses whose fields say themselves which values they take.

A field's type carries its range, or lists its choices::

    @dataclass(frozen=True)
    class MySettings(Settings):
        dimension: Count = 128
        momentum: Annotated[float, Range(0, below=1)] = 0.9
        loss: Literal["softmax", "hinge"] = "softmax"

An object with a value out of range cannot be made. Every number has an upper bound, too: settings
also come out of runs, and must not make an evaluation endless or larger than memory. What hangs on
several fields is checked in ``__post_init__``, after that of :class:`Settings`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from metatkgr.errors import SettingsError, nearest

__all__ = [
    "Amount",
    "Count",
    "Dropout",
    "NoSettings",
    "Range",
    "Rate",
    "Sample",
    "Settings",
    "Share",
    "Weight",
    "parse_settings",
]


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field takes: ``Annotated[int, Range(1, 8)]``."""

    low: float = -math.inf
    """The smallest."""
    high: float = math.inf
    """The largest."""
    _: dataclasses.KW_ONLY
    above: float = -math.inf
    """What they are all larger than."""
    below: float = math.inf
    """What they are all smaller than."""

    def fault(self, value: float) -> str | None:
        """What is wrong with a number, such as 'must be at least 1'; None: nothing."""
        # Asked the wrong way round, so that what is not a number at all is refused too.
        if not value >= self.low:
            return "must not be negative" if self.low == 0 else f"must be at least {self.low:,}"
        if not (value > self.above or self.above == -math.inf):
            return f"must be above {self.above:,}"
        if not value <= self.high:
            return f"must be at most {self.high:,}"
        if not (value < self.below or self.below == math.inf):
            return f"must be below {self.below:,}"
        return None


Count = Annotated[int, Range(1, 10**6)]
"""How many there are, of something that takes time or memory."""
Amount = Annotated[int, Range(0, 10**6)]
"""The same where none is possible, and often means that a part is left out."""
Sample = Annotated[int, Range(1, 1000)]
"""How many links, steps or draws each answer looks at. It is small, because a run says it, which
may be a stranger's, and its weights do not show it."""
Rate = Annotated[float, Range(above=0, high=1e30)]
"""A learning rate, or another factor that must not vanish."""
Weight = Annotated[float, Range(0, 1e30)]
"""How much something counts; 0: nothing."""
Share = Annotated[float, Range(0, 1)]
"""A part of a whole, both ends included."""
Dropout = Annotated[float, Range(0, below=1)]
"""The share of the numbers that is set to zero; not all of them."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that are checked when they are made; see the head of this module."""

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(hint) is Literal and value not in get_args(hint):
                choices = ", ".join(str(choice) for choice in get_args(hint))
                raise SettingsError(f"{name} must be one of {choices}, not {value!r}")
            for limit in getattr(hint, "__metadata__", ()):
                fault = limit.fault(value) if isinstance(limit, Range) else None
                if fault:
                    raise SettingsError(f"{name} {fault}, not {value}")


@dataclasses.dataclass(frozen=True)
class NoSettings(Settings):
    """Settings of a model that has none."""


def _hints(settings_type: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields, with what is noted about them."""
    hints = get_type_hints(settings_type, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(settings_type)}


def parse_settings(settings_type: type[Any], given: Mapping[str, Any]) -> Any:
    """Build a settings object; unknown fields and unfit values are errors that say what would fit.

    Args:
        settings_type: a dataclass whose fields are int, float, bool or str.
        given: values by field name; text is converted to the field's type.
    """
    hints = _hints(settings_type)
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in hints:
            close, known = nearest(key, hints), list(hints)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known: {known or 'none'}"
            raise SettingsError(f"{settings_type.__name__} has no field {key!r}; {hint}")
        values[key] = _convert(key, value, _plain(hints[key]))
    try:
        return settings_type(**values)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _plain(hint: Any) -> Any:
    """int, float, bool or str, whatever else is noted about the field."""
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0])
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _convert(key: str, value: Any, wanted: Any) -> Any:
    if wanted is bool and isinstance(value, str):
        lowered = value.strip().lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise SettingsError(f"{key} is a switch: write true or false, not {value!r}")
    if wanted in (int, float) and isinstance(value, (int, float, str)):
        try:
            number = value if isinstance(value, bool) else wanted(value)
        except (ValueError, OverflowError):
            number = None
        most = math.inf if wanted is float else 2**63
        fits = number is not None and not isinstance(number, bool) and abs(number) < most
        # A whole number may be written as 3.0, but 2.5 is not 2.
        if fits and (isinstance(value, str) or number == value):
            return number
    elif wanted not in (int, float) and isinstance(value, wanted):
        return value
    raise SettingsError(f"{key} takes {wanted.__name__}, not {str(value)[:80]!r}")
