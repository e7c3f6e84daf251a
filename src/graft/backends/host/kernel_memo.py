"""Kernels by structure: groups that differ in nothing but names and weights share one.

A network repeats its layers, and writing a kernel takes far longer than packing weights for it. In
go groups and the storage of their tensors; out come kernels. Of two groups with the same operators,
attributes, types and storages, the second gets the function of the first, called with its own
tensors and its own constants, packed alike.

Constants are part of the structure where a template may look into them: as indices or padding. They
are not where only their types decide about code, as those of weights and pointwise operands.
Single numbers, zero points among them, always are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from graft.backends.host.extents import Extents
from graft.backends.host.group import Group, group_of
from graft.backends.host.kernel import Argument, Kernel, Pack, Repacked, Stores
from graft.backends.host.kernels.block_dense import BLOCKS
from graft.backends.host.kernels.conv_plan import CONVOLUTIONS
from graft.backends.host.kernels.dense import INTEGER, MIXED
from graft.backends.host.kernels.relayout import relayout
from graft.backends.host.storage import Storage, row_major
from graft.backends.host.templates import kernel_for, refusal
from graft.base.dims import Dim
from graft.base.dtypes import Array
from graft.byoc.executable import Accuracy
from graft.ir.graph import Node, Value
from graft.ir.literal import Literal
from graft.loop.ir import Function
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Operators whose kernels depend on the types of their constants alone, the first operand apart.
_WEIGHTED = frozenset(
    (*CONVOLUTIONS, "nn.dense", INTEGER, MIXED, BLOCKS, "nn.layer_norm", "nn.rms_norm")
)


_SharedArgument = int | tuple[int, Repacked] | tuple[tuple[int, ...], Pack] | Array


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """A kernel, and per argument the number of a value, which may be repacked, numbers of constants
    with what packs them, or a table of the kernel's own; and the number of the initial value."""

    kernel: Kernel
    arguments: tuple[_SharedArgument, ...]
    initial: int | None


@dataclass
class RowKernels:
    """Says which nodes and composites have kernels on row-major tensors, once per structure."""

    target: Target
    _refusals: dict[Hashable, Refusal | None] = field(default_factory=dict)

    def __call__(self, node: Node, constants: Mapping[Value, Literal]) -> bool:
        return self.refusal(node, constants) is None

    def refusal(self, node: Node, constants: Mapping[Value, Literal]) -> Refusal | None:
        """Why there is no kernel, if there is none."""
        group = group_of(node, constants)
        stores = {value: row_major(value) for value in (*node.args, *node.outputs)}
        key = _Structure(group, stores).key
        if key not in self._refusals:
            self._refusals[key] = refusal(group, stores, self.target)
        return self._refusals[key]


@dataclass
class Kernels:
    """Makes kernels for a machine, one per structure."""

    target: Target
    accuracy: Accuracy = Accuracy.DEFAULT
    _shared: dict[Hashable, _Shared] = field(default_factory=dict)
    _relayouts: dict[tuple[Storage, Storage], tuple[Function, tuple[Dim, ...]]] = field(
        default_factory=dict
    )

    def kernel(self, group: Group, stores: Stores) -> Kernel | Refusal:
        """The kernel of a group, or why there is none."""
        structure = _Structure(group, stores)
        shared = self._shared.get(structure.key)
        if shared is not None:
            return structure.called(shared)
        kernel = kernel_for(group, stores, self.target)
        if isinstance(kernel, Kernel) and structure.is_shareable(kernel):
            self._shared[structure.key] = structure.without_tensors(kernel)
        return kernel

    def relayout(self, source: Storage, target: Storage) -> tuple[Function, tuple[Dim, ...]]:
        """The function that copies a tensor from one storage to another, and its scalars."""
        if (source, target) not in self._relayouts:
            extents = Extents()
            function = relayout(source, target, extents, self.target)
            self._relayouts[source, target] = function, extents.passed(function)
        return self._relayouts[source, target]


class _Structure:
    """What the code of a group follows from, and the values that it is called with."""

    def __init__(self, group: Group, stores: Stores) -> None:
        self._group, self._stores = group, stores
        self._numbers: dict[Value, int] = {}
        self._weights: set[Value] = set()
        self._parts: list[Hashable] = [group.algorithm]
        for node in group.nodes:
            operands = tuple(None if v is None else self._number(v) for v in node.inputs)
            attributes = _attributes(node.attrs)
            self._parts += [node.op.name, attributes, operands]
            self._parts += [self._number(value) for value in node.outputs]
        ends = group.node.attrs.body.outputs if group.node.op.name == "composite" else ()
        self._parts += [self._number(value) for value in ends]
        self._parts += [self._number(value) for value in group.node.outputs]
        self.key: Hashable = tuple(self._parts)

    def _number(self, value: Value) -> int:
        """A value's number; what code depends on of it goes into the key when it first comes."""
        if value in self._numbers:
            return self._numbers[value]
        number = self._numbers[value] = len(self._numbers)
        literal, outer = self._group.constants.get(value), self._group.outer(value)
        of_constant: Hashable = literal
        if literal is not None and literal.array.size > 1 and self._is_weight(value):
            self._weights.add(value)
            of_constant = literal.type
        actual = self._number(outer) if outer is not value else number
        self._parts += [value.type, of_constant, actual, self._stores.get(value)]
        return number

    def _is_weight(self, value: Value) -> bool:
        """Whether no template looks into a constant: its type decides all code."""
        readers = [node for node in self._group.nodes if value in node.args]
        return all(
            node.op.kind.is_pointwise or (node.op.name in _WEIGHTED and value not in node.args[:1])
            for node in readers
        )

    def is_shareable(self, kernel: Kernel) -> bool:
        """Whether it is known how the kernel's arguments follow from the group's tensors."""
        sources = {source for packing in kernel.packings.values() for source in packing.sources}
        arguments = (one.value if isinstance(one, Repacked) else one for one in kernel.arguments)
        values = {one for one in (*arguments, kernel.initial) if isinstance(one, Value)}
        return self._weights <= sources and values | sources <= self._numbers.keys()

    def without_tensors(self, kernel: Kernel) -> _Shared:
        """The kernel for any group of this structure."""
        arguments: list[_SharedArgument] = []
        for position, argument in enumerate(kernel.arguments):
            packing = kernel.packings.get(position)
            if packing is not None:
                numbers = tuple(self._numbers[source] for source in packing.sources)
                arguments.append((numbers, packing.pack))
            elif isinstance(argument, Value):
                arguments.append(self._numbers[argument])
            elif isinstance(argument, Repacked):
                arguments.append((self._numbers[argument.value], argument))
            else:
                arguments.append(argument)
        bare = replace(kernel, arguments=(), packings={}, initial=None)
        initial = None if kernel.initial is None else self._numbers[kernel.initial]
        return _Shared(bare, tuple(arguments), initial)

    def called(self, shared: _Shared) -> Kernel:
        """The kernel with this group's tensors."""
        values = list(self._numbers)
        arguments: list[Argument] = []
        for argument in shared.arguments:
            match argument:
                case int():
                    arguments.append(values[argument])
                case (int() as number, Repacked() as repacked):
                    arguments.append(replace(repacked, value=values[number]))
                case (tuple() as numbers, pack):
                    constants = (self._group.constants[values[number]] for number in numbers)
                    arguments.append(pack(*(literal.array for literal in constants)))
                case _:
                    arguments.append(argument)
        function = replace(shared.kernel.function, notes=(self._group.note,))
        initial = None if shared.initial is None else values[shared.initial]
        return replace(
            shared.kernel, function=function, arguments=tuple(arguments), initial=initial
        )


def _attributes(attrs: Any) -> Hashable:
    """An operator's attributes, comparable bit for bit."""

    def exact(value: Any) -> Hashable:
        if isinstance(value, tuple):
            return tuple(map(exact, value))
        return repr(value) if isinstance(value, float) else value

    return tuple(exact(getattr(attrs, one.name)) for one in fields(attrs))
