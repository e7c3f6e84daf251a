"""Numbers for dims: what symbols stand for in, extents out; and whether extents fit together.

Compilers write down what the operators' type rules leave open as long as sizes are symbols: tests
of extents, and what is to be said if they come out wrong. Such a check is data, so that it is the
same for a model that was just compiled and for one that comes from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graft.base.dims import AnyDim, Dim, evaluate_dim, symbols_of
from graft.base.errors import EvaluationError, Place


class Extents(dict[AnyDim, int]):
    """Numbers for dims, each worked out once."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        super().__init__()
        self.symbols = symbols

    def __missing__(self, dim: AnyDim) -> int:
        value = dim if isinstance(dim, int) else evaluate_dim(dim, self.symbols)
        self[dim] = value
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
    place: Place


def check_sizes(checks: Iterable[SizeCheck], extents: Extents) -> None:
    """Refuse sizes that do not fit together."""
    for check in checks:
        verdict: Verdict = check.test
        asked: list[Dim] = []
        while isinstance(verdict, Test):
            asked += (verdict.left, verdict.right)
            same = extents[verdict.left] == extents[verdict.right]
            verdict = verdict.equal if same else verdict.different
        if verdict is not None:
            names = sorted({name for dim in asked for name in symbols_of(dim)})
            sizes = ", ".join(f"{name} = {extents.symbols[name]}" for name in names)
            message = f"{verdict.message} (with {sizes})"
            raise EvaluationError(message, check.place, verdict.hint)


def dims_of_test(verdict: Verdict) -> Iterable[Dim]:
    """All dims that a check looks at."""
    if isinstance(verdict, Test):
        yield verdict.left
        yield verdict.right
        yield from dims_of_test(verdict.equal)
        yield from dims_of_test(verdict.different)
