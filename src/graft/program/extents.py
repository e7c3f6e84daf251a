"""Evaluates dims: sizes of symbols in, extents out; and checks of extents against each other.

Compilers write down what the operators' type rules leave open as long as sizes are symbols: tests
of extents, and what is to be said if they come out wrong. Such a check is data, so that it is the
same for a model that was just compiled and for one that comes from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graft.base.dims import AnyDim, Dim, IndexExpr, evaluate_call, evaluate_dim, symbol
from graft.base.errors import Location
from graft.base.polynomials import Atom


class Extents(dict[AnyDim, int]):
    """Numbers for dims. What dims have in common is worked out once: long chains of sizes that
    depend on each other are made of the same calls again and again."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        super().__init__()
        self.symbols = symbols
        self._atoms: dict[Atom, int] = {}

    def __missing__(self, dim: AnyDim) -> int:
        value = self[dim] = dim if isinstance(dim, int) else self._number(dim)
        return value

    def _number(self, dim: AnyDim) -> int:
        if not isinstance(dim, IndexExpr):
            return evaluate_dim(dim, self.symbols)
        total = 0
        for monomial, product in dim.terms:
            for atom in monomial:
                value = self._atoms.get(atom)
                product *= self._atom(atom, dim) if value is None else value
            total += product
        return total

    def _atom(self, atom: Atom, dim: IndexExpr) -> int:
        if atom.is_call:
            arguments = [a if isinstance(a, int) else self[a] for a in atom.arguments]
            value = evaluate_call(atom.name, arguments, dim)
        else:
            value = evaluate_dim(symbol(atom.name), self.symbols)
        self._atoms[atom] = value
        return value


@dataclass(frozen=True, slots=True)
class Refused:
    """Sizes that a type rule has something against."""

    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Test:
    """What follows from two extents being equal or different; None is that nothing is wrong."""

    left: Dim
    right: Dim
    equal: Verdict
    different: Verdict


Verdict = Test | Refused | None


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """What the type rule of a node still has to know."""

    test: Test
    location: Location


def dims_of_test(verdict: Verdict) -> Iterable[Dim]:
    """All dims that a check looks at."""
    if isinstance(verdict, Test):
        yield verdict.left
        yield verdict.right
        yield from dims_of_test(verdict.equal)
        yield from dims_of_test(verdict.different)
