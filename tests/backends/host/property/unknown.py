"""Samples whose images get symbols for extents, to be bound to the numbers that they had.

A sample with known extents and the axes that are to be unknown enter; the same graph over symbols
leaves, with storages to match. Operands that are read beside an image get the dims of what they
are read beside, or stay 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from tests.backends.host.property.sketch import Sample, is_one_group

from graft.backends.host.kernels.conv_plan import CONVOLUTIONS, read_halo, unfit_extents
from graft.backends.host.storage import Storage, shape_of, static_shape
from graft.base.dims import Dim, symbol
from graft.base.errors import UserError
from graft.ir.attrs import as_keywords
from graft.ir.builder import Builder
from graft.ir.graph import Node, Value
from graft.ir.types import TensorType
from graft.passes.group_fusion import group_fusion


@dataclass(frozen=True)
class Unknown:
    """A sample over symbols, beside the one that it was made of, value by value."""

    symbolic: Sample
    known: Sample
    binding: dict[str, int]


def with_unknowns(sample: Sample, axes: Collection[int]) -> Unknown | None:
    """The sample with symbols along these axes of its images; None where types forbid it."""
    if not any(storage.block for storage in sample.stores.values()):
        return None
    return _over_symbols(sample, _Maker(sample, axes))


def with_unknown_rows(sample: Sample, remainder: int) -> Unknown | None:
    """The sample with a symbol for each extent that leaves this remainder by 3, or for all."""
    return _over_symbols(sample, _RowMaker(sample, (), remainder))


def _over_symbols(sample: Sample, maker: _Maker) -> Unknown | None:
    try:
        for node in sample.plain.nodes:
            maker.add(node)
    except UserError:
        return None
    outputs = [maker.made[value] for value in sample.plain.outputs]
    for old, new in zip(sample.plain.outputs, outputs, strict=True):
        maker.stores[new] = replace(sample.stores[old], shape=shape_of(new))
    graph = maker.builder.build(*outputs)
    fused = group_fusion(graph)
    if not is_one_group(fused):
        return None  # constants with extents of their own are not computed with in one group
    given = {
        value.name: array for value, array in zip(sample.plain.inputs, sample.data, strict=True)
    }
    symbolic = replace(
        sample,
        graph=fused,
        plain=graph,
        data=tuple(given[value.name] for value in graph.inputs),
        stores=maker.stores,
    )
    return Unknown(symbolic, _with_halos(sample, maker), maker.binding)


def _with_halos(sample: Sample, maker: _Maker) -> Sample:
    """The sample with the halos that its symbolic counterpart has."""
    stores = dict(sample.stores)
    for old, new in maker.made.items():
        if new in maker.stores and old in stores:
            stores[old] = replace(stores[old], halo=maker.stores[new].halo)
    return replace(sample, stores=stores)


def _extent_of(value: Value) -> tuple[int, int]:
    """How many axes and elements there are: what has less of them is repeated along the others."""
    return len(static_shape(value)), math.prod(static_shape(value))


class _Maker:
    def __init__(self, sample: Sample, axes: Collection[int]) -> None:
        self.sample, self.axes = sample, axes
        self.builder = Builder()
        self.made: dict[Value, Value] = {}
        self.constants: set[Value] = set()
        self.stores: dict[Value, Storage] = {}
        self.binding: dict[str, int] = {}

    def add(self, node: Node) -> None:
        """The node over what has been made so far."""
        if node.op.name == "constant":
            self.made[node.output] = self.builder.constant(node.attrs.value.array)
            self.constants.add(node.output)
            return
        for value in sorted(node.args, key=_extent_of, reverse=True):
            if value not in self.made:
                self.give(value, node)
        attrs = as_keywords(node.attrs)
        operands = [None if value is None else self.made[value] for value in node.inputs]
        if node.op.name == "reshape":
            attrs["shape"] = shape_of(self.made[node.args[0]])
        (self.made[node.output],) = self.builder.call(node.op.name, *operands, **attrs)
        made = self.builder.producer(self.made[node.output])
        assert made is not None
        if node.op.name in CONVOLUTIONS:
            self.widen(made)

    def widen(self, conv: Node) -> None:
        """A halo that is wide enough for images of any size."""
        weight, data = static_shape(conv.args[1]), conv.args[0]
        if unfit_extents(conv, weight[2:]) is None:
            pairs = zip(
                read_halo(conv, weight, self.sample.algorithm), self.stores[data].halo, strict=True
            )
            top, left, bottom, right = (max(pair) for pair in pairs)
            self.stores[data] = replace(self.stores[data], halo=(top, left, bottom, right))

    def give(self, value: Value, node: Node) -> None:
        """An input of the graph."""
        images = [one for one in node.args if one in self.made and one not in self.constants]
        beside = max(images, key=_extent_of, default=None)
        is_list = node.op.name == "nn.bias_add"
        shape: tuple[Dim, ...] = static_shape(value)
        if beside is None or node.op.name == "concatenate":
            shape = self.image(static_shape(value))
        elif not is_list:
            shape = self.like(static_shape(value), beside)
        new = self.builder.input(value.name, TensorType(value.dtype, shape))
        self.made[value] = new
        self.stores[new] = replace(self.sample.stores[value], shape=shape)

    def image(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        """Symbols for the extents of an image."""
        found: list[Dim] = []
        for axis, extent in enumerate(shape):
            name = f"{'nchw'[axis]}{extent}"
            found.append(symbol(name) if axis in self.axes else extent)
            if axis in self.axes:
                self.binding[name] = extent
        return tuple(found)

    def like(self, shape: tuple[int, ...], beside: Value) -> tuple[Dim, ...]:
        """The dims of another tensor, but for what is repeated along it."""
        dims = tuple(reversed(shape_of(self.made[beside])))
        return tuple(
            extent if extent == 1 else dims[len(shape) - 1 - axis]
            for axis, extent in enumerate(shape)
        )


class _RowMaker(_Maker):
    """Equal extents are one symbol, but for those that constants have, too."""

    def __init__(self, sample: Sample, axes: Collection[int], remainder: int) -> None:
        super().__init__(sample, axes)
        self.remainder = remainder
        constants = [node for node in sample.plain.nodes if node.op.name == "constant"]
        self.fixed = {1, *(extent for node in constants for extent in static_shape(node.output))}

    def give(self, value: Value, node: Node) -> None:
        shape = tuple(map(self.dim, static_shape(value)))
        new = self.builder.input(value.name, TensorType(value.dtype, shape))
        self.made[value] = new
        self.stores[new] = replace(self.sample.stores[value], shape=shape)

    def dim(self, extent: int) -> Dim:
        if extent in self.fixed or self.remainder not in (extent % 3, 3):
            return extent
        self.binding[f"n{extent}"] = extent
        return symbol(f"n{extent}")
