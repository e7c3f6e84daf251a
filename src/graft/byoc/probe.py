"""Inputs to check a region on: a graph in, sizes and data for its inputs out.

Every size is drawn twice. *Ordinary* data are normal floats and integers from the whole range of
their dtype; *edges* put large numbers, denormals and zeros of either sign among the floats, and the
ends of the range among the integers. Integers that mean something else than a number stay legal:
indices point inside, divisors are positive, shapes and counts are small. What a region makes of
inputs that differ in the last bit (`nearby`) tells how well its results are determined at all;
`evaluate_nearby` moves the values inside it as well, whose last bit is as little determined.
Floats of graphs whose results depend on the order of products are ordinary throughout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

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
    """What data are like."""

    ORDINARY = "ordinary"
    EDGES = "edges"


@dataclass(frozen=True)
class Probe:
    """Inputs of one call, and the same moved by a last bit."""

    kind: Kind
    sizes: Sizes
    inputs: list[Array]
    nearby: list[Array]

    def __str__(self) -> str:
        named = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.kind} data" + (f" at {named}" if named else "")


def probes(graph: Graph) -> Iterator[Probe]:
    """Inputs to try a graph on, the most ordinary first."""
    for round_, sizes in enumerate(_all_sizes(graph)):
        if not _fits(graph, sizes):
            continue
        for number, kind in enumerate(Kind):
            yield probe(graph, kind, sizes, 2 * round_ + number)
    if not graph.input_symbols:  # whatever is kept from call to call has to serve again
        yield probe(graph, Kind.ORDINARY, {}, 2)


def probe(graph: Graph, kind: Kind, sizes: Sizes, seed: int, small: bool = False) -> Probe:
    """Inputs of one kind; with `small`, integers that are legal for whatever they mean."""
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
    """The evaluator's results on the inputs nearby, with what nodes compute for others moved by a
    last bit, too. Inputs alone do not tell how rounding inside the graph is magnified: near 1, erf
    hardly moves with its operand, and atanh of it moves by thousands of last bits of erf's.

    Two movements may make up for each other. So values inside are moved alone as well, and of each
    element the result is kept that is farther from the expected one."""
    results = list(expected)
    for seed, inputs in enumerate((one.nearby, one.inputs)):
        move = partial(_moved_inside, graph, np.random.default_rng(seed))
        moved = [np.asarray(item) for item in evaluate(graph, inputs, move)]
        results = [_farther(*trio) for trio in zip(moved, results, expected, strict=True)]
    return results


def evaluate_a_step_off(graph: Graph, one: Probe, expected: Sequence[Array]) -> list[Array]:
    """The evaluator's results where codes that the graph is quantised to inside are a step up or
    down, as they may be; of each element the one that is farther from the expected one. A step of a
    coarse scale is many of a finer one behind it."""
    results = list(expected)
    for sign in (1, -1):
        move = partial(_step_codes, graph, np.random.default_rng(0), sign)
        moved = [np.asarray(item) for item in evaluate(graph, one.inputs, move)]
        results = [_farther(*trio) for trio in zip(moved, results, expected, strict=True)]
    return results


def _step_codes(
    graph: Graph, draw: np.random.Generator, sign: int, node: Node, results: Sequence[Data]
) -> list[Data]:
    """What a node computes; codes that another node reads are a step off, as far as they can."""
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
    """What a node computes, moved by a last bit where another node reads it."""
    if node.op.name == "constant":
        return list(results)
    pairs = zip(node.outputs, results, strict=True)
    return [_moved(draw, data) if value in graph.users else data for value, data in pairs]


def _farther(one: Array, other: Array, origin: Array) -> Array:
    """Of two arrays, element by element the one that is farther from a third."""
    dtype = dtype_of(origin.dtype)
    if not (dtype.is_float or dtype.is_integer):
        return np.where(one != origin, one, other)
    return np.where(_distance(one, origin) >= _distance(other, origin), one, other)


def _distance(array: Array, origin: Array) -> Array:
    """Between numbers, element by element; a NaN is infinitely far from one."""
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
    """What symbols are to be: the size that is assumed for prices, 1, and small odd numbers that
    differ from symbol to symbol."""
    symbols = sorted(graph.input_symbols)
    if not symbols:
        return [{}]
    odd = {name: _SMALL_ODD[number % 3] for number, name in enumerate(symbols)}
    return [dict.fromkeys(symbols, ASSUMED_EXTENT), dict.fromkeys(symbols, 1), odd]


def _fits(graph: Graph, sizes: Sizes) -> bool:
    """Whether no extent is negative: symbols of one graph may depend on each other."""
    values = (*graph.inputs, *graph.outputs)
    return all(extent >= 0 for value in values for extent in shape_at(value, sizes))


def _large(graph: Graph) -> float:
    """A number so large that sums of products with it stay within the narrowest float."""
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
    """The ranges of integers that are more than numbers, their ends excluded."""
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
    draw: np.random.Generator,
    kind: Kind,
    shape: tuple[int, ...],
    dtype: DType,
    low: int,
    high: int,
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
    """Floats with their last bit changed, one way or the other, and zeros for denormals, which not
    every device has; all else as it is."""
    if not (isinstance(array, np.ndarray) and dtype_of(array.dtype).is_float):
        return array
    info = float_info(array.dtype)
    wide = array.astype(np.float64)
    factor = 1.0 + float(info.eps) * np.where(draw.random(array.shape) < 0.5, -1.0, 1.0)
    moved = np.where(np.abs(wide) < float(info.tiny), 0.0 * wide, wide * factor)
    return np.asarray(moved).astype(array.dtype)
