"""Recognises what exporters write out in small operators: the whole is worth more to a backend."""

from __future__ import annotations

from graft.ir.graph import Graph, Value
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import Pattern, op
from graft.rewrite.rule import Replacement, RuleSet

RULES = RuleSet("recognize")

_SQRT_HALF = 0.5**0.5


def recognize(graph: Graph) -> Graph:
    """Apply the rules until none fits."""
    return apply_rules(graph, RULES)


def _one_plus_erf(x: Pattern) -> Pattern:
    return op.erf((x / 2**0.5) | (x * _SQRT_HALF)) + 1


@RULES.rule(lambda x: (x * 0.5) * _one_plus_erf(x))
def gelu_half_first(site: Site, x: Value) -> Replacement:
    return site.emit("nn.gelu", x)


@RULES.rule(lambda x: x * (_one_plus_erf(x) * 0.5))
def gelu_half_second(site: Site, x: Value) -> Replacement:
    return site.emit("nn.gelu", x)


@RULES.rule(lambda x: (x * _one_plus_erf(x)) * 0.5)
def gelu_half_last(site: Site, x: Value) -> Replacement:
    return site.emit("nn.gelu", x)
