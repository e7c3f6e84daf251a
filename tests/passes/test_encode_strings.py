"""Strings become numbers where they come from."""

from __future__ import annotations

import numpy as np
from tests.passes.checking import graph_of, operators, run_pass

from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.passes.encode_strings import encode_strings

WORDS = tensor("string", 4, 2)
DATA = [np.array([["a", "b"], ["c", "a"], ["d", ""], ["b", "c"]], object)]


def look_up(g: Builder, x: Value, *keys: str) -> Value:
    values = np.arange(len(keys)) * 10
    return g("ml.label_map", x, keys=np.array(keys, object), values=values, default=np.array(-1))


def test_columns_with_keys_of_their_own_share_one_lookup() -> None:
    def build(g: Builder, x: Value) -> Value:
        first = g("take", x, g.constant(np.array([0])), axis=1)
        second = g("take", x, g.constant(np.array([1])), axis=1)
        return g("add", look_up(g, first, "a", "b"), look_up(g, second, "c", "b"))

    after = eliminate_dead_code(run_pass(encode_strings, graph_of(build, WORDS), DATA))
    strings = [
        node.op.name
        for node in after.nodes
        if any(value.dtype is DType.STRING for value in node.args)
    ]
    assert strings == ["ml.label_map"]
    assert after.nodes[0].attrs.keys.array.tolist() == ["a", "b", "c"]


def test_a_single_lookup_stays() -> None:
    graph = graph_of(lambda g, x: look_up(g, x, "a", "b"), WORDS)
    assert encode_strings(graph) is graph


def test_what_else_strings_are_for_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        moved = g("transpose", x, axes=(1, 0))
        return moved, look_up(g, moved, "a")

    after = run_pass(encode_strings, graph_of(build, WORDS), DATA)
    assert operators(after).count("transpose") == 2
