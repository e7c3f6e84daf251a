"""`python -m graft.backends.cuda.selftest`: the device suite, where there is a GPU.

Small graphs against the NumPy evaluator in every precision, and whole networks (`--models`, a
folder of ONNX files) against ONNX Runtime, each as a CUDA graph and as one persistent kernel, timed
by the GPU's clock. Prints a table; the exit code is 1 where a result is wrong. The persistent
kernel, machine code in blobs and DLPack were made without a GPU at hand: this has yet to run them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from ctypes import c_void_p
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from graft.backends.cuda import driver, runtime
from graft.backends.cuda.backend import Cuda, blob_of
from graft.backends.cuda.operands import shape_of
from graft.backends.cuda.persistent import END_OFFSET, GATES, LINE, OPEN_OFFSET
from graft.backends.cuda.plan import RegionPlan, plan_region
from graft.backends.cuda.problem import Product, ProductSchedule
from graft.backends.cuda.schedule import schedules
from graft.backends.cuda.tune import tune
from graft.base.dtypes import Array, DType
from graft.byoc.contract import Limits
from graft.byoc.region import for_backend
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.reader import write_filled
from graft.ir.builder import Builder
from graft.ir.evaluate import run_graph
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.passes.pipeline import optimize
from graft.rewrite.rule import Refusal
from graft.runtime.spaces import uploaded

PRECISIONS = ("float32", "float16", "bfloat16", "strict")
# What results may differ by, of the largest: units of rounding times what a few layers gather.
_TOLERANCE = {"float32": 5e-3, "float16": 5e-3, "bfloat16": 4e-2, "strict": 1e-5}
# Of networks: random weights make some of them amplify rounding a hundredfold.
_NETWORK_TOLERANCE = {"float32": 6e-2, "float16": 6e-2, "bfloat16": 4e-1, "strict": 1e-4}
_REPEATED = 20

Case = tuple[str, Graph]


def backend_for(precision: str, kind: type[Cuda] = Cuda) -> Cuda:
    """The backend that computes in a precision, or in exact float32."""
    return kind("float32", True) if precision == "strict" else kind(precision)


class Cases:
    """Graphs of a few nodes with constants of their own; `small` leaves large ones out."""

    def __init__(self, small: bool = False) -> None:
        self._small, self._random = small, np.random.default_rng(7)

    def _array(self, *shape: int) -> Array:
        return self._random.standard_normal(shape).astype(np.float32) / 4

    def of(self, name: str, shapes: Sequence[tuple[int, ...]], make: Callable[..., Value]) -> Case:
        builder = Builder("case")
        inputs = [
            builder.input(f"x{n}", TensorType(DType.FLOAT32, shape))
            for n, shape in enumerate(shapes)
        ]
        return name, builder.build(make(builder, *inputs))

    def convolution(
        self,
        shape: tuple[int, ...],
        outputs: int,
        kernel: tuple[int, int],
        groups: int = 1,
        **attrs: Any,
    ) -> Case:
        def make(b: Builder, x: Value) -> Value:
            weight = b.constant(self._array(outputs, shape[1] // groups, *kernel))
            made = b("nn.conv2d", x, weight, groups=groups, **attrs)
            return b("nn.relu", b("nn.bias_add", made, b.constant(self._array(outputs))))

        label = f"conv {shape} {outputs} {kernel} groups={groups} {attrs or ''}"
        return self.of(label, [shape], make)

    def dense(self, rows: int, depth: int, units: int) -> Case:
        def make(b: Builder, x: Value) -> Value:
            return b("nn.gelu", b("nn.dense", x, b.constant(self._array(units, depth))))

        return self.of(f"dense {rows}x{depth}x{units}", [(rows, depth)], make)

    def _large(self) -> Iterator[Case]:
        pad: dict[str, Any] = {"padding": (1, 1, 1, 1)}
        yield self.convolution((1, 64, 14, 14), 64, (3, 3), **pad)
        yield self.convolution((1, 3, 131, 133), 64, (7, 7), padding=(3, 3, 3, 3), strides=(2, 2))
        yield self.convolution((1, 512, 7, 7), 512, (3, 3), **pad)
        yield self.convolution((1, 2048, 7, 7), 512, (1, 1))
        yield self.convolution((1, 96, 57, 57), 96, (3, 3), 96, **pad)
        yield self.dense(1, 2048, 1000)
        yield self.dense(197, 768, 2304)
        pool: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
        for kind in ("max", "avg"):
            yield self.of(
                f"{kind} pool",
                [(1, 64, 57, 55)],
                lambda b, x, k=kind: b(f"nn.{k}_pool2d", b("nn.relu", x), **pool),
            )
        yield self.of("attention", [(1, 12, 197, 64)] * 3, lambda b, *x: b("nn.attention", *x))

    def all(self) -> Iterator[Case]:
        pad: dict[str, Any] = {"padding": (1, 1, 1, 1)}
        if not self._small:
            yield from self._large()
        yield self.convolution((1, 3, 13, 11), 40, (7, 7), padding=(3, 3, 3, 3), strides=(2, 2))
        yield self.convolution((2, 24, 9, 11), 20, (1, 1))
        yield self.convolution((1, 34, 5, 7), 36, (3, 3), padding=(0, 1, 2, 1))
        yield self.convolution((1, 16, 5, 9), 24, (1, 7), padding=(0, 3, 0, 3))
        yield self.convolution((1, 16, 10, 9), 33, (3, 3), dilation=(2, 2), **pad)
        yield self.convolution((1, 32, 5, 6), 32, (3, 3), 2, **pad)
        yield self.convolution((1, 40, 9, 9), 40, (3, 3), 40, strides=(2, 2), **pad)
        yield self.convolution((1, 12, 5, 5), 24, (3, 3), 3, **pad)
        yield self.dense(33, 77, 19)
        yield self.dense(5, 1, 3)
        yield from self._products()
        yield from self._others()

    def _products(self) -> Iterator[Case]:
        yield self.of(
            "matmul", [(3, 5, 40), (3, 40, 17)], lambda b, x, y: b("nn.batch_matmul", x, y)
        )
        yield self.of(
            "matmul^T",
            [(2, 3, 40, 5), (2, 3, 7, 40)],
            lambda b, x, y: b("nn.batch_matmul", x, y, transpose_a=True, transpose_b=True),
        )
        for size, keys in ((8, 5), (16, 9), (16, 70)):
            shapes = [(1, 2, 3, size), *[(1, 2, keys, size)] * 2]
            yield self.of(f"attention {size}x{keys}", shapes, lambda b, *x: b("nn.attention", *x))
        yield self.of("heads", [(1, 21, 96)], self._heads)
        yield self.of("softmax", [(3, 2, 100)], lambda b, x: b("nn.softmax", x, axis=-1))
        yield self.of("softmax rows", [(2, 65, 3)], lambda b, x: b("nn.softmax", x, axis=1))
        yield self.of(
            "layer norm",
            [(2, 3, 96)],
            lambda b, x: b(
                "nn.layer_norm",
                x,
                b.constant(self._array(96)),
                b.constant(self._array(96)),
                axis=-1,
            ),
        )

    def _heads(self, b: Builder, x: Value) -> Value:
        """Attention as vision transformers have it, with heads side by side before and after."""
        made = b("nn.dense", x, b.constant(self._array(96, 96)))
        parts = b("transpose", b("reshape", made, shape=(1, 21, 3, 2, 16)), axes=(2, 0, 3, 1, 4))
        heads = [b("squeeze", one, axes=(0,)) for one in b.call("split", parts, sections=3, axis=0)]
        result = b("transpose", b("nn.attention", *heads), axes=(0, 2, 1, 3))
        weight = b.constant(self._array(96, 32))
        return b("add", b("nn.dense", b("reshape", result, shape=(1, 21, 32)), weight), x)

    def _branches(self, b: Builder, x: Value) -> Value:
        """Convolutions side by side, joined, and one behind them."""
        parts = [
            b("nn.relu", b("nn.conv2d", x, b.constant(self._array(size, 16, 1, 1))))
            for size in (24, 8, 20)
        ]
        return b(
            "nn.conv2d", b("concatenate", *parts, axis=1), b.constant(self._array(8, 52, 3, 3))
        )

    def _others(self) -> Iterator[Case]:
        yield self.of("mean", [(2, 8, 7, 7)], lambda b, x: b("mean", x, axes=(2, 3)))
        yield self.of("sum", [(2, 299)], lambda b, x: b("sum", x, axes=(1,)))
        pool: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
        for kind in ("max", "avg"):
            yield self.of(
                f"{kind} pool, small",
                [(1, 8, 9, 7)],
                lambda b, x, k=kind: b(f"nn.{k}_pool2d", b("nn.relu", x), **pool),
            )
        yield self.of(
            "transpose", [(2, 5, 7, 9)], lambda b, x: b("transpose", x, axes=(3, 1, 0, 2))
        )
        yield self.of(
            "residual",
            [(1, 32, 4, 4)],
            lambda b, x: b("add", b("nn.conv2d", x, b.constant(self._array(32, 32, 1, 1))), x),
        )
        yield self.of("branches", [(1, 16, 5, 5)], self._branches)
        yield self.of(
            "concatenate",
            [(1, 30, 5, 5), (1, 34, 5, 5)],
            lambda b, x, y: b(
                "nn.conv2d",
                b("concatenate", x, y, axis=1),
                b.constant(self._array(16, 64, 3, 3)),
            ),
        )


def _relative(result: Array, expected: Array) -> float:
    """The largest difference, of the largest value; infinite where anything is not finite."""
    if result.shape != expected.shape or not np.isfinite(result).all():
        return float("inf")
    scale = float(np.abs(expected).max()) if expected.size else 1.0
    return float(np.abs(result - expected).max()) / max(scale, 1e-30) if result.size else 0.0


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
    gpu = region.device
    addresses, lines = region.addresses(*operands_on_gpu(gpu, inputs, outputs)), list[str]()
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
        for (label, floor), (before, after) in zip(floors, pairwise(times), strict=True)
    ]


def _cell(seconds: float, error: float, tolerance: float) -> str:
    return f"{error:.1e}{'' if error <= tolerance else ' WRONG'} {seconds * 1e6:.1f}us"


def check_cases(kind: type[Cuda] = Cuda) -> int:
    """Every small graph in every precision, by each way; gives the number of failures."""
    failures, random = 0, np.random.default_rng(1)
    for name, graph in Cases().all():
        shapes = [shape_of(value) for value in graph.inputs]
        inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
        expected = [np.ascontiguousarray(one) for one in run_graph(graph, inputs)]
        cells = []
        for precision in PRECISIONS:
            backend, region = backend_for(precision, kind), for_backend(graph)
            for way, plan in backend.plans(region).items():
                if isinstance(plan, Refusal):
                    continue
                outputs = [np.empty_like(one) for one in expected]
                try:
                    loaded = backend.load(blob_of(region, plan, backend.limits.rounding))
                    seconds = run_on_gpu(loaded, inputs, outputs)
                    error = max(map(_relative, outputs, expected))
                    cells.append(f"{way} {_cell(seconds, error, _TOLERANCE[precision])}")
                    failures += error > _TOLERANCE[precision]
                except Exception as error:  # noqa: BLE001 - the table shows it
                    failures += 1
                    cells.append(f"{way} {type(error).__name__}: {error}"[:300])
        print(f"{name:58} {' | '.join(cells)}", flush=True)
    return failures


def _scheduled_case() -> Graph:
    """A convolution no side of which is a multiple of any tile's."""
    return Cases().convolution((2, 72, 13, 15), 216, (3, 3), padding=(1, 1, 1, 1))[1]


def scheduled_blob(precision: str, schedule: ProductSchedule) -> bytes:
    """The convolution by a schedule."""
    backend, region = backend_for(precision), for_backend(_scheduled_case())
    plan = plan_region(region, backend.plan_options, lambda _: schedule)
    return blob_of(region, plan, backend.limits.rounding)


def check_schedules() -> int:
    """One convolution by many schedules; gives the number of failures."""
    graph = _scheduled_case()
    inputs = [np.random.default_rng(2).standard_normal(shape_of(graph.inputs[0]), np.float32)]
    (expected,) = (np.ascontiguousarray(one) for one in run_graph(graph, inputs))
    few = [one for one in schedules() if not one.by_warpgroup][::97]
    few += [one for one in schedules() if one.by_warpgroup][::5]
    pairs = [(precision, one) for precision in PRECISIONS[:3] for one in few]
    failures = 0
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        blobs = pool.map(scheduled_blob, *zip(*pairs, strict=True), chunksize=4)
        for (precision, schedule), blob in zip(pairs, blobs, strict=True):
            result = np.empty_like(expected)
            run_on_gpu(runtime.load(blob), inputs, [result])
            error = _relative(result, expected)
            if error > _TOLERANCE[precision]:
                failures += 1
                print(f"{precision} {schedule}: {error:.1e} WRONG", flush=True)
    print(f"{len(pairs)} schedules of a convolution, {failures} wrong", flush=True)
    return failures


def products_of(path: Path, precision: str) -> list[Product]:
    """The products of a network."""
    graph = for_backend(optimize(import_model(str(path))))
    plan = plan_region(graph, backend_for(precision).plan_options)
    return [launch.product for launch in plan.launches if launch.product is not None]


def tune_networks(paths: Sequence[Path], precisions: Sequence[str]) -> None:
    """Measure schedules of all products, for this run and later ones."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(products_of, path, one) for path in paths for one in precisions]
        products = [product for job in jobs for product in job.result()]
    begun = time.perf_counter()
    times = tune(driver.device(), products)
    count, seconds = sum(map(len, times.values())), time.perf_counter() - begun
    print(f"tuned {len(times)} products by {count} kernels in {seconds:.0f} s", flush=True)


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
    plans = backend.plans(region)
    if timed:
        plans["phases"] = backend.plans(region, is_timed=True)["persistent"]
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
    """Run the suite of `cuda`, or of a backend that is derived from it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="a folder of networks as ONNX files")
    parser.add_argument("--networks", nargs="*", default=["*"], help="which of them")
    parser.add_argument("--precisions", nargs="*", default=["float16", "float32"])
    parser.add_argument("--skip-cases", action="store_true")
    parser.add_argument("--tune", action="store_true", help="measure schedules of products first")
    parser.add_argument("--profiles", type=Path, help="a folder for the times of launches")
    options = parser.parse_args()
    reason = kind().missing()
    if reason:
        print(f"cannot run: {reason}")
        return 1
    gpu = driver.device()
    print(f"{gpu.name}, {gpu.processors} multiprocessors")
    failures = 0 if options.skip_cases else check_cases(kind)
    if not options.skip_cases and kind is Cuda:
        failures += check_schedules()
    if options.models:
        paths = [
            p for name in options.networks for p in sorted(options.models.glob(f"{name}.onnx"))
        ]
        if options.tune:
            tune_networks(paths, options.precisions)
        failures += check_networks(paths, options.precisions, options.profiles, kind)
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
