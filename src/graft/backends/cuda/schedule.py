"""Schedules of products: the space, and the choice from it by predicted time.

What was measured on this machine comes first (`remember`, called by `benchmarks/gpu_tune.py`); else
the model below decides. It counts what a block does in each stage of K: bytes through the L2 cache,
matrix instructions, and the latency that its ring of stages hides, times the waves of blocks that
the GPU runs.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from functools import cache
from pathlib import Path

from graft.backends.cuda.problem import ROW, Product, ProductSchedule
from graft.base.cache_folder import default_folder, keep_text
from graft.base.dtypes import DType

PROCESSORS = 132
_SHARED, _THREADS, _REGISTERS = 227 * 1024, 2048, 65536  # of a multiprocessor
# Per multiprocessor and nanosecond: bytes from L2, operations in float16 by `mma.sync`, bytes from
# shared memory. These and the nanoseconds below are fitted to 13,700 kernels of 264 products on an
# H200: what the model chooses takes 1.24 times what the best that was measured does.
_LOADED, _FLOPS, _SHARED_LOADED = 118.0, 3500.0, 173.0
_WARPGROUP_FLOPS, _WARPGROUP_STEP = 6500.0, 100.0  # by `wgmma`, and what a stage waits for then
_FRAGMENTS, _MULTIPLY = 80.0, 0.8  # of a warp for 32 bytes of K, and for each instruction there
_LATENCY = 1650.0  # from asking for bytes to having them
_STEP, _BESIDE = 15.0, 0.4  # of a stage, and for each block beside
LAUNCH, _FILL, _REDUCE = 2400.0, 2100.0, 2000.0  # of a kernel, of a wave, of adding up a cluster
_FINISH = 24.0  # of a thread for each sum that it adds
_WARPS = (
    *((1, 1, 4), (1, 2, 1), (1, 2, 2), (1, 2, 4), (1, 4, 1), (1, 4, 2)),
    *((2, 1, 2), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 1), (2, 4, 2), (4, 2, 1), (4, 2, 2)),
)


@cache
def schedules() -> tuple[ProductSchedule, ...]:
    """The whole space."""
    tiles = itertools.product(
        (16, 32, 64, 128), (32, 64, 128), _WARPS, (2, 3, 4, 6, 8), (1, 2, 4, 8)
    )
    grouped = itertools.product(
        (64, 128, 256), (64, 128, 192, 256), (1, 2), (1, 2), (3, 4, 5, 6), (1, 2, 4, 8)
    )
    made = itertools.chain(
        (ProductSchedule(*tile) for tile in tiles),
        (
            ProductSchedule(rows, columns, (rows // 16, across, deep), stages, split, True)
            for rows, columns, across, deep, stages, split in grouped
        ),
    )
    return tuple(one for one in made if one.rows % one.warps[0] == 0 and one.is_valid)


def candidates(product: Product) -> Iterator[ProductSchedule]:
    """Schedules that make sense for a product: no tile far larger than it, no empty part of K."""
    for schedule in schedules():
        tall = schedule.rows > 16 and schedule.rows >= 2 * product.rows
        wide = schedule.columns > 32 and schedule.columns >= 2 * product.columns
        deep = schedule.split > 1 and schedule.split * 2 > product.k_steps
        # Nothing rounds what `wgmma` reads from shared memory.
        rough = schedule.by_warpgroup and product.dtype is DType.FLOAT32 and not product.is_constant
        if not (tall or wide or deep or rough or schedule.stages - 1 > max(product.k_steps, 2)):
            yield schedule


def choose_schedule(product: Product) -> ProductSchedule:
    """The schedule that was measured to be the fastest, or else the one predicted to be."""
    return _tuned().get(str(astuple(product))) or _least_predicted(product)


@cache  # placement prices a product in many regions
def _least_predicted(product: Product) -> ProductSchedule:
    return min(candidates(product), key=lambda one: predicted(product, one))


def tuned_path() -> Path:
    """Where measured choices are kept."""
    return Path(default_folder()) / "cuda-schedules.json"


@cache
def _tuned() -> dict[str, ProductSchedule]:
    try:
        stored = json.loads(tuned_path().read_text())
    except (OSError, ValueError):
        return {}
    return {
        key: ProductSchedule(rows, columns, tuple(warps), *others)
        for key, (rows, columns, warps, *others) in stored.items()
    }


def remember(best: Mapping[Product, ProductSchedule]) -> None:
    """Keep what was measured."""
    _tuned().update((str(astuple(product)), one) for product, one in best.items())
    keep_text(tuned_path(), json.dumps({k: astuple(one) for k, one in _tuned().items()}, indent=0))


def registers(schedule: ProductSchedule) -> int:
    """Registers that a thread is likely to need."""
    tall, wide = schedule.warp_tile
    return min(255, 48 + tall * wide // 32 + (tall + wide) // 4)


def predicted(product: Product, schedule: ProductSchedule, most: int = 16) -> float:
    """Nanoseconds that a product takes by a schedule, with `most` blocks at a time on each
    multiprocessor, or as many as fit."""
    (tall, wide), (*grid, deep) = schedule.warp_tile, schedule.warps
    fitting = min(
        _SHARED // (schedule.shared_bytes + 1024),
        _THREADS // schedule.threads,
        _REGISTERS // (schedule.threads * registers(schedule)),
    )
    together = min(max(1, fitting), most)
    blocks = math.prod(schedule.grid(product))
    waves = blocks / (PROCESSORS * together)
    beside = min(together, math.ceil(blocks / PROCESSORS))
    # TF32 takes twice the time of float16, whose stages hold twice the elements.
    flops = 2 * schedule.rows * schedule.columns * ROW // 2
    if schedule.by_warpgroup:
        busy = flops / _WARPGROUP_FLOPS
        computed = max(beside * busy, busy + _WARPGROUP_STEP)
    else:
        computed = max(
            beside * flops / _FLOPS,
            beside * (tall + wide) * ROW * math.prod(grid) / _SHARED_LOADED,
            4 / deep * (_FRAGMENTS + tall * wide / 128 * _MULTIPLY) + _STEP,
        )
    loaded = beside * (schedule.rows + schedule.columns) * ROW / _LOADED
    step = max(loaded, computed, _LATENCY / max(schedule.stages - 1 - schedule.by_warpgroup, 1))
    step += _BESIDE * beside
    area = schedule.rows * schedule.columns
    finish = area * deep * schedule.split / min(schedule.threads * schedule.split, area / 2)
    finish = finish * _FINISH + (_REDUCE if schedule.split > 1 else 0.0)
    steps = math.ceil(product.k_steps / schedule.split)
    each = _FILL + steps * step + finish * beside
    return LAUNCH + max(1.0, (math.ceil(waves) + waves) / 2) * each
