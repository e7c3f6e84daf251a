"""Tolerances of results: a graph in, the bounds of its outputs out; results in, the first
difference in words out.

Floats may differ by `FACTOR * u * sqrt(depth)` of their size and of the largest result, where u is
the unit roundoff of the coarsest float in the graph and depth the number of consecutive roundings
on the longest path (a sum of n products counts n): rounding errors add up like a random walk. A
multiple of the change of the reference on inputs changed in the last bit is added (in the author's
kit, of intermediate values, too), so that ill-conditioned results are not held against a backend.
Integers that are rounded floats (quantised, or interpolated pixels) may differ by a step per such
rounding on the longest path to them, since a number near a tie may be rounded either way; along
long paths this, too, is a random walk. (In int8 ResNet-18, whose results are 20 quantisations deep,
the evaluator's and the host's differ by up to 12 steps; in MobileNet-v2, 53 deep, by up to 16.)
Floats that depend on quantised numbers may differ by as much, and integers of 64 bits by the
rounding of float64. Other integers have to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graft.base.compare import Bound, compare_arrays
from graft.base.dtypes import Array, DType, float_info
from graft.byoc.sizes import node_work, number
from graft.ir.graph import Graph, Value
from graft.ir.op import Kind
from graft.ir.types import TensorType
from graft.ops.resize import ResizeAttrs, interpolates
from graft.runtime.comparison import MOVEMENT

FACTOR = 64.0
STEP = 2.0**-7  # of the largest number, at least: a step of int8
# float64 is not always better than this: functions come from tables and polynomials.
COARSEST_DOUBLE = 1e-12


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of one output."""

    relative: float  # of the element, and of the largest one
    steps: int = 0  # of an integer


def tolerances(graph: Graph, rounding: DType = DType.FLOAT32) -> list[Tolerance]:
    """The tolerance of each output, if float32 may be rounded to `rounding` on the way."""
    unit, depths, tips = _rounding(graph, rounding), depth_of(graph), _steps(graph)
    return [
        Tolerance(
            max(FACTOR * unit * math.sqrt(depths.get(value, 1.0)), STEP * tips.get(value, 0)),
            max(1, tips.get(value, 0)) if _is_rounded(value, graph) else 0,
        )
        for value in graph.outputs
    ]


def _steps(graph: Graph) -> dict[Value, int]:
    """Per value, the steps that it may be off by because of roundings to integers before it: one
    for each on the longest path, and 3√n for n of more than 9."""
    counts: dict[Value, int] = {}
    for node in graph.nodes:
        before = max((counts.get(value, 0) for value in node.args), default=0)
        own = int(node.op.name == "qnn.quantize")
        counts.update(dict.fromkeys(node.outputs, before + own))
    return {value: min(count, round(3 * math.sqrt(count))) for value, count in counts.items()}


def depth_of(graph: Graph) -> dict[Value, float]:
    """Per value, the number of consecutive roundings on the longest path to it."""
    depths: dict[Value, float] = {}
    for node in graph.nodes:
        before = max((depths.get(value, 0.0) for value in node.args), default=0.0)
        own = 0.0 if node.op.name == "constant" else _terms(node.outputs, node_work(node))
        depths.update(dict.fromkeys(node.outputs, before + own))
    return depths


def _terms(outputs: Sequence[Value], work: tuple[int, int, int]) -> float:
    """Operations per element of a result."""
    macs, flops, _ = work
    elements = max((_elements(value) for value in outputs), default=1)
    return max(1.0, (macs + flops) / max(elements, 1))


def _elements(value: Value) -> int:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return math.prod(number(dim) for dim in shape or ())


def _rounding(graph: Graph, rounding: DType) -> float:
    """Half a unit in the last place of the coarsest float in the graph, or of `rounding`."""
    values = graph.values
    dtypes = {value.dtype for value in values if isinstance(value.type, TensorType)}
    dtypes |= {rounding} if DType.FLOAT32 in dtypes else set()
    units = [float(float_info(d.numpy).eps) / 2 for d in dtypes if d.is_float]
    return max([*units, COARSEST_DOUBLE])


def _is_rounded(value: Value, graph: Graph) -> bool:
    """Whether a value consists of floats rounded to integers, possibly moved."""
    node = graph.producers.get(value)
    while node is not None and node.op.kind is Kind.INJECTIVE and node.args:
        node = graph.producers.get(node.args[0])
    if node is None:
        return False
    return node.op.name == "qnn.quantize" or (
        isinstance(node.attrs, ResizeAttrs) and interpolates(node.attrs)
    )


def difference(
    graph: Graph,
    results: Sequence[Array],
    expected: Sequence[Array],
    nearby: Sequence[Array] | None = None,
    whose: str = "the host's",
    rounding: DType = DType.FLOAT32,
) -> str:
    """The first result outside of its tolerance, in words; empty if there is none.

    `expected` are the reference's results, `nearby` its results on inputs changed in the last
    bit."""
    others = expected if nearby is None else nearby
    limits = tolerances(graph, rounding)
    for value, ours, theirs, near, limit in zip(
        graph.outputs, results, expected, others, limits, strict=True
    ):
        problem = _differs(ours, theirs, near, limit, whose)
        if problem:
            return f"its result %{value.name} {problem}"
    return ""


def _differs(results: Array, expected: Array, nearby: Array, limit: Tolerance, whose: str) -> str:
    bound = Bound(steps=limit.steps)
    if limit.steps and expected.dtype.itemsize == 8:
        bound = Bound(relative=limit.relative, of_largest=limit.relative, steps=limit.steps)
    if DType(str(expected.dtype)).is_float:
        # denormals may count as zero
        floor = 2 * float(float_info(expected.dtype).tiny)
        bound = Bound(floor, limit.relative, limit.relative, MOVEMENT)
    return compare_arrays(results, expected, bound, nearby).words(whose)
