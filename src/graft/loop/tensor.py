"""Tensor expressions: what to compute, element by element, and nothing about how.

`placeholder` declares an input, `compute` a tensor whose elements a Python function describes, and
`sum_`, `max_`, `min_` and `product_` a reduction over axes made by `reduce_axis`. A reduction is
the whole of a tensor's expression; what follows it (bias, activation) is a tensor of its own, which
a schedule can put into the same loops. Reading outside a tensor is a mistake unless a `select`
around the read keeps it from mattering.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, constant, load, term
from graft.loop.errors import LoopError
from graft.loop.ir import BinaryKind, Buffer, Const, Expr, Var
from graft.loop.print import RESERVED
from graft.loop.simplify import simplify
from graft.loop.traverse import substitute, walk_expr

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True, eq=False)
class Axis(Term):
    """An axis that a reduction runs over; usable in expressions like any term."""

    extent: Expr = field(default=Const(0))

    @property
    def var(self) -> Var:
        if not isinstance(self.expr, Var):
            raise LoopError("a reduction axis has to be a variable")
        return self.expr


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """`initial`, combined with the body at all coordinates of the axes."""

    kind: BinaryKind
    body: Expr
    axes: tuple[tuple[Var, Expr], ...]  # with their extents
    initial: Expr
    sources: frozenset[Tensor] = field(default=frozenset())

    @property
    def dtype(self) -> DType:
        return self.body.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array: an input if it has no body, else computed element by element."""

    buffer: Buffer
    axes: tuple[Var, ...] = ()
    body: Expr | Reduce | None = None
    sources: tuple[Tensor, ...] = ()
    # Stages whose elements are computed where this one reads them, each with the dimensions along
    # which this one, reducing over them, reads all there is.
    computes: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.buffer.extents

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Term:
        listed = indices if isinstance(indices, tuple) else (indices,)
        if len(listed) != len(self.shape):
            raise LoopError(f"'{self.name}' has {len(self.shape)} dimensions, not {len(listed)}")
        read = load(self.buffer, *listed)
        return Term(read.expr, read.sources | {self})


Extent = Operand


def _extents(shape: Sequence[Extent]) -> tuple[Expr, ...]:
    return tuple(simplify(term(extent).expr) for extent in shape)


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name in RESERVED:
        raise LoopError(
            f"'{name}' cannot be a name",
            hint="letters, digits, '_' and '.', but no word of the loop language",
        )
    return name


def _checked_axis(name: str) -> str:
    if not name.isidentifier():
        raise LoopError(f"'{name}' cannot name an axis", hint="letters, digits and '_'")
    return name


def placeholder(name: str, shape: Sequence[Extent], dtype: DType = DType.FLOAT32) -> Tensor:
    """An input; its extents are numbers or index expressions over named scalars."""
    return Tensor(Buffer(_checked_name(name), dtype, _extents(shape)))


def compute(
    name: str,
    shape: Sequence[Extent],
    element: Callable[..., Term | Reduce],
    axes: Sequence[str] | None = None,
) -> Tensor:
    """A tensor whose element at (i, j, ...) is `element(i, j, ...)`.

    The axes are called as the function's parameters are, unless `axes` gives their names; a
    schedule knows its loops by them.
    """
    names = list(inspect.signature(element).parameters) if axes is None else list(axes)
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise LoopError(f"'{name}' has {len(shape)} dimensions and the axes {', '.join(names)}")
    variables = tuple(Var(f"{name}@{_checked_axis(axis)}") for axis in names)
    result = element(*(Term(variable) for variable in variables))
    body = result.expr if isinstance(result, Term) else _own_axes(name, names, result)
    buffer = Buffer(_checked_name(name), result.dtype, _extents(shape))
    sources = tuple(sorted(result.sources, key=lambda tensor: tensor.name))
    return Tensor(buffer, variables, body, sources)


def _own_axes(name: str, names: list[str], reduction: Reduce) -> Reduce:
    """The reduction with its axes qualified by the tensor's name, which makes them unique."""
    reduced = [variable.name for variable, _ in reduction.axes]
    repeated = {axis for axis in reduced if axis in names or reduced.count(axis) > 1}
    if repeated:
        raise LoopError(f"'{name}' has two axes called '{min(repeated)}'")
    own: dict[str, Expr] = {axis: Var(f"{name}@{axis}") for axis in reduced}
    axes = tuple((Var(f"{name}@{axis.name}"), extent) for axis, extent in reduction.axes)
    return replace(reduction, body=substitute(reduction.body, own), axes=axes)


def reduce_axis(name: str, extent: Extent) -> Axis:
    """An axis to reduce over."""
    (size,) = _extents([extent])
    return Axis(Var(_checked_axis(name)), frozenset(), size)


def reduce(
    kind: BinaryKind, value: Operand, axes: Sequence[Axis], initial: Operand | None = None
) -> Reduce:
    """The values at all coordinates of the axes combined, beginning with `initial`."""
    body = term(value)
    start = identity(kind, body.dtype) if initial is None else term(initial, body.dtype).expr
    if start.dtype is not body.dtype:
        raise LoopError(f"the initial value is {start.dtype}, the values are {body.dtype}")
    if not axes:
        raise LoopError("a reduction needs an axis")
    extra = initial.sources if isinstance(initial, Term) else frozenset()
    pairs = tuple((axis.var, axis.extent) for axis in axes)
    return Reduce(kind, body.expr, pairs, start, body.sources | extra)


def sum_(value: Operand, axes: Sequence[Axis], initial: Operand | None = None) -> Reduce:
    """The sum over the axes."""
    return reduce(BinaryKind.ADD, value, axes, initial)


def product_(value: Operand, axes: Sequence[Axis], initial: Operand | None = None) -> Reduce:
    """The product over the axes."""
    return reduce(BinaryKind.MULTIPLY, value, axes, initial)


def max_(value: Operand, axes: Sequence[Axis], initial: Operand | None = None) -> Reduce:
    """The largest over the axes; NaN wins."""
    return reduce(BinaryKind.MAXIMUM, value, axes, initial)


def min_(value: Operand, axes: Sequence[Axis], initial: Operand | None = None) -> Reduce:
    """The smallest over the axes; NaN wins."""
    return reduce(BinaryKind.MINIMUM, value, axes, initial)


def identity(kind: BinaryKind, dtype: DType, lanes: int = 1) -> Const:
    """The identity element of a reduction, in each lane."""
    if kind in (BinaryKind.ADD, BinaryKind.MULTIPLY):
        return constant(int(kind is BinaryKind.MULTIPLY), dtype, lanes)
    if kind not in (BinaryKind.MINIMUM, BinaryKind.MAXIMUM):
        raise LoopError(f"nothing reduces with '{kind}'")
    largest = kind is BinaryKind.MINIMUM
    if dtype.is_float:
        return constant(float("inf") if largest else float("-inf"), dtype, lanes)
    if dtype.is_unsigned_integer:
        return constant((1 << dtype.bits) - 1 if largest else 0, dtype, lanes)
    limit = 1 << (dtype.bits - 1)
    return constant(limit - 1 if largest else -limit, dtype, lanes)


def in_order(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All tensors that the outputs need, inputs too, each after what it reads."""
    ordered: dict[str, Tensor] = {}

    def visit(tensor: Tensor) -> Iterator[Tensor]:
        previous = ordered.get(tensor.name)
        if previous is tensor:
            return
        if previous is not None:
            raise LoopError(f"two tensors are called '{tensor.name}'")
        for source in tensor.sources:
            yield from visit(source)
        if ordered.get(tensor.name) not in (None, tensor):
            raise LoopError(f"two tensors are called '{tensor.name}'")
        ordered[tensor.name] = tensor
        yield tensor

    return tuple(tensor for output in outputs for tensor in visit(output))


def index_variables(tensors: Sequence[Tensor]) -> tuple[Var, ...]:
    """The symbolic scalars that the tensors mention, in order of appearance."""
    result: dict[str, Var] = {}
    for tensor in tensors:
        body, own = tensor.body, set(tensor.axes)
        mentioned = list(tensor.shape)
        if isinstance(body, Reduce):
            own |= {axis for axis, _ in body.axes}
            mentioned += [*(extent for _, extent in body.axes), body.body, body.initial]
        elif body is not None:
            mentioned.append(body)
        parts = [part for expr in mentioned for part in walk_expr(expr)]
        result |= {one.name: one for one in parts if isinstance(one, Var) and one not in own}
    return tuple(result.values())
