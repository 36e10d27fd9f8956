"""A bounded cache of the values asked for last."""

from __future__ import annotations

from metatkgr.recent import Recent


def test_the_value_least_recently_asked_for_is_forgotten() -> None:
    made: list[str] = []
    recent = Recent(lambda key: made.append(key) or key.upper(), 2)
    assert [recent(key) for key in "abac"] == ["A", "B", "A", "C"]
    assert made == ["a", "b", "c"]
    assert (recent("a"), made) == ("A", ["a", "b", "c"])  # asked for after b
    assert (recent("b"), made) == ("B", ["a", "b", "c", "b"])


def test_room_is_made_before_a_value_is() -> None:
    held: list[int] = []
    recent: Recent[int, int] = Recent(lambda key: held.append(len(recent)) or key, 3)
    for key in range(6):
        recent(key)
    assert max(held) == 2
    assert len(recent) == 3


def test_one_value_is_kept_whatever_the_bound_and_none_after_clearing() -> None:
    recent = Recent(str, 0)
    assert recent(1) == "1"
    assert len(recent) == 1
    recent.clear()
    assert len(recent) == 0
