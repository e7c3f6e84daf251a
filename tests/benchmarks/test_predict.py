"""Predictions: what is read out of assembly, what caches are simulated to do, and the report."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from benchmarks.predict import code as predict_code
from benchmarks.predict import kernels as predict
from benchmarks.predict.code import Counts, PieceTime, code_times
from benchmarks.predict.traffic import WINDOW, Moved, Traffic

from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.target.machine import KIB, MACHINES, CacheLevel, Machine
from graft.target.register_tile import RETRIED_LOADS, SCATTERED_LINES
from graft.target.target import host_target, named_target

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
needs_mca = pytest.mark.skipif(
    not any(map(shutil.which, ("llvm-mca-19", "llvm-mca-20", "llvm-mca-21"))),
    reason="there is no llvm-mca that reports in JSON",
)

NOTHING = [0] * 4
_IN_FLIGHT = 48  # as `traffic.c` has it
ASSEMBLY = """\
kernel:
# %bb.0:                                # %entry
\tmovq\t(%rdi), %rax
.LBB0_1:                                # %outer
                                        # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_2 Depth 2
\tvxorps\t%xmm0, %xmm0, %xmm0
.LBB0_2:                                # %inner
                                        #   Parent Loop BB0_1 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
\tvfmadd231ps\t(%rax){1to16}, %zmm2, %zmm0 # zmm0 = (zmm2 * mem) + zmm0
\tvmovups\t%zmm5, 64(%rsp)
\tincq\t%rax
\tjne\t.LBB0_2
# %bb.3:                                # %latch
                                        #   in Loop: Header=BB0_1 Depth=1
\tvmovups\t%zmm0, (%rbx)
\tjne\t.LBB0_1
"""
_LOOP = (
    ".LBB0_1:                                # %inner",
    "                                        # =>This Inner Loop Header: Depth=1",
)
RUNS = {"entry": 1, "outer": 10, "inner": 1000, "latch": 10}


@needs_mca
def test_loops_and_blocks_of_assembly() -> None:
    times = {piece.blocks: piece for piece in code_times(ASSEMBLY, RUNS, named_target("znver4"))}
    assert set(times) == {("entry",), ("outer",), ("inner",), ("latch",)}
    inner = times["inner",]
    assert inner.counts == Counts(fmas=1000, loads=1000, stores=1000)
    assert inner.spills == 1
    assert inner.limit == "latency"  # one sum, four cycles until it is ready
    assert inner.cycles == pytest.approx(4000, rel=0.1)
    assert times["latch",].counts.stores == 10
    # Two units do no more of a single sum, and this one's stores need a cycle each.
    other = code_times(ASSEMBLY, RUNS, named_target("icelake-server"))
    assert sum(piece.cycles for piece in other) == pytest.approx(4000, rel=0.1)


@needs_mca
@pytest.mark.parametrize(("name", "register"), [("znver3", "ymm"), ("znver4", "zmm")])
def test_load_units_broadcast(name: str, register: str) -> None:
    """Twelve sums, each of an element of its own: the multiply-adds alone bound them."""
    sums = [
        line
        for n in range(12)
        for line in (
            f"\tvbroadcastss\t{4 * n}(%rax), %{register}14",
            f"\tvfmadd231ps\t%{register}14, %{register}15, %{register}{n}",
        )
    ]
    loop = "\n".join(["kernel:", *_LOOP, *sums, "\taddq\t$4, %rax", "\tjne\t.LBB0_1", ""])
    target = named_target(name)
    (piece,) = code_times(loop, {"inner": 100}, target)
    assert piece.cycles <= 1.1 * 12 * 100 / target.machine.vector_fmas


@needs_mca
@pytest.mark.parametrize(
    ("name", "register", "step", "each"),
    [
        ("sapphirerapids", "xmm", 32, 0.5),
        ("sapphirerapids", "xmm", 64, 1),
        ("sapphirerapids", "zmm", 64, 1),
        ("znver5", "ymm", 32, 0.5),
        ("znver5", "ymm", 64, 1),
        ("skylake-avx512", "xmm", 32, 1),
    ],
)
def test_narrow_stores(name: str, register: str, step: int, each: float) -> None:
    """Newer cores store twice in a cycle what is no wider than half a line, into the same line."""
    stores = [f"\tvmovups\t%{register}0, {step * n}(%rax)" for n in range(16)]
    loop = "\n".join(["kernel:", *_LOOP, *stores, "\taddq\t$4, %rax", "\tjne\t.LBB0_1", ""])
    (piece,) = code_times(loop, {"inner": 100}, named_target(name))
    assert piece.cycles == pytest.approx(1600 * each, rel=0.1)


def _cycles_of(lines: Sequence[str], name: str) -> float:
    """Cycles of an iteration of a loop on a machine."""
    loop = "\n".join(["kernel:", *_LOOP, *(f"\t{line}" for line in lines), "\tjne\t.LBB0_1", ""])
    (piece,) = code_times(loop, {"inner": 100}, named_target(name))
    return piece.cycles / 100


@needs_mca
@pytest.mark.parametrize(("name", "register"), [("znver3", "ymm"), ("znver5", "zmm")])
def test_vectors_are_stored_beside_loads(name: str, register: str) -> None:
    """Zen cores load two vectors and store one in a cycle."""
    lines = [
        line
        for n in range(0, 8, 2)
        for line in (
            f"vmovups\t{64 * n}(%rax), %{register}{n}",
            f"vmovups\t{64 * n + 64}(%rax), %{register}{n + 1}",
            f"vmovups\t%{register}15, {64 * n}(%rbx)",
        )
    ]
    assert _cycles_of(lines, name) == pytest.approx(4, rel=0.1)


@needs_mca
@pytest.mark.parametrize(
    ("line", "independent", "chain"),
    [
        ("vfmadd231ps\t%zmm15, %zmm15, %zmm{}", 0.5, 4),
        ("vfmadd213ss\t%xmm15, %xmm15, %xmm{}", 0.5, 4),
        ("vmaxps\t%zmm15, %zmm{0}, %zmm{0}", 0.5, 2),
        ("vscalefps\t%zmm15, %zmm{0}, %zmm{0}", 1, 6),
        ("vbroadcastss\t%xmm15, %zmm{}", 0.5, 0.5),
        ("vextractf64x4\t$1, %zmm15, %ymm{}", 0.5, 0.5),
        ("vinsertf64x4\t$1, %ymm15, %zmm14, %zmm{}", 0.5, 0.5),
        ("vpermt2ps\t%zmm15, %zmm14, %zmm{}", 0.5, 0.5),
        ("vaddps\t(%rax){{1to16}}, %zmm15, %zmm{}", 0.5, 0.5),
    ],
)
def test_instructions_of_zen5(line: str, independent: float, chain: float) -> None:
    """Cycles as measured on such a core, each instruction for itself and behind the one before."""
    apart, behind = ([line.format(n) for n in ns] for ns in (range(12), [0] * 12))
    assert _cycles_of(apart, "znver5") / 12 == pytest.approx(independent, rel=0.15)
    assert _cycles_of(behind, "znver5") / 12 == pytest.approx(chain, rel=0.15)


@needs_mca
def test_stores_of_chains_do_not_shorten_them() -> None:
    """A sum that is stored takes as long as one that is not."""
    total = "vaddps\t%ymm1, %ymm0, %ymm0"
    assert _cycles_of([total, "vmovups\t%ymm0, (%rax)"], "znver3") == _cycles_of([total], "znver3")


@needs_mca
def test_pairs_of_stores_lie_in_one_line() -> None:
    """Elements three apart: five or six of them in a line, which take three cycles."""
    lines = [f"vmovss\t%xmm0, {12 * n}(%rax)" for n in range(16)]
    assert _cycles_of(lines, "znver5") == pytest.approx(9, rel=0.05)


SHORT_LOOPS = """\
kernel:
.LBB0_1:                                # %outer
                                        # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_2 Depth 2
\tvmovups\t(%rbx), %zmm0
.LBB0_2:                                # %inner
                                        #   Parent Loop BB0_1 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
\tvfmadd231ps\t(%rax), %zmm2, %zmm0
\taddq\t$64, %rax
\tjne\t.LBB0_2
# %bb.3:                                # %latch
                                        #   in Loop: Header=BB0_1 Depth=1
\tvmovups\t%zmm0, (%rbx)
\taddq\t$64, %rbx
\tjne\t.LBB0_1
"""


@needs_mca
@pytest.mark.parametrize(("trips", "each"), [(2, 1.4), (200, 4)])
def test_short_loops_overlap_with_what_is_around_them(trips: int, each: float) -> None:
    """Sums of two products do not wait for each other; one of 200 does for itself."""
    runs = {"outer": 100, "inner": 100 * trips, "latch": 100}
    for name, expected in (("znver5", each), ("icelake-server", 4)):  # by a smaller core's model
        pieces = code_times(SHORT_LOOPS, runs, named_target(name))
        (inner,) = (piece for piece in pieces if piece.blocks == ("inner",))
        assert inner.cycles / (100 * trips) == pytest.approx(expected, rel=0.1)


def test_instructions_by_kind() -> None:
    arm, zen = named_target("neoverse-v1"), named_target("znver4")
    count = predict_code._count
    assert count("fmla\tv0.4s, v1.4s, v2.s[0]", arm) == Counts(fmas=1)
    assert count("ldp\tq0, q1, [x0]", arm) == Counts(loads=2)
    assert count("vfmadd231ps\t%ymm1, %ymm2, %ymm0", zen) == Counts(fmas=0.5)  # two a cycle
    assert count("vmovaps\t(%rax), %zmm0", zen) == Counts(loads=1)
    assert count("vmovaps\t%zmm0, (%rax)", zen) == Counts(stores=1)
    assert count("leaq\t(%rax,%rbx), %rcx", zen) == Counts()


def _traffic(text: str, machine: Machine) -> Traffic:
    return Traffic([text], machine, [1.0, 2.0, 8.0][: len(machine.caches)], [{}])


def _sweep(size: int) -> str:
    """A kernel that reads so many bytes, line by line, twice."""
    return f"""
define void @kernel(ptr %memory) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %at = urem i64 %i, {size // 64}
  %offset = mul i64 %at, 64
  %p = getelementptr i8, ptr %memory, i64 %offset
  %v = load volatile i64, ptr %p
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {2 * size // 64}
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""


@needs_compiler
@pytest.mark.parametrize(("size", "moved"), [(16 * KIB, 16 * KIB), (64 * KIB, 128 * KIB)])
def test_simulated_caches(size: int, moved: int, run_object: Callable[[bytes, int], None]) -> None:
    """What fits is fetched once; what does not, in the order of last use, every time."""
    small = replace(
        MACHINES["znver4"], caches=(CacheLevel(32 * KIB, 64), CacheLevel(512 * KIB, 32))
    )
    traffic = _traffic(_sweep(size), small)
    memory = np.zeros(size + 64, np.uint8)
    run_object(traffic.objects[0], memory.ctypes.data + -memory.ctypes.data % 64)
    assert traffic.block_runs(0) == {"entry": 1, "loop": 2 * size // 64, "done": 1}
    first, second, *_ = traffic.bytes_below(0)["loop"].waited
    assert first == moved
    assert second == size
    assert not any(traffic.bytes_below(0)["loop"].posted)
    bursts = traffic.bytes_below(0)["loop"].bursts
    assert bursts.sum(axis=0).tolist() == [traffic.bytes_below(0)["loop"].waited, NOTHING]
    assert bursts[0, 0].tolist()[:2] == [WINDOW * 64] * 2


@pytest.fixture
def run_object() -> Callable[[bytes, int], None]:
    """Link object code with a function `kernel` of an address, and call it."""

    def run(code: bytes, address: int) -> None:
        builder = llvm.JITLibraryBuilder()
        builder.add_object_img(code).add_current_process().export_symbol("kernel")
        library = builder.link(llvm.create_lljit_compiler(use_jit_link=True), "test")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library["kernel"])(address)

    return run


def _moved(
    waited: Sequence[int] = NOTHING,
    posted: Sequence[int] = NOTHING,
    stored: Sequence[int] = NOTHING,
    scattered: Sequence[int] = NOTHING,
    evicted: Sequence[int] = NOTHING,
    fetched: Sequence[int] = NOTHING,
    stalls: Sequence[float] = NOTHING,
    starts: Sequence[int] = NOTHING,
    bursts: Array | None = None,
) -> Moved:
    whole = np.array([[waited, stored]]) if bursts is None else bursts
    return Moved(waited, posted, stored, scattered, evicted, fetched, starts, stalls, whole)


def test_transfers_beside_code_and_after_it() -> None:
    """A piece that waits for loads and for the second cache: together, or one after the other."""
    piece = PieceTime(("loop",), 100.0, "loads", Counts(loads=200.0), 0)
    moved = {"loop": _moved([1600, 0, 0, 0])}
    zen, xeon = MACHINES["znver5"], MACHINES["icelake-server"]
    assert predict._cycles([piece], moved, zen) == {"loads": 100.0}
    apart = predict._cycles([piece], moved, xeon)
    assert apart["loads"] == 100 * RETRIED_LOADS
    assert apart["L2"] == 1600 / xeon.caches[1].bytes_per_cycle


def test_posted_transfers_use_idle_time() -> None:
    """What nothing waits for goes on beside arithmetic, as far as there is time for it."""
    piece = PieceTime(("loop",), 100.0, "multiply-adds", Counts(fmas=200.0, loads=40.0), 0)
    zen, xeon = MACHINES["znver5"], MACHINES["icelake-server"]
    few, many = ({"loop": _moved(posted=[size, 0, 0, 0])} for size in (640, 64000))
    for machine in (zen, xeon):
        assert sum(predict._cycles([piece], few, machine).values()) == 100
    rate = zen.caches[1].bytes_per_cycle
    assert sum(predict._cycles([piece], many, zen).values()) == pytest.approx(64000 / rate)
    rate = xeon.caches[1].bytes_per_cycle
    whole = 64000 / rate + RETRIED_LOADS * 40 / xeon.vector_loads
    assert sum(predict._cycles([piece], many, xeon).values()) == pytest.approx(whole)


def test_prefetches_into_the_second_cache_leave_the_first_one_alone() -> None:
    """They go on beside loads, up to what the last cache gives."""
    piece = PieceTime(("loop",), 100.0, "loads", Counts(loads=200.0), 0)
    xeon = MACHINES["icelake-server"]
    rate = xeon.caches[2].bytes_per_cycle
    few, many = ({"loop": _moved(posted=[0, size, 0, 0])} for size in (640, 64000))
    assert predict._cycles([piece], few, xeon) == {"loads": 100 * RETRIED_LOADS}
    assert sum(predict._cycles([piece], many, xeon).values()) == pytest.approx(64000 / rate)


@pytest.mark.parametrize(("name", "kind"), [("icelake-server", 0), ("znver5", 0), ("znver5", 1)])
def test_bursts_are_waited_for(name: str, kind: int) -> None:
    """What loads and stores ask for from the last cache is hidden where it comes evenly."""
    piece = PieceTime(("loop",), 1000.0, "multiply-adds", Counts(fmas=2000.0), 0)
    machine = MACHINES[name]
    evenly, at_once = np.zeros((2, 10, 2, 4), np.int64)
    evenly[:, kind, :2], at_once[0, kind, :2] = 500, 5000
    hidden, waited = (
        predict._cycles([piece], {"loop": _moved([0, 5000, 0, 0], bursts=bursts)}, machine)
        for bursts in (evenly, at_once)
    )
    assert hidden == {"multiply-adds": 1000.0}
    assert sum(waited.values()) == pytest.approx(
        900 + max(100, 5000 / machine.caches[2].bytes_per_cycle)
    )


def test_levels_take_turns() -> None:
    """Lines from the second cache and from the last one fill the first one after each other; those
    from farther away do not count as the nearer level's."""
    piece = PieceTime(("loop",), 1.0, "ports", Counts(), 0)
    zen = MACHINES["znver5"]
    cycles = predict._cycles([piece], {"loop": _moved([9600, 6400, 0, 0])}, zen)
    assert cycles["L2"] == pytest.approx(3200 / zen.caches[1].bytes_per_cycle)
    assert cycles["L3"] == pytest.approx(6400 / zen.caches[2].bytes_per_cycle)
    least = predict._least_cycles([], {"loop": _moved([9600, 6400, 0, 0])}, 9600, zen)
    assert least == pytest.approx(cycles["L2"] + cycles["L3"])


def test_first_lines_of_a_call_are_waited_for() -> None:
    """A whole latency for each."""
    piece = PieceTime(("loop",), 100.0, "ports", Counts(), 0)
    zen = MACHINES["znver5"]
    cycles = predict._cycles([piece], {"loop": _moved(starts=[0, 2, 1, 0])}, zen)
    assert cycles["start"] == pytest.approx((2 * 15 + 120) * zen.gigahertz)


def test_scattered_lines_come_slower() -> None:
    """Those that no prefetcher of the first cache foresees, on Intel's cores."""
    piece = PieceTime(("loop",), 1.0, "loads", Counts(), 0)
    zen, xeon = MACHINES["znver5"], MACHINES["icelake-server"]
    lines = [6400, 0, 0, 0]
    scattered, streamed = ({"loop": _moved(lines, scattered=one)} for one in (lines, NOTHING))
    slow, fast = (predict._cycles([piece], one, xeon)["L2"] for one in (scattered, streamed))
    assert slow == pytest.approx(fast / SCATTERED_LINES)
    assert predict._cycles([piece], scattered, zen) == predict._cycles([piece], streamed, zen)


def test_copies_and_updates_in_the_last_cache() -> None:
    """A Cascade Lake core at 2.5 GHz reads 23.9 GB/s there; when it copies it reads and asks for
    lines to write at 23.6 GB/s, and when it updates it reads at 23.7 GB/s: what is written goes
    beside that (kerncraft, CascadelakeSP_Gold-6248_SNC.yml)."""
    piece = PieceTime(("loop",), 1.0, "loads", Counts(), 0)
    xeon, size = MACHINES["cascadelake"], 64_000
    one, two = [0, size, 0, 0], [0, 2 * size, 0, 0]

    def cycles(moved: Moved) -> float:
        return sum(predict._cycles([piece], {"loop": moved}, xeon).values())

    read = cycles(_moved(two))
    assert read * 23.9 / 2.5 == pytest.approx(2 * size, rel=0.05)
    assert cycles(_moved(one, stored=one, evicted=one)) == pytest.approx(read)
    assert cycles(_moved(two, evicted=two)) == pytest.approx(read)
    updated = {"loop": _moved(two, evicted=two)}
    assert predict._least_cycles([], updated, 8 * size, xeon) == 2 * size / 10


@needs_compiler
def test_lines_that_stores_ask_for_and_that_are_written_back(
    run_object: Callable[[bytes, int], None],
) -> None:
    """Each line of an array that the first cache cannot hold comes once to be written, and goes."""
    size = 512 * KIB
    text = _sweep(size).replace("%v = load volatile i64, ptr %p", "store i64 1, ptr %p")
    traffic = _traffic(text, MACHINES["icelake-server"])
    memory = np.zeros(size + 64, np.uint8)
    run_object(traffic.objects[0], memory.ctypes.data + -memory.ctypes.data % 64)
    moved = traffic.bytes_below(0)["loop"]
    assert moved.stored[0] == 2 * size
    assert not any(moved.waited)
    assert not any(moved.posted)
    assert moved.evicted[0] == 2 * size - MACHINES["icelake-server"].caches[0].size
    assert moved.bursts.sum(axis=0).tolist() == [NOTHING, moved.stored]


@needs_compiler
def test_lines_that_a_prefetcher_foresees(run_object: Callable[[bytes, int], None]) -> None:
    """Lines one after the other are; those in steps of 64 are not."""
    size = 128 * KIB
    memory = np.zeros(size + 64, np.uint8)
    for step, share in ((1, 0), (64, 1)):
        text = _sweep(size).replace(f"urem i64 %i, {size // 64}", f"mul i64 %i, {step}")
        text = text.replace(f"%next, {2 * size // 64}", f"%next, {size // 64 // step}")
        traffic = _traffic(text, MACHINES["icelake-server"])
        run_object(traffic.objects[0], memory.ctypes.data + -memory.ctypes.data % 64)
        moved = traffic.bytes_below(0)["loop"]
        assert moved.waited[0] == size // step
        assert abs(moved.scattered[0] - share * moved.waited[0]) <= 2 * 64


@needs_compiler
@pytest.mark.parametrize(("pace", "stall"), [(10.0, 0), (5.0, 3)])
def test_prefetches_queue_up(
    pace: float, stall: float, run_object: Callable[[bytes, int], None]
) -> None:
    """Asked for faster than memory gives lines, all but those in flight are waited for, though
    code that runs later would have time for them."""
    lines, each = 1000, 8.0
    size, asked = 64 * lines, "call void @llvm.prefetch.p0(ptr %p, i32 0, i32 2, i32 1)"
    text = _sweep(size).replace("%v = load volatile i64, ptr %p", asked)
    text = text.replace(f"%next, {2 * lines}", f"%next, {lines}")
    text += "\ndeclare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    traffic = _traffic(text, MACHINES["znver4"])
    traffic.clear([{"loop": pace, "done": 1e6}])
    memory = np.zeros(size + 64, np.uint8)
    run_object(traffic.objects[0], memory.ctypes.data + -memory.ctypes.data % 64)
    moved = traffic.bytes_below(0)["loop"]
    assert moved.posted[:3] == [0, size, size]
    expected = max(0.0, stall * lines - _IN_FLIGHT * each)
    assert moved.stalls == [0, 0, pytest.approx(expected, abs=2 * each), 0]


@needs_compiler
def test_code_is_fetched_once_in_a_call(run_object: Callable[[bytes, int], None]) -> None:
    """From memory at first, from the second cache afterwards."""
    text = _sweep(4 * KIB)
    traffic = Traffic([text], MACHINES["znver4"], [1.0, 2.0, 8.0], [{"loop": 640, "done": 7}])
    memory = np.zeros(4 * KIB + 64, np.uint8)
    address = memory.ctypes.data + -memory.ctypes.data % 64
    run_object(traffic.objects[0], address)
    assert traffic.bytes_below(0)["loop"].fetched == [0, 640, 640, 0]
    assert traffic.bytes_below(0)["done"].fetched == [0, 64, 64, 0]
    assert traffic.bytes_below(0)["loop"].starts == [0, 0, 1, 0]  # its first load
    traffic.clear([{}])
    run_object(traffic.objects[0], address)
    assert not any(traffic.bytes_below(0)["loop"].fetched)
    assert not any(traffic.bytes_below(0)["loop"].starts)


@needs_compiler
def test_last_caches_do_not_evict_by_last_use(run_object: Callable[[bytes, int], None]) -> None:
    """Of an array twice as large, read again, a part is still there."""
    size = 512 * KIB
    levels = CacheLevel(32 * KIB, 64), CacheLevel(64 * KIB, 32), CacheLevel(256 * KIB, 16)
    traffic = _traffic(_sweep(size), replace(MACHINES["znver4"], caches=levels))
    memory = np.zeros(size + 64, np.uint8)
    run_object(traffic.objects[0], memory.ctypes.data + -memory.ctypes.data % 64)
    _, last, beyond, _ = traffic.bytes_below(0)["loop"].waited
    assert last == 2 * size
    assert 1.6 * size < beyond < 1.9 * size


def test_code_from_memory_is_waited_for() -> None:
    piece = PieceTime(("loop",), 100.0, "loads", Counts(loads=200.0), 0)
    zen = MACHINES["znver5"]
    near, far = ({"loop": _moved(fetched=[0, 640, lines, 0])} for lines in (0, 640))
    short, long = (predict._cycles([piece], one, zen) for one in (near, far))
    assert short["loads"] == long["loads"] == 100
    assert 0 < short["code"] < long["code"]


def _layer() -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 32, 14, 14))
    weights = g.constant(np.ones((64, 32, 1, 1), np.float32))
    return g.build(g("nn.relu", g("nn.conv2d", x, weights)))


@needs_mca
@needs_compiler
@pytest.mark.parametrize("name", ["host", "icelake-server", "neoverse-v1"])
def test_report(name: str) -> None:
    target = host_target() if name == "host" else named_target(name)
    if target.is_x86 and not host_target().is_x86:
        pytest.skip("vectors of x86 are for x86 alone")
    predictions = predict.predict(_layer(), target, measure=name == "host")
    layer = next(one for one in predictions if one.flops)
    assert layer.flops >= 2 * 64 * 32 * 14 * 14
    assert 0 < layer.of_bound <= 1.01
    lines = list(predict.report("layer", target, predictions))
    assert lines[0].startswith(f"layer on {target.machine.summary}, one core")
    assert any(line.startswith("findings: ") for line in lines)
    assert any("predicted/measured" in line for line in lines) == (name == "host")
