"""ONNX's backend cases that need the reference evaluator, through files: what is loaded gives the
results of what was compiled, and those are right."""

from __future__ import annotations

import functools
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.backends.host.test_evaluated_files import same
from tests.conformance.cases import Case, OnReference, all_cases, listed
from tests.conformance.test_onnx_cases import onnx_home

import graft
from graft.onnx_backend import GraftBackend, GraftRep

__all__ = ["onnx_home"]  # a fixture

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"


class SavedRep(GraftRep):
    """A model that also comes back from a file."""

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        wanted = super().run(inputs, **options)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "model.graft"
            self.module.save(path)
            session = graft.load(path)
        for kind in ("get_inputs", "get_outputs"):
            one, other = getattr(session, kind)(), getattr(self.module, kind)()
            assert [(a.name, a.type) for a in one] == [(a.name, a.type) for a in other]
        assert str(session.placement) == str(self.module.placement)
        found = GraftRep(session).run(inputs)  # type: ignore[arg-type]  # it has what is asked for
        assert all(map(same, wanted, found))
        return found


class SavedOnHost(GraftBackend):
    """The host behind ONNX's interface, helped by the evaluator, out of a file."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> GraftRep:
        return SavedRep(super().prepare(model, device, **options).module)


class SavedOnReference(OnReference):
    """The reference backend behind ONNX's interface, out of a file."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> GraftRep:
        return SavedRep(super().prepare(model, device, **options).module)


@functools.cache
def helped() -> dict[str, bool]:
    """The cases that the host runs with the evaluator's help, and of which one is its reason's
    first."""
    page = DOCUMENT.read_text("utf-8").partition("with the evaluator's help.")[2]
    lines = page.partition("An operator's cases")[0].splitlines()
    found: dict[str, bool] = {}
    for line in lines:
        # Those that differ do so on their own, in native code.
        names = [] if "AssertionError" in line else re.findall(r"`(test_\w+)`", line)
        found |= {name: name == names[0] for name in names}
    return found


def with_help() -> Iterator[Any]:
    """Their first ones, and for a full run all."""
    for case in all_cases(SavedOnHost):
        if case.name in helped():
            marks = () if helped()[case.name] else pytest.mark.full
            yield pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", list(with_help()))
def test_case_with_help(case: Case) -> None:
    case.run()


@pytest.mark.full
@pytest.mark.parametrize("case", all_cases(SavedOnReference), ids=lambda case: case.name)
def test_case_on_the_reference(case: Case) -> None:
    if case.name in listed():
        pytest.skip(listed()[case.name])
    case.run()
