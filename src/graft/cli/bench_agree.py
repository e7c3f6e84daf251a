"""Which contenders compute the same: outputs by contender in, the reasons against some out.

Nobody's outputs count as right from the outset. The largest group that agrees is believed; who
differs from it is not worth timing. Where no group is the largest, nobody is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graft.base.compare import Difference
from graft.cli.compare import Tolerance, compare
from graft.cli.records import in_expected_order
from graft.cli.report import counted, error_text, number
from graft.ir.evaluate import Data
from graft.ir.graph import Graph


def disagreements(
    graph: Graph, outputs: Mapping[str, Sequence[Data]], tolerance: Tolerance
) -> dict[str, str]:
    """What keeps contenders out of the comparison, by contender; nothing where all agree."""
    wanted = len(graph.outputs)
    misfits = {
        name: f"gives {counted(len(given), 'output')}, not {wanted}"
        for name, given in outputs.items()
        if len(given) != wanted
    }
    fitting = {name: given for name, given in outputs.items() if name not in misfits}
    return misfits | _minority(graph, fitting, tolerance)


def _minority(
    graph: Graph, outputs: Mapping[str, Sequence[Data]], tolerance: Tolerance
) -> dict[str, str]:
    """Those who differ from the largest group, and how."""
    found = {
        expected: {
            actual: _difference(graph, outputs[actual], outputs[expected], tolerance)
            for actual in outputs
        }
        for expected in outputs
    }
    groups = {
        expected: frozenset(name for name, reason in reasons.items() if not reason)
        for expected, reasons in found.items()
    }
    size = max(map(len, groups.values()), default=0)
    largest = {group for group in groups.values() if len(group) == size}
    if len(largest) == 1:
        believed = next(name for name, group in groups.items() if len(group) == size)
        return {name: f"differs from {believed}: {r}" for name, r in found[believed].items() if r}
    return {name: _without_majority(name, found) for name in outputs}


def _without_majority(name: str, found: Mapping[str, Mapping[str, str]]) -> str:
    """Who it differs from, and that this does not tell who is right."""
    other, reason = next((other, one[name]) for other, one in found.items() if one[name])
    return f"differs from {other}, and no majority tells which is right: {reason}"


def _difference(
    graph: Graph, actual: Sequence[Data], expected: Sequence[Data], tolerance: Tolerance
) -> str:
    """The first output that differs, in words; empty if none does."""
    aligned, _ = in_expected_order(graph, actual, expected, tolerance)
    for name, mine, other in zip(graph.output_names, aligned, expected, strict=True):
        difference = compare(mine, other, tolerance)
        if not difference.agrees:
            return f"output '{name}': {_in_words(difference)}"
    return ""


def _in_words(difference: Difference) -> str:
    if difference.problem:
        return difference.problem
    wrong = f"{number(difference.mismatches)} of {number(difference.size)} wrong"
    return f"{wrong}, max abs error {error_text(difference.max_absolute)}"
