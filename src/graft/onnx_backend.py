"""ONNX's own backend interface, so that its test suite runs against Graft.

import graft.onnx_backend as backend
backend.prepare(model, target=["reference"]).run([x])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from graft.base.errors import UserError
from graft.compiler import DEFAULT_TARGET, compile
from graft.module import Module


class GraftRep(BackendRep):
    """A compiled model behind ONNX's interface."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def run(self, inputs: Any, **_kwargs: Any) -> tuple[Any, ...]:
        """Run on inputs in order, or by name; gives a named tuple of outputs."""
        names = [argument.name for argument in self.module.get_inputs()]
        if not isinstance(inputs, dict | list | tuple) or len(inputs) != len(names):
            listed = ", ".join(f"'{name}'" for name in names) or "none"
            raise UserError("inputs are a list in order, or a dict", hint=f"inputs: {listed}")
        feeds = inputs if isinstance(inputs, dict) else dict(zip(names, inputs, strict=True))
        outputs = self.module.run(None, feeds)
        output_names = [argument.name for argument in self.module.get_outputs()]
        result: tuple[Any, ...] = namedtupledict("Outputs", output_names)(*outputs)
        return result


class GraftBackend(Backend):
    """Graft as an ONNX backend. The device is always the CPU."""

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        target: str | Sequence[str] = DEFAULT_TARGET,
        strict: bool = False,
        **_kwargs: Any,
    ) -> GraftRep:
        """Compile a model; `target` and `strict` are those of `graft.compile`."""
        if not cls.supports_device(device):
            raise UserError(f"Graft runs on the CPU, not on '{device}'")
        return GraftRep(compile(model, target=target, strict=strict))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile and run."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,  # noqa: ARG003  (types are inferred)
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node on arrays."""
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        return cls.run_model(_model_of(node, inputs, opset), inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Only the CPU."""
        return device.partition(":")[0] == "CPU"


def _model_of(node: onnx.NodeProto, inputs: Sequence[Any], opset: int) -> onnx.ModelProto:
    names = [name for name in dict.fromkeys(node.input) if name]
    helper = onnx.helper
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)
        )
        for name, array in zip(names, inputs, strict=True)
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", infos, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])


prepare = GraftBackend.prepare
run_model = GraftBackend.run_model
run_node = GraftBackend.run_node
supports_device = GraftBackend.supports_device
