"""torch.compile as a contender: a model file and inputs in, a function that runs one inference out.

onnx2torch imports the model, but reads weights only where they are stored, and shapes only while it
runs. Both would prevent torch.compile from generating good code, or any, so ONNX Runtime folds
constants before, and sizes become constants for the given inputs after.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from graft.cli.bench.contenders import Ready, Task, as_list, package, version_of
from graft.cli.bench.rounds import ContenderError
from graft.ir.evaluate import Data


def ready_torch(task: Task) -> Ready:
    """torch.compile with weights frozen into the code."""
    torch, module, inputs = torch_module(task)
    compiled = torch.compile(module, dynamic=False)

    def infer() -> Sequence[Data]:
        with torch.inference_mode():
            results = compiled(*inputs)
        return [one.numpy() for one in as_list(results)]

    version = f"{torch.__version__} (onnx2torch {version_of('onnx2torch')})"
    return Ready(version, infer)


def torch_module(task: Task) -> tuple[Any, Any, list[Any]]:
    """PyTorch, set to freeze weights, the model as a module with static shapes, and its inputs."""
    torch = package("torch", "pip install torch")
    with _perhaps_without_torchvision():
        install = "pip install --no-deps onnx2torch"
        importer = package("onnx2torch", install, "no importer installed")
    torch.set_num_threads(task.threads)
    inductor = package("torch._inductor.config", "pip install torch")
    inductor.freezing = True
    inductor.compile_threads = 1  # in this process: no others to be stopped and ended
    inputs = [torch.from_numpy(np.array(data)) for data in task.feeds.values()]
    module = importer.convert(str(_folded(task))).eval()
    return torch, _with_static_shapes(torch, module, inputs), inputs


class _Absent(ModuleType):
    """A module that can be imported from, but whose functions cannot be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python looks these up itself
            raise AttributeError(name)

        def refuse(*_arguments: Any, **_options: Any) -> Any:
            message = f"{self.__name__}.{name} is not installed"
            raise ContenderError(message, hint="pip install torchvision")

        return refuse


@contextmanager
def _perhaps_without_torchvision() -> Iterator[None]:
    """Let onnx2torch be imported without torchvision.

    It needs torchvision for RoiAlign and NonMaxSuppression only, and not every build of PyTorch has
    a torchvision."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    whole, operators = _Absent("torchvision"), _Absent("torchvision.ops")
    whole.ops = operators  # type: ignore[attr-defined]
    sys.modules |= {whole.__name__: whole, operators.__name__: operators}
    try:
        yield
    finally:
        del sys.modules[whole.__name__], sys.modules[operators.__name__]


def _folded(task: Task) -> Path:
    """The model after ONNX Runtime's basic optimisations, which use ONNX's own operators alone."""
    onnxruntime = package("onnxruntime", "pip install onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    path = task.folder / "folded.onnx"
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(task.model), options, providers=["CPUExecutionProvider"])
    return path


def _with_static_shapes(torch: Any, module: Any, inputs: Sequence[Any]) -> Any:
    """The module with constants for sizes and positions that it would read from tensors."""
    recorder = _recorder(torch, module)
    with torch.no_grad():
        recorder.run(*inputs)
    results = recorder.results
    for node in list(module.graph.nodes):
        if node.op != "call_module":
            continue
        submodule = module.get_submodule(node.target)
        operands = [results[one.name] for one in node.args]
        fixed = _fixed(type(submodule).__name__, submodule, operands, results[node.name])
        if fixed is not None:
            name, *numbers = fixed
            with module.graph.inserting_after(node):
                arguments = (node.args[0], *numbers)
                replacement = module.graph.call_function(getattr(torch, name), arguments)
            results[replacement.name] = results[node.name]
            node.replace_all_uses_with(replacement)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _fixed(kind: str, module: Any, operands: Sequence[Any], result: Any) -> tuple[Any, ...] | None:
    """The PyTorch function of a module of onnx2torch, and its constant arguments."""
    match kind:
        case "OnnxReshape" | "OnnxSqueezeDynamicAxes" | "OnnxUnsqueezeDynamicAxes":
            return "reshape", tuple(result.shape)
        case "OnnxExpand":
            return "broadcast_to", tuple(result.shape)
        case "OnnxSplit13":
            return "split", [one.shape[module.axis] for one in result], module.axis
        case "OnnxGather" if operands[1].ndim == 0:
            return "select", module._axis, int(operands[1])
    return None


def _recorder(torch: Any, module: Any) -> Any:
    """An interpreter of the module that keeps each result."""

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(module, garbage_collect_values=False)
            self.results: dict[str, Any] = {}

        def run_node(self, node: Any) -> Any:
            self.results[node.name] = super().run_node(node)
            return self.results[node.name]

    return Recorder()
