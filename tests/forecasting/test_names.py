"""A vocabulary that grows over one that stays where it is, and names found as people type them."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metatkgr as mt
from metatkgr.data.facts import Vocabulary
from metatkgr.errors import UnknownNameError
from metatkgr.forecasting import names as module
from metatkgr.forecasting.names import GrowingVocabulary, _SearchIndex, search_names


class OnDisk(Vocabulary):
    """Names of which a copy of all would be too much."""

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        raise AssertionError("all names were asked for")

    @names.setter
    def names(self, names: tuple[str, ...]) -> None:
        self._stored = names

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> str:
        return self._stored[index]

    def find(self, name: str) -> int | None:
        return self._stored.index(name) if name in self._stored else None


def test_a_vocabulary_grows_without_touching_those_who_hold_a_smaller_one() -> None:
    small = GrowingVocabulary(Vocabulary(["Q1", "b"], {0: "Ann"}, {"Annie": 0}))
    large = small.grown(["c", "d"]).grown(["e"])
    assert (len(small), len(large)) == (2, 5)
    assert [large.name(number) for number in range(5)] == ["Q1", "b", "c", "d", "e"]
    assert large.names == ("Q1", "b", "c", "d", "e")
    assert [large.find(name) for name in ("Q1", "Ann", "Annie", "d", "x")] == [0, 0, 0, 3, None]
    assert [small.find(name) for name in ("Q1", "d")] == [0, None]
    assert (large.label(0), large.label(4)) == ("Ann", "e")
    with pytest.raises(IndexError):
        small.name(2)
    with pytest.raises(ValueError, match="only the largest"):
        small.grown(["f"])


def test_the_names_it_starts_from_are_not_copied() -> None:
    growing = GrowingVocabulary(OnDisk(["a", "b"])).grown(["c"])
    assert [growing.find(name) for name in "abcd"] == [0, 1, 2, None]
    assert [growing.name(number) for number in range(3)] == ["a", "b", "c"]


def test_a_search_sees_what_was_added_but_not_what_is_added_later() -> None:
    small = GrowingVocabulary(Vocabulary(["Anna"], {0: "Anna Ost"}))
    assert search_names(small, "anna", 5) == [0]
    large = small.grown(["Hanna", "Annette"])
    assert search_names(large, "anna", 5) == [0, 1]
    assert search_names(small, "Anette", 5) == []
    assert search_names(large, "Anette", 1) == [2]


def _misspelt(name: str, rng: random.Random) -> str:
    letters = list(name)
    for _ in range(2):
        place = rng.randrange(len(letters) - 1)
        match rng.randrange(4):
            case 0:
                letters[place] = rng.choice("aeiounrst")
            case 1:
                letters.insert(place, rng.choice("aeiounrst"))
            case 2:
                del letters[place]
            case _:
                letters[place : place + 2] = letters[place : place + 2][::-1]
    return "".join(letters)


def test_names_with_two_slips_of_the_finger_are_found() -> None:
    names = GrowingVocabulary(mt.simulate(facts=5000).entities)
    rng = random.Random(0)
    numbers = rng.sample(range(len(names)), 200)
    found = [search_names(names, _misspelt(names.name(n), rng), 3) for n in numbers]
    assert sum(n in near for n, near in zip(numbers, found, strict=True)) >= 198


def test_an_unknown_name_is_told_with_the_nearest_or_with_how_many_were_looked_through() -> None:
    names = GrowingVocabulary(Vocabulary(["Dairy", "Ostia"]))
    with pytest.raises(UnknownNameError, match="unknown entity 'Diary'; did you mean 'Dairy'"):
        names.id("Diary", "entity")
    with pytest.raises(UnknownNameError, match="it is none of the 2 known names"):
        names.id("zzzz", "entity")


def test_many_long_names_take_little_more_than_their_letters_to_search() -> None:
    names = [f"{number} " + chr(97 + number % 26) * 490 for number in range(5000)]
    vocabulary = GrowingVocabulary(Vocabulary(["A"])).grown(names)
    tracemalloc.start()
    assert search_names(vocabulary, "zebra crossing", 5) == []
    assert search_names(vocabulary, names[7], 1) == [8]
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest < 4 * sum(map(len, names))


def test_a_large_vocabulary_is_not_searched_for_what_may_be_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = GrowingVocabulary(Vocabulary(["Ana", "Bo"]))
    with pytest.raises(UnknownNameError, match="did you mean 'Ana'"):
        names.id("Anna")
    monkeypatch.setattr("metatkgr.forecasting.names._SUGGEST_AMONG", 1)
    monkeypatch.setattr(GrowingVocabulary, "searchable", None)
    with pytest.raises(UnknownNameError, match="it is none of the 2 known names"):
        names.id("Anna")


@given(
    names=st.lists(
        st.text("aB_ \nß", min_size=1, max_size=6), min_size=1, max_size=30, unique=True
    ),
    text=st.text("aB_ \n", min_size=1, max_size=3),
    beside=st.integers(0, 30),
)
def test_names_that_contain_a_text_are_those_of_a_look_at_each(
    names: list[str], text: str, beside: int
) -> None:
    """Also where names hold line ends, which lie between names in the text that is searched."""
    index = _SearchIndex()
    for number, name in enumerate(names):
        index.add(name, number)
        if number == len(names) - beside:
            whole = module._BESIDE
            module._BESIDE = 0
            index.join()
            module._BESIDE = whole
    wanted = text.casefold()
    parts = (wanted, wanted.replace(" ", "_"))
    expected = {n for n, name in enumerate(names) if any(p in name.casefold() for p in parts)}
    every = index.containing(text, len(names), len(names))
    assert set(every) == expected
    # Those that begin with it are looked at first: the best few are the same.
    for limit in range(1, len(names)):
        assert index.containing(text, len(names), limit) == every[:limit]
