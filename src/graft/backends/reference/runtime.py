"""The reference evaluator at run time: a graph out of a file in, a function that evaluates it out.

Unlike the run times of other backends it stands on the operators (`ir` and `ops`), whose meaning is
what it runs; neither LLVM nor `onnx` is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

from graft.ir.evaluate import evaluate, evaluator_of
from graft.ir.parser import from_text
from graft.ops import OPS
from graft.ops.control import CompositeAttrs
from graft.program.instructions import EvaluatedGraph
from graft.runtime.evaluated import Evaluator


class ReferenceRuntime:
    """What `graft.load` asks for nodes on the evaluator."""

    @property
    def version(self) -> str:
        """Of Graft."""
        return version("graft-compiler")

    def missing(self, operators: Iterable[str]) -> list[str]:
        """Those that nothing in this process defines."""
        return [name for name in operators if name not in OPS]

    def __call__(self, graph: EvaluatedGraph) -> Evaluator:
        """What runs the one node of a graph, or the whole model that it stands for."""
        (node,) = from_text(graph.text, graph.constants).nodes
        attrs = node.attrs
        if isinstance(attrs, CompositeAttrs):
            return lambda operands, _symbols: evaluate(attrs.body, operands)
        return evaluator_of(node)


EVALUATOR = ReferenceRuntime()
