"""Text on a terminal: names come from files of anyone, and must not steer it."""

from __future__ import annotations

import logging
import re

__all__ = ["show_warnings", "visible"]

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
