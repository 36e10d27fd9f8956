"""One lock on files: refused or waited for while another holds it, and nothing is left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from metatkgr.errors import DataError
from metatkgr.files import exclusive


def test_a_second_is_refused_or_waits_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    order: list[str] = []

    def wait() -> None:
        with exclusive(path):
            order.append("second")

    second = threading.Thread(target=wait)
    with exclusive(path, DataError("busy")):
        with pytest.raises(DataError, match="busy"), exclusive(path, DataError("busy")):
            pass
        second.start()
        second.join(0.2)
        order.append("first")
    second.join(10)
    assert order == ["first", "second"]
    assert list(path.parent.iterdir()) == []
