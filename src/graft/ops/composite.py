"""`composite` and `region`: several nodes as one, with their meaning as the body.

Fusion groups are composites. A region is what a backend other than the host compiles and runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graft.ir.attrs import Attrs
from graft.ir.evaluate import Data, run_graph
from graft.ir.graph import Graph
from graft.ir.op import Work, define, traffic
from graft.ir.types import Type, compatible
from graft.ops.rules import require


@dataclass(frozen=True, slots=True)
class CompositeAttrs(Attrs):
    body: Graph
    label: str = ""


@dataclass(frozen=True, slots=True)
class RegionAttrs(CompositeAttrs):
    backend: str = ""


def _type(attrs: CompositeAttrs, *types: Type) -> tuple[Type, ...]:
    formals = attrs.body.inputs
    require(len(types) == len(formals), f"the body takes {len(formals)} operands")
    for formal, actual in zip(formals, types, strict=True):
        require(compatible(formal.type, actual), f"the body's %{formal.name} is {formal.type}")
    return tuple(value.type for value in attrs.body.outputs)


def _meaning(attrs: CompositeAttrs, *operands: Data) -> tuple[Data, ...]:
    return tuple(run_graph(attrs.body, operands))


def _work(attrs: CompositeAttrs, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    """The arithmetic of the body; only what crosses its border counts as moved."""
    return arithmetic(attrs.body).with_bytes(traffic(ins, outs))


def arithmetic(graph: Graph) -> Work:
    """Multiply-accumulates, other operations and bytes of all nodes of a graph."""
    total = Work()
    for node in graph.nodes:
        types = [None if value is None else value.type for value in node.inputs]
        total = total + node.op.work(node.attrs, types, [value.type for value in node.outputs])
    return total


for _name, _attrs, _summary in (
    ("composite", CompositeAttrs, "several nodes as one, which means what its body means"),
    ("region", RegionAttrs, "what one backend runs in one piece, with its meaning as the body"),
):
    define(
        _name,
        "*operands",
        _type,
        _meaning,
        attrs=_attrs,
        work=_work,
        outputs=None,
        tensors_only=False,
        summary=_summary,
    )
