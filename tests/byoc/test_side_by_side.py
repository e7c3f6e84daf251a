"""Calls of one model from two threads run side by side: each is inside of a region at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.byoc.shaky import MEETS, Shaky, together
from tests.byoc.test_fault_table import Switch, check, subject, switch

__all__ = ["switch"]  # the fixture


@pytest.fixture(autouse=True)
def barrier() -> Iterator[None]:
    together.reset()
    yield
    together.reset()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("setting", ["static", "symbolic", "loop", "file"])
def test_two_calls_meet_in_a_region(
    setting: str, threads: int, switch: Switch, tmp_path: Path
) -> None:
    """Also where native code has threads to share: nobody holds them while a region runs."""
    one = subject(setting, Shaky(), tmp_path, deadline=120.0, threads=threads)
    switch(MEETS)
    check(one, "threads")  # two threads with two calls each
    assert one.incidents == []
