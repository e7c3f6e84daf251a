"""Register tiles in cycles: what one step of a reduction costs on a machine.

Products of matrices and convolutions keep `pixels` x `vectors` sums in registers. A step of the
reduction loads a vector of weights per vector and broadcasts an element per pixel. A machine and a
tile enter; the cycles of a step leave, as the most that arithmetic, the latency of sums, the load
units or traffic from beyond the first cache ask for.
"""

from __future__ import annotations

from graft.target.machine import Machine

# How a first cache that is read or filled, but not both, behaves: loads that have to wait are tried
# again, and lines of data, each from another place, come slower than weights, which come one after
# the other. Fitted to an Ice Lake core (256 to 1024 channels, 14 x 14): tiles of 7x1, 14x1, 7x2,
# 14x2 and 6x4 ran at 80, 91, 139, 157 and 170 GFLOP/s; this gives 78, 87, 127, 155 and 172.
RETRIED_LOADS = 1.35
SCATTERED_LINES = 0.3

# Of tiles that the arithmetic bounds, one with fewer loads leaves more room for what else happens.
_SLACK = 0.05

# What is asked for ahead of its use is not always there in time: the share of its transfer that is
# waited for all the same. Of eight layers of 256 to 512 channels on a Zen 4 core, with 9 to 26 MB
# of weights from memory, it was 0.14 to 0.34.
EXPOSED = 0.3

# Instructions that add two vectors of sums in pairs: two shuffles and an addition.
_ADDED_SUMS = 3

# What a tile costs beside its steps: filling the pipeline again, and leaving a loop.
_TILE_CYCLES = 24.0


def most_pixels(registers: int, vectors: int) -> int:
    """The most pixels whose sums fit into registers beside the weights and two elements."""
    return max(1, (registers - vectors - 2) // vectors)


def step_cycles(
    machine: Machine, pixels: int, vectors: int, incoming: float = 0.0, ahead: float = 0.0
) -> float:
    """Cycles of one step.

    `incoming` are those that its bytes need to reach the first cache, `ahead` those of what is
    asked for meanwhile, to be in the second cache later: the first one has no part in that."""
    arithmetic = pixels * vectors / machine.vector_fmas
    loads = pixels / machine.broadcasts + vectors / machine.vector_loads
    slack = _SLACK * (loads + incoming) + EXPOSED * ahead
    near = RETRIED_LOADS * loads + incoming
    if machine.fills_beside_loads:
        near = max(loads, incoming)
    return max(arithmetic, machine.fma_latency, near, ahead) + slack


def tile_cycles(
    machine: Machine,
    pixels: int,
    vectors: int,
    steps: int,
    incoming: float = 0.0,
    ahead: float = 0.0,
    split: int = 1,
) -> float:
    """Cycles of a whole tile: its steps, and its sums to memory.

    Where each channel has several sums, a step is as many at once, and they are added at last."""
    stores = pixels * vectors / machine.vector_stores
    added = pixels * vectors * (split - 1) * _ADDED_SUMS / machine.vector_fmas
    together = step_cycles(machine, pixels, vectors * split, split * incoming, split * ahead)
    return steps / split * together + added + stores + _TILE_CYCLES


def resume_cycles(machine: Machine, pixels: int, vectors: int) -> float:
    """Cycles in which a tile is left, its sums in memory, and taken up again for another block of
    the depth."""
    each = 1 / machine.vector_loads + 1 / machine.vector_stores
    return pixels * vectors * each + _TILE_CYCLES


def weight_cycles(
    machine: Machine, bytes_per_step: float, panel: float, beside: float = 0.0
) -> float:
    """Cycles in which a step's weights reach the first cache: from the nearest level that holds the
    panel, all the weights that are read again for the next tile, and what else comes there until
    then, `beside` them."""
    if panel <= machine.caches[0].size / 2:
        return 0.0
    # the rest of a cache is for what streams past
    holds = (n for n, one in enumerate(machine.caches[1:]) if panel + beside <= 0.75 * one.size)
    return stream_cycles(machine, bytes_per_step, next(holds, len(machine.caches) - 1))


def stream_cycles(machine: Machine, size: float, level: int) -> float:
    """Cycles in which so many bytes, read in order, reach the first cache from the level that many
    levels below the second one; memory is below the last."""
    rates = [cache.bytes_per_cycle for cache in machine.caches[1:]]
    return size / [*rates, machine.memory_bytes_per_cycle][level]


def data_cycles(machine: Machine, bytes_per_step: float) -> float:
    """Cycles in which a step's elements reach the first cache, a line of each pixel at a time.

    Prefetching hides what it takes to bring them to the second cache."""
    rate = machine.caches[1].bytes_per_cycle
    return bytes_per_step / (rate if machine.fills_beside_loads else rate * SCATTERED_LINES)
