"""Errors that a user can act on.

Every error of this family is one clear sentence (or a short report) that names the offending value
and says what to do. The command line prints it without a traceback and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "DataError",
    "FarDateError",
    "MetaTKGRError",
    "NearNameError",
    "SettingsError",
    "UnknownNameError",
    "nearest",
]

_LONGEST = 1000
"""Characters of a name for which similar ones are looked for; the search is quadratic."""


class MetaTKGRError(Exception):
    """Base class of all errors that are the input's fault, not the program's."""


class DataError(MetaTKGRError):
    """Facts that cannot be read, found, fetched or used."""


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


def nearest(name: str, known: Iterable[str], limit: int = 3, *, likeness: float = 0.6) -> list[str]:
    """Names most like ``name``, best first, ignoring case; empty when nothing is close."""
    by_folded: dict[str, str] = {}
    for candidate in known:
        by_folded.setdefault(candidate.casefold(), candidate)
    if len(name) > _LONGEST:
        return []
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=limit, cutoff=likeness)
    return [by_folded[match] for match in matches]
