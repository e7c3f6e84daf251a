"""Inputs to check a region on: a graph in, sizes and data for its inputs out.

There are two kinds of data for every size. *Ordinary* data are normal floats and integers from the
whole range of their dtype; *edges* add large numbers, denormals and signed zeros to the floats, and
the ends of the range to the integers. Integers with a special meaning stay legal: indices are in
range, divisors positive, shapes and counts small. Results on inputs changed in the last bit
(`nearby`) tell how well conditioned a region is; `evaluate_nearby` changes intermediate values as
well. Graphs whose results depend on the order of products only get ordinary floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from graft.base.compare import moved
from graft.base.dims import AnyDim, Unknown, evaluate_dim, symbols_of
from graft.base.dtypes import Array, DType, dtype_of, float_info, integer_info
from graft.byoc.sizes import ASSUMED_EXTENT
from graft.byoc.tolerance import depth_of
from graft.ir.evaluate import Data, evaluate
from graft.ir.graph import Graph, Node, Value
from graft.ops.indexed import index_limits, source_values

Sizes = Mapping[str, int]

_SMALL_ODD = (3, 5, 7)
_LARGE = 1e4
_BELOW = 3  # what integers are below that are shapes, counts or exponents
_SHIFTS = ("left_shift", "right_shift")
_UNSTEADY = ("prod", "cumprod")
_DIVISIONS = ("divide", "floor_divide", "mod", "floor_mod")


class Kind(StrEnum):
    """Kinds of data."""

    ORDINARY = "ordinary"
    EDGES = "edges"


@dataclass(frozen=True)
class Probe:
    """The inputs of one call, and the same changed in the last bit."""

    kind: Kind
    sizes: Sizes
    inputs: list[Array]
    nearby: list[Array]

    def __str__(self) -> str:
        named = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.kind} data" + (f" at {named}" if named else "")


def probes(graph: Graph) -> Iterator[Probe]:
    """Inputs to check a graph on, the most ordinary first."""
    for round_, sizes in enumerate(_all_sizes(graph)):
        if not _fits(graph, sizes):
            continue
        for number, kind in enumerate(Kind):
            yield probe(graph, kind, sizes, 2 * round_ + number)
    if not graph.input_symbols:  # whatever is kept from call to call has to serve again
        yield probe(graph, Kind.ORDINARY, {}, 2)


def probe(graph: Graph, kind: Kind, sizes: Sizes, seed: int, small: bool = False) -> Probe:
    """Inputs of one kind; with `small`, integers that are legal for any purpose."""
    draw = np.random.default_rng(seed)
    inputs = _inputs(graph, draw, kind, sizes, small)
    return Probe(kind, sizes, inputs, [_moved(draw, array) for array in inputs])


def _inputs(
    graph: Graph, draw: np.random.Generator, kind: Kind, sizes: Sizes, small: bool
) -> list[Array]:
    ranges = _ranges(graph, sizes)
    steady = all(node.op.name not in _UNSTEADY for node in graph.nodes)
    floats = kind if steady else Kind.ORDINARY
    large = _large(graph) if floats is Kind.EDGES else 0.0
    inputs = []
    for value in graph.inputs:
        low, high = ranges.get(value, (0, _BELOW) if small else _full(value.dtype))
        shape = shape_at(value, sizes)
        if value.dtype is DType.BOOL:
            inputs.append(draw.random(shape) < 0.5)
        elif value.dtype.is_float:
            inputs.append(_floats(draw, floats, shape, value.dtype, large))
        else:
            inputs.append(_integers(draw, kind, shape, value.dtype, low, high))
    return inputs


def samples(graph: Graph, seed: int = 0) -> list[Array]:
    """Ordinary inputs of a graph at the sizes that prices assume, with small integers."""
    return _inputs(graph, np.random.default_rng(seed), Kind.ORDINARY, {}, small=True)


def poisoned_outputs(graph: Graph, sizes: Sizes) -> list[Array]:
    """Memory for results that says so if it is left as it is: floats are NaN."""
    outputs = [np.empty(shape_at(value, sizes), value.dtype.numpy) for value in graph.outputs]
    for output in outputs:
        output.reshape(-1).view(np.uint8).fill(0xFF)
    return outputs


def evaluate_nearby(graph: Graph, one: Probe, expected: Sequence[Array]) -> list[Array]:
    """The evaluator's results on the inputs nearby, with intermediate values changed in the last
    bit, too. Inputs alone do not tell how rounding inside the graph is magnified: near 1, erf
    hardly changes with its operand, and atanh of it changes by thousands of last bits of erf's.

    Two changes may cancel, so intermediate values are also changed alone, and of each element the
    result farther from the expected one is kept."""
    results = list(expected)
    for seed, inputs in enumerate((one.nearby, one.inputs)):
        move = partial(_moved_inside, graph, np.random.default_rng(seed))
        moved = [np.asarray(item) for item in evaluate(graph, inputs, move)]
        results = [_farther(*trio) for trio in zip(moved, results, expected, strict=True)]
    return results


def evaluate_a_step_off(graph: Graph, one: Probe, expected: Sequence[Array]) -> list[Array]:
    """The evaluator's results if intermediate codes of quantisations are off by a step, as they may
    be; of each element the one farther from the expected result. A step of a coarse scale is many
    of a finer one behind it."""
    results = list(expected)
    for sign in (1, -1):
        move = partial(_step_codes, graph, np.random.default_rng(0), sign)
        moved = [np.asarray(item) for item in evaluate(graph, one.inputs, move)]
        results = [_farther(*trio) for trio in zip(moved, results, expected, strict=True)]
    return results


def _step_codes(
    graph: Graph, draw: np.random.Generator, sign: int, node: Node, results: Sequence[Data]
) -> list[Data]:
    """A node's results; codes that other nodes read are changed by a step, within their range."""
    codes = results[0]
    is_inside = node.op.name == "qnn.quantize" and node.output in graph.users
    if not is_inside or not isinstance(codes, np.ndarray) or dtype_of(codes.dtype).is_float:
        return list(results)
    info = integer_info(codes.dtype)
    steps = np.where(draw.random(codes.shape) < 0.5, -sign, sign)
    return [np.clip(codes.astype(np.int64) + steps, info.min, info.max).astype(codes.dtype)]


def _moved_inside(
    graph: Graph, draw: np.random.Generator, node: Node, results: Sequence[Data]
) -> list[Data]:
    """A node's results; those that other nodes read are changed in the last bit."""
    if node.op.name == "constant":
        return list(results)
    pairs = zip(node.outputs, results, strict=True)
    return [_moved(draw, data) if value in graph.users else data for value, data in pairs]


def _farther(one: Array, other: Array, origin: Array) -> Array:
    """Of two arrays, elementwise the one that is farther from a third."""
    dtype = dtype_of(origin.dtype)
    if not (dtype.is_float or dtype.is_integer):
        return np.where(one != origin, one, other)
    return np.where(_distance(one, origin) >= _distance(other, origin), one, other)


def _distance(array: Array, origin: Array) -> Array:
    """Elementwise distance; a NaN is infinitely far from a number."""
    wide, center = array.astype(np.float64), origin.astype(np.float64)
    is_same = (wide == center) | (np.isnan(wide) & np.isnan(center))
    with np.errstate(invalid="ignore"):  # two infinities
        gap = np.where(is_same, 0.0, np.abs(wide - center))
    return np.where(np.isnan(gap), np.inf, gap)


def shape_at(value: Value, sizes: Sizes) -> tuple[int, ...]:
    """The extents of a tensor for these sizes of symbols; others are assumed."""
    return tuple(_extent(dim, sizes) for dim in value.tensor.shape or ())


def _extent(dim: AnyDim, sizes: Sizes) -> int:
    if isinstance(dim, Unknown):
        return ASSUMED_EXTENT
    return evaluate_dim(dim, {name: sizes.get(name, ASSUMED_EXTENT) for name in symbols_of(dim)})


def _all_sizes(graph: Graph) -> list[Sizes]:
    """Sizes of symbols to try: the one that prices assume, 1, and distinct small odd numbers."""
    symbols = sorted(graph.input_symbols)
    if not symbols:
        return [{}]
    odd = {name: _SMALL_ODD[number % 3] for number, name in enumerate(symbols)}
    return [dict.fromkeys(symbols, ASSUMED_EXTENT), dict.fromkeys(symbols, 1), odd]


def _fits(graph: Graph, sizes: Sizes) -> bool:
    """Whether no extent is negative: symbols may depend on each other."""
    values = (*graph.inputs, *graph.outputs)
    return all(extent >= 0 for value in values for extent in shape_at(value, sizes))


def _large(graph: Graph) -> float:
    """A number so large that sums of its products stay within the range of the narrowest float."""
    floats = {value.dtype for value in graph.inputs if value.dtype.is_float}
    top = min((float(float_info(dtype.numpy).max) for dtype in floats), default=1.0)
    return min(_LARGE, math.sqrt(top / max(depth_of(graph).values(), default=1.0)) / 4)


def _full(dtype: DType) -> tuple[int, int]:
    """The range of an integer dtype, its end excluded."""
    if dtype.is_float or dtype is DType.BOOL:
        return 0, 0
    info = integer_info(dtype.numpy)
    return int(info.min), int(info.max) + 1


def _ranges(graph: Graph, sizes: Sizes) -> dict[Value, tuple[int, int]]:
    """The half-open ranges of integers with a special meaning."""
    result: dict[Value, tuple[int, int]] = {}

    def narrow(value: Value, low: int, high: int) -> None:
        before = result.get(value, (low, high))
        result[value] = max(low, before[0]), max(min(high, before[1]), low + 1)

    for node in graph.nodes:
        special = {position: (0, _BELOW) for position, _ in node.op.alternatives}
        if node.op.name in _DIVISIONS:
            special[1] = (1, 128)
        elif node.op.name in (*_SHIFTS, "power"):
            special[1] = (0, _BELOW)
        for position, (low, high) in special.items():
            operand = node.inputs[position] if position < len(node.inputs) else None
            for value in () if operand is None else source_values(operand, graph):
                narrow(value, low, high)
    for value, extents in index_limits(graph).items():
        below = min((_extent(extent, sizes) for extent in extents), default=_BELOW)
        narrow(value, 0, max(below, 1))
    return result


def _floats(
    draw: np.random.Generator, kind: Kind, shape: tuple[int, ...], dtype: DType, large: float
) -> Array:
    array = np.asarray(draw.standard_normal(shape))
    if kind is Kind.EDGES:
        info = float_info(dtype.numpy)
        sign = np.where(draw.random(shape) < 0.5, -1.0, 1.0)
        which = draw.random(shape)
        array = np.where(which < 0.10, sign * large * draw.random(shape), array)
        array = np.where((which >= 0.10) & (which < 0.15), sign * float(info.tiny) / 3, array)
        array = np.where((which >= 0.15) & (which < 0.20), sign * 0.0, array)
        array = np.where((which >= 0.20) & (which < 0.25), sign * float(info.tiny), array)
    return np.asarray(array).astype(dtype.numpy)


def _integers(
    draw: np.random.Generator, kind: Kind, shape: tuple[int, ...], dtype: DType, low: int, high: int
) -> Array:
    """Integers of every magnitude: uniform ones of 64 bits would hardly ever be small."""
    wide = np.uint64 if high > 2**63 else np.int64
    array = draw.integers(low, high, shape, dtype=wide)
    if high - low > 2**8:
        shifts = draw.integers(0, integer_info(dtype.numpy).bits - 4, shape)
        array = np.maximum(array >> shifts.astype(wide), wide(low))
    if kind is Kind.EDGES:
        which = draw.random(shape)
        array = np.where(which < 0.15, wide(low), np.where(which > 0.85, wide(high - 1), array))
    return np.asarray(array).astype(dtype.numpy)


def _moved(draw: np.random.Generator, array: Data) -> Data:
    """Floats changed in the last bit; other data as they are."""
    return moved(draw, array) if isinstance(array, np.ndarray) else array
