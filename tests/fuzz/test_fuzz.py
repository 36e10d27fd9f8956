"""A few cases of every fuzzer; ``make fuzz`` runs many more."""

from __future__ import annotations

import pytest

from fuzz.fuzzing import load_fuzzers, run_cases

_CASES = 2500
"""Over all fuzzers, by their shares."""
_WHOLE = sum(fuzzer.share for fuzzer in load_fuzzers().values())


@pytest.mark.parametrize("name", sorted(load_fuzzers()))
def test_input_is_taken_or_refused_and_nothing_is_lost(name: str) -> None:
    count = max(20, round(_CASES * load_fuzzers()[name].share / _WHOLE))
    tally = run_cases(name, seed=20, first=0, count=count)
    assert not tally.findings, tally.findings[0]
    assert tally.accepted + tally.refused == tally.cases == count
