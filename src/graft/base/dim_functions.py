"""Many dims as one Python function: dims and names of their symbols in, a function of numbers out.

A model that runs at a new size asks for the numbers of hundreds of dims at once. What they have in
common is worked out once, as when they are evaluated one by one, but nothing is looked up any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graft.base.dims import AnyDim, IndexExpr, broadcast_dim
from graft.base.errors import EvaluationError, TypeRuleError
from graft.base.polynomials import Atom

Numbers = Callable[[Sequence[int]], tuple[list[int], list[int]]]

_INFIX = {"floordiv": "//", "mod": "%"}
_FUNCTIONS = {"min": min, "max": max, "broadcast": broadcast_dim}


def function_of(
    dims: Sequence[AnyDim], symbols: Sequence[str], groups: Sequence[Sequence[int]] = ()
) -> Numbers:
    """A function of what the symbols stand for, which gives the dims' numbers and, of groups of
    positions among them, the largest. Where a dim has no value, it raises an error that does not
    say which."""
    writer = _Writer(symbols)
    results = "".join([f"{writer.text(dim)}, " for dim in dims])
    largest = "".join([f"max([{', '.join(f'n[{at}]' for at in group)}]), " for group in groups])
    lines = [*writer.lines, f"n = [{results}]", f"return n, [{largest}]"]
    given = "".join(f"s{number}, " for number in range(len(symbols)))
    text = f"def numbers({given}):\n" + "".join(f"    {line}\n" for line in lines)
    space: dict[str, Callable[..., tuple[list[int], list[int]]]] = {}
    # The text is made of numbers, operators and names from here; none of a model's gets into it.
    exec(compile(text, "<dims>", "exec"), {**_FUNCTIONS, "__builtins__": {}}, space)
    numbers = space["numbers"]

    def evaluated(given: Sequence[int]) -> tuple[list[int], list[int]]:
        try:
            return numbers(*given)
        except (ZeroDivisionError, TypeRuleError) as error:
            raise EvaluationError(f"some extent has no value here: {error}") from error

    return evaluated


class _Writer:
    """Writes expressions, and lines for the calls in them."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.lines: list[str] = []
        self._symbols = {name: f"s{number}" for number, name in enumerate(symbols)}
        self._calls: dict[Atom, str] = {}

    def text(self, dim: AnyDim) -> str:
        """An expression for a dim."""
        if isinstance(dim, int):
            return str(int(dim))
        if not isinstance(dim, IndexExpr):
            raise EvaluationError(f"the dimension '{dim}' is known only from data")
        terms = [
            "*".join([f"({factor})", *map(self._atom, monomial)]) for monomial, factor in dim.terms
        ]
        return " + ".join(terms)

    def _atom(self, atom: Atom) -> str:
        if not atom.is_call:
            return self._symbols[atom.name]
        known = self._calls.get(atom)
        if known is None:
            arguments = [f"({self.text(argument)})" for argument in atom.arguments]
            infix = _INFIX.get(atom.name)
            call = f" {infix} ".join(arguments) if infix else f"{atom.name}({', '.join(arguments)})"
            known = self._calls[atom] = f"c{len(self._calls)}"
            self.lines.append(f"{known} = {call}")
        return known
