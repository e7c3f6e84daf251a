"""Operand checks that code generators share: values or a match in, a reason for refusal out.

The defaults fit most libraries for neural networks: one element type, and static shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from weakref import WeakKeyDictionary

from graft.base.dims import UNKNOWN, symbols_of
from graft.base.dtypes import DType
from graft.base.errors import BackendError, UnsupportedError
from graft.byoc.boundary import wished
from graft.byoc.contract import Backend, Match
from graft.byoc.region import region_hash
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType, bound_symbols
from graft.loop.errors import LoopError
from graft.loop.tensor import placeholder
from graft.ops import OPS
from graft.ops.expression import Unexpressed, express
from graft.rewrite.rule import Refusal

# Operators that regions do not have: those that only the host's passes write, results that are
# constants, and tables of whole models.
_NOT_IN_REGIONS = {
    *("nn.deformable_windows", "out_of_range"),
    *("arange", "eye", "full", "mel_weight_matrix"),
    *("ml.label_map", "nlp.tfidf"),
}


def expressed_operators(dtypes: Collection[DType]) -> list[str]:
    """Operators with a tensor expression that a region of tensors of these dtypes may have."""
    prefixes = []
    if not {DType.INT8, DType.UINT8}.intersection(dtypes):
        prefixes += ["qnn.", "left_shift", "right_shift"]
    if not {DType.FLOAT16, DType.BFLOAT16}.intersection(dtypes):
        prefixes += ["mixed."]
    names = (name for name in OPS if OPS.get(name).expression and name not in _NOT_IN_REGIONS)
    return [name for name in names if not name.startswith(tuple(prefixes))]


def unfit(
    values: Iterable[Value],
    dtypes: Sequence[DType] = (DType.FLOAT32,),
    empty: bool = False,
    ranks: range | None = None,
    symbolic: bool = False,
) -> str:
    """Why a value is not a tensor of static shape (or, if `symbolic`, of known rank) and of one of
    these dtypes, non-empty unless `empty`, with a number of axes in `ranks`; an empty string if all
    are."""
    for value in values:
        type_ = value.type
        if not isinstance(type_, TensorType) or type_.shape is None:
            return f"%{value.name} is {type_}, not a tensor of known rank"
        if not (symbolic or type_.is_static):
            return f"%{value.name} is {type_}, not a tensor of static shape"
        if type_.dtype not in dtypes:
            return f"%{value.name} is {type_.dtype}, not {' or '.join(dtypes)}"
        if not empty and 0 in (type_.shape or ()):
            return f"%{value.name} is {type_}, which is empty"
        if ranks is not None and len(type_.shape) not in ranks:
            return f"%{value.name} has {len(type_.shape)} axes, not {ranks[0]} to {ranks[-1]}"
    return ""


def unbound(inputs: Iterable[Value], values: Iterable[Value]) -> str:
    """Why extents of values do not follow from the inputs' extents, which they must, since memory
    for results is allocated before a region runs. Only an axis that is a bare symbol binds it.
    Empty if all follow."""
    symbols: frozenset[str] = frozenset().union(*(bound_symbols(value.type) for value in inputs))
    for value in values:
        for dim in value.shape or ():
            if dim is UNKNOWN or not symbols_of(dim) <= symbols:
                return f"%{value.name} is {value.type}, whose extents no operand tells"
    return ""


def require(condition: bool, reason: str) -> None:
    """Raise an `UnsupportedError` unless the condition holds."""
    if not condition:
        raise UnsupportedError(reason)


def late_attribute(node: Node) -> str:
    """Why a node cannot be written down: an operand gives a parameter that is an attribute
    otherwise, so that it is known at run time only; an empty string if all attributes are known."""
    for position, name in node.op.alternatives:
        if position < len(node.inputs) and node.inputs[position]:
            return f"'{name}' of {node.op.name} is known at run time only"
    return ""


def inexpressible(node: Node) -> str:
    """Why a node on tensors of static shape has no tensor expression; an empty string if it has
    one."""
    tensors = [
        None if value is None else placeholder(f"a{number}", value.tensor.shape or (), value.dtype)
        for number, value in enumerate(node.inputs)
    ]
    try:
        results = express(node, tensors, "t")
    except (LoopError, UnsupportedError) as error:
        return error.message
    return results.reason if isinstance(results, Unexpressed) else ""


# Compilers' reasons against regions, by the hash of these with their constants; empty: compiled.
_REASONS: WeakKeyDictionary[Backend, dict[str, str]] = WeakKeyDictionary()


def not_compiled(backend: Backend, match: Match) -> Refusal | None:
    """Why the backend's own compiler refuses a match, found by compiling it once.

    For `supports` of backends with a fast compiler that alone knows what it supports. The message
    of an `UnsupportedError` is the reason; other errors are mistakes."""
    reasons = _REASONS.setdefault(backend, {})
    region = match.region
    key = region_hash(region)
    if key not in reasons:
        reasons[key] = _compilers_reason(backend, region)
    return Refusal(reasons[key], match.root) if reasons[key] else None


def refused_match(
    backend: Backend, match: Match, dtypes: Sequence[DType], ranks: range
) -> Refusal | None:
    """Why a match is not for a backend: its inputs and outputs are not static tensors of these
    dtypes and ranks, a constant is empty, or the backend's own compiler refuses it."""
    reason = unfit((*match.inputs, *match.outputs), dtypes, ranks=ranks)
    reason = reason or unfit(match.constants, tuple(DType))
    return Refusal(reason, match.root) if reason else not_compiled(backend, match)


def _compilers_reason(backend: Backend, region: Graph) -> str:
    try:
        backend.code(wished(region, backend.limits))
    except BackendError as error:
        if isinstance(error.__cause__, UnsupportedError):
            return error.__cause__.message
        raise
    return ""
