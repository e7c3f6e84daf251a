"""Whole networks for other machines, run by the run time's own driver and threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cross import emulated
from tests.cross.networks import NETWORKS

import graft
from graft.base.dtypes import Array
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.program.program import Program
from graft.runtime import artifact
from graft.runtime.native import why_not_here
from graft.runtime.session import Session
from graft.target.target import Target


def run(program: Program, x: Array, threads: int) -> list[Array]:
    """Here if this machine can, emulated otherwise."""
    if why_not_here(program.target):
        return emulated.run_program(program, [x], threads)
    return Session(program, threads).run(None, {program.inputs[0].name: x})


def compiled(graph: Graph, machine: Target) -> graft.Module:
    return graft.compile(graph, strict=True, machine=machine.name)


def inputs_of(graph: Graph) -> Array:
    shape = graph.inputs[0].shape
    assert shape is not None
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, machine: Target) -> None:
    graph = NETWORKS[name]()
    x = inputs_of(graph)
    program = compiled(graph, machine).program
    assert program.target.features == machine.features
    expected = evaluate(graph, [x])
    for threads in (1, 2, 3):
        for found, wanted in zip(run(program, x, threads), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_file_holds_all_that_is_needed(
    machine: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = NETWORKS["residual_network"]()
    x = inputs_of(graph)
    compiled(graph, machine).save(tmp_path / "model.graft")
    monkeypatch.setattr(artifact, "why_not_here", lambda target: "")  # load what runs elsewhere
    program = artifact.load(tmp_path / "model.graft").program
    (found,) = run(program, x, 2)
    np.testing.assert_allclose(found, evaluate(graph, [x])[0], rtol=1e-4, atol=1e-5)
