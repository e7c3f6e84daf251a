"""What convolution and pooling share: a window that slides over the spatial axes.

Attributes and extents enter; the extents of the result leave, and, for the meanings, padded data,
the data under each position of a window, and the dtype in which sums of products are exact.
Tensors are laid out batch, channels, then the spatial axes. `padding` lists what is added before
each spatial axis, then what is added behind each.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_below
from graft.base.dims import AnyDim, ceildiv, dim_min
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, Dims, Ints
from graft.ir.types import Shape
from graft.ops.rules import require

# What selects a part of an array.
Index = tuple[Any, ...]

# Spatial ranks for which the families have operators.
RANKS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class WindowAttrs(Attrs):
    """How a window moves: per spatial axis its step, and the spacing of its elements."""

    strides: Ints = ()
    padding: Dims = ()
    dilation: Ints = ()


def for_rank(base: type[WindowAttrs], rank: int, **defaults: Any) -> type[WindowAttrs]:
    """The attribute class for a spatial rank: steps are 1 and padding is 0 unless given."""
    defaults = {
        "strides": (1,) * rank,
        "padding": (0,) * (2 * rank),
        "dilation": (1,) * rank,
        **defaults,
    }
    hints = typing.get_type_hints(base)
    fields = [(name, hints[name], dataclasses.field(default=defaults[name])) for name in defaults]
    name = base.__name__.replace("Attrs", f"{rank}DAttrs")
    class_ = dataclasses.make_dataclass(name, fields, bases=(base,), frozen=True, slots=True)
    return typing.cast(type[WindowAttrs], class_)


def check_window(attrs: WindowAttrs, rank: int, may_crop: bool = False) -> None:
    """Refuse attributes that do not fit the spatial rank or make no sense."""
    for name, steps in (("strides", attrs.strides), ("dilation", attrs.dilation)):
        require(len(steps) == rank, f"{name} has {len(steps)} entries, not {rank}")
        require(all(step >= 1 for step in steps), f"{name} {list(steps)} is not positive")
    count = len(attrs.padding)
    require(count == 2 * rank, f"padding has {count} entries, not {2 * rank}")
    crops = any(provably_below(pad, 0) for pad in attrs.padding)
    require(may_crop or not crops, f"padding {list(attrs.padding)} is negative")


def check_kernel(kernel: Sequence[AnyDim]) -> None:
    """Refuse a window without elements."""
    empty = any(provably_below(extent, 1) for extent in kernel)
    require(not empty, f"the window {list(kernel)} is empty")


def reach(kernel: AnyDim, dilation: int) -> AnyDim:
    """How many elements a window spans, the gaps within it included."""
    return (kernel - 1) * dilation + 1


def window_counts(
    attrs: WindowAttrs,
    extents: Sequence[AnyDim],
    kernel: Sequence[AnyDim],
    ceil_mode: bool = False,
) -> Shape:
    """How many positions the window takes along each spatial axis."""
    rank = len(extents)
    return tuple(
        _window_count(
            extents[axis],
            reach(kernel[axis], attrs.dilation[axis]),
            attrs.strides[axis],
            attrs.padding[axis],
            attrs.padding[rank + axis],
            ceil_mode,
        )
        for axis in range(rank)
    )


def _window_count(
    extent: AnyDim, span: AnyDim, stride: int, begin: AnyDim, end: AnyDim, ceil_mode: bool
) -> AnyDim:
    room = extent + begin + end - span
    if ceil_mode:
        count = ceildiv(room, stride) + 1
        slack = span - end - stride
        if not isinstance(slack, int) or slack < 0:
            # Windows that would start in the padding behind the data are left out.
            count = dim_min(count, ceildiv(extent + begin, stride))
    else:
        count = room // stride + 1
    fits = not provably_below(count, 0)
    require(fits, f"a window that spans {span} does not fit into {extent} padded to {room + span}")
    return count


def read_extents(
    attrs: WindowAttrs, counts: Sequence[AnyDim], kernel: Sequence[AnyDim]
) -> list[AnyDim]:
    """How many elements so many windows span along each spatial axis."""
    return [
        (count - 1) * stride + reach(taps, dilation)
        for count, stride, taps, dilation in zip(
            counts, attrs.strides, kernel, attrs.dilation, strict=False
        )
    ]


def padding_behind(
    attrs: WindowAttrs, extents: Sequence[int], kernel: Sequence[int], counts: Sequence[int]
) -> list[int]:
    """By how much the last of so many windows reaches beyond the data along each spatial axis;
    where it is negative, the last elements are in no window."""
    spans = typing.cast(list[int], read_extents(attrs, counts, kernel))
    begins = typing.cast(Ints, attrs.padding)
    return [
        span - before - extent for span, before, extent in zip(spans, begins, extents, strict=False)
    ]


def fixed_counts(
    attrs: WindowAttrs, extents: Sequence[int], kernel: Sequence[int], ceil_mode: bool = False
) -> Ints:
    """`window_counts` for a meaning, where every extent is a number."""
    return typing.cast(Ints, window_counts(attrs, extents, kernel, ceil_mode))


def pad_pairs(padding: Dims) -> list[tuple[int, int]]:
    """Padding as (before, behind) per spatial axis, for a meaning, where it is numbers."""
    half = len(padding) // 2
    return [
        (int(begin), int(end)) for begin, end in zip(padding[:half], padding[half:], strict=True)
    ]


def padded(data: Array, pairs: Sequence[tuple[int, int]], fill: Any = 0) -> Array:
    """The data with its last axes padded; a negative amount cuts off. May be the data itself."""
    if not any(begin or end for begin, end in pairs):
        return data
    lead = data.ndim - len(pairs)
    extents = [n + b + e for n, (b, e) in zip(data.shape[lead:], pairs, strict=True)]
    result = np.full((*data.shape[:lead], *extents), fill, dtype=data.dtype)
    to: list[Any] = [...]
    source: list[Any] = [...]
    for old, new, (begin, _) in zip(data.shape[lead:], extents, pairs, strict=True):
        first, last = max(begin, 0), min(new, old + begin)
        to.append(slice(first, max(first, last)))
        source.append(slice(first - begin, max(first, last) - begin))
    result[tuple(to)] = data[tuple(source)]
    return result


def window_slices(
    kernel: Sequence[int], counts: Sequence[int], strides: Ints, dilation: Ints
) -> Iterator[tuple[Ints, Index]]:
    """Per element of the window: its position, and where all windows read it."""
    for position in np.ndindex(*kernel):
        starts = [p * d for p, d in zip(position, dilation, strict=True)]
        steps = zip(starts, counts, strides, strict=True)
        yield position, tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in steps)


def accumulator(data: Array, weight: Array, terms: int) -> np.dtype[Any]:
    """The dtype in which to sum `terms` products: exact for integers, and fast where it may be.

    BLAS multiplies floats only, so integers are floats wherever no sum can be too large for them.
    """
    dtype = dtype_of(data.dtype)
    if not dtype.is_integer:
        narrow = dtype.is_float and dtype.bits < 32
        return np.dtype(np.float32) if narrow else data.dtype
    largest = terms * magnitude(data) * magnitude(weight)
    if largest <= 1 << 24:
        return np.dtype(np.float32)
    if largest <= 1 << 53:
        return np.dtype(np.float64)
    return np.dtype(np.uint64 if dtype is DType.UINT64 else np.int64)


def magnitude(array: Array) -> int:
    """The largest absolute value of integers."""
    if array.size == 0:
        return 0
    plain = array if array.dtype.kind in "iu" else array.astype(np.int8)
    return max(abs(int(plain.min())), abs(int(plain.max())))


def narrowed(result: Array, dtype: np.dtype[Any]) -> Array:
    """A result in the operands' dtype; integers wrap around."""
    if dtype_of(dtype).is_integer and result.dtype.kind == "f":
        result = result.astype(np.int64)
    return result.astype(dtype, copy=False)
