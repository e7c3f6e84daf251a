"""Rewrite rules: a pattern, and a function that says what the matched value becomes.

    RULES = RuleSet("simplify")

    @RULES.rule(lambda x: op.negative(op.negative(x)))
    def double_negation(site: Site, x: Value) -> Value:
        return x

The function gets the site and the formula's wildcards by name. It returns the replacement, or a
`Refusal` with the reason why the rule does not apply here after all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graft.base.errors import InternalError
from graft.ir.graph import Node, Value
from graft.rewrite.pattern import (
    Constrained,
    Dominated,
    Either,
    Formula,
    OpIs,
    Pattern,
    ResultOf,
    formula,
)

if TYPE_CHECKING:
    from graft.rewrite.driver import Site


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a predicate or rule does not apply."""

    reason: str
    node: Node | None = None

    def __str__(self) -> str:
        return self.reason


Replacement = Value | tuple[Value, ...] | Refusal
Action = Callable[..., Replacement]


@dataclass(frozen=True)
class Rule:
    """A named rewrite."""

    name: str
    formula: Formula
    action: Action

    @property
    def roots(self) -> tuple[str, ...]:
        """The operators that the pattern can start at."""
        return root_operators(self.formula.pattern)


def root_operators(pattern: Pattern) -> tuple[str, ...]:
    """Names of the operators whose result the pattern may match."""
    if isinstance(pattern, OpIs):
        return pattern.names
    if isinstance(pattern, ResultOf):
        return pattern.node.names
    if isinstance(pattern, Constrained):
        return root_operators(pattern.inner)
    if isinstance(pattern, Dominated):
        return root_operators(pattern.child)
    if isinstance(pattern, Either):
        return tuple(n for a in pattern.alternatives for n in root_operators(a))
    raise InternalError(f"a rule cannot start at a {type(pattern).__name__}")


@dataclass
class RuleSet:
    """Rules that run together to a fixpoint."""

    name: str
    rules: list[Rule] = field(default_factory=list)

    def rule(self, pattern: Callable[..., Pattern] | Pattern) -> Callable[[Action], Action]:
        """Register the decorated function as what the pattern becomes."""
        traced = Formula(pattern) if isinstance(pattern, Pattern) else formula(pattern)

        def register(action: Action) -> Action:
            name = action.__name__.strip("_")
            if any(rule.name == name for rule in self.rules):
                raise InternalError(f"two rules of '{self.name}' are named '{name}'")
            self.rules.append(Rule(name, traced, action))
            return action

        return register

    def by_root(self) -> dict[str, list[Rule]]:
        """The rules that can start at each operator, in order of definition."""
        index: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for name in dict.fromkeys(rule.roots):
                index.setdefault(name, []).append(rule)
        return index


def merged(name: str, sets: Iterable[RuleSet]) -> RuleSet:
    """One set of all the rules."""
    return RuleSet(name, [rule for rules in sets for rule in rules.rules])


def call_action(rule: Rule, site: Site, bound: Any) -> Replacement:
    """Run a rule's action on what its wildcards stand for."""
    values = {name: bound[wildcard] for name, wildcard in rule.formula.wildcards.items()}
    return rule.action(site, **values)
