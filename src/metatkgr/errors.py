"""What a user gets to read: errors that one can act on, and text that is safe for a terminal.

Every error of this family is one clear sentence (or a short report) that names the offending value
and says what to do. The command line prints it without a traceback and exits with code 2. Names
come from files of anyone, and must not steer the terminal that they are printed on.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

__all__ = [
    "DataError",
    "FarDateError",
    "MetaTKGRError",
    "MissingPackageError",
    "NearNameError",
    "SettingsError",
    "UnknownNameError",
    "nearest",
    "need",
    "show_warnings",
    "visible",
]

_LONGEST = 1000
"""Characters of a name for which similar ones are looked for; the search is quadratic."""


class MetaTKGRError(Exception):
    """Base class of all errors that are the input's fault, not the program's."""


class DataError(MetaTKGRError):
    """Facts that cannot be read, found, fetched or used."""


class MissingPackageError(DataError):
    """Another package is needed, which is not installed."""


class FarDateError(DataError):
    """A fact that lies far after all others: perhaps a mistyped year."""


class NearNameError(DataError):
    """New names that are nearly known ones, and may be meant as those.

    Args:
        close: each new name and the known one.
    """

    def __init__(self, close: Iterable[tuple[str, str]]) -> None:
        some = list(close)[:5]
        new = " and ".join(repr(name) for name, _ in some)
        known = " and ".join(repr(near) for _, near in some)
        super().__init__(
            f"{new} would be new; did you mean {known}? If not, confirm it (confirm_new)"
        )


class SettingsError(MetaTKGRError, ValueError):
    """A setting that does not exist or a value out of range."""


class UnknownNameError(MetaTKGRError):
    """A name (of a model, dataset, entity, relation, …) that nothing answers to.

    Args:
        kind: of name.
        name: what was asked for.
        known: all names there are; or, with ``among``, those of them that are near.
        among: how many names there are, where somebody has searched them already.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, among: int | None = None
    ) -> None:
        known = list(known)
        name = str(name)  # files may hold anything where a name should be
        close = nearest(name, known) if among is None else known
        if close:
            hint = f"did you mean {' or '.join(repr(c) for c in close)}?"
        elif among is not None:
            hint = f"it is none of the {among:,} known names"
        elif len(known) <= 30:
            hint = f"known: {', '.join(sorted(known)) or 'none'}."
        else:
            hint = f"none of the {len(known)} known names is close."
        super().__init__(f"unknown {kind} {name!r}; {hint}")


def need(module: str, extra: str = "") -> Any:
    """A module that is not always there.

    Args:
        module: its name.
        extra: of this package, which brings it; empty: the package is installed by itself.

    Raises:
        MissingPackageError: it is not there; says how to get it.
    """
    try:
        import_module(module.partition(".")[0])  # a part of it may be there still when it is not
        return import_module(module)
    except ImportError as error:
        package = (error.name or module).partition(".")[0].replace("_", "-")
        what = f"'metatkgr[{extra}]'" if extra else package
        raise MissingPackageError(
            f"this needs {package}, which is not installed: pip install {what}"
        ) from None


def nearest(name: str, known: Iterable[str], limit: int = 3, *, likeness: float = 0.6) -> list[str]:
    """Names most like ``name``, best first, ignoring case; empty when nothing is close."""
    by_folded: dict[str, str] = {}
    for candidate in known:
        by_folded.setdefault(candidate.casefold(), candidate)
    if len(name) > _LONGEST:
        return []
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=limit, cutoff=likeness)
    return [by_folded[match] for match in matches]


_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tabs and ends of lines; what turns the direction of writing; halves of
characters."""


def visible(text: str) -> str:
    """A text whose characters that steer a terminal, or turn around what is beside them, are shown.

    As JSON would write them, so that the JSON of a text stays that of the same text.
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def show_warnings(who: str = "") -> None:
    """Have this process print what it warns of, each message behind its level and ``who``."""
    shown = logging.StreamHandler()
    shown.setFormatter(_VisibleFormatter(f"%(levelname)s: {who}%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[shown])


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
