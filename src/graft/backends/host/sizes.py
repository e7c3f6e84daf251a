"""Whether sizes fit together: nodes of a stretch in, a function out that refuses sizes that do not.

When a graph is typed, two symbols may be equal for all that is known. Kernels rely on it, so the
type rules are asked again when the symbols have numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graft.base.dims import evaluate_dim
from graft.base.errors import EvaluationError, TypeRuleError
from graft.ir.attrs import bind_attrs
from graft.ir.graph import Node
from graft.ir.types import TensorType, Type


def sizes_check(nodes: Sequence[Node]) -> Callable[[Mapping[str, int]], None]:
    """A function of the symbols' numbers."""
    open_nodes = [node for node in nodes if not all(map(_is_static, node.args))]

    def check(symbols: Mapping[str, int]) -> None:
        for node in open_nodes:
            _check_node(node, symbols)

    return check


def _is_static(value: object) -> bool:
    type_ = getattr(value, "type", None)
    return isinstance(type_, TensorType) and type_.is_static


def _check_node(node: Node, symbols: Mapping[str, int]) -> None:
    operands = tuple(None if v is None else _bound(v.type, symbols) for v in node.inputs)
    try:
        results = node.op.result_types(bind_attrs(node.attrs, symbols), operands)
    except TypeRuleError as error:
        raise EvaluationError(error.message, node.place, error.hint) from error
    for value, found in zip(node.outputs, results, strict=True):
        wanted = _bound(value.type, symbols)
        if not _agree(found, wanted):
            raise EvaluationError(f"%{value.name} is {found} where {wanted} is wanted", node.place)


def _bound(type_: Type, symbols: Mapping[str, int]) -> Type:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    return TensorType(type_.dtype, tuple(evaluate_dim(dim, symbols) for dim in type_.shape))


def _agree(found: Type, wanted: Type) -> bool:
    """Whether nothing that the rule knows contradicts what was declared."""
    if not isinstance(found, TensorType) or not isinstance(wanted, TensorType):
        return True
    pairs = zip(found.shape or (), wanted.shape or (), strict=False)
    return all(not isinstance(one, int) or one == other for one, other in pairs)
