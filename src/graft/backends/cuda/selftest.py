"""`python -m graft.backends.cuda.selftest`: the device suite, where there is a GPU.

The author's kit in every precision, and whole networks (`--models`, a folder of ONNX files) against
ONNX Runtime, each as a CUDA graph and as one persistent kernel, timed by the GPU's clock. Prints a
table; the exit code is 1 where a result is wrong. `tests/backends/cuda/test_device.py` has more.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from ctypes import c_void_p
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from graft.backends.cuda import driver, runtime
from graft.backends.cuda.backend import Cuda, blob_of
from graft.backends.cuda.persistent import (
    END_OFFSET,
    GATES,
    LINE,
    OPEN_OFFSET,
    persistent_plan,
)
from graft.backends.cuda.plan import RegionPlan
from graft.base.dtypes import Array
from graft.base.progress import Stage
from graft.byoc.contract import Limits
from graft.byoc.kit.conformance import conformance
from graft.byoc.kit.report import Report
from graft.byoc.region import for_backend
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.reader import write_filled
from graft.passes.pipeline import optimize
from graft.rewrite.rule import Refusal
from graft.runtime.spaces import uploaded

WAYS = ("graph", "persistent")  # to launch a region
PRECISIONS = ("float32", "float16", "bfloat16", "strict")
# What networks may differ by: random weights make some of them amplify rounding a hundredfold.
_NETWORK_TOLERANCE = {"float32": 6e-2, "float16": 6e-2, "bfloat16": 4e-1, "strict": 1e-4}
_REPEATED = 20


def backend_for(precision: str, kind: type[Cuda] = Cuda, way: str = "") -> Cuda:
    """The backend that computes in a precision, or in exact float32."""
    return kind("float32", True, way) if precision == "strict" else kind(precision, way=way)


def run_on_gpu(region: runtime.Region, inputs: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Fill the outputs; seconds of a run."""
    gpu = region.device
    there, results = operands_on_gpu(gpu, inputs, [np.full_like(one, np.nan) for one in outputs])
    seconds = region.seconds(there, results)  # what is not written shows
    for memory, array in zip(results, outputs, strict=True):
        gpu.download(memory, array)
    return seconds


def operands_on_gpu(gpu: driver.Device, *groups: Sequence[Array]) -> list[list[driver.Memory]]:
    """Arrays in the memory of the GPU."""
    return [uploaded(gpu, arrays) for arrays in groups]


def profile(region: runtime.Region, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[str]:
    """A line per launch: what it takes when it follows itself."""
    gpu, lines = region.device, list[str]()
    operands = operands_on_gpu(gpu, inputs, outputs)  # their memory goes back with them
    addresses = region.addresses(*operands)
    for number, label in enumerate(region.labels):

        def repeated(stream: c_void_p, number: int = number) -> None:
            for _ in range(_REPEATED):
                region.launch(number, addresses, stream)

        graph = gpu.capture(repeated)
        graph.launch()
        seconds = gpu.seconds(graph.launch, 3) / _REPEATED
        graph.destroy()
        lines.append(f"{seconds * 1e6:8.2f} us  {region.described(number)}  {label}")
    return lines


def phase_floors(plan: RegionPlan, limits: Limits) -> list[tuple[str, float]]:
    """What each level of a persistent kernel computes, and the least seconds that it can take by
    the GPU's rates of arithmetic and of memory."""
    (kernel,) = plan.code.values()
    sizes = {name: array.nbytes for name, array in plan.constants.items()} | plan.sizes
    floors = []
    for level in kernel.problem:
        products = [phase.launch.product for phase in level if phase.launch.product is not None]
        flops = sum(2 * one.batch * one.rows * one.columns * one.depth for one in products)
        names = {name for phase in level for name in phase.launch.buffers}
        size = sum(sizes.get(name, 0) for name in names)
        assert limits.peak_flops
        assert limits.peak_bytes_per_second
        floor = max(flops / limits.peak_flops, size / limits.peak_bytes_per_second)
        floors.append((" | ".join(phase.launch.label for phase in level), floor))
    return floors


def profile_phases(
    region: runtime.Region,
    floors: Sequence[tuple[str, float]],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> list[str]:
    """A line per level of a persistent kernel: from its gate to the next, beside its floor."""
    memory = operands_on_gpu(region.device, inputs, outputs)
    for _ in range(3):
        region(*memory)
    lines = region.constant(GATES, len(floors) * LINE).view(np.uint64).reshape(-1, LINE // 8)
    opened, last = lines[:, OPEN_OFFSET // 8], lines[-1]
    times = [int(last[OPEN_OFFSET // 8]), *map(int, opened[:-1]), int(last[END_OFFSET // 8])]
    return [
        f"{(after - before) / 1e3:8.2f} us, floor {floor * 1e6:6.2f} us  {label}"
        for (label, floor), (before, after) in zip(floors, itertools.pairwise(times), strict=True)
    ]


def check_kit(kind: type[Cuda], examples: int) -> int:
    """The author's kit in every precision, by each way; gives the number of failures.

    Most of the time is spent compiling, so that each has a process of its own."""
    cases, failures = list(itertools.product(PRECISIONS, WAYS)), 0
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_kit_report, kind, examples, *case) for case in cases]
        for job, case in zip(jobs, cases, strict=True):
            report = job.result()
            tried = sum(pattern.accepted for pattern in (*report.patterns, report.combined))
            print(f"kit, {', '.join(case)}: {tried} graphs, {len(report.failures)} failures")
            print("\n".join(map(str, report.failures)), flush=True)
            failures += len(report.failures)
    return failures


def _kit_report(kind: type[Cuda], examples: int, precision: str, way: str) -> Report:
    def progress(stage: Stage) -> None:
        print(f"kit, {precision}, {way}: {stage}", file=sys.stderr, flush=True)

    return conformance(backend_for(precision, kind, way), examples, progress=progress)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A network as one region by one way: the file of its blob, or why there is none."""

    precision: str
    way: str
    seconds: float = 0.0
    blob: Path = Path()
    reason: str = ""
    floors: Sequence[tuple[str, float]] = ()


def compiled_network(path: Path, precision: str, kind: type[Cuda], timed: bool) -> list[Compiled]:
    """A network by all ways; `timed` adds the persistent kernel that records when gates open."""
    backend, folder = backend_for(precision, kind), Path(tempfile.gettempdir())
    begun = time.perf_counter()
    region = for_backend(optimize(import_model(str(path))))
    as_graph = backend.plan(region)
    one_kernel = partial(persistent_plan, region, backend.plan_options, as_graph)
    plans: dict[str, RegionPlan | Refusal] = {"graph": as_graph, "persistent": one_kernel()}
    if timed:
        plans["phases"] = one_kernel(is_timed=True)
    found = []
    for way, plan in plans.items():
        if isinstance(plan, Refusal):
            found.append(Compiled(precision, way, reason=plan.reason))
            continue
        target = folder / f"graft-{path.stem}-{precision}-{kind.name}-{way}.blob"
        target.write_bytes(blob_of(region, plan, backend.limits.rounding))
        floors = phase_floors(plan, backend.limits) if way == "phases" else ()
        seconds, begun = time.perf_counter() - begun, time.perf_counter()
        found.append(Compiled(precision, way, seconds, target, floors=floors))
    return found


def expected_outputs(path: Path) -> tuple[list[Array], list[Array]]:
    """Inputs drawn at random, and what ONNX Runtime makes of them."""
    filled = Path(tempfile.gettempdir()) / f"graft-{path.stem}.onnx"
    write_filled(path, filled)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(filled))
    random = np.random.default_rng(3)
    inputs = [random.standard_normal(one.shape).astype(np.float32) for one in session.get_inputs()]
    feeds = {one.name: array for one, array in zip(session.get_inputs(), inputs, strict=True)}
    return inputs, list(session.run(None, feeds))


def check_networks(
    paths: Sequence[Path],
    precisions: Sequence[str],
    profiles: Path | None,
    kind: type[Cuda] = Cuda,
) -> int:
    """Whole networks, each as one region, by each way; gives the number of failures."""
    failures = 0
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        made = {
            (path, one): pool.submit(compiled_network, path, one, kind, profiles is not None)
            for path in paths
            for one in precisions
        }
        references = {path: pool.submit(expected_outputs, path) for path in paths}
        for (path, precision), future in made.items():
            for one in future.result():
                name = f"{path.stem:14} {precision} {one.way:10}"
                try:
                    arrays = references[path].result()
                    line, good = _check_network(one, kind, *arrays, profiles and profiles / name)
                except Exception as error:  # noqa: BLE001 - the table shows it
                    line, good = f"{type(error).__name__}: {error}"[:400], False
                failures += not good
                print(f"{name} {line}", flush=True)
    return failures


def _check_network(
    one: Compiled,
    kind: type[Cuda],
    inputs: Sequence[Array],
    expected: Sequence[Array],
    profiled: Path | None,
) -> tuple[str, bool]:
    """A line of the table, and whether results are right."""
    if one.reason:
        return f"none: {one.reason}", True
    begun = time.perf_counter()
    region = backend_for(one.precision, kind).load(one.blob.read_bytes())
    loading, outputs = time.perf_counter() - begun, [np.empty_like(e) for e in expected]
    seconds = run_on_gpu(region, inputs, outputs)
    error = max(map(_distance, outputs, expected))
    good = error <= _NETWORK_TOLERANCE[one.precision]
    if profiled is not None and one.way != "persistent":
        operands = inputs, outputs
        lines = profile_phases(region, one.floors, *operands) if one.floors else ()
        lines = lines or profile(region, *operands)
        Path("-".join(str(profiled).split()) + ".txt").write_text("\n".join(lines))
    return (
        f"{seconds * 1e3:.4f} ms, error {error:.1e}{'' if good else ' WRONG'}"
        f" ({len(region.labels)} launches, compiled in {one.seconds:.0f} s,"
        f" loaded in {loading:.1f} s)"
    ), good


def _distance(result: Array, expected: Array) -> float:
    """How far results are apart, of the size of what is expected."""
    if not np.isfinite(result).all():
        return float("inf")
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def main(kind: type[Cuda] = Cuda) -> int:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="a folder of networks as ONNX files")
    parser.add_argument("--networks", nargs="*", default=["*"], help="which of them")
    parser.add_argument("--precisions", nargs="*", default=["float16", "float32"])
    parser.add_argument("--examples", type=int, default=2, help="of each pattern in the kit")
    parser.add_argument("--profiles", type=Path, help="a folder for the times of launches")
    options = parser.parse_args()
    if options.profiles:
        options.profiles.mkdir(parents=True, exist_ok=True)
    reason = kind().missing()
    if reason:
        print(f"cannot run: {reason}")
        return 1
    gpu = driver.device()
    print(f"{gpu.name}, {gpu.processors} multiprocessors")
    failures = check_kit(kind, options.examples) if options.examples else 0
    if options.models:
        paths = [
            p for name in options.networks for p in sorted(options.models.glob(f"{name}.onnx"))
        ]
        failures += check_networks(paths, options.precisions, options.profiles, kind)
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
