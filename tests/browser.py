"""The system's Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def why_not() -> str | None:
    """Why no browser can be driven here; None where one can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is absent: pip install 'metatkgr[dev]'"
    if _program() is None:
        return "there is no Chromium: install Debian's package chromium"
    return None


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with a profile of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_program(), headless=True, args=_FLAGS)
        yield browser
        browser.close()


def _program() -> str | None:
    return next((path for path in map(shutil.which, _NAMES) if path), None)
