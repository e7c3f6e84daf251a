"""Times networks on an NVIDIA GPU beside torch.compile: milliseconds and errors by network out.

Each contender prepares each network in a process of its own, all at once; then they take turns in
short rounds, a CUDA graph of the whole network being replayed each time. Errors are norms of
differences from PyTorch's results in float64, relative to the norm of these. Weights are drawn.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_tune import tune_networks
from benchmarks.harness import (
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.backends.cuda import driver, runtime
from graft.backends.cuda.selftest import backend_for, run_on_gpu
from graft.base.dtypes import Array
from graft.cli.bench.contenders import Task, as_list
from graft.cli.bench.model import with_batch
from graft.cli.bench.torch import torch_module
from graft.cli.options import positive
from graft.frontends.onnx.importer import import_model, import_source
from graft.frontends.onnx.reader import read_model
from graft.frontends.onnx.skeleton import write_skeleton_filled
from graft.passes.pipeline import optimize

PRECISIONS = {"float16": "float16", "float32": "TF32"}  # and their titles
CONTENDERS = {"graft": "Graft", "model": "untuned", "torch": "Inductor"}
ROUNDS, REPLAYS = 7, 50

Seconds = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Job:
    """A network in a precision; its file with all weights and its input are in the folder."""

    network: str
    folder: Path
    precision: str = "float32"
    threads: int = 1

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def input(self) -> Array:
        data: Array = np.load(self.folder / "input.npy")
        return data

    @property
    def reference(self) -> Path:
        """Where results in float64 are put."""
        return self.folder / "reference.npy"


def prepare_graft(job: Job) -> tuple[Array, Seconds]:
    """The whole network as one region, by schedules that were measured before."""
    blob = backend_for(job.precision).code(optimize(import_model(str(job.model))))
    region, inputs = runtime.load(blob), [job.input]
    result = np.empty_like(np.load(job.reference), np.float32)
    run_on_gpu(region, inputs, [result])
    return result, lambda: run_on_gpu(region, inputs, [result])


def prepare_model(job: Job) -> tuple[Array, Seconds]:
    """The same, by schedules that the model predicts to be the fastest."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRAFT_CACHE_DIR"] = folder
        return prepare_graft(job)


def prepare_torch(job: Job) -> tuple[Array, Seconds]:
    """torch.compile with weights frozen into the code, captured as a CUDA graph."""
    torch, module, (data,) = _on_gpu(job)
    dtype = getattr(torch, job.precision)
    compiled, data = torch.compile(module.to(dtype), dynamic=False), data.to(dtype)
    with torch.inference_mode():
        for _ in range(3):
            compiled(data)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (result,) = as_list(compiled(data))

    def seconds() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / REPLAYS

    seconds()
    return result.float().cpu().numpy(), seconds


def write_reference(job: Job) -> None:
    """What PyTorch computes in float64, operator by operator."""
    torch, module, (data,) = _on_gpu(job)
    with torch.inference_mode():
        (result,) = as_list(module.double()(data.double()))
    np.save(job.reference, result.cpu().numpy())


def _on_gpu(job: Job) -> tuple[Any, Any, list[Any]]:
    task = Task(job.model, {"input": job.input}, 1, Path(tempfile.mkdtemp(dir=job.folder)))
    torch, module, inputs = torch_module(task)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return torch, module.cuda(), [one.cuda() for one in inputs]


PREPARE = {"graft": prepare_graft, "model": prepare_model, "torch": prepare_torch}


def serve(pipe: Connection, prepare: Callable[[Any], tuple[Any, Seconds]], job: Any) -> None:
    """Prepare, send the result or what went wrong, then a time whenever it is asked for."""
    try:
        result, seconds = prepare(job)
        pipe.send(result)
    except Exception:  # noqa: BLE001 - it is recorded
        pipe.send(traceback.format_exc(limit=-3))
        return
    while pipe.recv():
        pipe.send(seconds())


class Contender:
    """A process that prepares a network: a job in, a result and a function that times it out."""

    def __init__(self, prepare: Callable[[Any], tuple[Any, Seconds]], job: Any) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, prepare, job), daemon=True)
        self._process.start()
        other.close()  # or the end of the process would not be noticed

    def result(self, limit: float | None = None) -> Any:
        """What it computes, or in words why it cannot within so many seconds."""
        if not self._pipe.poll(limit):
            self.end()
            return "it is not ready in time"
        try:
            return self._pipe.recv()
        except EOFError:
            return "its process has ended"

    def seconds(self, limit: float = 60.0) -> float:
        self._pipe.send(True)
        if not self._pipe.poll(limit):
            raise TimeoutError(f"no time within {limit:.0f} s")
        return float(self._pipe.recv())

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


def write_model(network: str, batch: int, folder: Path) -> None:
    """The network with all its weights, and an input."""
    source = read_model(network_path(network))
    source, graph = with_batch(source, batch) if batch > 1 else (source, import_source(source))
    write_skeleton_filled(source.model, source.weights, source.seeded, folder / "model.onnx")
    (value,) = graph.inputs
    data = np.random.default_rng(3).standard_normal(value.shape, np.float32)
    np.save(folder / "input.npy", data)


def measure(options: argparse.Namespace) -> Json:
    """By batch size, network and precision: seconds of each contender and its error."""
    reason = driver.missing()
    if reason:
        raise SystemExit(f"cannot run: {reason}")
    names = chosen_networks(options)
    with tempfile.TemporaryDirectory() as name:
        jobs = []
        for network in names:
            folder = Path(name, network)
            folder.mkdir()
            write_model(network, options.batch, folder)
            jobs += [Job(network, folder, precision) for precision in PRECISIONS]
        _in_processes(write_reference, jobs[:: len(PRECISIONS)])
        if options.tune:
            tune_networks([job.model for job in jobs[:: len(PRECISIONS)]], [*PRECISIONS])
        print(f"{len(jobs)} networks are written", flush=True)
        found: Json = {network: {} for network in names}
        for job, result in _compared(jobs, options.rounds):
            found[job.network][job.precision] = result
    return {"gpu": driver.device().name, "batches": {str(options.batch): found}}


def _in_processes(function: Callable[[Job], None], jobs: Sequence[Job]) -> None:
    with get_context("spawn").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        pool.map(function, jobs, chunksize=1)


def _compared(jobs: Sequence[Job], rounds: int) -> Iterator[tuple[Job, Json]]:
    """All prepare at once; nothing is timed before everyone is done with that."""
    running = [(job, {name: Contender(PREPARE[name], job) for name in CONTENDERS}) for job in jobs]
    ready: list[tuple[Job, dict[str, Contender], Json]] = []
    for job, contenders in running:
        errors: Json = {}
        for name, contender in contenders.items():
            result = contender.result()
            errors[name] = result if isinstance(result, str) else _distance(result, job)
            if isinstance(result, str):
                print(f"{job.network} {job.precision} {name}: {result}", flush=True)
        ready.append((job, contenders, errors))
    for job, contenders, errors in ready:
        able = [name for name in contenders if not isinstance(errors[name], str)]
        times = [{name: contenders[name].seconds() for name in able} for _ in range(rounds)]
        medians = {name: float(np.median([time[name] for time in times])) for name in able}
        shown = ", ".join(f"{n} {medians[n] * 1e3:.4f} ms, {errors[n]:.1e}" for n in able)
        print(f"{job.network} {job.precision}: {shown}", flush=True)
        yield job, {"seconds": medians, "errors": errors, "rounds": rounds}
    for _, contenders, _ in ready:  # not before: memory that goes back might disturb the others
        for contender in contenders.values():
            contender.end()


def _distance(result: Array, job: Job) -> float:
    expected = np.load(job.reference)
    distance = np.linalg.norm(result.astype(np.float64).reshape(expected.shape) - expected)
    return float(distance / np.linalg.norm(expected))


def merge(earlier: Json, new: Json) -> Json:
    """Networks and batch sizes that were measured before stay."""
    batches = dict(earlier["batches"])
    for batch, networks in new["batches"].items():
        batches[batch] = {**batches.get(batch, {}), **networks}
    return {**new, "batches": batches}


def row(network: str, result: Json) -> list[str]:
    """Milliseconds, how many times as fast as torch.compile, and errors."""
    seconds, errors = result["seconds"], result["errors"]
    times = [f"{seconds[n] * 1e3:.3f}" if n in seconds else "fails" for n in CONTENDERS]
    ratio = _speedup(result)
    shown = [f"{errors[n]:.1e}" if n in seconds else "" for n in ("graft", "torch")]
    return [network, *times, "" if math.isnan(ratio) else f"{ratio:.2f}", *shown]


def _speedup(result: Json) -> float:
    seconds = result["seconds"]
    is_comparable = "graft" in seconds and "torch" in seconds
    return float(seconds["torch"] / seconds["graft"]) if is_comparable else math.nan


def sections(record: Record) -> Iterator[Section]:
    lines: list[str] = []
    for batch, networks in record.data["batches"].items():
        for precision, title in PRECISIONS.items():
            results = {n: one[precision] for n, one in networks.items() if precision in one}
            header = [f"batch {batch}, {title}", *CONTENDERS.values(), "Graft is × as fast"]
            rows = [row(network, result) for network, result in results.items()]
            lines += [*table([*header, "error", "of Inductor"], rows), ""]
            ratios = [r for one in results.values() if not math.isnan(r := _speedup(one))]
            if ratios:
                lines += [f"Geometric mean: {statistics.geometric_mean(ratios):.2f} ×.", ""]
    text = f"On an {record.data['gpu']}. {record.made}"
    yield Section(DOCUMENT, "gpu", [*lines, *paragraph(text)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser)
    parser.add_argument("--batch", metavar="N", type=positive, default=1, help="(default 1)")
    parser.add_argument("--rounds", metavar="N", type=positive, default=ROUNDS)
    parser.add_argument("--tune", action="store_true", help="measure schedules of products first")


PACKAGES = {"torch": "PyTorch", "triton": "Triton", "llvmlite": "llvmlite"}
BENCHMARKS = (Benchmark("gpu", measure, sections, add_arguments, PACKAGES, merge=merge),)
