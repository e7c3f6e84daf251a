"""The contenders: a model file and inputs in, a function that runs one inference out.

Each contender is set up as its own documentation advises for low latency on a CPU, with the given
number of threads, in the model's precision. Its package is only imported in its own process.

Most of them let idle threads spin for a while. That makes them faster and is left on: processes are
stopped between their slices, so that spinning does not slow down others.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

import graft
from graft.cli.bench.rounds import GRAFT, ContenderError
from graft.cli.options import ACCURACIES
from graft.cli.placement import write_plan
from graft.ir.evaluate import Data
from graft.runtime.artifact import SUFFIX

DEFAULT = ACCURACIES[0]

Infer = Callable[[], Sequence[Data]]


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a contender, which may write into the folder."""

    model: Path
    feeds: Mapping[str, Data]
    threads: int
    folder: Path
    asked: Mapping[str, Any] = field(default_factory=dict)  # of `graft.compile`
    save_plan: Path | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A contender that has compiled the model: `infer` runs it once and gives all its outputs."""

    version: str
    infer: Infer


@dataclass(frozen=True, slots=True)
class Contender:
    """A runtime, and the function (`module:name`) that prepares it."""

    name: str
    title: str
    function: str


def _contender(name: str, title: str, module: str = __name__) -> Contender:
    return Contender(name, title, f"{module}:ready_{name}")


PEERS = {
    one.name: one
    for one in (
        _contender("onnxruntime", "ONNX Runtime"),
        _contender("openvino", "OpenVINO"),
        _contender("torch", "torch.compile", "graft.cli.bench.torch"),
        _contender("iree", "IREE"),
        _contender("tvm", "TVM"),
    )
}
CONTENDERS = {GRAFT: _contender(GRAFT, "Graft"), **PEERS}


def ready_graft(task: Task) -> Ready:
    """Graft with the requested targets, or a compiled file."""
    if task.model.suffix == SUFFIX:
        module = graft.load(task.model, threads=task.threads)
    else:
        module = graft.compile(task.model, threads=task.threads, **task.asked)
    if task.save_plan is not None:
        write_plan(module, task.save_plan)
    simulated = {one.backend for one in module.regions.values() if one.simulated}
    if simulated:
        raise ContenderError(
            f"what it runs on {' and '.join(sorted(simulated))} is simulated, and takes as long as"
            " the simulation",
            hint="`graft explain` tells what the device would take",
        )
    accuracy = task.asked.get("accuracy", DEFAULT)
    strictly = "" if accuracy == DEFAULT else f", accuracy {accuracy}"
    version = f"{graft.__version__} ({module.placement}{strictly})"
    return Ready(version, lambda: module.run(None, task.feeds))


def ready_onnxruntime(task: Task) -> Ready:
    """All graph optimisations; a run's threads spin while they wait for each other."""
    onnxruntime = package("onnxruntime", "pip install onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = task.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(task.model), options, providers=["CPUExecutionProvider"]
    )
    return Ready(onnxruntime.__version__, lambda: session.run(None, dict(task.feeds)))


def ready_openvino(task: Task) -> Ready:
    """One stream with all threads; left to itself, it computes in bfloat16 where it can."""
    openvino = package("openvino", "pip install openvino")
    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": task.threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(core.read_model(str(task.model)), "CPU", settings)
    request = compiled.create_infer_request()
    feeds = dict(task.feeds)

    def infer() -> Sequence[Data]:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [results[port] for port in compiled.outputs]

    return Ready(openvino.__version__.partition("-")[0], infer)


def ready_iree(task: Task) -> Ready:
    """Code for this processor, run by the driver with threads of its own."""
    install = "pip install iree-base-compiler iree-base-runtime"
    tools = package("iree.compiler.tools", install)
    runtime = package("iree.runtime", install)
    importer = package("iree.compiler.tools.import_onnx.__main__", install)
    imported, program = str(task.folder / "model.mlir"), str(task.folder / "model.vmfb")
    importer.main(importer.parse_arguments([str(task.model), "-o", imported]))
    tools.compile_file(
        imported,
        output_file=program,
        input_type="onnx",
        target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"],
    )
    runtime.flags.parse_flags(f"--task_topology_group_count={task.threads}")
    module = runtime.load_vm_flatbuffer_file(program, driver="local-task")
    names = (
        module.vm_module.function_names
    )  # also of one that initialises, and of asynchronous ones
    main = module[next(name for name in names if not name.startswith("__") and "$" not in name)]
    inputs = list(task.feeds.values())
    return Ready(
        version_of("iree-base-compiler"), lambda: [one.to_host() for one in as_list(main(*inputs))]
    )


def ready_tvm(task: Task) -> Ready:
    """Its default pipeline for this processor; tuning would take hours."""
    install = "pip install apache-tvm"
    tvm = package("tvm", install)
    relax = package("tvm.relax", install)
    frontend = package("tvm.relax.frontend.onnx", install)
    module = frontend.from_onnx(
        onnx.load(task.model),
        shape_dict={name: list(data.shape) for name, data in task.feeds.items()},
        dtype_dict={name: str(data.dtype) for name, data in task.feeds.items()},
    )
    device = tvm.cpu()
    program = tvm.compile(module, target=tvm.target.Target.from_device(device))
    main = relax.VirtualMachine(program, device)["main"]
    inputs = [tvm.runtime.tensor(data) for data in task.feeds.values()]
    return Ready(
        f"{tvm.__version__} (not tuned)", lambda: [one.numpy() for one in as_list(main(*inputs))]
    )


def package(name: str, install: str, problem: str = "not installed") -> Any:
    """A package that may be missing; its output during the import is dropped."""
    try:
        with redirect_stdout(io.StringIO()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, but lacks something itself
        raise ContenderError(problem, hint=install) from error


def version_of(distribution: str) -> str:
    return importlib.metadata.version(distribution)


def as_list(results: Any) -> list[Any]:
    """The outputs of a runtime that returns one as itself and several as a sequence."""
    is_one = hasattr(results, "shape") or not isinstance(results, Sequence)
    return [results] if is_one else list(results)
