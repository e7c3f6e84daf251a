"""The `csource` backend: every operator that it writes, on odd shapes, against the evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graft.backends.csource.backend import CSource
from graft.backends.csource.loops import EMITTERS
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.byoc.candidates import find_candidates
from graft.byoc.formats.c_source import FLAGS, compile_c, compiler, instruction_set
from graft.ir.attrs import Attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.ops import OPS
from graft.ops.activation import GeluAttrs
from graft.ops.rules import same_type
from graft.runtime import c_source, native

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C compiler here")


def one(op: str, *shapes: tuple[int, ...], **attrs: Any) -> Graph:
    """A graph of one operator."""
    build = Builder()
    operands = [build.input(f"x{n}", tensor("float32", *shape)) for n, shape in enumerate(shapes)]
    return build.build(build(op, *operands, **attrs))


# Every function of one float32 that gives one.
UNARY = [
    op.name
    for op in map(OPS.get, OPS)
    if op.scalar is not None and len(op.operands) == 1 and op.attrs in (Attrs, GeluAttrs)
    if op.dtypes is not None and DType.FLOAT32 in op.dtypes and op.infer is same_type
]

CASES = {
    "add": one("add", (3, 1, 5), (4, 1)),
    "subtract": one("subtract", (2, 3), (3,)),
    "multiply": one("multiply", (), (3, 2)),
    "divide": one("divide", (7,), (1,)),
    "maximum": one("maximum", (2, 5), (2, 5)),
    "minimum": one("minimum", (2, 5), (5,)),
    **{name: one(name, (3, 7)) for name in UNARY},
    "power": one("power", (2, 5), (5,)),
    "mod": one("mod", (2, 5), (5,)),
    "nn.relu": one("nn.relu", (0, 3)),
    "nn.leaky_relu": one("nn.leaky_relu", (2, 3), alpha=0.25),
    "nn.prelu": one("nn.prelu", (2, 3, 4), (3, 1)),
    "nn.gelu by tanh": one("nn.gelu", (2, 3), approximate=True),
    "clip": one("clip", (3, 3), a_min=-0.5, a_max=0.25),
    "nn.bias_add": one("nn.bias_add", (2, 3, 4, 5), (3,)),
    "nn.dense": one("nn.dense", (5, 7), (3, 7)),
    "nn.conv2d": one(
        "nn.conv2d", (2, 6, 9, 7), (4, 3, 3, 2), groups=2, strides=(2, 1), padding=(1, 0, 2, 1)
    ),
    "nn.conv2d dilated": one("nn.conv2d", (1, 2, 11, 9), (3, 2, 3, 3), dilation=(2, 3)),
    "nn.max_pool2d": one(
        "nn.max_pool2d", (1, 3, 7, 8), pool_size=(3, 2), strides=(2, 2), padding=(1, 0, 1, 1)
    ),
    "nn.avg_pool2d": one("nn.avg_pool2d", (1, 3, 7, 8), pool_size=(3, 3), padding=(1, 1, 1, 1)),
    "mean": one("mean", (2, 3, 5, 7), axes=(2, 3)),
    "nn.softmax": one("nn.softmax", (2, 3, 9)),
    "reshape": one("reshape", (2, 6), shape=(3, 4)),
    "concatenate": one("concatenate", (2, 1, 3), (2, 4, 3), axis=1),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    graph, backend = CASES[name], CSource()
    found = find_candidates(graph, [backend])
    assert any(candidate.backend == "csource" for candidate in found.candidates), found.refusals
    draw = np.random.default_rng(0)
    inputs = [
        np.asarray(draw.standard_normal(value.tensor.shape), np.float32) for value in graph.inputs
    ]
    expected = np.asarray(evaluate(graph, inputs)[0])
    result = np.full_like(expected, np.nan)
    backend.load(backend.compile(graph))(inputs, [result])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_every_operator_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} | {"squeeze", "expand_dims"} >= set(EMITTERS)


def test_the_source_is_kept() -> None:
    backend = CSource()
    runner = backend.load(backend.compile(CASES["nn.conv2d"]))
    assert "graft_region" in runner.source  # type: ignore[attr-defined]


def test_what_is_refused() -> None:
    graph = one("nn.softmax", (2, 3, 4), axis=1)
    (refused,) = find_candidates(graph, [CSource()]).refusals[graph.nodes[0]]
    assert refused.reason == "only softmax along the last axis is written"


def test_a_broken_program_is_told_with_the_compilers_words() -> None:
    with pytest.raises(UserError, match="the C compiler refuses the code"):
        compile_c("int f( {")


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "needs a C compiler" in CSource().missing()
    with pytest.raises(UserError, match="there is no C compiler"):
        compile_c("")


def test_code_is_refused_where_the_processor_lacks_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = instruction_set(tuple(FLAGS))
    assert needs.architecture == native.host_architecture()
    if needs.architecture == "x86_64":
        assert {"sse2", "ssse3"} <= set(needs.features)
    blob = CSource().compile(CASES["exp"])
    CSource().load(blob)
    missing = needs.features[-1]
    left = native.host_features() - {missing}
    monkeypatch.setattr(c_source, "host_features", lambda: left)
    with pytest.raises(UserError, match=f"needs a processor with {missing}"):
        CSource().load(blob)
    monkeypatch.setattr(c_source, "host_architecture", lambda: "riscv64")
    with pytest.raises(UserError, match="and this machine is riscv64"):
        CSource().load(blob)
