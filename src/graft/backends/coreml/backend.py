"""The `coreml` backend: regions of floats as ML programs, the form of Core ML's models.

`coremltools` builds and checks programs and their weights on any system; only macOS runs them.
"""

from __future__ import annotations

from typing import Any

from graft.backends.coreml import runtime
from graft.backends.coreml.operators import EMITTERS, emit
from graft.base.dtypes import DType
from graft.byoc.contract import Backend, Match, PatternTable, Runner
from graft.byoc.formats.onnx_writer import extents
from graft.byoc.formats.operands import refused_match
from graft.ir.graph import Graph, Value
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal


class CoreMl(Backend):
    """Runs regions of float16 or float32 tensors of one to five axes and static shape."""

    name = "coreml"
    device = "Core ML"
    package = runtime.PACKAGE

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in sorted(EMITTERS)]

    def supports(self, match: Match) -> Refusal | None:
        return refused_match(self, match, (DType.FLOAT32, DType.FLOAT16), ranks=range(1, 6))

    def compile(self, region: Graph) -> bytes:
        return runtime.pack(program(region))

    def load(self, blob: bytes) -> Runner:
        return runtime.load(blob)


def program(region: Graph) -> Any:
    """A region as a program in MIL; inputs and outputs are named by their positions."""
    opset = runtime.tools().target.iOS16
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import Function, Program, types

    inputs = {}
    for n, value in enumerate(region.inputs):
        dtype = types.numpy_type_to_builtin_type(value.dtype.numpy)
        inputs[f"input_{n}"] = Builder.placeholder(extents(value), dtype)
    with Function(inputs, opset) as function:
        known: dict[Value | None, Any] = {None: None}
        known.update(zip(region.inputs, function.inputs.values(), strict=True))
        for node in region.nodes:
            known[node.output] = emit(Builder, node, known)
        results = enumerate(known[value] for value in region.outputs)
        function.set_outputs([Builder.identity(x=x, name=f"output_{n}") for n, x in results])
    result = Program()
    result.add_function("main", function)
    return result
