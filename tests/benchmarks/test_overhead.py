from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks import overhead
from graft.program.instructions import RegionCall


def test_it_measures_calls_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    monkeypatch.setattr(overhead, "CALLS", 3)
    monkeypatch.setattr(overhead, "RUNS", 5)
    (figures,) = overhead.measure(argparse.Namespace(threads=1)).values()
    assert figures.keys() == {*overhead.PARTS}
    session = overhead.grafted(5, 1)
    calls = [one for one in session.program.instructions if isinstance(one, RegionCall)]
    assert len(calls) == 5
    profile = session.profile({"x": np.zeros(overhead.ELEMENTS, np.float32)})
    spent = [one.spent for one in profile.moments if one.spent is not None]
    assert len(spent) == 5
    assert all(one.transfer == 0 for one in spent)
