"""What operators with nested graphs share: types seen from outside, checks, stacking, work.

A nested graph's types contain its own symbols. From the types of the operands these functions
derive which of them are bound outside, so that the types of results are as precise as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_different
from graft.base.dims import UNKNOWN, AnyDim, bare_symbol, substitute, symbol, symbols_of
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import EvaluationError, TypeRuleError
from graft.ir.attrs import bind_attrs
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.op import Work
from graft.ir.types import OptionalType, TensorType, Type, compatible, join, map_dims, symbols_in
from graft.ops.rules import normalize_axis, require
from graft.runtime.loops import empty_stack as stack_nothing

Bindings = dict[str, AnyDim]


def common_type(first: Type, second: Type) -> Type | None:
    """The narrowest type that covers both; a value also counts as an optional one."""
    if isinstance(first, OptionalType) == isinstance(second, OptionalType):
        return join(first, second)
    inner = join(_present(first), _present(second))
    return None if inner is None else OptionalType(inner)


def _present(type_: Type) -> Type:
    return type_.element if isinstance(type_, OptionalType) else type_


def check_inputs(graph: Graph, actual: Sequence[Type]) -> None:
    """Refuse operands that the nested graph cannot take."""
    expected = len(graph.inputs)
    require(expected == len(actual), f"'{graph.name}' takes {expected} inputs, gets {len(actual)}")
    for formal, type_ in zip(graph.inputs, actual, strict=True):
        target = formal.type if isinstance(type_, OptionalType) else _present(formal.type)
        fits = compatible(target, type_)
        require(fits, f"'{graph.name}' wants %{formal.name} as {formal.type}, gets {type_}")


def bind_symbols(pairs: Iterable[tuple[Type | None, Type]]) -> Bindings:
    """What a nested graph's symbols are outside, from (input's type, operand's type)."""
    result: Bindings = {}
    for formal, actual in pairs:
        if formal is not None and formal == actual:
            for name in symbols_in(formal):
                result.setdefault(name, symbol(name))
        elif isinstance(formal, TensorType) and isinstance(actual, TensorType):
            for dim, extent in zip(formal.shape or (), actual.shape or (), strict=False):
                name_of_dim = bare_symbol(dim)
                if name_of_dim and (isinstance(extent, int) or name_of_dim not in result):
                    result[name_of_dim] = extent
    return result


def seen_outside(type_: Type, bindings: Bindings) -> Type:
    """A nested graph's type as the graph around it sees it."""

    def change(dim: AnyDim) -> AnyDim:
        return substitute(dim, bindings) if symbols_of(dim) <= bindings.keys() else UNKNOWN

    return map_dims(type_, change)


def body_work(graph: Graph, bindings: Bindings) -> Work:
    """The work of running a nested graph once."""
    macs: AnyDim = 0
    flops: AnyDim = 0
    moved: AnyDim = 0
    for node in graph.nodes:
        ins = tuple(None if value is None else value.type for value in node.inputs)
        work = node.op.work(node.attrs, ins, tuple(value.type for value in node.outputs))
        macs, flops, moved = macs + work.macs, flops + work.flops, moved + work.bytes
    symbols = bindings.keys()
    total = (d if symbols_of(d) <= symbols else UNKNOWN for d in (macs, flops, moved))
    return Work(*(substitute(dim, bindings) for dim in total))


def work_times(work: Work, count: AnyDim) -> Work:
    """The work done `count` times; what is never done stays zero."""
    return Work(*(d if d == 0 else d * count for d in (work.macs, work.flops, work.bytes)))


def check_single(type_: Type, dtype: DType, what: str) -> None:
    """Refuse what is not one element of the dtype."""
    fits = isinstance(type_, TensorType) and type_.dtype is dtype
    fits = fits and not provably_different(type_.size, 1)  # type: ignore[union-attr]
    require(fits, f"{what} is {type_}, not one element of {dtype}")


def iteration_bindings(
    body: Graph, actual: Sequence[Type], carried: int, first_in: int, first_out: int
) -> Bindings:
    """Symbols of a body that mean the same in every iteration.

    Carried values come in from position `first_in` and go out from position `first_out` on: of
    those only the extents count that an iteration leaves alone.
    """
    pairs: list[tuple[Type | None, Type]] = []
    for position, (value, type_) in enumerate(zip(body.inputs, actual, strict=True)):
        formal: Type | None = value.type
        if first_in <= position < first_in + carried:
            formal = join(value.type, body.outputs[position - first_in + first_out].type)
        pairs.append((formal, type_))
    return bind_symbols(pairs)


def untaken_iteration(
    body: Graph, actual: Sequence[Type], carried: int, first_in: int, first_out: int
) -> list[Type]:
    """The types that the body's outputs would have after an iteration on operands of these types.

    The symbols that the operands bind usually tell. Where they don't (an operand of `2*n` elements
    binds no `n`), the operators' own rules do, asked anew.
    """
    bindings = iteration_bindings(body, actual, carried, first_in, first_out)
    types = [seen_outside(value.type, bindings) for value in body.outputs]
    if all(not isinstance(type_, TensorType) or type_.is_static for type_ in types):
        return types
    builder = Builder(body.name)
    builder.symbols.reserve(name for value in body.inputs for name in symbols_in(value.type))
    values: dict[Value | None, Value | None] = {None: None}
    for position, (formal, type_) in enumerate(zip(body.inputs, actual, strict=True)):
        if first_in <= position < first_in + carried:
            type_ = _staying(type_, formal, body.outputs[position - first_in + first_out])
        values[formal] = builder.input(formal.name, type_)
    for node in body.nodes:
        operands = [values[value] for value in node.inputs]
        results = builder.add(node.op, operands, bind_attrs(node.attrs, bindings))
        values.update(zip(node.outputs, results, strict=True))
    return [result.type for value in body.outputs if (result := values[value]) is not None]


def _staying(actual: Type, before: Value, after: Value) -> Type:
    """A carried value's type as far as an iteration leaves it alone."""
    joined = join(before.type, after.type)
    if not isinstance(actual, TensorType) or not isinstance(joined, TensorType):
        return actual
    if joined.shape is None or actual.shape is None:
        return TensorType(actual.dtype, None)
    pairs = zip(actual.shape, joined.shape, strict=True)
    return TensorType(actual.dtype, tuple(UNKNOWN if k is UNKNOWN else a for a, k in pairs))


def carried_type(initial: Type, produced: Type, bindings: Bindings, name: str) -> Type:
    """The type of a carried value after any number of iterations, none included.

    Whether it is optional depends on what the body gives, as ONNX has it.
    """
    after = seen_outside(produced, bindings)
    before = initial if isinstance(after, OptionalType) else _present(initial)
    result = common_type(before, after)
    require(
        result is not None, f"the carried value %{name} begins as {initial}, becomes {produced}"
    )
    return result  # type: ignore[return-value]


def sliced_type(type_: Type, axis: int) -> tuple[Type, AnyDim]:
    """A scanned tensor's type without the axis, and that axis's extent."""
    if not isinstance(type_, TensorType):
        raise TypeRuleError(f"values of type {type_} cannot be scanned")
    if type_.shape is None:
        return type_, UNKNOWN
    axis = normalize_axis(axis, len(type_.shape))
    shape = (*type_.shape[:axis], *type_.shape[axis + 1 :])
    return TensorType(type_.dtype, shape), type_.shape[axis]


def stacked_type(produced: Type, bindings: Bindings, count: AnyDim, axis: int) -> Type:
    """The type of a body's output, collected over `count` iterations."""
    each = seen_outside(produced, bindings)
    if not isinstance(each, TensorType):
        raise TypeRuleError(f"values of type {each} cannot be stacked")
    if each.shape is None:
        return each
    axis = normalize_axis(axis, len(each.shape) + 1)
    return TensorType(each.dtype, (*each.shape[:axis], count, *each.shape[axis:]))


def empty_stack(each: Type, axis: int) -> Array:
    """Stack no slices along a new axis; extents of a slice that are unknown count as 0."""
    assert isinstance(each, TensorType)
    extents = [dim if isinstance(dim, int) else 0 for dim in each.shape or ()]
    return stack_nothing(extents, each.dtype.numpy, axis)


def actual_types(values: Sequence[Any], declared: Iterable[Value]) -> list[Type]:
    """The types of run-time data; what is no tensor keeps the type it was declared with."""
    return [
        TensorType(dtype_of(data.dtype), data.shape) if isinstance(data, np.ndarray) else value.type
        for data, value in zip(values, declared, strict=True)
    ]


def check_present(state: Sequence[Any], produced: Sequence[Value]) -> None:
    """Refuse an empty optional that no iteration has replaced by the value it should become."""
    for data, value in zip(state, produced, strict=True):
        if data is None and not isinstance(value.type, OptionalType):
            raise EvaluationError(f"no iteration ran, and the initial %{value.name} is empty")
