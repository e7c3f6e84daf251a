"""What the reference evaluator runs of a compiled program: graphs as text, and who reads them.

The run time does not know the operators. The run time of the reference backend, announced in the
entry-point group `graft.runtimes` as every backend's is, makes functions of such graphs. It serves
files of its own version of Graft alone: nothing else says what an operator means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from graft.base.errors import UserError
from graft.program.instructions import EvaluatedGraph
from graft.runtime.container import ArtifactError
from graft.runtime.loaders import announced
from graft.runtime.spaces import Runner

RUNTIME = "reference"  # as the entry point calls it

# Runs on operands, and on the symbols that are known by then.
Evaluator = Callable[[Sequence[Any], Mapping[str, int]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class SuppliedFunctions:
    """The Python functions that a program names: of regions, and of nodes on the evaluator."""

    functions: Mapping[str, Runner] = field(default_factory=dict)
    evaluators: Mapping[str, Evaluator] = field(default_factory=dict)


class EvaluatorRuntime(Protocol):
    """What the reference backend announces."""

    @property
    def version(self) -> str:
        """Of Graft."""
        ...

    def missing(self, operators: Iterable[str]) -> list[str]:
        """Those that it does not know."""
        ...

    def __call__(self, graph: EvaluatedGraph) -> Evaluator:
        """What runs a graph."""
        ...


def evaluator_runtime(operators: Sequence[str], made_by: str) -> EvaluatorRuntime:
    """The evaluator for a file that a version of Graft has made; refuses one that it may not run as
    that version would."""
    needs = f"needs the reference evaluator's operators {', '.join(operators)}"
    try:
        runtime: EvaluatorRuntime = announced(RUNTIME).load()
    except (ImportError, AttributeError, UserError) as error:
        raise ArtifactError(
            f"this file {needs}, which are not installed here", hint="install all of graft-compiler"
        ) from error
    if runtime.version != made_by:
        raise ArtifactError(
            f"this file {needs} as Graft {made_by} has them, and {runtime.version} is installed",
            hint="compile the model again, or install that version",
        )
    missing = runtime.missing(operators)
    if missing:
        raise ArtifactError(
            f"this file {needs}, and {', '.join(missing)} are not among those installed here",
            hint="import what defines them before loading the file",
        )
    return runtime
