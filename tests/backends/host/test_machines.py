"""Compiling for machines by name: what is recorded, what runs here, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graft
from graft.base.dims import symbol
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.runtime.container import ArtifactError
from graft.runtime.elf import read_object
from graft.runtime.native import host_architecture, host_features
from graft.target.target import host_target, known_targets, named_target

X = np.linspace(-3, 3, 21, dtype=np.float32).reshape(3, 7)
OTHER = "aarch64" if host_architecture() == "x86_64" else "x86-64-v3"


def softmax() -> Graph:
    g = Builder()
    return g.build(g("nn.softmax", g.input("x", tensor("float32", 3, 7)), axis=-1))


def compiled(machine: str) -> graft.Module:
    return graft.compile(softmax(), strict=True, machine=machine)


@pytest.mark.parametrize("machine", known_targets())
def test_object_code_and_features_are_those_of_the_machine(machine: str) -> None:
    program = compiled(machine).program
    target = named_target(machine)
    assert program.target.triple == target.triple
    assert program.target.features == target.features
    for code in program.objects:
        assert read_object(code).architecture == target.architecture


@pytest.mark.parametrize("machine", ["host", "plain"])
def test_older_machines_of_this_architecture_run_here(machine: str, tmp_path: Path) -> None:
    module = compiled(machine)
    exponentials = np.exp(X)
    wanted = exponentials / exponentials.sum(-1, keepdims=True)
    np.testing.assert_allclose(module.run(None, {"x": X})[0], wanted, rtol=1e-5)
    module.save(tmp_path / "model.graft")
    loaded = graft.load(tmp_path / "model.graft")
    np.testing.assert_allclose(loaded.run(None, {"x": X})[0], wanted, rtol=1e-5)


def test_code_for_this_machine_relies_on_some_of_its_features_only() -> None:
    assert set(host_target().features) < host_features()


def test_another_machines_module_is_saved_but_not_run(tmp_path: Path) -> None:
    module = compiled(OTHER)
    module.save(tmp_path / "model.graft")
    other = named_target(OTHER).architecture
    message = f"compiled with machine='{OTHER}': it is for {other}, and this machine is"
    with pytest.raises(UserError, match=message) as caught:
        module.run(None, {"x": X})
    assert "run the file on such a machine" in caught.value.hint
    with pytest.raises(ArtifactError, match=f"this file is for {other}, and this machine is"):
        graft.load(tmp_path / "model.graft")


def test_machines_that_nobody_knows() -> None:
    with pytest.raises(UserError, match="there is no machine 'z80'") as caught:
        compiled("z80")
    assert "host, plain, x86-64, x86-64-v2" in caught.value.hint


def test_the_evaluator_is_for_no_machine() -> None:
    message = "machine='aarch64' is for native code, and the reference evaluator has none"
    with pytest.raises(UserError, match=message):
        graft.compile(softmax(), target="reference", machine="aarch64")


SHAPES: list[dict[str, list[int]] | None] = [None, {"n": [3]}]


@pytest.mark.parametrize("shapes", SHAPES)
def test_models_of_any_size_are_for_named_machines_too(
    shapes: dict[str, list[int]] | None, tmp_path: Path
) -> None:
    g = Builder()
    graph = g.build(g("nn.relu", g.input("x", tensor("float32", symbol("n"), 7))))
    path = tmp_path / "model.graft"
    here = graft.compile(graph, strict=True, machine="plain", shapes=shapes)
    here.save(path)
    for module in (here, graft.load(path)):
        np.testing.assert_array_equal(module.run(None, {"x": X})[0], np.maximum(X, 0))
    other = graft.compile(graph, strict=True, machine=OTHER, shapes=shapes)
    other.save(path)
    with pytest.raises(UserError, match=f"compiled with machine='{OTHER}': it is for"):
        other.run(None, {"x": X})
    with pytest.raises(ArtifactError, match="this file is for"):
        graft.load(path)
