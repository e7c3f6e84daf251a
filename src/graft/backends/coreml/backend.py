"""The `coreml` backend: regions of floats as ML programs, the form of Core ML's models.

`coremltools` builds and checks programs and their weights on any system; only macOS runs them.
"""

from __future__ import annotations

from typing import Any

from graft.backends.coreml import runtime
from graft.backends.coreml.operators import EMITTERS, emit
from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Backend, Match, PatternTable, Runner
from graft.byoc.formats.onnx_writer import extents
from graft.byoc.formats.operands import not_compiled, unfit
from graft.ir.graph import Graph, Value
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal
from graft.runtime.loaders import installed_version

_RANK = 5  # Core ML's tensors have no more axes


class CoreMl(Backend):
    """Runs regions of float16 or float32 tensors with static shapes."""

    name = "coreml"
    device = "Core ML"
    dtypes = (DType.FLOAT32, DType.FLOAT16)

    @property
    def version(self) -> str:  # type: ignore[override]
        return installed_version(runtime.PACKAGE)

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in sorted(EMITTERS)]

    def supports(self, match: Match) -> Refusal | None:
        values = (*match.inputs, *match.constants, *match.outputs)
        reason = unfit(values, self.dtypes, largest_rank=_RANK)
        return Refusal(reason, match.root) if reason else not_compiled(self, match)

    def compile(self, region: Graph) -> bytes:
        return runtime.pack(program(region))

    def load(self, blob: bytes) -> Runner:
        return runtime.load(blob)


def program(region: Graph) -> Any:
    """A region as a program in MIL; inputs and outputs are named by their positions."""
    if not all(value.shape for value in (*region.inputs, *region.outputs)):
        raise UnsupportedError("Core ML's tensors have axes")
    opset = runtime.tools().target.iOS16
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.mil import Function, Program, types

    dtypes = [types.numpy_type_to_builtin_type(value.dtype.numpy) for value in region.inputs]
    pairs = zip(region.inputs, dtypes, strict=True)
    inputs = [Builder.placeholder(extents(value), dtype) for value, dtype in pairs]
    result = Program()
    with Function({f"input_{n}": x for n, x in enumerate(inputs)}, opset) as function:
        known: dict[Value | None, Any] = {None: None}
        known.update(zip(region.inputs, function.inputs.values(), strict=True))
        for node in region.nodes:
            known[node.outputs[0]] = emit(Builder, node, known)
        named = [(known[value], f"output_{n}") for n, value in enumerate(region.outputs)]
        function.set_outputs([Builder.identity(x=result, name=name) for result, name in named])
    result.add_function("main", function)
    return result
