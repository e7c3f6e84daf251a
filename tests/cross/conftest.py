"""The machines that tests in this folder run for, in place of the one they run on."""

from __future__ import annotations

import pytest
from tests.backends.host import images, row_kernels, test_expression, test_relayout
from tests.backends.host.property import check
from tests.cross import emulated
from tests.llvm import kernels, test_expressions

from graft.llvm import load
from graft.program import program
from graft.runtime.native import why_not_here
from graft.target.target import Target, named_target

MACHINES = ("x86-64-v2", "x86-64-v3", pytest.param("aarch64", marks=pytest.mark.full))


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A machine that helpers of other tests take for this one, emulated where that is needed."""
    target = named_target(request.param)
    reason = why_not_here(program.Target(target.triple, target.features))
    if reason and not target.is_aarch64:
        pytest.skip(f"code for {target.name} {reason}")
    if reason:
        for module in (check, kernels, load, row_kernels):
            monkeypatch.setattr(module, "load", emulated.load)
    for module in (images, kernels, row_kernels, test_expressions, test_relayout):
        monkeypatch.setattr(module, "host_target", lambda: target)
    monkeypatch.setattr(test_expressions, "EXTREMES", [target])
    monkeypatch.setattr(test_expression, "TARGETS", [target])
    return target
