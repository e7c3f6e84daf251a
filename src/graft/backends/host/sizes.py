"""Whether sizes fit together: nodes of a segment in, checks for the run time out.

When a graph is typed, two symbols may be equal for all that is known. Kernels rely on it. So the
type rules are asked again, with both answers to every question that the symbols leave open, and
what they say to each goes into the compiled model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graft.base.dim_questions import provably_different, supposing
from graft.base.dims import Dim
from graft.base.errors import Place, TypeRuleError
from graft.ir.graph import Node
from graft.ir.op import infer_types
from graft.ir.types import TensorType, Type
from graft.program.extents import Refused, SizeCheck, Test, Verdict

_Answers = Mapping[tuple[Dim, Dim], bool]


class _OpenError(Exception):
    """A question that has no answer yet."""

    def __init__(self, left: Dim, right: Dim) -> None:
        super().__init__()
        self.question = left, right


def size_checks(nodes: Sequence[Node]) -> tuple[SizeCheck, ...]:
    """What has to hold of the symbols' numbers, node by node."""
    found: list[SizeCheck] = []
    for node in nodes:
        # A reshape of static data to symbolic extents has to be checked as well.
        if not all(map(_is_static, (*node.args, *node.outputs))):
            verdict = _verdict(node, {})
            if isinstance(verdict, Test):
                found.append(SizeCheck(verdict, node.place or Place()))
    return tuple(found)


def _is_static(value: object) -> bool:
    type_ = getattr(value, "type", None)
    return isinstance(type_, TensorType) and type_.is_static


def _verdict(node: Node, answers: _Answers) -> Verdict:
    """What the rule says, given some answers: at once, or after the next question."""

    def oracle(left: Dim, right: Dim) -> bool:
        for question in ((left, right), (right, left)):
            if question in answers:
                return answers[question]
        raise _OpenError(left, right)

    try:
        with supposing(oracle):
            return _result(node)
    except TypeRuleError as error:
        return Refused(error.message, error.hint)
    except _OpenError as error:
        question = error.question
    equal = _verdict(node, {**answers, question: False})
    different = _verdict(node, {**answers, question: True})
    return equal if equal == different else Test(*question, equal, different)


def _result(node: Node) -> Refused | None:
    operands = tuple(None if value is None else value.type for value in node.inputs)
    results = infer_types(node.op, node.attrs, operands)
    for value, found in zip(node.outputs, results, strict=True):
        if not _agree(found, value.type):
            return Refused(f"%{value.name} is {found} where {value.type} is wanted")
    return None


def _agree(found: Type, wanted: Type) -> bool:
    """Whether nothing that the rule knows contradicts what was declared."""
    if not isinstance(found, TensorType) or not isinstance(wanted, TensorType):
        return True
    pairs = zip(found.shape or (), wanted.shape or (), strict=False)
    return not any(provably_different(one, other) for one, other in pairs)
