"""Sizes that follow from numbers among a node's operands, as integer arithmetic.

A node whose shape, axes or bounds are operands enters. A `SizeRule` leaves: which elements of the
operands are read, formulas for the extents of the results over these and over the operands'
extents, and checks with the errors of the type rule. All of it is data, so that a compiled program
tells its sizes without the operators.

Most type rules give exact results for symbolic attributes. They are run with a symbol in place of
each number, once for every answer to the questions that such symbols leave open. Axes and strides
have to be numbers there; operators that take these as operands have formulas of their own.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from graft.base.dim_questions import supposing
from graft.base.dims import AnyDim, Dim, Unknown, bare_symbol, ceildiv, dim_max, dim_min, symbol
from graft.base.dims import product as element_count
from graft.base.errors import TypeRuleError
from graft.ir.attrs import Dims
from graft.ir.graph import Node, Value
from graft.ir.op import Op, infer_types
from graft.program.extents import Refused, Test, Verdict

SIZES = "sizes"

T = TypeVar("T")
Answers = Mapping[tuple[Dim, Dim], bool]


@dataclass(frozen=True, eq=False)
class SizesOp(Op):
    """An operator that gives numbers to the symbols in the sizes of another one's results."""

    sized: Op | None = None


def sizes_op(op: Op) -> SizesOp:
    """What gives numbers to the symbols in the sizes of an operator's results."""
    return SizesOp(SIZES, op.operands, op.infer, op.evaluate, op.attrs, sized=op)


@dataclass(frozen=True, slots=True)
class OperandNumber:
    """An element of an operand: the first symbol minus the second one, of which one is 0, since
    symbols stand for natural numbers."""

    operand: Value
    index: int
    positive: str
    negative: str


@dataclass(slots=True, eq=False)
class SizeRule:
    """How to compute sizes: numbers to read, then symbols to set in order; `verdict` is what is
    wrong with them; `shapes` are those of the results."""

    fresh: Callable[[str], str]  # makes a new name of a symbol
    numbers: list[OperandNumber] = field(default_factory=list)
    lets: list[tuple[str, Dim]] = field(default_factory=list)
    verdict: Verdict = None
    shapes: Sequence[Sequence[Dim]] = ()

    def number(self, operand: Value, index: int, name: str) -> Dim:
        """An element of an operand."""
        positive = self.fresh(f"{name}_{index}")
        one = OperandNumber(operand, index, positive, self.fresh(f"{name}_{index}_below"))
        self.numbers.append(one)
        return _known(symbol(positive) - symbol(one.negative))

    def list_of(self, operand: Value, name: str) -> list[Dim]:
        """All elements of an operand."""
        count = operand.tensor.size
        if not isinstance(count, int):
            raise _InexpressibleError
        return [self.number(operand, index, name) for index in range(count)]

    def let(self, dim: AnyDim, name: str) -> Dim:
        """A name for a natural number, which keeps what is made of it small."""
        dim = _known(dim)
        if isinstance(dim, int) or bare_symbol(dim) is not None:
            return dim
        own = self.fresh(name)
        self.lets.append((own, dim))
        return symbol(own)

    def require_zero(self, dim: AnyDim, message: str) -> None:
        """Refuse sizes for which something is not 0."""
        dim = _known(dim)
        if dim != 0:
            check = Test(dim, 0, None, Refused(message)) if not isinstance(dim, int) else None
            self.verdict = _both(self.verdict, check or Refused(message))


class _InexpressibleError(Exception):
    """Sizes for which there is no formula."""


def size_rule(node: Node, fresh: Callable[[str], str]) -> SizeRule | None:
    """The rule of a node for the sizes of its results; None where there is no formula for them."""
    op = node.op.sized if isinstance(node.op, SizesOp) else node.op
    assert op is not None
    rule = SizeRule(fresh)
    formula = _FORMULAS.get(op.name)
    own = replace(node, op=op)
    try:
        shapes = formula(rule, own) if formula is not None else None
        if shapes is None:
            shapes = _by_type_rule(rule, own)
    except _InexpressibleError:
        return None
    for shape in shapes:
        for dim in shape:
            if not isinstance(dim, int):
                rule.require_zero(dim_max(-dim, 0), f"{op.name} would make a negative extent")
    rule.shapes = shapes
    return rule


def explore(run: Callable[[], T], answers: Answers | None = None) -> Any:
    """What a type rule gives for all answers to the questions that symbols leave open: a tree of
    tests, with results and refusals at its ends."""
    answers = answers or {}

    def oracle(left: Dim, right: Dim) -> bool:
        for question in ((left, right), (right, left)):
            if question in answers:
                return answers[question]
        raise _OpenError(left, right)

    try:
        with supposing(oracle):
            return run()
    except TypeRuleError as error:
        return Refused(error.message, error.hint)
    except _OpenError as error:
        question = error.question
    equal = explore(run, {**answers, question: False})
    different = explore(run, {**answers, question: True})
    return equal if equal == different else Test(*question, equal, different)


class _OpenError(Exception):
    """A question about two dims that `explore` has not answered yet."""

    def __init__(self, left: Dim, right: Dim) -> None:
        super().__init__()
        self.question = left, right


_Shapes = Sequence[Sequence[Dim]]


def _by_type_rule(rule: SizeRule, node: Node) -> _Shapes:
    """What the type rule says with a symbol for each number."""
    op, attrs = node.op, node.attrs
    hints = typing.get_type_hints(op.attrs)
    types: list[Any] = [None if value is None else value.type for value in node.inputs]
    for position, name in op.alternatives:
        operand = node.inputs[position] if position < len(node.inputs) else None
        if operand is None or hints[name] not in (Dim | None, Dims | None):
            continue
        numbers = rule.list_of(operand, name)
        if hints[name] == Dim | None and len(numbers) != 1:
            raise _InexpressibleError
        single = hints[name] == Dim | None
        attrs = replace(attrs, **{name: numbers[0] if single else tuple(numbers)})
        types[position] = None
    tree = explore(lambda: infer_types(op, attrs, tuple(types)))
    results = {result for result in _leaves(tree) if isinstance(result, tuple)}
    if len(results) != 1:
        raise _InexpressibleError
    rule.verdict = _both(rule.verdict, _verdict(tree))
    return [[*map(_known, type_.shape)] for type_ in results.pop()]


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Test):
        return [*_leaves(tree.equal), *_leaves(tree.different)]
    return [tree]


def _verdict(tree: Any) -> Verdict:
    """The tree with nothing to say where there is a result."""
    if isinstance(tree, Test):
        equal, different = _verdict(tree.equal), _verdict(tree.different)
        return (
            None
            if equal is None and different is None
            else replace(tree, equal=equal, different=different)
        )
    return tree if isinstance(tree, Refused) else None


def _both(first: Verdict, second: Verdict) -> Verdict:
    """The second verdict where the first has nothing to say."""
    match first:
        case None:
            return second
        case Test():
            return replace(
                first, equal=_both(first.equal, second), different=_both(first.different, second)
            )
    return first


def _known(dim: AnyDim) -> Dim:
    if isinstance(dim, Unknown):
        raise _InexpressibleError
    return dim


def _is(number: Dim, other: int) -> AnyDim:
    """1 if two numbers are equal, else 0, as arithmetic."""
    return 1 - dim_min(1, dim_max(number - other, other - number))


def _is_negative(number: Dim) -> AnyDim:
    """1 if a number is negative, else 0, as arithmetic."""
    return dim_min(1, dim_max(-number, 0))


def _total(dims: Sequence[AnyDim]) -> AnyDim:
    total: AnyDim = 0
    for dim in dims:
        total = total + dim
    return total


def _shape(value: Value | None) -> list[Dim]:
    """The extents of an operand, whose rank has to be known."""
    if value is None or value.shape is None:
        raise _InexpressibleError
    return [*map(_known, value.shape)]


class _Axes:
    """Axes that are numbers of an operand, or attributes, of a tensor of some rank.

    `chosen[j][i]` is 1 if the j-th of them is axis i, else 0; `any[i]`: if one is."""

    def __init__(
        self, rule: SizeRule, rank: int, operand: Value | None, attribute: Sequence[int] | None
    ) -> None:
        numbers: Sequence[Dim] = attribute or ()
        if operand is not None:
            numbers = rule.list_of(operand, "axes")
        self.chosen: list[list[Dim]] = []
        for number in numbers:
            axis = number + rank * _is_negative(number)
            flags = [rule.let(_is(_known(axis), i), "chosen") for i in range(rank)]
            rule.require_zero(1 - _total(flags), f"axis {number} is out of range for rank {rank}")
            self.chosen.append(flags)
        self.any: list[Dim] = []
        for axis in range(rank):
            count = _total([flags[axis] for flags in self.chosen])
            rule.require_zero(dim_max(count - 1, 0), "an axis is named twice")
            self.any.append(rule.let(dim_min(count, 1), "some"))


def _operand(node: Node, position: int) -> Value | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _reduction(rule: SizeRule, node: Node) -> _Shapes | None:
    shape, operand, attrs = (
        _shape(node.inputs[0]),
        _operand(node, 1),
        typing.cast("Any", node.attrs),
    )
    if operand is None or (operand.tensor.size == 0 and not attrs.noop_with_empty_axes):
        return None
    axes = _Axes(rule, len(shape), operand, None)
    if attrs.keepdims:
        pairs = zip(shape, axes.any, strict=True)
        return [[_known(dim + chosen * (1 - dim)) for dim, chosen in pairs]]
    return [_without(rule, shape, axes.any, len(shape) - len(axes.chosen))]


def _without(rule: SizeRule, shape: Sequence[Dim], removed: Sequence[Dim], rank: int) -> list[Dim]:
    """The extents that are left without some axes."""
    result: list[AnyDim] = [0] * rank
    before: AnyDim = 0  # how many have been left
    for dim, removal in zip(shape, removed, strict=True):
        position = rule.let(before, "position")
        for index in range(rank):
            result[index] = result[index] + (1 - removal) * dim * rule.let(
                _is(position, index), "is"
            )
        before = before + 1 - removal
    return [*map(_known, result)]


def _squeeze(rule: SizeRule, node: Node) -> _Shapes | None:
    shape, operand = _shape(node.inputs[0]), _operand(node, 1)
    if operand is None:
        return None
    axes = _Axes(rule, len(shape), operand, None)
    for axis, (dim, removal) in enumerate(zip(shape, axes.any, strict=True)):
        rule.require_zero(removal * (dim - 1), f"axis {axis} has extent {dim}, not 1")
    return [_without(rule, shape, axes.any, len(shape) - len(axes.chosen))]


def _expand_dims(rule: SizeRule, node: Node) -> _Shapes | None:
    shape, operand = _shape(node.inputs[0]), _operand(node, 1)
    if operand is None or not isinstance(operand.tensor.size, int):
        return None
    rank = len(shape) + operand.tensor.size
    axes = _Axes(rule, rank, operand, None)
    result: list[Dim] = []
    before: AnyDim = 0
    for new in axes.any:
        position = rule.let(before, "position")
        old = _total([_is(position, index) * dim for index, dim in enumerate(shape)])
        result.append(_known(new + (1 - new) * old))
        before = before + 1 - new
    return [result]


def _pad(rule: SizeRule, node: Node) -> _Shapes | None:
    shape, axes_operand = _shape(node.inputs[0]), _operand(node, 3)
    if axes_operand is None:
        return None
    attrs = typing.cast("Any", node.attrs)
    width_operand = _operand(node, 2)
    widths: Sequence[Dim] = attrs.pad_width or ()
    if width_operand is not None:
        widths = rule.list_of(width_operand, "pad_width")
    axes = _Axes(rule, len(shape), axes_operand, None)
    count = len(axes.chosen)
    if len(widths) != 2 * count:
        raise _InexpressibleError
    result: list[AnyDim] = [*shape]
    for chosen, before, after in zip(axes.chosen, widths, widths[count:], strict=False):
        for axis, one in enumerate(chosen):
            result[axis] = result[axis] + one * (before + after)
    if attrs.mode != "constant":
        for axis, (dim, padded) in enumerate(zip(shape, result, strict=True)):
            message = f"axis {axis} has nothing to fill pads with"
            rule.require_zero(_is(dim, 0) * dim_min(1, dim_max(padded, 0)), message)
    return [[*map(_known, result)]]


def _strided_slice(rule: SizeRule, node: Node) -> _Shapes | None:
    """Any bounds, strides and axes; bounds alone are the type rule's."""
    shape, attrs = _shape(node.inputs[0]), typing.cast("Any", node.attrs)
    operands = {name: _operand(node, position) for position, name in node.op.alternatives}
    if operands["axes"] is None and operands["strides"] is None:
        return None
    lists: dict[str, Sequence[Dim]] = {}
    for name in ("begin", "end", "strides"):
        operand = operands[name]
        lists[name] = getattr(attrs, name) or ()
        if operand is not None:
            lists[name] = rule.list_of(operand, name)
    begins, ends, count = lists["begin"], lists["end"], len(lists["begin"])
    strides = lists["strides"] or [1] * count
    default = None if operands["axes"] is not None else attrs.axes or range(count)
    axes = _Axes(rule, len(shape), operands["axes"], default)
    if len({count, len(ends), len(strides), len(axes.chosen)}) > 1:
        raise _InexpressibleError
    result: list[AnyDim] = [*shape]
    for chosen, begin, end, stride in zip(axes.chosen, begins, ends, strides, strict=True):
        pairs = zip(chosen, shape, strict=True)
        extent = rule.let(_total([one * dim for one, dim in pairs]), "extent")
        length = rule.let(_slice_length(rule, begin, end, stride, extent), "length")
        for axis, one in enumerate(chosen):
            result[axis] = result[axis] + one * (length - shape[axis])
    return [[*map(_known, result)]]


def _slice_length(rule: SizeRule, begin: Dim, end: Dim, stride: Dim, extent: Dim) -> AnyDim:
    """How many elements a slice has whose stride may be anything but 0: forwards between bounds
    within the axis, backwards from one that is brought to the last element at most."""
    rule.require_zero(_is(stride, 0), "a stride is 0")
    first, last = (one + extent * _is_negative(one) for one in (begin, end))
    start = rule.let(dim_min(dim_max(first, 0), extent), "start")
    stop = rule.let(dim_min(dim_max(last, 0), extent), "stop")
    top = rule.let(dim_min(start + 1, extent), "top")  # counted from 1, so that none is negative
    bottom = rule.let(dim_min(dim_max(last, -1) + 1, extent), "bottom")
    backwards = rule.let(_is_negative(stride), "backwards")
    forward = rule.let(dim_max(stop - start, 0), "forward")
    span = rule.let(forward + backwards * (dim_max(top - bottom, 0) - forward), "span")
    step = rule.let(dim_max(dim_max(stride, -stride), 1), "step")
    return (span + step - 1) // step


def _reshape(rule: SizeRule, node: Node) -> _Shapes | None:
    """0 copies an extent and -1 is what is left, unless these numbers are attributes."""
    data, operand = _shape(node.inputs[0]), _operand(node, 1)
    if operand is None:
        return None
    numbers = rule.list_of(operand, "shape")
    allowzero = typing.cast("Any", node.attrs).allowzero
    total: AnyDim = 1  # of the extents that are not copied
    rest: AnyDim = 1  # of the numbers that are extents
    holes: list[Dim] = []
    dims: list[AnyDim] = []
    for axis, number in enumerate(numbers):
        hole = rule.let(_is(number, -1), "hole")
        copied: Dim = 0 if allowzero else rule.let(_is(number, 0), "copied")
        rule.require_zero(dim_max(-1 - number, 0), "a negative extent")
        extent = rule.let(dim_max(number, 0), "extent")
        if axis >= len(data):
            rule.require_zero(copied, f"0 at position {axis} copies an axis that is not there")
        else:
            total = rule.let(total * (copied + (1 - copied) * data[axis]), "total")
            extent = rule.let(extent + copied * data[axis], "extent")
        rest = rule.let(rest * (copied + hole + (1 - copied - hole) * extent), "rest")
        holes.append(hole)
        dims.append(extent)
    total = rule.let(element_count([total, *data[len(numbers) :]]), "total")
    some = rule.let(_total(holes), "holes")
    rule.require_zero(dim_max(some - 1, 0), "-1 stands more than once")
    rule.require_zero(some * _is(_known(rest), 0), "-1 may be anything beside an extent of 0")
    left = rule.let(total // dim_max(rest, 1), "left")
    extents = [rule.let(dim + hole * left, "extent") for dim, hole in zip(dims, holes, strict=True)]
    have, want = element_count(data), element_count(extents)
    message = f"{have} elements do not fill [{', '.join(map(str, numbers))}]"
    rule.require_zero(have - want, message)
    return [extents]


def _arange(rule: SizeRule, node: Node) -> _Shapes | None:
    """Any step; the type rule knows those that are attributes."""
    attrs, operand = typing.cast("Any", node.attrs), _operand(node, 2)
    if not attrs.dtype.is_integer:
        raise _InexpressibleError
    if operand is None:
        return None
    start, limit, delta = (
        getattr(attrs, name) if one is None else rule.number(one, 0, name)
        for name, one in zip(("start", "limit", "delta"), node.inputs, strict=True)
    )
    rule.require_zero(_is(delta, 0), "the step is 0")
    down = rule.let(_is_negative(delta), "down")
    span = rule.let(dim_max((limit - start) * (1 - 2 * down), 0), "span")
    step = rule.let(dim_max(dim_max(delta, -delta), 1), "step")
    return [[_known(ceildiv(span, step))]]


def _dft(rule: SizeRule, node: Node) -> _Shapes | None:
    """A transform along any axis but the last; one along a known axis is the type rule's."""
    shape, length_operand, operand = _shape(node.inputs[0]), _operand(node, 1), _operand(node, 2)
    if operand is None:
        return None
    attrs = typing.cast("Any", node.attrs)
    axes = _Axes(rule, len(shape), operand, None)
    rule.require_zero(axes.any[-1], "the axis is that of real and imaginary part")
    halved = attrs.onesided and not attrs.inverse
    mirrored = attrs.onesided and attrs.inverse
    length: Dim | None = attrs.dft_length
    if length_operand is not None:
        length = rule.number(length_operand, 0, "dft_length")
    extents: list[Dim] = []
    for dim, chosen in zip(shape[:-1], axes.any, strict=False):
        own: AnyDim = length if length is not None else (dim - 1) * 2 if mirrored else dim
        rule.require_zero(chosen * dim_max(1 - own, 0), "a transform without a length")
        own = own // 2 + 1 if halved else own
        extents.append(_known(dim + chosen * (own - dim)))
    return [[*extents, 1 if mirrored else 2]]


_FORMULAS: dict[str, Callable[[SizeRule, Node], _Shapes | None]] = {
    **dict.fromkeys(("max", "mean", "min", "prod", "sum"), _reduction),
    "arange": _arange,
    "dft": _dft,
    "expand_dims": _expand_dims,
    "nn.pad": _pad,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "strided_slice": _strided_slice,
}
