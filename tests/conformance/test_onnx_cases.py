"""All of ONNX's backend cases on the reference backend.

A case that does not pass is listed in `not_passed.toml` with its reason; one that starts to pass
while it is listed fails here, so the list stays true.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from tests.conformance.cases import Case, all_cases, listed, passing_by_chance


@pytest.fixture(autouse=True)
def onnx_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner keeps data of light models in a folder of its own."""
    home: Path = tmp_path_factory.getbasetemp() / "onnx-home"
    monkeypatch.setenv("ONNX_HOME", str(home))


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_case(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.name not in listed():
            case.run()
            return
        try:
            case.run()
        except Exception:  # noqa: BLE001  (whatever a listed case raises is its failure)
            return
    if case.name in passing_by_chance():
        return
    pytest.fail(f"passes, but not_passed.toml lists it: {listed()[case.name]}")


def test_list_names_real_cases() -> None:
    unknown = set(listed()) - {case.name for case in all_cases()}
    assert not unknown, f"not_passed.toml lists cases that do not exist: {sorted(unknown)}"


def test_share_of_cases_that_pass() -> None:
    assert len(listed()) <= 0.02 * len(all_cases())
