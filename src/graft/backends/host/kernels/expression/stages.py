"""What a default schedule has to know of tensor expressions: what to inline, who reads what where.

Tensors enter. Out come the stages that are worth their own loops, the axes of a result that each
stage follows, and the strides of reads: everything that decides which loops are split, shared and
vectorised, and nothing that depends on a machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from graft.base.polynomials import SYMBOL
from graft.loop.index import polynomial
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Call,
    Const,
    Expr,
    Load,
    Select,
    Var,
)
from graft.loop.nest import short
from graft.loop.regions import axis_extents
from graft.loop.schedule import Pack
from graft.loop.simplify import simplify
from graft.loop.stages import body_expressions, loads, not_along
from graft.loop.tensor import Reduce, Tensor
from graft.loop.traverse import variables, walk_expr

# Functions that cost many times a multiplication.
_COSTLY = frozenset(
    ("exp", "log", "pow", "erf", "gelu", "tanh", "sigmoid", "sin", "cos", "atan", "sqrt", "rsqrt")
)
# An expression that would become larger than this by being written out at every use is not.
MOST_INLINED = 160
# Elements that are only moved are read at places far apart: a stage of its own would compute all
# that lies between them for each result, so that much more is written out.
MOST_MOVED = 8 * MOST_INLINED
# How far apart neighbouring lanes may be read without gathering them one by one.
NEAR = 4


def extent(expr: Expr, unknown: int = 1 << 20) -> int:
    """An extent as a number to decide by; one that is not known counts as large."""
    return int(expr.value) if isinstance(expr, Const) else unknown


def has_rest(expr: Expr, factor: int) -> bool:
    """Whether an extent may be something else than so many whole parts."""
    return simplify(Binary(BinaryKind.FLOOR_MODULO, expr, Const(factor))) != Const(0)


def least(expr: Expr, count: int) -> tuple[str, int] | None:
    """The value from which on a scalar makes the extent at least so large; None if it takes more
    than one scalar."""
    terms = polynomial(expr)
    constant = terms.pop((), 0)
    match list(terms.items()):
        case [((atom,), factor)] if factor > 0 and atom.kind is SYMBOL:
            return atom.name, max(0, -((constant - count) // factor))
        case _:
            return None


def size(shape: Iterable[Expr]) -> int:
    """How many elements there are."""
    return math.prod(extent(one) for one in shape)


def domain(tensor: Tensor) -> int:
    """How often a stage's innermost statement runs."""
    return size(axis_extents(tensor).values())


def kept_stages(tensors: Sequence[Tensor], results: Sequence[Tensor]) -> set[str]:
    """The computed tensors that are not written out where they are read."""
    computed = [tensor for tensor in tensors if tensor.body is not None]
    kept = {result.name for result in results}
    kept |= {tensor.name for tensor in computed if isinstance(tensor.body, Reduce)}
    weights: dict[str, int] = {}
    readers: dict[str, list[Tensor]] = {}  # one entry per read
    for tensor in computed:
        for load in loads(tensor):
            readers.setdefault(load.buffer.name, []).append(tensor)
    for tensor in computed:
        own = sum(1 for expr in body_expressions(tensor) for _ in walk_expr(expr))
        inner = (weights.get(load.buffer.name, 0) for load in loads(tensor))
        weights[tensor.name] = own + sum(inner)
        if tensor.name in kept:
            weights[tensor.name] = 1
        elif _is_worth_keeping(tensor, readers.get(tensor.name, []), weights[tensor.name]):
            kept.add(tensor.name)
            weights[tensor.name] = 1
    return kept


def _reads_of(reader: Tensor, tensor: Tensor) -> list[Load]:
    return [load for load in loads(reader) if load.buffer.name == tensor.name]


def _is_worth_keeping(tensor: Tensor, reads: list[Tensor], weight: int) -> bool:
    """`reads` has the reader of each read."""
    most = MOST_MOVED if _is_moved(tensor) else MOST_INLINED
    if len(reads) > 1 and len(reads) * weight > most:
        return True
    readers = list({reader.name: reader for reader in reads}.values())
    overlaps = any(domain(reader) > 2 * size(tensor.shape) for reader in readers)
    if _is_costly(tensor) and (len(readers) > 1 or overlaps):
        return True
    return (
        overlaps and any(isinstance(reader.body, Reduce) for reader in readers) and _picks(tensor)
    )


def _is_costly(tensor: Tensor) -> bool:
    parts = (part for expr in body_expressions(tensor) for part in walk_expr(expr))
    return any(isinstance(part, Call) and part.name in _COSTLY for part in parts)


def _is_moved(tensor: Tensor) -> bool:
    """Whether the elements are those of other tensors, at computed places."""
    return not isinstance(tensor.body, Reduce) and all(
        _is_element(expr) for expr in body_expressions(tensor)
    )


def _is_element(expr: Expr) -> bool:
    match expr:
        case Select(_, one, other):
            return _is_element(one) and _is_element(other)
        case Load():
            return True
    return False


def _picks(tensor: Tensor) -> bool:
    """Whether elements are read only under a condition, such as a border around an image."""
    parts = (part for expr in body_expressions(tensor) for part in walk_expr(expr))
    return any(isinstance(part, Select) for part in parts)


@dataclass(frozen=True, slots=True)
class Follows:
    """That a stage's index is an axis of the result, or that axis divided by a constant."""

    axis: int
    factor: int = 1


Places = dict[str, tuple[Follows | None, ...]]  # of stages, per dimension


def places(result: Tensor, stages: Sequence[Tensor]) -> Places:
    """Which axis of the result each dimension of the stages follows, if it follows one."""
    follows: Places = {result.name: tuple(Follows(axis) for axis in range(len(result.axes)))}
    readers = [result]
    for stage in reversed(stages):
        own: list[tuple[Follows | None, ...]] = []
        for reader in readers:
            axes = dict(zip((axis.name for axis in reader.axes), follows[reader.name], strict=True))
            own += [
                tuple(_follow_index(index, axes) for index in load.indices)
                for load in _reads_of(reader, stage)
            ]
        columns = zip(*own, strict=True) if own else ()
        follows[stage.name] = tuple(
            column[0] if all(one == column[0] for one in column) else None for column in columns
        )
        readers.append(stage)
    return follows


def _follow_index(index: Expr, axes: Mapping[str, Follows | None]) -> Follows | None:
    match index:
        case Var(name):
            return axes.get(name)
        case Binary(BinaryKind.FLOOR_DIVIDE, Var(name), Const(value=int(factor))):
            follows = axes.get(name)
            return Follows(follows.axis, factor) if follows and follows.factor == 1 else None
        case _:
            return None


def row_factors(result: Tensor, stages: Sequence[Tensor], where: Places) -> list[int]:
    """Per axis of the result, into what parts it falls that share no element of any stage.

    1: single indices; more: runs of so many; 0: the axis has to stay whole.
    """
    factors: list[int] = []
    for axis, whole in enumerate(result.shape):
        along_axis = [_factor_along(where[stage.name], axis) for stage in stages]
        factor = max(along_axis, default=1)
        even = factor > 0 and not has_rest(whole, factor)
        factors.append(factor if even and all(one in (1, factor) for one in along_axis) else 0)
    return factors


def _factor_along(dimensions: tuple[Follows | None, ...], axis: int) -> int:
    own = [one.factor for one in dimensions if one is not None and one.axis == axis]
    return own[0] if len(own) == 1 else 0


def computing_reader(stage: Tensor, readers: Sequence[Tensor]) -> str | None:
    """The reduction that can compute a stage's elements as it reads them, before all others do."""
    first = next((reader for reader in readers if _reads_of(reader, stage)), None)
    if first is None or not isinstance(first.body, Reduce) or not_along(stage, first):
        return None
    return first.name


def stride(load: Load, name: str) -> int | None:
    """How far apart in memory a read's elements are for neighbouring values of a variable."""
    total, step = 0, 1
    for index, whole in zip(reversed(load.indices), reversed(load.buffer.extents), strict=True):
        terms = polynomial(index)
        for monomial, count in terms.items():
            if any(name in atom.symbols for atom in monomial):
                if len(monomial) != 1 or monomial[0].kind is not SYMBOL:
                    return None
                total += count * step
        step *= extent(whole)
    return total


def is_near(tensor: Tensor, name: str, limit: int = NEAR) -> bool:
    """Whether vectors along a variable read neighbours, or all the same, everywhere."""
    return all(is_near_at(load, name, limit) for load in loads(tensor))


def operand_axis(result: Tensor, wide: Sequence[int]) -> int | None:
    """The axis along which an operand is contiguous that is not so along the last wide one."""
    if not wide:
        return None
    *others, lane = wide
    names = [axis.name for axis in result.axes]
    far = [load for load in loads(result) if not is_near_at(load, names[lane])]
    near = (axis for axis in reversed(others) if any(stride(one, names[axis]) == 1 for one in far))
    return next(near, None)


def transposed_operands(result: Tensor, stages: Sequence[Tensor]) -> dict[str, Pack]:
    """Per stage the operand that is better copied first, with two of its dimensions changed.

    That is one of a sum of products, contiguous along what is summed and not along the result's
    last axis, which serves many other elements of the result.
    """
    sums = [stage for stage in stages if isinstance(stage.body, Reduce)]
    where = places(result, stages)
    if len(sums) != 1 or not result.axes:
        return {}
    (stage,) = sums
    last = Follows(len(result.axes) - 1)
    pairs = list(zip(stage.axes, where[stage.name], strict=True))
    along = [axis.name for axis, follows in pairs if follows == last]
    far = [load for load in loads(stage) if along and not is_near_at(load, along[0])]
    if len(along) != 1 or len(far) != 1 or any(far[0].buffer.name == one.name for one in stages):
        return {}
    names = [index.name for index in far[0].indices if isinstance(index, Var)]
    plain = len(set(names)) == len(far[0].indices) and along[0] in names
    if not plain or short(names[-1]) not in reduction_names(stage):
        return {}
    extents = zip(stage.axes, stage.shape, strict=True)
    if all(axis.name in names or extent(whole) == 1 for axis, whole in extents):
        return {}
    order = list(range(len(names)))
    position = names.index(along[0])
    order[position], order[-1] = order[-1], order[position]
    name = f"{stage.name}_transposed"
    return {stage.name: Pack(far[0].buffer.name, name, (0,) * len(names), tuple(order))}


def is_near_at(load: Load, name: str, limit: int = NEAR) -> bool:
    """Whether a vector along a variable is read from neighbours, or all from one element."""
    step = stride(load, name)
    return step is not None and abs(step) <= limit


def shares(tensor: Tensor, name: str, lane: str) -> int:
    """How much of what a stage reads serves several values of a variable: vectors count double.

    What is the same all along a reduction is read once and does not count."""
    body = tensor.body
    reduced = {axis.name for axis, _ in body.axes} if isinstance(body, Reduce) else set[str]()
    score = 0
    for load in loads(tensor):
        parts = {part for index in load.indices for part in variables(index)}
        if name not in parts and (parts & reduced or not reduced):
            score += 2 if lane in parts else 1
    return score


def depends_on(tensors: Sequence[Tensor], reader: Tensor, where: Places) -> set[int]:
    """The axes of the result that decide which elements of stages a reader needs."""
    names = {tensor.name for tensor in tensors}
    axes = dict(zip((axis.name for axis in reader.axes), where[reader.name], strict=True))
    axes_needed: set[int] = set()
    for load in loads(reader):
        if load.buffer.name in names:
            for name in (part for index in load.indices for part in variables(index)):
                follows = axes.get(name)
                if follows is not None:
                    axes_needed.add(follows.axis)
    return axes_needed


def reduction_names(tensor: Tensor) -> list[str]:
    """The loops that a stage reduces over, before any directive."""
    if not isinstance(tensor.body, Reduce):
        return []
    return [short(axis.name) for axis, _ in tensor.body.axes]
