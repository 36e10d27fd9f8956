"""Runs and stores of earlier versions open in this one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from formats.record import FOLDER
from metatkgr.data.sources import load
from metatkgr.errors import DataError
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.service import Service

ARCHIVES = sorted(FOLDER.glob("*.tar.gz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_what_an_earlier_version_has_written_is_read_and_gone_on_with(
    archive: Path, tmp_path: Path
) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    forecaster = Forecaster.load(tmp_path / "run", device="cpu")
    for _ in range(2):  # the second time it has been brought up to this version
        with FactStore(tmp_path / "store.sqlite") as store:
            (told,) = store.now()
    assert told.fact.subject == "Nova"
    service = Service(forecaster, FactStore(tmp_path / "store.sqlite"), model="transe")
    service.start()
    assert [fact[:3] for fact in forecaster.timeline("Nova")] == [told.fact[:3]]
    assert forecaster.predict("Nova", told.fact.relation, top=3).forecasts
    service.add([("Pia", *told.fact[1:])])
    service.stop()
    with FactStore(tmp_path / "store.sqlite") as store:
        with pytest.raises(DataError, match="another graph"):
            store.belong_to(load("world:300:2"))
        assert {row.fact.subject for row in store.now()} == {"Nova", "Pia"}


def test_every_version_is_there() -> None:
    assert {path.name for path in ARCHIVES} >= {"first.tar.gz", "changes.tar.gz"}
