"""Times detectors end to end on an NVIDIA GPU beside PyTorch: milliseconds by network out.

An image goes in and detections come out in the host's memory, copies and Python included. Each
contender is prepared in a process of its own, one after another, so that no compilation disturbs
the measurements of another's prices; those that are not ready in time are left out. Then contenders
alternate. PyTorch runs the torchvision module of which the ONNX file
is an export, with the same weights. Detections are compared with those of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

import graft
from benchmarks.detector_modules import detector_module
from benchmarks.gpu import Contender, Job
from benchmarks.harness import (
    DETECTORS,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.backends.cuda import driver
from graft.base.dtypes import Array
from graft.base.progress import Stage
from graft.cli.options import positive
from graft.frontends.onnx.reader import write_filled

CONTENDERS = {"graft": "Graft, GPU and host", "torch": "PyTorch, GPU", "host": "Graft, host alone"}
ROUNDS, RUNS, WARM_UP_RUNS = 7, 10, 5
READY_SECONDS, HOST_SECONDS = 200, 60  # until all are ready; of these, for the host alone
_OVERLAP = 0.5  # of boxes that count as the same

Detections = Sequence[Array]  # boxes, scores, labels
Prepared = tuple[tuple[Detections, Json], Callable[[], float]]


def prepare_graft(job: Job) -> Prepared:
    """Placed on the GPU and the host; products are rounded to TF32."""
    return _compiled(job, ["cuda", "host"])


def prepare_host(job: Job) -> Prepared:
    """On the host alone, whose kernels are cached since the placement was compiled."""
    return _compiled(job, ["host"])


def _compiled(job: Job, target: Sequence[str]) -> Prepared:
    begun, stages = time.perf_counter(), StageTimes()
    module = graft.compile(str(job.model), target=target, threads=job.threads, report=stages)
    facts = {"compile_seconds": time.perf_counter() - begun, "stages": stages.finished()}
    facts["placement"] = str(module.placement)
    (value,) = module.get_inputs()
    feeds = {value.name: job.input}

    def run() -> Detections:
        detections: Detections = module.run(None, feeds)
        return detections

    return (run(), facts), _timed(run)


def prepare_torch(job: Job) -> Prepared:
    """The module of torchvision, operator by operator; the fastest of cuDNN's kernels."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    module, image = detector_module(job.network, job.model).cuda(), torch.from_numpy(job.input[0])

    def run() -> Detections:
        with torch.inference_mode():
            (found,) = module([image.cuda()])
            return [found[name].cpu().numpy() for name in ("boxes", "scores", "labels")]

    return (run(), {}), _timed(run)


PREPARE = {"graft": prepare_graft, "torch": prepare_torch, "host": prepare_host}


class StageTimes:
    """Seconds of each stage of a compilation, from the reports of its progress."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._current, self._begun = "starting", time.perf_counter()

    def __call__(self, stage: Stage) -> None:
        now = time.perf_counter()
        self._seconds[self._current] = self._seconds.get(self._current, 0.0) + now - self._begun
        self._current, self._begun = stage.name, now

    def finished(self) -> dict[str, float]:
        """By name, the longest first."""
        self(Stage(self._current))
        return dict(sorted(self._seconds.items(), key=lambda item: -item[1]))


def _timed(run: Callable[[], Detections]) -> Callable[[], float]:
    """The median seconds of a few runs."""

    def seconds() -> float:
        times = []
        for _ in range(RUNS):
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    for _ in range(WARM_UP_RUNS):
        run()
    return seconds


def expected_detections(job: Job) -> Detections:
    """What ONNX Runtime finds on the processor."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(job.model), providers=["CPUExecutionProvider"])
    (value,) = session.get_inputs()
    detections: Detections = session.run(None, {value.name: job.input})
    return detections


def agreement(found: Detections, expected: Detections) -> float:
    """The share of expected detections of which there is one with that label and nearly that box,
    each found one counting once."""
    boxes, _, labels = found
    left, same = list(range(len(labels))), 0
    for box, label in zip(expected[0], expected[2], strict=True):
        alike = [n for n in left if labels[n] == label and _overlap(boxes[n], box) >= _OVERLAP]
        if alike:
            left.remove(max(alike, key=lambda number: _overlap(boxes[number], box)))
            same += 1
    return same / max(len(expected[2]), 1)


def _overlap(one: Array, other: Array) -> float:
    """Intersection of two boxes over their union; 1 where they are the same to a pixel, which
    matters of empty ones."""
    if np.abs(one - other).max() < 1:
        return 1.0
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    common = float(np.prod(np.maximum(sides, 0)))
    union = sum(float(np.prod(box[2:] - box[:2])) for box in (one, other)) - common
    return common / union if union > 0 else 0.0


def measure(options: argparse.Namespace) -> Json:
    """By network: seconds of each contender, detections like ONNX Runtime's, or why there is none;
    rows are printed when they are measured."""
    reason = driver.missing()
    if reason:
        raise SystemExit(f"cannot run: {reason}")
    networks: Json = {}
    with tempfile.TemporaryDirectory() as name:
        jobs = [_written(network, options.threads, Path(name)) for network in _chosen(options)]
        last = time.monotonic() + options.ready - HOST_SECONDS
        ready = [(job, *prepare_contenders(job, last)) for job in jobs]
        for job, contenders, result in ready:
            try:
                networks[job.network] = _measured(job, contenders, result, options.rounds)
            except (EOFError, OSError) as error:  # a process has ended or hangs: the rest counts
                print(f"{job.network}: {type(error).__name__}: {error}", flush=True)
                continue
            print("| " + " | ".join(row(job.network, networks[job.network])), flush=True)
        for _, contenders, _ in ready:
            for contender in contenders.values():
                contender.end()
    return {"gpu": driver.device().name, "networks": networks}


def _chosen(options: argparse.Namespace) -> Sequence[str]:
    return chosen_networks(options, DETECTORS)


def _written(network: str, threads: int, folder: Path) -> Job:
    """The model with all its weights, and an image."""
    job = Job(network, folder / network, threads=threads)
    job.folder.mkdir()
    write_filled(network_path(network), job.model)
    (value,) = onnx.load(job.model).graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    np.save(job.folder / "input.npy", np.random.default_rng(4).random(shape, np.float32))
    return job


def prepare_contenders(job: Job, last: float) -> tuple[dict[str, Contender], Json]:
    """The contenders, started one after another, with the detections and facts of each, or why it
    was not ready by the deadline; the host alone has more time."""
    contenders: dict[str, Contender] = {}
    results: Json = {}
    for name, prepare in PREPARE.items():
        deadline = last + HOST_SECONDS if name == "host" else last
        contenders[name] = contender = Contender(prepare, job)
        results[name] = result = contender.result(max(deadline - time.monotonic(), 0.0))
        print(
            f"{job.network} {name}: {result if isinstance(result, str) else result[1]}", flush=True
        )
    return contenders, results


def _measured(job: Job, contenders: Mapping[str, Contender], results: Json, rounds: int) -> Json:
    able = [name for name in contenders if not isinstance(results[name], str)]
    expected = expected_detections(job)
    times = [{name: contenders[name].seconds() for name in able} for _ in range(rounds)]
    return {
        "seconds": {n: statistics.median(one[n] for one in times) for n in able},
        "agreement": {name: agreement(results[name][0], expected) for name in able},
        "counts": {name: len(results[name][0][2]) for name in able},
        "expected": len(expected[2]),
        "facts": {name: results[name][1] for name in able},
        "problems": {name: one for name, one in results.items() if isinstance(one, str)},
    }


def merge(earlier: Json, new: Json) -> Json:
    """Networks that were measured before stay."""
    return {**new, "networks": {**earlier["networks"], **new["networks"]}}


def row(network: str, result: Json) -> list[str]:
    """Milliseconds, how many times as fast as the others, and detections like ONNX Runtime's."""
    seconds = result["seconds"]
    times = [f"{seconds[n] * 1e3:.2f}" if n in seconds else "none" for n in CONTENDERS]
    ratios = [
        f"{seconds[other] / seconds['graft']:.2f}" if {"graft", other} <= {*seconds} else ""
        for other in ("torch", "host")
    ]
    alike = [
        f"{result['agreement'][n]:.0%}" if n in seconds else "" for n in ("graft", "torch", "host")
    ]
    compiled = result["facts"].get("graft", {}).get("compile_seconds")
    return [network, *times, *ratios, *alike, "" if compiled is None else f"{compiled:.0f} s"]


HEADER = (
    *("milliseconds", *CONTENDERS.values(), "× PyTorch", "× the host"),
    *("detections like ONNX Runtime's", "of PyTorch", "of the host", "compiled in"),
)


def sections(record: Record) -> Iterator[Section]:
    networks = record.data["networks"]
    lines = table(HEADER, [row(name, result) for name, result in networks.items()])
    placements = [
        f"{name}: {facts['placement']}."
        for name, result in networks.items()
        if (facts := result["facts"].get("graft"))
    ]
    text = " ".join([*placements, f"On an {record.data['gpu']}.", str(record.made)])
    yield Section(DOCUMENT, "gpu-detectors", [*lines, "", *paragraph(text)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser, DETECTORS)
    parser.add_argument("--rounds", metavar="N", type=positive, default=ROUNDS)
    parser.add_argument(
        "--ready", metavar="S", type=positive, default=READY_SECONDS, help="time limit to prepare"
    )


PACKAGES = {"torch": "PyTorch", "torchvision": "torchvision", "onnxruntime": "ONNX Runtime"}
BENCHMARKS = (Benchmark("gpu-detectors", measure, sections, add_arguments, PACKAGES, merge=merge),)
