"""`strided_slice`: every stride-th element between two bounds, per axis.

Negative bounds count from the end, and what lies outside is brought to the nearest edge, as in
Python but for one case: a slice that runs backwards from before the first element begins with the
first element, as ONNX has it, where Python's is empty. Symbolic bounds and extents give exact
symbolic results, since shape arithmetic (`x[:, :n - 1]`) must not end in an extent that is known
only at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graft.base.dims import UNKNOWN, AnyDim, Dim, at_least, ceildiv, dim_max, dim_min
from graft.base.dtypes import Array
from graft.ir.attrs import Attrs, Dims, Ints
from graft.ir.op import Kind
from graft.ir.types import TensorType
from graft.loop.build import Term, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.movement import length_of
from graft.ops.rules import normalize_axes, operator, require, unknown_shape

# A bound at least this far out means "to the edge", as exporters write it.
FAR = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StridedSliceAttrs(Attrs):
    begin: Dims | None = None
    end: Dims | None = None
    axes: Ints | None = None
    strides: Ints | None = None


def _from_front(bound: AnyDim, extent: AnyDim) -> AnyDim:
    """The bound with negative values counted from the end; not yet brought within the axis."""
    if isinstance(bound, int):
        return bound + extent if bound < 0 else bound
    if at_least(bound, 0):
        return bound
    if at_least(-bound, 1):
        return bound + extent
    if extent - bound == 1:
        return bound  # negative only where there are no elements, and then -1 + 0 is the same
    # bound + extent * (1 if bound < 0 else 0), where max(min(bound, 0), -1) is -1 or 0
    return bound - extent * dim_max(dim_min(bound, 0), -1)


def slice_positions(begin: int, end: int, stride: int, extent: int) -> range:
    """The places of the elements that `[begin:end:stride]` takes of an axis."""
    if stride < 0 and begin < -extent:
        begin = 0
    return range(*slice(begin, end, stride).indices(extent))


def slice_start(begin: AnyDim, stride: int, extent: AnyDim) -> AnyDim:
    """The place of the first element that is taken of an axis, if any is."""
    first = _from_front(begin, extent)
    return dim_max(first if stride > 0 else dim_min(first, extent - 1), 0)


def slice_extent(begin: AnyDim, end: AnyDim, stride: int, extent: AnyDim) -> AnyDim:
    """How many elements `[begin:end:stride]` takes of an axis."""
    if isinstance(begin, int) and isinstance(end, int) and isinstance(extent, int):
        return len(slice_positions(begin, end, stride, extent))
    if stride > 0:
        return _forward_extent(begin, end, stride, extent)
    return _backward_extent(begin, end, -stride, extent)


def _forward_extent(begin: AnyDim, end: AnyDim, stride: int, extent: AnyDim) -> AnyDim:
    stop = extent
    if not (isinstance(end, int) and end >= FAR):
        stop = dim_min(_from_front(end, extent), extent)
    if isinstance(begin, int) and (begin == 0 or begin <= -FAR):
        return ceildiv(dim_max(stop, 0), stride)
    start = _from_front(begin, extent)
    # stop - max(start, 0), written so that [-1:] of n elements is min(n, 1)
    length = stop - start if at_least(start, 0) else dim_min(stop, stop - start)
    return ceildiv(dim_max(length, 0), stride)


def _backward_extent(begin: AnyDim, end: AnyDim, step: int, extent: AnyDim) -> AnyDim:
    count = extent  # of the elements up to the first one that is taken
    if isinstance(begin, int) and begin <= -FAR:
        count = dim_min(extent, 1)
    elif not (isinstance(begin, int) and begin >= FAR):
        least = _from_front(begin, extent) + 1
        count = extent if least == extent else dim_min(dim_max(least, 1), extent)
    if isinstance(end, int) and end <= -FAR:
        return ceildiv(dim_max(count, 0), step)
    left = _from_front(end, extent) + 1
    length = count - left if at_least(left, 0) else dim_min(count, count - left)
    return ceildiv(dim_max(length, 0), step)


def slice_ranges(attrs: StridedSliceAttrs, shape: Sequence[int]) -> list[range]:
    """Per axis, the places of the elements that attributes take of a static shape."""
    ranges = [range(extent) for extent in shape]
    for axis, begin, end, stride in _cuts(attrs, len(shape)):
        assert isinstance(begin, int)
        assert isinstance(end, int)
        ranges[axis] = slice_positions(begin, end, stride, shape[axis])
    return ranges


def _cuts(attrs: StridedSliceAttrs, rank: int) -> Iterator[tuple[int, Dim, Dim, int]]:
    """Per axis that is cut by attributes: its number, the bounds, and the stride."""
    assert attrs.begin is not None
    assert attrs.end is not None
    axes = normalize_axes(range(len(attrs.begin)) if attrs.axes is None else attrs.axes, rank)
    strides = attrs.strides or (1,) * len(axes)
    return zip(axes, attrs.begin, attrs.end, strides, strict=True)


def slice_steps(attrs: StridedSliceAttrs, shape: Sequence[AnyDim]) -> dict[int, tuple[AnyDim, int]]:
    """Per axis that is cut by attributes: the first element that is taken, and the stride."""
    steps: dict[int, tuple[AnyDim, int]] = {}
    for axis, begin, end, stride in _cuts(attrs, len(shape)):
        extent = shape[axis]
        if isinstance(begin, int) and isinstance(end, int) and isinstance(extent, int):
            steps[axis] = slice_positions(begin, end, stride, extent).start, stride
        else:
            steps[axis] = slice_start(begin, stride, extent), stride
    return steps


def _slice_type(
    attrs: StridedSliceAttrs,
    data: TensorType,
    begin: TensorType | None,
    end: TensorType | None,
    axes: TensorType | None,
    strides: TensorType | None,
) -> TensorType:
    count = len(attrs.begin) if attrs.begin is not None else length_of(begin, "begins")
    stop_count = len(attrs.end) if attrs.end is not None else length_of(end, "ends")
    lengths = [count, stop_count]
    lengths += [len(listed) for listed in (attrs.axes, attrs.strides) if listed is not None]
    lengths += [operand.size for operand in (axes, strides) if operand is not None]
    sure = {length for length in lengths if isinstance(length, int)}
    require(len(sure) <= 1, f"begins, ends, axes and strides differ in number: {lengths}")
    require(0 not in (attrs.strides or ()), "a stride is 0")
    if data.shape is None:
        return TensorType(data.dtype, None)
    rank = len(data.shape)
    if (axes is not None and attrs.axes is None) or not sure:
        return TensorType(data.dtype, unknown_shape(rank))
    number = sure.pop()
    require(attrs.axes is not None or number <= rank, f"{number} axes cut, rank {rank}")
    begins = attrs.begin or unknown_shape(number)
    ends = attrs.end or unknown_shape(number)
    steps: tuple[Any, ...] = attrs.strides or (1 if strides is None else None,) * number
    dims = list(data.shape)
    numbers = normalize_axes(range(number) if attrs.axes is None else attrs.axes, rank)
    for axis, first, last, step in zip(numbers, begins, ends, steps, strict=True):
        dims[axis] = UNKNOWN if step is None else slice_extent(first, last, step, dims[axis])
    return TensorType(data.dtype, tuple(dims))


@operator(
    "strided_slice",
    "data begin? end? axes? strides?",
    _slice_type,
    kind=Kind.INJECTIVE,
    on_dims=True,
)
def _strided_slice(attrs: StridedSliceAttrs, data: Array) -> Array:
    """Every so many elements from begin to end along axes; negative ones count from the end."""
    bounds: Any = _cuts(attrs, data.ndim)
    cuts = [slice(None)] * data.ndim
    for axis, first, last, step in bounds:
        positions = slice_positions(first, last, step, data.shape[axis])
        # A stop of -1 would count from the end.
        cuts[axis] = slice(
            positions.start, None if positions.stop < 0 else positions.stop, positions.step
        )
    return data[tuple(cuts)]


# Tensor expressions. Bounds that are attributes are part of the code. Those that are operands are
# read by it; an index that they lead outside is brought back to the nearest element, since a loop
# cannot raise an error. Widths of borders are treated alike (`padding.py`).


@te.expresses("strided_slice")
def _express_strided_slice(
    attrs: Any, out: te.Out, data: Tensor, *bounds: Tensor | None
) -> te.Results:
    """Every stride-th element between bounds."""
    if attrs.begin is None or attrs.end is None or any(one is not None for one in bounds):
        return _slice_at_run_time(attrs, out, data, bounds)
    steps = slice_steps(attrs, te.sizes(data))

    def element(*indices: Term) -> Term:
        at: list[Term] = []
        for axis, index in enumerate(indices):
            first, step = steps.get(axis, (0, 1))
            at.append(index * step + first)
        return te.read(data, at)

    return out.of(element)


def _slice_at_run_time(attrs: Any, out: te.Out, data: Tensor, bounds: te.Inputs) -> te.Results:
    begins, _, axes, strides = (
        listed(getattr(attrs, field), operand)
        for field, operand in zip(("begin", "end", "axes", "strides"), bounds, strict=True)
    )
    steps = strides or [term(1)] * len(begins)

    def element(*indices: Term) -> Term:
        at: list[Term] = []
        for axis, (index, extent) in enumerate(zip(indices, te.sizes(data), strict=True)):
            first = of_axis(axis, len(indices), axes, begins, 0)
            step = of_axis(axis, len(indices), axes, steps, 1)
            start = select(first < 0, first + extent, first)
            start = maximum(select(step < 0, minimum(start, term(extent) - 1), start), 0)
            at.append(te.clamped(start + index * step, extent))
        return te.unless_empty(data, te.read(data, at))

    return out.of(element)


def listed(attribute: Any, operand: Tensor | None) -> list[Term]:
    """Numbers that are an attribute or an operand; none where they are left out."""
    if operand is None:
        return [cast(INDEX, term(entry)) for entry in attribute or ()]
    (count,) = te.numbers(te.sizes(operand), "the numbers of bounds and axes")
    return [cast(INDEX, te.read(operand, [entry])) for entry in range(count)]


def of_axis(axis: int, rank: int, axes: list[Term], entries: list[Term], default: int) -> Term:
    """The entry for an axis; without a list of axes they come in order."""
    if not axes:
        return entries[axis] if axis < len(entries) else term(default)
    result = term(default)
    for named, entry in zip(axes, entries, strict=False):
        result = select(equal(named, axis) | equal(named, axis - rank), entry, result)
    return result
