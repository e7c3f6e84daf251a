"""Chooses the algorithm of each dense layer: plain sums, or Strassen's algorithm.

A graph enters; where Strassen's algorithm is possible, pays and is allowed, `nn.dense` leaves as
`nn.dense_strassen`, whose attribute says how much of the depth is summed up at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graft.backends.host.kernels.strassen import chunk_depth
from graft.backends.host.options import Accuracy
from graft.backends.host.storage import static_shape
from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class ProductOptions:
    """The machine, and how exact the results have to be."""

    target: Target
    accuracy: Accuracy = Accuracy.DEFAULT


def choose_products(graph: Graph, options: ProductOptions) -> Graph:
    """Decide for every dense layer; with strict accuracy all of them stay plain."""
    if options.accuracy is Accuracy.STRICT:
        return graph
    rules = RuleSet("choose_products")

    @rules.rule(is_op("nn.dense"))
    def strassen(site: Site) -> Replacement:
        data, weight = site.node.args
        array = site.array(weight)
        if array is None or not data.tensor.is_static:
            return Refusal("the weights are not constant, or the rows not counted")
        units, inputs = array.shape
        *items, rows, _ = (1, *static_shape(data))
        if len(items) < 2 or math.prod(items) != 1:
            # Strassen's sums mix rows, so that a NaN in one spoils another
            return Refusal("the rows may belong to several items of a batch")
        chunk = chunk_depth(options.target, data.dtype, rows, units, inputs)
        if not chunk:
            return Refusal("plain sums are cheaper")
        return site.emit("nn.dense_strassen", data, weight, chunk=chunk)

    return apply_rules(graph, rules)
