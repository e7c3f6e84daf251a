"""Register tiles in cycles: what one step of a reduction costs on a machine.

Products of matrices and convolutions keep `pixels` x `vectors` sums in registers. A step of the
reduction loads a vector of weights per vector and broadcasts an element per pixel. A machine and a
tile enter; the cycles of a step leave, as the most that arithmetic, the latency of sums, the load
units or traffic from beyond the first cache ask for.
"""

from __future__ import annotations

from graft.target.machine import Machine

# Loads that fit beside the arithmetic still take some of its time, the more of the load units'
# time they take: they share issue slots, and the first cache's ports with what comes from the
# second. Fitted to an Ice Lake core, on which tiles of 6 x 4, 14 x 2 and 7 x 2 reached 98 %, 86 %
# and 72 % of the peak. Weights come one after the other, and prefetching hides their traffic.
_LOAD_CONTENTION = 0.6
_TRAFFIC_CONTENTION = 0.05

# What a tile costs beside its steps: filling the pipeline again, and leaving a loop.
_TILE_CYCLES = 24.0


def most_pixels(registers: int, vectors: int) -> int:
    """The most pixels whose sums fit into registers beside the weights and two elements."""
    return max(1, (registers - vectors - 2) // vectors)


def step_cycles(machine: Machine, pixels: int, vectors: int, incoming: float = 0.0) -> float:
    """Cycles of one step; `incoming` are those that its bytes need to reach the first cache."""
    arithmetic = pixels * vectors / machine.vector_fmas
    loads = pixels / machine.broadcasts + vectors / machine.vector_loads
    bound = max(arithmetic, machine.fma_latency, loads, incoming)
    return bound + _LOAD_CONTENTION * loads * loads / bound + _TRAFFIC_CONTENTION * incoming


def tile_cycles(
    machine: Machine, pixels: int, vectors: int, steps: int, incoming: float = 0.0
) -> float:
    """Cycles of a whole tile: its steps, and its sums to memory."""
    stores = pixels * vectors / machine.vector_stores
    return steps * step_cycles(machine, pixels, vectors, incoming) + stores + _TILE_CYCLES


def incoming_cycles(machine: Machine, bytes_per_step: float, working_set: float) -> float:
    """Cycles in which a step's bytes come from the nearest cache that holds the working set."""
    levels = [(cache.size, cache.bytes_per_cycle) for cache in machine.caches]
    if working_set <= levels[0][0] / 2:
        return 0.0
    for size, rate in levels[1:]:
        # the rest of a cache is for what streams past
        if working_set <= 0.75 * size:
            return bytes_per_step / rate
    return bytes_per_step / machine.memory_bytes_per_cycle
