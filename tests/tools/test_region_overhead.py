from __future__ import annotations

import numpy as np
import pytest

import region_overhead


def test_it_measures_calls_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(region_overhead, "ROUNDS", 2)
    monkeypatch.setattr(region_overhead, "CALLS", 3)
    assert region_overhead.main() == 0
    assert "µs per region call, 1 thread" in capsys.readouterr().out
    session = region_overhead.grafted(5, 1)
    profile = session.profile({"x": np.zeros(region_overhead.ELEMENTS, np.float32)})
    spent = [one.spent for one in profile.moments if one.spent is not None]
    assert len(spent) == 5
    assert all(one.transfer == 0 for one in spent)
