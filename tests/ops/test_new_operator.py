"""A pointwise operator takes one declaration and one lowering; all else follows from these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import graft
from graft.backends.csource.loops import emit
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import call_of
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.registry import LOWERINGS, lowers
from graft.ir.attrs import Attrs
from graft.ir.builder import Builder
from graft.ir.equal import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.op import Kind
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.types import tensor
from graft.loop.build import Term, call
from graft.ops import OPS, get_op
from graft.ops.pointwise import pointwise
from graft.ops.rules import FLOATS
from graft.passes.group_fusion import group_fusion

# The declaration: what one element is.


@dataclass(frozen=True, slots=True)
class SoftclipAttrs(Attrs):
    limit: float = 1.0


def softclip(attrs: SoftclipAttrs, x: Term) -> Term:
    """x near zero, the limit far from it, and smooth in between."""
    ratio = x / attrs.limit
    return x / call("sqrt", ratio * ratio + 1.0)


def declare() -> None:
    pointwise(
        "demo.softclip",
        "data",
        softclip,
        attrs=SoftclipAttrs,
        dtypes=FLOATS,
        summary="elements drawn in towards a limit",
    )

    # The lowering: how it comes out of an ONNX model.

    @lowers("Softclip", domain="demo")
    def lower_softclip(call: Call) -> Value:
        return call.op("demo.softclip", call.input(0), limit=call.float("limit", 1.0))


# What follows.


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operator, for one test."""
    with monkeypatch.context() as patch:
        patch.setattr(OPS, "_entries", dict(OPS._entries))
        patch.setattr(LOWERINGS, "_entries", dict(LOWERINGS._entries))
        declare()
        yield


def expected(x: Array, limit: float) -> Any:
    wide = x.astype(np.float64)
    return (wide / np.sqrt(1 + (wide / limit) ** 2)).astype(x.dtype)


def graph_on(type_: Any, **attrs: Any) -> Graph:
    build = Builder("one")
    return build.build(build("demo.softclip", build.input("x", type_), **attrs))


DTYPES = [(np.float64, 1e-14), (np.float32, 1e-6), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (37,), (3, 5, 7)])
def test_evaluated(dtype: Any, tolerance: float, shape: tuple[int, ...]) -> None:
    x = np.asarray(np.random.default_rng(0).normal(size=shape) * 3).astype(dtype)
    name = DType.BFLOAT16 if dtype is ml_dtypes.bfloat16 else np.dtype(dtype).name
    (found,) = evaluate(graph_on(tensor(name, *shape), limit=0.5), [x])
    assert isinstance(found, np.ndarray)
    assert found.dtype == x.dtype
    right = np.asarray(expected(x, 0.5)).astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=tolerance)


def test_nan_goes_through() -> None:
    (found,) = evaluate(graph_on(tensor("float32", 2)), [np.array([np.nan, 1e30], np.float32)])
    assert np.isnan(np.asarray(found)[0])


def test_typed() -> None:
    graph = graph_on(tensor("float16", symbol("n"), 3))
    assert graph.outputs[0].type == tensor("float16", symbol("n"), 3)
    with pytest.raises(UserError, match="wants floating-point operands, not int32"):
        graph_on(tensor("int32", 3))


def test_printed_and_parsed() -> None:
    graph = graph_on(tensor("float32", 4), limit=2.0)
    text = str(to_text(graph))
    assert "demo.softclip(%x) {limit=2.0}" in text
    assert difference(from_text(text), graph) is None


def test_priced() -> None:
    op, type_ = get_op("demo.softclip"), tensor("float32", 10)
    assert op.kind is Kind.ELEMENTWISE
    assert op.work(op.attrs(), [type_], [type_]).flops == 5 * 10  # / * + sqrt /


MODEL = """
    <ir_version: 10, opset_import: ["": 21, "demo": 1]>
    net (float[n, 3, 9, 7] x, float[4, 3, 3, 3] w, float[4, 1, 1] s) => (float[n, 4, 7, 5] y) {
      a = Conv (x, w)
      b = demo.Softclip <limit = 0.5> (a)
      y = Mul (b, s)
    }
"""


def test_native() -> None:
    """`strict` refuses whatever only the evaluator can run."""
    proto = onnx.parser.parse_model(MODEL)
    module = graft.compile(proto, strict=True)
    draw = np.random.default_rng(1)
    for count in (1, 3):
        shapes = {"x": (count, 3, 9, 7), "w": (4, 3, 3, 3), "s": (4, 1, 1)}
        feeds = {name: draw.normal(size=s).astype(np.float32) for name, s in shapes.items()}
        (found,) = module.run(None, feeds)
        (right,) = evaluate(import_model(proto), list(feeds.values()))
        np.testing.assert_allclose(found, np.asarray(right), rtol=1e-5, atol=1e-6)


def test_fused() -> None:
    """With the convolution before it and the product behind it, in one kernel."""
    fused = group_fusion(import_model(onnx.parser.parse_model(MODEL)))
    (group,) = (node for node in fused.nodes if node.op.name == "composite")
    inside = [node.op.name for node in group.attrs.body.nodes]
    assert inside == ["nn.conv2d", "demo.softclip", "multiply"]


def test_drawn_by_the_kit() -> None:
    drawn = [call_of(Draw(f"{n}"), get_op("demo.softclip"), []) for n in range(20)]
    dtypes = {type_.dtype for one in drawn for type_ in one.operands if type_ is not None}
    assert dtypes <= FLOATS.members
    assert len({one.attrs["limit"] for one in drawn}) > 1


def test_written_as_c() -> None:
    (node,) = graph_on(tensor("float32", 4), limit=2.0).nodes
    text = emit(node, ["x"], "y")
    assert "const float t3 = sqrtf(t2);" in text
    assert "y[(i0) * 1] = t4;" in text
