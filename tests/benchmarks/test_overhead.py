from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks import overhead


def test_it_measures_calls_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    monkeypatch.setattr(overhead, "CALLS", 3)
    monkeypatch.setattr(overhead, "RUNS", 5)
    (figures,) = overhead.measure(argparse.Namespace(threads=1)).values()
    assert figures.keys() == {"run", "step", "region"}
    session = overhead.grafted(5, 1)
    assert len(session.program.python_steps) == 5
    profile = session.profile({"x": np.zeros(overhead.ELEMENTS, np.float32)})
    assert len(profile.spent) == 5
    assert all(spent.transfer == 0 for spent in profile.spent.values())
