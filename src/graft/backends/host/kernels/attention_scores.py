"""What happens to attention scores before the softmax: caps, masks, and keys out of sight."""

from __future__ import annotations

import math

from graft.backends.host.kernel import Parameters
from graft.backends.host.kernels.vectors import Span
from graft.backends.host.point import PlainPoint, plus
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, call, compare, select
from graft.loop.ir import CompareKind, Expr


class Visibility:
    """The rules of one attention node."""

    def __init__(self, node: Node, parameters: Parameters) -> None:
        attrs = node.attrs
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        self.mask = None if mask is None else parameters.value(mask, "mask")
        self.softcap: float = attrs.softcap
        self.offset: int = attrs.offset
        self.behind: int | None = attrs.left_window if attrs.left_window >= 0 else None
        ahead = [attrs.right_window] if attrs.right_window >= 0 else []
        self.ahead: int | None = min([*ahead, *([0] if attrs.causal else [])], default=None)

    @property
    def hides(self) -> bool:
        """Whether a query may see no key at all."""
        return self.mask is not None or self.behind is not None or self.ahead is not None

    def biased(self, score: Expr, batch: Expr, head: Expr, span: Span, key: Expr) -> Expr:
        """Scores of one key for a vector of queries; the same expression if nothing happens."""
        if not self.hides and not self.softcap:
            return score
        value = Term(score)
        if self.softcap:
            value = call("tanh", value * (1 / self.softcap)) * self.softcap
        if self.mask is not None:
            storage, buffer = self.mask
            point = PlainPoint((batch, head, span.index, key), span.lanes)
            mask = Term(point.load(storage, buffer))
            is_bool = storage.dtype is DType.BOOL
            value = select(mask, value, -math.inf) if is_bool else value + mask
        position = Span(plus(span.first, self.offset), span.lanes, 0, "").index
        for limit, kind in (
            (self.ahead, CompareKind.GREATER_EQUAL),
            (None if self.behind is None else -self.behind, CompareKind.LESS_EQUAL),
        ):
            if limit is not None:
                seen = compare(kind, Term(position) + limit, key)
                value = select(seen, value, -math.inf)
        return value.expr
