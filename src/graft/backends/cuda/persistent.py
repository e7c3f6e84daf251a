"""One persistent kernel for a whole region: the kernels of a plan in, a plan of one launch out.

As many blocks as fit the GPU at once go through the region's kernels as *phases*: of each, a block
computes every so many-th tile. Phases that do not need each other's results form a level; between
levels there is a gate, a counter in memory of the blocks that have passed the level before. Whoever
has a tile to compute waits at the gate only when it needs the results: weights of the tile are
being copied to shared memory by then, and those of the others fetched into the L2 cache.

A phase is a function of the module, made of the code that makes the separate kernel, with constants
in place of descriptors; equal layers share one. All agree on the threads of a block and on the
blocks of a cluster: phases of fewer threads leave the others idle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from graft.backends.cuda.attention import Attention
from graft.backends.cuda.code import TensorCode, Variable
from graft.backends.cuda.plan import Launch, Options, RegionPlan, plan_region
from graft.backends.cuda.problem import Product, ProductSchedule
from graft.backends.cuda.schedule import (
    LAUNCH,
    candidates,
    choose_schedule,
    predicted,
    registers,
)
from graft.base.dtypes import DType
from graft.ir.graph import Graph
from graft.llvm.gpu import Kernel, KernelWriter
from graft.llvm.text import Value
from graft.loop.ir import Buffer
from graft.rewrite.rule import Refusal

# The constant that counts blocks, a line of 128 bytes for each level; no value has such a name.
GATES = "#gates"
LINE = 128
# Behind a counter, where times are stored: when the gate opens; in the last line begin and end.
OPEN_OFFSET, END_OFFSET = 8, 16
_THREADS, _CLUSTERS = (128, 256, 512), (1, 2, 4, 8)
# Of six networks in two precisions on an H200, none that is predicted to take longer than this as
# one kernel was faster so: Darknet-53 (1.06) took 1.3 times as long, VGG-19 (1.2) 1.5 times.
_LONGEST = 1.03
_SHARED = 220 * 1024  # of a block, beside what reductions along rows share
_REGISTERS = 1 << 16
_GLOBAL = "ptr addrspace(1)"


@dataclass(frozen=True, slots=True)
class Phase:
    """A launch as a part of the persistent kernel: blocks of its grid are tiles, of which the
    first is computed by the block of that number."""

    launch: Launch
    kernel: Kernel
    first: int
    tiles: int


Levels = tuple[tuple[Phase, ...], ...]


def persistent_plan(
    graph: Graph, options: Options, separate: RegionPlan, is_timed: bool = False
) -> RegionPlan | Refusal:
    """A region as one launch; `separate` is its plan as many. `is_timed`: the time at which each
    gate opens is stored behind its counter."""
    if _has_calls(separate):
        return Refusal("a library's calls cannot be phases of a kernel")
    if len(separate.launches) < 2:
        return Refusal("there is one kernel at most")
    shape = _shape_of(separate)
    if shape is None:
        return Refusal("no threads and clusters suit all products")
    plan = plan_region(graph, options, shape.schedules.__getitem__)
    levels = levels_of(plan, shape.cluster)
    buffers = dict.fromkeys(name for one in plan.launches for name in one.buffers)
    kernel = _kernel(levels, (*buffers, GATES), shape, is_timed)
    label = f"{len(plan.launches)} kernels in {len(levels)} phases"
    gates = np.zeros((len(levels), LINE), np.uint8)
    return RegionPlan(
        {kernel.name: kernel},
        [Launch(kernel.name, (*buffers, GATES), label)],
        {**plan.constants, GATES: gates},
        plan.sizes,
        [[name for phase in level for name in phase.launch.buffers] for level in levels],
    )


def is_promising(separate: RegionPlan) -> bool:
    """Whether a region's products are predicted to take hardly longer in blocks of one shape than
    each in blocks of its own; else one kernel of all is not worth making."""
    if _has_calls(separate):
        return False
    shape, products = _shape_of(separate), _products(separate)
    own = sum(predicted(product, choose_schedule(product)) - LAUNCH for product in products)
    return shape is not None and shape.nanoseconds <= own * _LONGEST


def _has_calls(plan: RegionPlan) -> bool:
    return any(launch.call is not None for launch in plan.launches)


def _products(plan: RegionPlan) -> tuple[Product, ...]:
    return tuple(launch.product for launch in plan.launches if launch.product is not None)


def _shape_of(separate: RegionPlan) -> _Shape | None:
    """The threads, clusters and schedules of a region's persistent kernel."""
    has_attention = any(_is_attention(one) for one in separate.code.values())
    return _choose_shape(_products(separate), 256 if has_attention else 512)


def _is_attention(kernel: Kernel) -> bool:
    return isinstance(kernel.problem, tuple) and isinstance(kernel.problem[0], Attention)


def levels_of(plan: RegionPlan, cluster: int) -> Levels:
    """Launches by the number of launches that have to come before; tiles of a level's phases are
    dealt out one phase after the other, so that all blocks have about as many."""
    depth: dict[str, int] = {}  # of the level that has completed a buffer
    levels: list[list[Launch]] = []
    for launch in plan.launches:
        level = max((depth.get(name, 0) for name in launch.buffers[:-1]), default=0)
        result = launch.buffers[-1]
        depth[result] = max(level + 1, depth.get(result, 0))
        levels += [[] for _ in range(level + 1 - len(levels))]
        levels[level].append(launch)
    return tuple(tuple(_phases(plan, level, cluster)) for level in levels)


def _phases(plan: RegionPlan, launches: Sequence[Launch], cluster: int) -> Iterator[Phase]:
    first = 0
    for launch in launches:
        kernel = plan.code[launch.kernel]
        tiles = math.prod(kernel.grid)
        if kernel.cluster > 1:  # no cluster may be in part somewhere else
            tiles = math.ceil(tiles / cluster) * cluster
        yield Phase(launch, kernel, first, tiles)
        first += math.ceil(tiles / cluster) * cluster


# Threads, clusters and schedules.


@dataclass(frozen=True, slots=True)
class _Shape:
    threads: int
    cluster: int
    schedules: dict[Product, ProductSchedule]
    nanoseconds: float  # that the products are predicted to take


@lru_cache(8)
def _choose_shape(products: tuple[Product, ...], most_threads: int) -> _Shape | None:
    """What is predicted to be the fastest, one block being on a multiprocessor at a time."""
    ranked = {
        product: sorted(
            ((predicted(product, candidate, 1), candidate) for candidate in candidates(product)),
            key=lambda pair: pair[0],
        )
        for product in set(products)
    }
    best, least = None, math.inf
    for threads, cluster in itertools.product(_THREADS, _CLUSTERS):
        chosen = {
            product: next((pair for pair in pairs if _fits(pair[1], threads, cluster)), None)
            for product, pairs in ranked.items()
        }
        if threads > most_threads or None in chosen.values():
            continue
        found = {product: pair for product, pair in chosen.items() if pair is not None}
        total = sum(found[product][0] - LAUNCH for product in products)
        if total < least:
            schedules = {product: schedule for product, (_, schedule) in found.items()}
            best, least = _Shape(threads, cluster, schedules, total), total
    return best


def _fits(schedule: ProductSchedule, threads: int, cluster: int) -> bool:
    """Whether a kernel of such blocks can have a phase by a schedule. All threads of a cluster have
    to meet where some do; products by warp groups do not overlap in functions."""
    splits = cluster % schedule.split == 0 and (schedule.split == 1 or schedule.threads == threads)
    fits = schedule.threads <= threads and registers(schedule) <= _REGISTERS // threads
    return splits and fits and schedule.shared_bytes <= _SHARED and not schedule.by_warpgroup


# Code.


def _kernel(levels: Levels, names: Sequence[str], shape: _Shape, is_timed: bool) -> Kernel:
    """The kernel; its grid is as many blocks as fit the GPU at once."""
    phases = [phase for level in levels for phase in level]
    described = [
        [(one.kernel.name, one.launch.buffers, one.first, one.tiles) for one in level]
        for level in levels
    ]
    return Kernel(
        [Buffer(f"b{number}", DType.UINT8, ()) for number in range(len(names))],
        shape.threads,
        (0, 1, 1),
        lambda writer: _Region(writer, levels, names, is_timed).write(),
        levels,
        str((described, names, shape.threads, shape.cluster, is_timed)),
        shape.cluster,
        max(phase.kernel.shared_bytes for phase in phases),
    )


class _Region(TensorCode):
    """The code of the kernel: functions of phases, and calls of them."""

    def __init__(
        self, writer: KernelWriter, levels: Levels, names: Sequence[str], is_timed: bool
    ) -> None:
        super().__init__(writer, DType.FLOAT32)
        self.levels, self.is_timed = levels, is_timed
        self.pointers = dict(zip(names, writer.pointers, strict=True))

    def write(self) -> None:
        self.thread, self.block = self.special("tid"), self.special("ctaid")
        self.blocks = self.special("nctaid")
        kernels = {one.kernel.name: one.kernel for level in self.levels for one in level}
        for kernel in kernels.values():
            threads, module = self.writer.kernel.threads, self.writer.module
            function = KernelWriter(kernel, module, threads, self.is_timed)
            kernel.write(function)
            function.finish_phase()
        self.writer.when((self.block | self.thread).below(1), partial(self._record, OPEN_OFFSET))
        self.gate = Variable(self.writer, _GLOBAL)
        self.gate.set(Value(_GLOBAL, 1, "null"))
        for number, level in enumerate(self.levels):
            for phase in level:
                self._phase(phase)
            if number + 1 < len(self.levels):
                self._on_first_thread(partial(self._arrive, number))
                for phase in self.levels[number + 1]:
                    self._prefetch(phase)
                self.gate.set(self._line(number))
        self._on_first_thread(self._leave)

    def _phase(self, phase: Phase) -> None:
        """All tiles of a phase that are this block's, the first of them behind the gate."""
        first = self.block
        if phase.first:
            around = self.blocks - self.number(phase.first) % self.blocks
            first = (self.block + around) % self.blocks
        tiles = self.number(phase.tiles)
        step = tiles if phase.kernel.is_loop else self.blocks
        self.writer.loop(first.value, tiles.value, step.value, partial(self._tile, phase))

    def _tile(self, phase: Phase, tile: Value) -> None:
        pointers = [self._global(self.pointers[name]) for name in phase.launch.buffers]
        inside = ", ".join(one.typed for one in (*pointers, self.gate.get(), tile))
        call = f'call void @"{phase.kernel.name}"({inside}) convergent'
        threads = phase.kernel.threads
        if phase.kernel.is_loop or threads >= self.writer.kernel.threads:
            self.builder.do(call)
        else:
            self.writer.when(self.thread.below(threads), partial(self.builder.do, call))
        self.writer.barrier()  # of shared memory, and of what the gate's counter stands for
        self.gate.set(Value(_GLOBAL, 1, "null"))

    def _global(self, pointer: Value) -> Value:
        text = f"addrspacecast {pointer.typed} to {_GLOBAL}"
        return self.builder.make(_GLOBAL, 1, text)

    def _line(self, number: int) -> Value:
        """Where the counter of a gate lies."""
        return self._global(self.moved(self.pointers[GATES], self.number(number * LINE).value))

    def _on_first_thread(self, write: Callable[[], None]) -> None:
        self.writer.when(self.thread.below(1), write)

    def _arrive(self, number: int) -> None:
        """This block is done with a level: what it has written can be read behind the gate."""
        text = "red.release.gpu.global.add.u32 [$0], 1;"
        self.writer.assembly(text, "l", (), self._line(number))

    def _leave(self) -> None:
        """The last block to leave closes all gates again, for the next launch."""
        last = len(self.levels) - 1
        text = "atom.acq_rel.gpu.global.add.u32 $0, [$1], 1;"
        before = Value("i32", 1, self.writer.assembly(text, "=r,l", ["i32"], self._line(last)))

        def close() -> None:
            for number in range(len(self.levels)):
                self.builder.do(f"store i32 0, {self._line(number).typed}")
            self._record(END_OFFSET)

        is_last = self.builder.compare("eq", before, (self.blocks - 1).value)
        self.writer.when(is_last, close)

    def _record(self, offset: int) -> None:
        """Store the time, if it is asked for."""
        if self.is_timed:
            text = f"{{ .reg .b64 t; mov.u64 t, %globaltimer; st.global.u64 [$0+{offset}], t; }}"
            self.writer.assembly(text, "l", (), self._line(len(self.levels) - 1))

    def _prefetch(self, phase: Phase) -> None:
        """Fetch the weights of a phase into the L2 cache, each thread some lines of them."""
        product = phase.launch.product
        if product is None or not product.is_constant:
            return
        size = product.b_elements * product.size
        weights = self.pointers[phase.launch.buffers[1]]
        thread = self.block * self.writer.kernel.threads + self.thread
        step = self.blocks * (self.writer.kernel.threads * LINE)

        def fetch(offset: Value) -> None:
            source = self.moved(weights, offset)
            self.writer.assembly("prefetch.global.L2 [$0];", "l", (), source)

        self.writer.loop((thread * LINE).value, self.number(size).value, step.value, fetch)
