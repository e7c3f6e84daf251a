"""Concatenations of many tensors, and splits into many, in stages.

The kernel of either has a parameter and loops for each tensor, and what LLVM takes for a function
grows faster than its size. Copying in stages bounds kernels, and makes many of them the same, at
the price of a further copy per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("bound_arity")
_Item = TypeVar("_Item")
MOST_TENSORS = 64


def bound_arity(graph: Graph) -> Graph:
    """Leave no concatenation of more than `MOST_TENSORS` tensors, and no split into more."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("concatenate"))
def concat_of_many(site: Site) -> Replacement:
    axis = site.node.attrs.axis
    if len(site.node.args) <= MOST_TENSORS:
        return Refusal("it has few operands")
    parts = _batches(site.node.args)
    joined = [site.emit("concatenate", *part, axis=axis) for part in parts]
    return site.emit("concatenate", *joined, axis=axis)


@RULES.rule(is_op("split"))
def split_into_many(site: Site) -> Replacement:
    outputs = site.node.outputs
    if len(outputs) <= MOST_TENSORS:
        return Refusal("it has few results")
    if any(value.shape is None for value in outputs):
        return Refusal("the rank is not known")
    axis = site.node.attrs.axis
    sizes = [(value.shape or ())[axis] for value in outputs]
    if not all(isinstance(size, int) for size in sizes):
        return Refusal("the sizes are not known")
    parts = _batches(sizes)
    wide = site.emit_all("split", site.node.args[0], axis=axis, sizes=[sum(p) for p in parts])
    return tuple(
        value
        for part, data in zip(parts, wide, strict=True)
        for value in site.emit_all("split", data, axis=axis, sizes=part)
    )


def _batches(items: Sequence[_Item]) -> list[Sequence[_Item]]:
    """Runs of as many items as a kernel takes; a single one left over joins the last of them."""
    starts = list(range(0, len(items), MOST_TENSORS))
    if len(items) - starts[-1] == 1:
        starts[-1] -= 1
    return [items[start:end] for start, end in zip(starts, [*starts[1:], len(items)], strict=True)]
