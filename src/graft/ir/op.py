"""What an operator is: operands, attributes, type rule, NumPy meaning, expressions and work.

The class lives here; the instances live in `graft.ops`, one file per family, and register
themselves under their (Relay) name.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

from graft.base.dim_questions import provably_below
from graft.base.dims import AnyDim
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError, InternalError, TypeRuleError
from graft.base.registry import Registry
from graft.ir.attrs import Attrs, Dims, Floats, Ints, coerce_operand
from graft.ir.types import TensorType, Type

# A type rule: (attributes, operand types) -> result type(s). Absent operands are None.
TypeRule = Callable[..., "Type | tuple[Type, ...]"]
# A meaning: (attributes, operand arrays) -> result array(s). Absent operands are None.
Meaning = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What one execution costs: multiply-accumulates, other operations, bytes moved."""

    macs: AnyDim = 0
    flops: AnyDim = 0
    bytes: AnyDim = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.macs + other.macs, self.flops + other.flops, self.bytes + other.bytes)

    def with_bytes(self, moved: AnyDim) -> Work:
        """The same arithmetic with other traffic."""
        return Work(self.macs, self.flops, moved)


# (attributes, operand types, result types) -> work
WorkRule = Callable[..., Work]
# (attributes, known operand values, operand types) -> known result value(s) or None
SymbolicRule = Callable[[Any, Sequence["Array | None"], Sequence["Type | None"]], Any]


class Kind(Enum):
    """How an operator's results depend on its operands; decides what may be fused."""

    ELEMENTWISE = 0  # one element from one of each operand, wherever it stands; shapes equal
    BROADCAST = 1  # the same with NumPy broadcasting
    INJECTIVE = 2  # each result element is one operand element or a constant: movement
    REDUCTION = 3  # each result element combines many elements along axes
    ANCHOR = 4  # heavy: convolution, matrix product; later elementwise work may join it
    OPAQUE = 5  # everything else

    @property
    def is_pointwise(self) -> bool:
        """Whether each result element is computed from one element of each operand."""
        return self in (Kind.ELEMENTWISE, Kind.BROADCAST)


@dataclass(frozen=True, slots=True)
class DTypes:
    """The element types that an operator takes, with the adjective that messages use."""

    adjective: str
    members: frozenset[DType]

    def __contains__(self, dtype: DType) -> bool:
        return dtype in self.members


@dataclass(frozen=True, slots=True)
class Operand:
    """A formal operand."""

    name: str
    optional: bool = False
    variadic: bool = False


def parse_operands(text: str) -> tuple[Operand, ...]:
    """`"data weight bias? *rest"`: a question mark is optional, a star is zero or more."""
    return tuple(
        Operand(word.strip("?*"), optional=word.endswith("?"), variadic=word.startswith("*"))
        for word in text.split()
    )


def bytes_of(type_: Type | None) -> AnyDim:
    """Bytes that a value takes when packed; 0 where it is not a tensor."""
    if not isinstance(type_, TensorType):
        return 0
    return (type_.size * type_.dtype.bits + 7) // 8


def traffic(ins: Sequence[Type | None], outs: Sequence[Type]) -> AnyDim:
    """Bytes read and written when every operand and result is touched once."""
    total: AnyDim = 0
    for type_ in (*ins, *outs):
        total = total + bytes_of(type_)
    return total


def elementwise_work(_attrs: Any, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    """One operation per result element."""
    flops: AnyDim = 0
    for type_ in outs:
        flops = flops + (type_.size if isinstance(type_, TensorType) else 0)
    return Work(0, flops, traffic(ins, outs))


def movement_work(_attrs: Any, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    """No arithmetic: what is written is read."""
    result_bytes = traffic((), outs)
    return Work(0, 0, result_bytes * 2)


def no_work(_attrs: Any, _ins: Sequence[Type | None], _outs: Sequence[Type]) -> Work:
    """Nothing: elements stay where they are."""
    return Work()


@dataclass(frozen=True, eq=False)
class Op:
    """An operator of the graph IR."""

    name: str
    operands: tuple[Operand, ...]
    infer: TypeRule
    evaluate: Meaning
    attrs: type[Attrs] = Attrs
    work: WorkRule = elementwise_work
    kind: Kind = Kind.OPAQUE
    outputs: int | None = 1  # None: as many as the type rule says
    symbolic: SymbolicRule | None = None
    pure: bool = True  # False: two equal calls may give different results (random numbers)
    tensors_only: bool = True  # False: operands may be sequences, optionals or maps
    commutative: bool = False
    summary: str = ""
    dtypes: DTypes | None = None  # of every operand; None: the type rule says
    # Functions that build loop IR, which this layer does not know (see `graft.ops.pointwise` and
    # `graft.ops.expression`). A pointwise operator has both; who has neither is never native.
    scalar: Callable[..., Any] | None = None  # an element from one element of each operand
    expression: Callable[..., Any] | None = None  # whole results from whole operands
    # Node -> the bounds of indices among its operands (`graft.ops.index_bounds`), beyond which a
    # run is an error; None where it has no such operand.
    index_bounds: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"Op({self.name})"

    @cached_property
    def alternatives(self) -> tuple[tuple[int, str], ...]:
        """Operands that have a static form: (position, name of operand and attribute)."""
        fields = {field.name for field in dataclasses.fields(self.attrs)}
        return tuple((i, o.name) for i, o in enumerate(self.operands) if o.name in fields)

    @cached_property
    def _number_operands(self) -> tuple[tuple[int, str, Callable[[DType], bool], str], ...]:
        """Operands with a static form of numbers: position, name, which dtypes, in words."""
        hints = typing.get_type_hints(self.attrs)
        kinds = ((i, name, _NUMBER_FIELDS.get(hints[name])) for i, name in self.alternatives)
        return tuple((i, name, *kind) for i, name, kind in kinds if kind is not None)

    def check_types(self, types: Sequence[Type | None]) -> None:
        """Refuse operands of a kind or dtype that no type rule would take."""
        if self.tensors_only and not all(
            type_ is None or isinstance(type_, TensorType) for type_ in types
        ):
            raise TypeRuleError(f"wants tensors, not {_listed(types)}")
        if self.dtypes is not None:
            for type_ in types:
                if isinstance(type_, TensorType) and type_.dtype not in self.dtypes:
                    adjective = self.dtypes.adjective
                    raise TypeRuleError(f"wants {adjective} operands, not {type_.dtype}")
        for position, name, fits, what in self._number_operands:
            type_ = types[position] if position < len(types) else None
            if isinstance(type_, TensorType) and not fits(type_.dtype):
                raise TypeRuleError(f"'{name}' is {type_.dtype}, not {what}")

    @cached_property
    def _may_memoize(self) -> bool:
        return not any(f.type in _UNHASHED for f in dataclasses.fields(self.attrs))

    def result_types(self, attrs: Attrs, types: tuple[Type | None, ...]) -> tuple[Type, ...]:
        """Run the type rule, memoised."""
        if self._may_memoize:
            return _infer_once(self, attrs, types)
        return infer_types(self, attrs, types)

    def absent(self, count: int) -> tuple[None, ...]:
        """What stands for the operands that a call with `count` of them leaves out."""
        if self.operands and self.operands[-1].variadic:
            return (None,) * (len(self.operands) - 1 - count)
        return (None,) * (len(self.operands) - count)

    def check_operands(self, operands: Sequence[Any]) -> None:
        """Refuse a wrong number of operands, or one left out (None) that has to be there."""
        count = len(operands)
        required = sum(not (o.optional or o.variadic) for o in self.operands)
        if count < required:
            raise TypeRuleError(f"{self.name} wants at least {required} operands, has {count}")
        if count > len(self.operands) and not any(o.variadic for o in self.operands):
            raise TypeRuleError(f"{self.name} takes {len(self.operands)} operands, has {count}")
        for position, operand in enumerate(operands):
            if operand is None:
                formal = self.operands[min(position, len(self.operands) - 1)]
                if not formal.optional:
                    raise TypeRuleError(f"{self.name} lacks operand {position} ('{formal.name}')")


# Annotations (as written) of attributes that hold graphs or large constants.
_UNHASHED = ("Literal", "Graph", "tuple[Graph, ...]")

# Per type of an attribute, the dtypes of an operand that may stand in its place, and their name.
_INTEGERS = (lambda dtype: dtype.is_integer, "integers")
_REALS = (lambda dtype: dtype.is_integer or dtype.is_float, "real numbers")
_NUMBER_FIELDS: dict[Any, tuple[Callable[[DType], bool], str]] = {
    **dict.fromkeys((int | None, Ints | None, Dims | None), _INTEGERS),
    **dict.fromkeys((float | None, Floats | None), _REALS),
}


def infer_types(op: Op, attrs: Attrs, types: tuple[Type | None, ...]) -> tuple[Type, ...]:
    """Run the type rule, not memoised (`Op.result_types` is)."""
    try:
        op.check_types(types)
        result = op.infer(attrs, *types, *op.absent(len(types)))
    except GraftError as error:
        if isinstance(error, TypeRuleError):
            error.message = f"{op.name}: {error.message} (operands: {_listed(types)})"
        raise
    except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise TypeRuleError(
            f"{op.name} does not take operands {_listed(types)}: {error}"
        ) from error
    results = result if isinstance(result, tuple) else (result,)
    if op.outputs is not None and len(results) != op.outputs:
        raise InternalError(f"the type rule of {op.name} gave {len(results)} results")
    for type_ in results:
        shape = type_.shape if isinstance(type_, TensorType) else None
        if any(provably_below(dim, 0) for dim in shape or ()):
            raise TypeRuleError(f"{op.name} would make {type_} of {_listed(types)}")
    return results


def _listed(types: Sequence[Type | None]) -> str:
    return ", ".join("none" if type_ is None else str(type_) for type_ in types)


_infer_once = lru_cache(maxsize=1 << 16)(infer_types)

# Filled by `graft.ops`, from where everything above this layer imports it.
OPS: Registry[Op] = Registry("operator")


def define(name: str, operands: str, infer: TypeRule, evaluate: Meaning, **options: Any) -> Op:
    """Define and register an operator; `options` are the remaining fields of `Op`."""
    meaning = with_attributes(evaluate, operands, options.get("attrs", Attrs))
    return OPS.add(name, Op(name, parse_operands(operands), infer, meaning, **options))


def with_attributes(meaning: Meaning, operands: str, attrs_class: type[Attrs]) -> Meaning:
    """The meaning as a function of all operands.

    An operand that has a static form, and for which the meaning has no parameter, reaches it as the
    attribute."""
    parameters = inspect.signature(meaning).parameters
    fields = {field.name for field in dataclasses.fields(attrs_class)} - parameters.keys()
    absorbed = {
        position: operand.name
        for position, operand in enumerate(parse_operands(operands))
        if operand.name in fields
    }
    takes_any = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters.values())
    if not absorbed or takes_any:
        return meaning

    def whole(attrs: Attrs, *values: Array | None) -> Any:
        given = {
            name: coerce_operand(attrs_class, name, value)
            for position, name in absorbed.items()
            if position < len(values) and (value := values[position]) is not None
        }
        rest = (value for position, value in enumerate(values) if position not in absorbed)
        return meaning(dataclasses.replace(attrs, **given) if given else attrs, *rest)

    return whole


def get_op(name: str) -> Op:
    """The operator of that name."""
    return OPS.get(name)
