"""Rewrites of the computation itself that a schedule asks for, before there are loops.

Tensors in order and a schedule enter; tensors in order leave, with inlined stages substituted into
their readers, and with the stages that `CacheWrite` and `Pack` add. Meaning is kept: a packed copy
has the same elements elsewhere, a cached stage the same values one step earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from graft.loop.errors import ScheduleError
from graft.loop.index import add, multiply
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    Load,
    Select,
    Var,
)
from graft.loop.schedule import (
    CacheWrite,
    ComputeWith,
    Factor,
    FactorMasked,
    Inline,
    Interleave,
    Pack,
    Schedule,
)
from graft.loop.simplify import simplify
from graft.loop.tensor import Reduce, Tensor, identity
from graft.loop.traverse import children, loads_in, map_expr, substitute

Tensors = dict[str, Tensor]


def fail(stage: str, message: str, hint: str = "") -> ScheduleError:
    """An error that names the stage."""
    return ScheduleError(f"schedule of {stage}: {message}", hint=hint)


def rewrite_stages(stages: Sequence[Tensor], arguments: set[str], schedule: Schedule) -> Tensors:
    """The tensors after all Inline, CacheWrite and Pack directives, each after what it reads."""
    tensors = {tensor.name: tensor for tensor in stages}
    pending = list(tensors)
    while pending:
        name = pending.pop(0)
        for directive in schedule.directives(name):
            match directive:
                case Inline():
                    tensors = _inline(tensors, name, arguments)
                case ComputeWith():
                    tensors = _compute_with(tensors, name, directive.stage, arguments)
                case CacheWrite():
                    tensors = _cache_write(tensors, name, directive)
                    pending.append(directive.name)
                case Pack():
                    tensors = _pack(tensors, name, directive)
                    pending.append(directive.name)
                case Factor():
                    tensors = _factor(tensors, name, directive)
                    pending += [directive.name, f"{directive.name}.tail"]
                case FactorMasked():
                    tensors = _factor_masked(tensors, name, directive)
                    pending += [directive.name, f"{directive.name}.tail"]
                case Interleave():
                    tensors = _interleave(tensors, name, directive)
                    pending.append(directive.name)
                case _:
                    continue
    for name, _ in schedule.stages:
        exists = name in tensors and tensors[name].body is not None
        if not exists and not any(isinstance(d, Inline) for d in schedule.directives(name)):
            names = ", ".join(one for one in tensors if tensors[one].body is not None)
            raise fail(name, "there is no such stage", hint=f"the stages are {names}")
    return tensors


def map_body(tensor: Tensor, change: Callable[[Expr], Expr]) -> Tensor:
    """The tensor with the expressions of its body changed."""
    body = tensor.body
    if isinstance(body, Reduce):
        changed = replace(body, body=change(body.body), initial=change(body.initial))
        return replace(tensor, body=changed)
    return tensor if body is None else replace(tensor, body=change(body))


def body_expressions(tensor: Tensor) -> tuple[Expr, ...]:
    """The expressions of the tensor's body."""
    if isinstance(tensor.body, Reduce):
        return tensor.body.body, tensor.body.initial
    return () if tensor.body is None else (tensor.body,)


def loads(tensor: Tensor) -> list[Load]:
    """All reads in the tensor's body."""
    return loads_in(*body_expressions(tensor))


def reads(tensor: Tensor) -> set[str]:
    """The names of the tensors it reads."""
    return {load.buffer.name for load in loads(tensor)}


def _replace_loads(tensor: Tensor, name: str, value: Callable[[Load], Expr]) -> Tensor:
    def change(node: Expr) -> Expr:
        return value(node) if isinstance(node, Load) and node.buffer.name == name else node

    return map_body(tensor, lambda expr: map_expr(change, expr))


def _inline(tensors: Tensors, name: str, arguments: set[str]) -> Tensors:
    tensor = tensors[name]
    body = tensor.body
    if name in arguments:
        raise fail(name, "cannot inline it: it is an argument")
    if body is None or isinstance(body, Reduce):
        raise fail(name, "cannot inline it: it carries a reduction")

    def value(load: Load) -> Expr:
        indices = {axis.name: i for axis, i in zip(tensor.axes, load.indices, strict=True)}
        return substitute(body, indices)

    return {
        other: _replace_loads(reader, name, value)
        for other, reader in tensors.items()
        if other != name
    }


def _compute_with(tensors: Tensors, name: str, stage: str, arguments: set[str]) -> Tensors:
    """Mark the stage that computes another's elements."""
    reader = tensors.get(stage)
    reason = "there is no such stage" if reader is None else not_along(tensors[name], reader)
    reason = "it is an argument" if name in arguments else reason
    if reader is None or reason:
        raise fail(name, f"cannot compute it with {stage}: {reason}")
    read = next(load for load in loads(reader) if load.buffer.name == name)
    reduced = frozenset(n for n, index in enumerate(read.indices) if index not in reader.axes)
    return {**tensors, stage: replace(reader, computes={**reader.computes, name: reduced})}


def not_along(tensor: Tensor, reader: Tensor) -> str:
    """Why a reader cannot compute the stage's elements, each of which it has to read just once."""
    if tensor.body is None or isinstance(tensor.body, Reduce):
        return "it carries a reduction"
    at = {load.indices for load in loads(reader) if load.buffer.name == tensor.name}
    if len(at) != 1:
        return "that does not read it at one index" if at else "that does not read it"
    (indices,) = at
    extents = dict(zip(reader.axes, reader.shape, strict=True))
    body = reader.body
    if isinstance(body, Reduce):
        extents |= dict(body.axes)
        body = body.body
    axes = [index for index in indices if isinstance(index, Var) and index in extents]
    others = [extent for axis, extent in extents.items() if axis not in axes]
    fits = len(set(axes)) == len(indices) and tuple(extents[a] for a in axes) == tensor.shape
    if not fits or any(extent != Const(1) for extent in others):
        return "that does not read each element just once, by its own axes"
    if body is None or tensor.name not in unconditional_reads(body):
        return "a condition decides there whether an element is read"
    return ""


def unconditional_reads(expr: Expr) -> set[str]:
    """The tensors that an expression reads whatever its conditions are."""
    names, pending = set[str](), [expr]
    while pending:
        part = pending.pop()
        if isinstance(part, Load):
            names.add(part.buffer.name)
        pending += [part.condition] if isinstance(part, Select) else children(part)
    return names


def _insert(tensors: Tensors, before: str, new: Tensor, changed: Tensor) -> Tensors:
    """Insert a tensor before another one, and replace that."""
    if new.name in tensors:
        raise fail(before, f"there is a tensor '{new.name}' already")
    result: Tensors = {}
    for name, tensor in tensors.items():
        if name == before:
            result[new.name] = new
        result[name] = changed if name == before else tensor
    return result


def _renamed(tensor: Tensor, new: str, values: Mapping[Var, Expr] | None = None) -> Tensor:
    """The stage under a new name, its axes named after it; `values` are index expressions of the
    new stage's axes for some of the axes that it reduces over."""
    reduced = dict(tensor.body.axes) if isinstance(tensor.body, Reduce) else {}
    own: dict[str, Expr] = {
        axis.name: _moved(axis, tensor.name, new) for axis in (*tensor.axes, *reduced)
    }
    own |= {axis.name: value for axis, value in (values or {}).items()}
    body = map_body(tensor, lambda expr: substitute(expr, own)).body
    if isinstance(body, Reduce):
        body = replace(body, axes=tuple((_moved(a, tensor.name, new), n) for a, n in body.axes))
    axes = tuple(_moved(axis, tensor.name, new) for axis in tensor.axes)
    return replace(tensor, buffer=replace(tensor.buffer, name=new), axes=axes, body=body)


def _moved(variable: Var, old: str, new: str) -> Var:
    """A stage's axis as that of another stage."""
    return Var(new + variable.name.removeprefix(old))


def _with_extent(tensor: Tensor, axis: Var, extent: Expr, initial: Expr | None = None) -> Tensor:
    """The stage with another extent for an axis that it reduces over, and another initial value."""
    assert isinstance(tensor.body, Reduce)
    axes = tuple((one, extent if one == axis else n) for one, n in tensor.body.axes)
    start = tensor.body.initial if initial is None else initial
    return replace(tensor, body=replace(tensor.body, axes=axes, initial=start))


def _cache_write(tensors: Tensors, name: str, directive: CacheWrite) -> Tensors:
    tensor = tensors[name]
    cache = _renamed(tensor, directive.name)
    copy = replace(tensor, body=Load(cache.buffer, tensor.axes))
    return _insert(tensors, name, cache, copy)


def _factor(tensors: Tensors, name: str, factor: Factor) -> Tensors:
    tensor, reduction = tensors[name], tensors[name].body
    axes = {} if not isinstance(reduction, Reduce) else dict(reduction.axes)
    axis = Var(f"{name}@{factor.axis}")
    if not isinstance(reduction, Reduce) or axis not in axes:
        raise fail(name, f"it does not reduce over an axis '{factor.axis}'")
    if factor.lanes < 2:
        raise fail(name, f"cannot reduce over '{factor.axis}' in {factor.lanes} lanes")
    lanes = Const(factor.lanes)
    count = simplify(Binary(BinaryKind.FLOOR_DIVIDE, axes[axis], lanes))
    remainder = simplify(Binary(BinaryKind.FLOOR_MODULO, axes[axis], lanes))
    lane, own = Var(f"{factor.name}@lane"), _moved(axis, name, factor.name)
    totals = _renamed(tensor, factor.name, {axis: add(multiply(own, lanes), lane)})
    nothing = identity(reduction.kind, reduction.dtype)
    totals = _with_extent(totals, own, count, nothing)
    buffer = replace(totals.buffer, extents=(*tensor.shape, lanes))
    totals = replace(totals, buffer=buffer, axes=(*totals.axes, lane))
    start = reduction.initial
    if remainder != Const(0):
        rest = f"{factor.name}.tail"
        own = _moved(axis, name, rest)
        tail = _renamed(tensor, rest, {axis: add(multiply(count, lanes), own)})
        tail = _with_extent(tail, own, remainder)
        tensors = _insert(tensors, name, tail, tensor)
        start = Load(tail.buffer, tensor.axes)
    own_lane = Var(f"{name}@lane")
    read = Load(buffer, (*tensor.axes, own_lane))
    changed = replace(reduction, body=read, axes=((own_lane, lanes),), initial=start)
    return _insert(tensors, name, totals, replace(tensor, body=changed))


def _factor_masked(tensors: Tensors, name: str, factor: FactorMasked) -> Tensors:
    before = tensors[name].body
    axis, lanes = Var(f"{name}@{factor.axis}"), Const(factor.lanes)
    plain = Factor(factor.axis, factor.name, factor.lanes)
    if isinstance(before, Reduce) and len(before.axes) > 1:
        whole = dict(before.axes).get(axis)
        if isinstance(whole, Const):  # the last step is masked
            steps = -(-int(whole.value) // factor.lanes)
            is_there = Compare(CompareKind.LESS, axis, whole)
            value = Select(is_there, before.body, identity(before.kind, before.dtype))
            padded = replace(tensors[name], body=replace(before, body=value))
            padded = _with_extent(padded, axis, multiply(Const(steps), lanes))
            return _factor({**tensors, name: padded}, name, plain)
    tensors = _factor(tensors, name, plain)
    last = f"{factor.name}.tail"
    if last not in tensors:
        return tensors
    tail, totals, stage = tensors[last], tensors[factor.name], tensors[name]
    reductions = [one.body for one in (tail, totals, stage)]
    rest, sums, combined = (body for body in reductions if isinstance(body, Reduce))
    assert isinstance(before, Reduce)
    inner = Var(f"{last}@{factor.axis}")
    lane, nothing = Var(f"{last}@lane"), identity(rest.kind, rest.dtype)
    is_there = Compare(CompareKind.LESS, lane, dict(rest.axes)[inner])
    value = Select(is_there, substitute(rest.body, {inner.name: lane}), nothing)
    once = simplify(Binary(BinaryKind.MINIMUM, dict(rest.axes)[inner], Const(1)))
    axes = tuple((one, once if one == inner else extent) for one, extent in rest.axes)
    buffer = replace(tail.buffer, extents=totals.shape)
    body = replace(rest, body=value, axes=axes, initial=nothing)
    tensors[last] = replace(tail, buffer=buffer, axes=(*tail.axes, lane), body=body)
    tensors[factor.name] = replace(totals, body=replace(sums, initial=Load(buffer, totals.axes)))
    tensors[name] = replace(stage, body=replace(combined, initial=before.initial))
    order = [tensor for tensor in tensors if tensor not in (last, factor.name, name)]
    position = list(tensors).index(last)
    names = [*order[:position], last, factor.name, name, *order[position:]]
    return {one: tensors[one] for one in names}


def _interleave(tensors: Tensors, name: str, directive: Interleave) -> Tensors:
    tensor, reduction = tensors[name], tensors[name].body
    axes = {} if not isinstance(reduction, Reduce) else dict(reduction.axes)
    axis = Var(f"{name}@{directive.axis}")
    if not isinstance(reduction, Reduce) or axis not in axes or directive.count < 2:
        raise fail(name, f"cannot reduce over '{directive.axis}' in {directive.count} totals")
    count = Const(directive.count)
    whole = simplify(Binary(BinaryKind.FLOOR_DIVIDE, axes[axis], count))
    remainder = simplify(Binary(BinaryKind.FLOOR_MODULO, axes[axis], count))
    new, part = directive.name, Var(f"{directive.name}@part")
    own = _moved(axis, name, new)
    totals = _renamed(tensor, new, {axis: add(multiply(own, count), part)})
    nothing = identity(reduction.kind, reduction.dtype)
    totals = _with_part(_with_extent(totals, own, whole, nothing), part, count)
    rest = _rest(tensor, f"{new}.rest", axis, multiply(whole, count), remainder)
    parts: list[Expr] = [
        Load(totals.buffer, (Const(n), *tensor.axes)) for n in range(directive.count)
    ]
    if isinstance(remainder, Const):  # in the order of memory
        tensors = _insert(tensors, name, totals, tensor)
        if remainder.value:
            tensors = _insert(tensors, name, rest, tensor)
        for n in range(int(remainder.value)):
            term = Load(rest.buffer, (Const(n), *tensor.axes))
            parts[n] = Binary(reduction.kind, parts[n], term)
        if reduction.initial != nothing:
            parts[-1] = Binary(reduction.kind, parts[-1], reduction.initial)
    else:  # what may not be there costs least where totals begin
        tensors = _insert(tensors, name, rest, tensor)
        totals = _begun(totals, part, tensor, Load(rest.buffer, tensor.axes))
        tensors = _insert(tensors, name, totals, tensor)
    while len(parts) > 1:  # as a tree: a chain of additions would wait for each of them
        pairs_of = zip_longest(parts[::2], parts[1::2])
        parts = [Binary(reduction.kind, one, two) if two else one for one, two in pairs_of]
    return {**tensors, name: _with_extent(tensor, axis, Const(0), parts[0])}


def _begun(totals: Tensor, part: Var, tensor: Tensor, first: Expr) -> Tensor:
    """Totals of which the first begins with a value, the last as the stage `tensor` does."""
    assert isinstance(totals.body, Reduce)
    assert isinstance(tensor.body, Reduce)
    own: dict[str, Expr] = {
        axis.name: new for axis, new in zip(tensor.axes, totals.axes[1:], strict=True)
    }
    count = int(totals.shape[0].value) if isinstance(totals.shape[0], Const) else 0
    starts = {0: first, count - 1: tensor.body.initial}
    start: Expr = identity(totals.body.kind, totals.body.dtype)
    for number, value in starts.items():
        is_it = Compare(CompareKind.EQUAL, part, Const(number))
        start = Select(is_it, substitute(value, own), start)
    return replace(totals, body=replace(totals.body, initial=start))


def _rest(tensor: Tensor, name: str, axis: Var, start: Expr, count: Expr) -> Tensor:
    """The elements from `start` on as one total, or, where it is known how many there are, as
    totals of one element each, along an axis `part`."""
    assert isinstance(tensor.body, Reduce)
    part, own = Var(f"{name}@part"), _moved(axis, tensor.name, name)
    nothing = identity(tensor.body.kind, tensor.body.dtype)
    if not isinstance(count, Const):
        return _with_extent(_renamed(tensor, name, {axis: add(start, own)}), own, count, nothing)
    rest = _renamed(tensor, name, {axis: add(start, part)})
    return _with_part(_with_extent(rest, own, Const(1), nothing), part, count)


def _with_part(tensor: Tensor, part: Var, count: Expr) -> Tensor:
    """The stage with one more axis in front."""
    buffer = replace(tensor.buffer, extents=(count, *tensor.shape))
    return replace(tensor, buffer=buffer, axes=(part, *tensor.axes))


def _pack(tensors: Tensors, name: str, pack: Pack) -> Tensors:
    if pack.tensor not in reads(tensors[name]):
        raise fail(name, f"cannot pack '{pack.tensor}': it does not read it")
    source = tensors[pack.tensor]
    new = _packed_copy(name, source, pack)

    def value(load: Load) -> Expr:
        parts = _blocked(load.indices, pack.blocks)
        return Load(new.buffer, tuple(simplify(parts[dimension]) for dimension in pack.order))

    return _insert(tensors, name, new, _replace_loads(tensors[name], pack.tensor, value))


def _blocked(indices: Sequence[Expr], blocks: Sequence[int]) -> list[Expr]:
    """One index per dimension of the blocked tensor, before they are permuted."""
    parts: list[Expr] = []
    for index, block in zip(indices, blocks, strict=True):
        if block:
            parts.append(Binary(BinaryKind.FLOOR_DIVIDE, index, Const(block)))
            parts.append(Binary(BinaryKind.FLOOR_MODULO, index, Const(block)))
        else:
            parts.append(index)
    return parts


def _packed_copy(name: str, source: Tensor, pack: Pack) -> Tensor:
    rank = len(source.shape) + sum(block > 0 for block in pack.blocks)
    fits = len(pack.blocks) == len(source.shape) and sorted(pack.order) == list(range(rank))
    if not fits or min(pack.blocks, default=0) < 0:
        raise fail(name, f"cannot pack '{pack.tensor}': blocks or order do not fit its dimensions")
    names: list[str] = []
    extents: list[Expr] = []
    indices: list[Expr] = []
    condition: Expr | None = None
    for dimension, (extent, block) in enumerate(zip(source.shape, pack.blocks, strict=True)):
        outer, inner = Var(f"{pack.name}@d{dimension}"), Var(f"{pack.name}@d{dimension}_block")
        if not block:
            names, extents = [*names, outer.name], [*extents, extent]
            indices.append(outer)
            continue
        names += [outer.name, inner.name]
        count = Binary(BinaryKind.FLOOR_DIVIDE, add(extent, Const(block - 1)), Const(block))
        extents += [simplify(count), Const(block)]
        indices.append(add(multiply(outer, Const(block)), inner))
        if simplify(Binary(BinaryKind.FLOOR_MODULO, extent, Const(block))) != Const(0):
            inside = Compare(CompareKind.LESS, indices[-1], extent)
            condition = inside if condition is None else Binary(BinaryKind.AND, condition, inside)
    value: Expr = Load(source.buffer, tuple(indices))
    if condition is not None:
        value = Select(condition, value, identity(BinaryKind.ADD, source.dtype))
    shape = tuple(extents[dimension] for dimension in pack.order)
    axes = tuple(Var(names[dimension]) for dimension in pack.order)
    return Tensor(Buffer(pack.name, source.dtype, shape), axes, value)
