"""The `coreml` backend: regions of floats as ML programs, the form of Core ML's models.

`coremltools` builds and checks programs and their weights on any system; only macOS runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graft.backends.coreml import runtime
from graft.backends.coreml.operators import EMITTERS
from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Backend, Match, PatternTable, Runner
from graft.byoc.formats.onnx_writer import extents
from graft.byoc.formats.operands import unfit
from graft.ir.graph import Graph, Node, Value
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal

_RANK = 5  # Core ML's tensors have no more axes


class CoreMl(Backend):
    """Runs regions of float16 or float32 tensors with static shapes."""

    name = "coreml"
    device = "Core ML"
    dtypes = (DType.FLOAT32, DType.FLOAT16)

    @property
    def version(self) -> str:  # type: ignore[override]
        return runtime.version()

    def missing(self) -> str:
        return runtime.missing()

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in sorted(EMITTERS)]

    def supports(self, match: Match) -> Refusal | None:
        values = (*match.inputs, *match.constants, *match.outputs)
        reason = unfit(values, self.dtypes, largest_rank=_RANK)
        if not reason:
            try:
                program(match.region)
            except UnsupportedError as error:
                reason = error.message
        return Refusal(reason, match.root) if reason else None

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

    kinds = {DType.FLOAT32: types.fp32, DType.FLOAT16: types.fp16}
    inputs = {
        f"input_{index}": Builder.placeholder(shape=extents(value), dtype=kinds[value.dtype])
        for index, value in enumerate(region.inputs)
    }
    with Function(inputs, opset_version=opset) as function:
        known: dict[Value | None, Any] = {None: None}
        known.update(zip(region.inputs, function.inputs.values(), strict=True))
        for node in region.nodes:
            known[node.outputs[0]] = emit(Builder, node, known)
        results = [
            Builder.identity(x=known[value], name=f"output_{index}")
            for index, value in enumerate(region.outputs)
        ]
        function.set_outputs(results)
    result = Program()
    result.add_function("main", function)
    return result


def emit(builder: Any, node: Node, known: Mapping[Value | None, Any]) -> Any:
    """The variable of a node's result, or the array of a constant's."""
    if node.op.name == "constant":
        return node.attrs.value.array
    if node.op.name not in EMITTERS:
        raise UnsupportedError(f"{node.op.name} has no MIL form here", node.location)
    attributes = dict(node.op.alternatives)  # that may also be operands
    late = [attributes[i] for i, value in enumerate(node.inputs) if value and i in attributes]
    if late:
        raise UnsupportedError(f"'{late[0]}' of {node.op.name} is known at run time only")
    operands = [known[value] for i, value in enumerate(node.inputs) if i not in attributes]
    name, arguments = EMITTERS[node.op.name](node, *operands)
    try:
        return getattr(builder, name)(**arguments, name=node.output.name)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UnsupportedError(f"coremltools does not take {name}: {error}") from error
