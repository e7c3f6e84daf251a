"""Schedules of products by measuring them, where there is a GPU: products in, a table out.

The model of `cuda/schedule.py` names the most promising schedules of each product; kernels of them
are made in several processes, run on the GPU one after the other, and the fastest is remembered, on
disk too (`schedule.tuned_path`), where `choose_schedule` finds it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from ctypes import c_void_p
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from graft.backends.cuda.driver import CudaError, Device, Launch, device
from graft.backends.cuda.epilogue import epilogue_of
from graft.backends.cuda.plan import plan_region
from graft.backends.cuda.problem import Epilogue, Product, ProductSchedule
from graft.backends.cuda.product import product_kernel
from graft.backends.cuda.schedule import candidates, predicted, remember
from graft.backends.cuda.selftest import backend_for
from graft.byoc.formats.storage import Storage
from graft.byoc.region import for_backend
from graft.frontends.onnx.importer import import_model
from graft.llvm.gpu import CAPABILITY, Kernel
from graft.loop.tensor import placeholder
from graft.passes.pipeline import optimize

TRIED = 24  # schedules of a product that are measured in each of two rounds
_BEST = 2  # whose relatives follow in the second
_LAUNCHES, _ROUNDS = 20, 5


def plain_epilogue(product: Product, lanes: int) -> Epilogue:
    """Sums as they are, in the product's dtype."""
    down, across = (1, product.batch) if product.by_columns else (product.batch, 1)
    shape = product.rows * down, product.columns * across
    sums, storage = placeholder("sums", shape), Storage.row_major(product.dtype, shape)
    epilogue = epilogue_of([sums], storage.result("result", sums), sums, lanes)
    assert epilogue is not None
    return epilogue


def promising(product: Product, count: int = TRIED) -> list[ProductSchedule]:
    """The schedules of least predicted time, several splits and tiles among them."""
    ranked = sorted(candidates(product), key=lambda one: predicted(product, one))
    chosen: dict[tuple[object, ...], ProductSchedule] = {}
    for one in ranked:  # one of each tile and split first: the model errs most in between
        chosen.setdefault((*_tile(one), one.warps[2]), one)
    return list(chosen.values())[:count]


def _tile(schedule: ProductSchedule) -> tuple[object, ...]:
    return schedule.rows, schedule.columns, schedule.split, schedule.by_warpgroup


def kernels_of(product: Product, schedules: Sequence[ProductSchedule]) -> list[Kernel]:
    """The kernels of a product by each schedule."""
    return [
        product_kernel(product, schedule, plain_epilogue(product, schedule.lanes(product)))
        for schedule in schedules
    ]


def assembled(text: str) -> bytes:
    """Machine code where there is an assembler, else PTX, which the driver compiles."""
    tool = shutil.which("ptxas")
    if tool is None:
        return text.encode()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        command = [tool, f"-arch={CAPABILITY}", str(source), "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True)
        return target.read_bytes()


def _kernel(product: Product, schedule: ProductSchedule) -> tuple[str, bytes]:
    (kernel,) = kernels_of(product, [schedule])
    return kernel.name, assembled(kernel.ptx)


Times = dict[ProductSchedule, float]


def tune(device: Device, products: Iterable[Product], count: int = TRIED) -> dict[Product, Times]:
    """Measure products and remember the best schedule of each; gives seconds by schedule.

    First `count` schedules that differ in tiles and splits, then relatives of the best of these."""
    found: dict[Product, Times] = {product: {} for product in products}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for is_first in (True, False):
            tried = {
                product: promising(product, count) if is_first else _relatives(product, times)
                for product, times in found.items()
            }
            pairs = [(product, one) for product, few in tried.items() for one in few]
            made = pool.map(_kernel, *zip(*pairs, strict=True), chunksize=4)
            for product, schedules in tried.items():
                code = [next(made) for _ in schedules]
                found[product] |= _measured(device, product, schedules, code)
    remember({product: min(times, key=lambda one: times[one]) for product, times in found.items()})
    return found


def _relatives(product: Product, times: Times) -> list[ProductSchedule]:
    """Schedules that differ from the fastest ones in warps or stages alone."""
    best = sorted(times, key=lambda one: times[one])[:_BEST]
    tiles = [_tile(one) for one in best]
    others = [candidate for candidate in candidates(product) if _tile(candidate) in tiles]
    others.sort(key=lambda one: tiles.index(_tile(one)))
    return [other for other in others if other not in times][:TRIED]


def _measured(
    device: Device,
    product: Product,
    schedules: Sequence[ProductSchedule],
    code: Sequence[tuple[str, bytes]],
) -> Times:
    window, size = product.window, product.size
    a = window.images * window.height * window.width * window.pixel * max(product.batch, 1)
    b = product.b_elements
    c = product.rows * product.columns * product.batch
    random = np.random.default_rng(0)
    memory = []
    for count in (a, b, c):
        array = random.standard_normal(count, np.float32).astype(product.dtype.numpy)
        memory.append(device.reserve(count * size))
        device.upload(array, memory[-1])
    device.synchronize()
    addresses = [one.address for one in memory]
    times: Times = {}
    for schedule, (name, binary) in zip(schedules, code, strict=True):
        module = device.load(binary)
        function = device.function(module, name, schedule.shared_bytes)
        launch = Launch(function, schedule.grid(product), schedule.threads, schedule.shared_bytes)

        def issue(stream: c_void_p, launch: Launch = launch) -> None:
            for _ in range(_LAUNCHES):
                device.launch(launch, addresses, stream)

        try:
            graph = device.capture(issue)
            graph.launch()
            found = [device.seconds(graph.launch, 2) / _LAUNCHES for _ in range(_ROUNDS)]
            times[schedule] = sorted(found)[_ROUNDS // 2]
            graph.destroy()
        except CudaError as error:
            if "too many resources" not in str(error):
                raise
        device.unload(module)
    return times


def products_of(path: Path, precision: str) -> list[Product]:
    """The products of a network."""
    graph = for_backend(optimize(import_model(str(path))))
    plan = plan_region(graph, backend_for(precision).plan_options)
    return [launch.product for launch in plan.launches if launch.product is not None]


def tune_networks(paths: Sequence[Path], precisions: Sequence[str]) -> None:
    """Measure schedules of all products, for this run and later ones."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(products_of, path, one) for path in paths for one in precisions]
        products = [product for job in jobs for product in job.result()]
    begun = time.perf_counter()
    times = tune(device(), products)
    count, seconds = sum(map(len, times.values())), time.perf_counter() - begun
    print(f"tuned {len(times)} products by {count} kernels in {seconds:.0f} s", flush=True)
