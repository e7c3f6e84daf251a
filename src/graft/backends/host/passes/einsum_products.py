"""Makes Einstein sums of two operands products of matrices, where memory has them in order.

A graph enters; `einsum` leaves as `nn.batch_matmul` between reshapes wherever each operand is a
batch of matrices as it lies in memory: letters of the batch first, then rows and columns. A letter
of the batch that one operand lacks is an axis of extent 1 there. Sums that would need a transpose
stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.base.dims import UNKNOWN, AnyDim, product
from graft.ir.graph import Graph, Value
from graft.ops.linear import parse_equation
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("einsum_products")


def einsum_products(graph: Graph) -> Graph:
    """Apply the rule to every sum."""
    return apply_rules(graph, RULES)


@dataclass(frozen=True, slots=True)
class _Letters:
    """What the letters of a sum stand for: the batch, rows, columns, and what is summed over."""

    batch: str
    rows: str
    columns: str
    summed: str


@RULES.rule(is_op("einsum"))
def product_of_matrices(site: Site) -> Replacement:
    node = site.node
    equation = parse_equation(node.attrs.equation)
    shapes = [value.tensor.shape for value in node.args]
    if len(equation.terms) != 2 or "." in "".join((*equation.terms, equation.result)):
        return Refusal("it is no sum of two operands with a letter for each axis")
    if any(shape is None or UNKNOWN in shape or 0 in shape for shape in shapes):
        return Refusal("the extents are not known, or there are none")
    extents: dict[str, AnyDim] = {}
    for term, value in zip(equation.terms, node.args, strict=True):
        named = zip(term, value.tensor.shape or (), strict=True)
        if any(extents.setdefault(letter, dim) != dim for letter, dim in named):
            return Refusal("an axis is repeated along another")
    if not node.output.dtype.is_float or not node.output.tensor.shape:
        return Refusal("the result is a number, or not floating-point")
    first, second = equation.terms
    letters = _letters(first, second, equation.result)
    swapped = letters is None
    if letters is None:
        first, second = second, first
        letters = _letters(first, second, equation.result)
    if letters is None:
        return Refusal("the result is no batch of matrices with rows of one operand each")
    left, right = node.args[::-1] if swapped else node.args
    axes = [_axes(term, letters) for term in (first, second)]
    if None in axes:
        return Refusal("an operand is no batch of matrices as it lies in memory")
    matrices = [
        _as_matrices(site, value, pair or (), letters.batch, term, extents)
        for value, pair, term in zip((left, right), axes, (first, second), strict=True)
    ]
    is_summed_first = [pair is not None and pair[0] == letters.summed for pair in axes]
    flags = {"transpose_a": is_summed_first[0], "transpose_b": not is_summed_first[1]}
    sums = site.emit("nn.batch_matmul", *matrices, **flags)
    return site.emit("reshape", sums, shape=node.output.tensor.shape)


def _letters(first: str, second: str, result: str) -> _Letters | None:
    """The letters where the result has rows of the first operand and columns of the second."""
    terms = (first, second, result)
    if any(len(set(term)) < len(term) for term in terms) or set(result) - set(first + second):
        return None
    summed = "".join(letter for letter in first if letter not in result)
    if set(summed) != set(second) - set(result) or not summed:
        return None
    columns = _last_run(result, set(second) - set(first))
    rows = _last_run(result[: len(result) - len(columns)], set(first) - set(second))
    batch = result[: len(result) - len(columns) - len(rows)]
    return _Letters(batch, rows, columns, summed) if rows and columns else None


def _last_run(text: str, members: set[str]) -> str:
    """The letters at the end that are all of some."""
    start = len(text)
    while start and text[start - 1] in members:
        start -= 1
    return text[start:]


def _axes(term: str, letters: _Letters) -> tuple[str, str] | None:
    """The letters of an operand's rows and of its columns, if it is a batch of matrices."""
    batch = "".join(letter for letter in letters.batch if letter in term)
    kept = letters.rows if letters.rows[0] in term else letters.columns
    pairs = (kept, letters.summed), (letters.summed, kept)
    return next((pair for pair in pairs if term == batch + "".join(pair)), None)


def _as_matrices(
    site: Site,
    value: Value,
    axes: tuple[str, ...],
    batch: str,
    term: str,
    extents: dict[str, AnyDim],
) -> Value:
    matrix = (product(extents[letter] for letter in axis) for axis in axes)
    shape = (*(extents[letter] if letter in term else 1 for letter in batch), *matrix)
    return site.emit("reshape", value, shape=shape)
