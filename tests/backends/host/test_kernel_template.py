"""Declarations of kernels: what they say without a kernel being written."""

from __future__ import annotations

import pytest
from tests.backends.host.row_kernels import Case, only_group

import graft
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters
from graft.backends.host.kernel_memo import RowKernels
from graft.backends.host.kernels.dense import dense
from graft.backends.host.storage import Storage, row_major
from graft.backends.host.templates import TEMPLATES, kernel_for, refusal
from graft.ir.graph import Graph, Value
from graft.rewrite.rule import Refusal
from graft.target.target import host_target

HOST = host_target()


def _asked(graph: Graph) -> Refusal | None:
    group = only_group(graph)
    return refusal(group, _stores(group), HOST)


def _stores(group: Group) -> dict[Value, Storage]:
    outer = [group.outer(value) for value in group.reads() if value not in group.constants]
    return {value: row_major(value) for value in (*outer, *group.node.outputs)}


def test_names_are_unique() -> None:
    assert len({template.name for template in TEMPLATES}) == len(TEMPLATES)


def test_asking_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise AssertionError("a kernel was written")

    monkeypatch.setattr(Parameters, "kernel", write)
    monkeypatch.setattr("graft.backends.host.kernels.expression.template._lowered", write)
    case = Case()
    y = case("nn.relu", case("nn.dense", case.input(3, 8), case.constant(5, 8)))
    assert _asked(case.graph(y)) is None
    case = Case()
    assert (
        _asked(case.graph(case("nn.conv2d", case.input(1, 2, 5, 5), case.input(4, 2, 3, 3))))
        is None
    )


def test_declared_conditions() -> None:
    case = Case()
    graph = case.graph(case("nn.dense", case.input(3, 8), case.input(5, 8)))
    group = only_group(graph)
    said = dense(group, _stores(group), HOST)
    assert isinstance(said, Refusal)
    assert said.reason == "the weights are not constant"
    case = Case()
    weights = case.constant(5, 8, dtype="int64")
    group = only_group(case.graph(case("nn.dense", case.input(3, 8, dtype="int64"), weights)))
    said = dense(group, _stores(group), HOST)
    assert isinstance(said, Refusal)
    assert said.reason == "the elements are int64"


def test_a_refusal_names_every_template_that_was_asked() -> None:
    case = Case()
    group = only_group(case.graph(*case.builder.call("nn.dropout", case.input(3))))
    said = kernel_for(group, _stores(group), HOST)
    assert isinstance(said, Refusal)
    assert "expression: nn.dropout has no tensor" in said.reason


def test_groups_without_a_kernel_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    x = case.input(4, 6)
    graph = case.builder.build(case("exp", case("negative", x)))
    seen = []

    def refused(self: RowKernels, node: object, constants: object) -> bool:
        seen.append(node)
        return False

    monkeypatch.setattr(RowKernels, "__call__", refused)
    module = graft.compile(graph, strict=True, threads=1)
    assert len(seen) == 1
    labels = [call.label for call in module.program.calls]
    assert labels == ["negative", "exp"]
