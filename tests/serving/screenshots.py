"""Take the pictures of the page for the documents: ``make screenshots``."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import browser as system_browser
import metatkgr as mt
from local_service import listening
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.quality import Quality, QualitySettings
from metatkgr.serving.service import Service

SIZE = {"width": 1000, "height": 860}
NEWCOMER, RELATION = "Firel Rosetaux", "scores against"
PHONE = {"width": 375, "height": 780}


def take(folder: Path) -> None:
    """Write the pictures into a folder."""
    if reason := system_browser.why_not():
        sys.exit(reason)
    world = mt.load("world:12000")
    with (
        tempfile.TemporaryDirectory() as store,
        listening(_app(world, Path(store) / "facts.sqlite")) as url,
        system_browser.chromium() as chromium,
    ):
        for scheme, size, name in (
            ("light", SIZE, "page.png"),
            ("dark", SIZE, "page-dark.png"),
            ("light", PHONE, "page-phone.png"),
        ):
            context = chromium.new_context(
                color_scheme=scheme, viewport=size, reduced_motion="reduce", locale="en-GB"
            )
            page = context.new_page()
            _newcomer(page, url)
            _save(page, folder / name)
            context.close()
        page = chromium.new_page(viewport={"width": 1000, "height": 640})
        page.goto(f"{url}/#quality")
        page.wait_for_selector("#quality-table table", timeout=60_000)
        _save(page, folder / "page-quality.png")


def _app(world: mt.Facts, where: Path) -> Any:
    """The default model, as ``metatkgr serve`` has it, measured on few questions."""
    opened = mt.open_model(world, device="cpu")
    service = Service(mt.Forecaster.load(opened), FactStore(where), model=opened.model.name)
    service.start()
    rules = {name: partial(mt.create, name) for name in ("paths", "recurrency")}
    models = {opened.model.name: opened.another, **rules}
    quality = Quality(models, world, QualitySettings(questions=60))
    return create_app(service, ServiceSettings(), quality)


def _newcomer(page: Any, url: str) -> None:
    """Look at someone who emerged a few weeks ago, and ask whom he will score against."""
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    page.fill("#search", NEWCOMER)
    page.click("#match-0")
    page.wait_for_selector("#timeline li")
    page.select_option("#relation", RELATION)
    page.click("#question button")
    page.wait_for_selector(f"#forecast-title:has-text('{RELATION}')")
    page.wait_for_selector("#evidence-graph svg")
    page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 0)")


def _save(page: Any, path: Path) -> None:
    """Few colours are enough for a page, and make a small file."""
    from PIL import Image

    page.screenshot(path=str(path), full_page=True)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
