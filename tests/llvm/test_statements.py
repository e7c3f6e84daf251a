"""Loops, branches, memory of all kinds and threads, against the interpreter or NumPy."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import re

import numpy as np
import pytest
from tests.llvm.kernels import add, compiled, elementwise, interpreted, run, runnable_targets, times
from tests.llvm.micro_kernel import micro_kernel

from graft.base.dtypes import Array, DType
from graft.base.errors import InternalError, UnsupportedError
from graft.llvm.cache import kernel_key
from graft.llvm.compile import assembly as assembly_of
from graft.llvm.emit import llvm_text
from graft.llvm.load import Argument, Kernel, aligned
from graft.loop.ir import (
    Allocate,
    AtomicAdd,
    Barrier,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Function,
    If,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Ramp,
    Scope,
    Select,
    Stmt,
    Store,
    Var,
    While,
)
from graft.target.target import Target, host_target, named_target

F32, I32, I64 = DType.FLOAT32, DType.INT32, DType.INT64
N, M, ROW, COLUMN = Var("n"), Var("m"), Var("i"), Var("j")
THREADS = pytest.mark.parametrize("threads", [1, 2, 3])


def edge_of_memory() -> list[np.ndarray]:
    """Two pages, each before one that may not be touched."""
    size = mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = np.frombuffer(mmap.mmap(-1, 4 * size), np.uint8)
    walls = [pages.ctypes.data + number * size for number in (1, 3)]
    assert all(protect(wall, size, 0) == 0 for wall in walls)
    return [pages[number * size : (number + 1) * size] for number in (0, 2)]


def less(left: Expr, right: Expr) -> Compare:
    return Compare(CompareKind.LESS, left, right)


def agree(function: Function, arguments: dict, threads: int = 1) -> None:
    """Machine code and interpreter leave the same arrays behind."""
    actual = run(compiled(function), arguments, threads)
    expected = interpreted(function, arguments, threads)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def counted(shape: tuple[int, ...], dtype: DType = F32) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype.numpy)


@THREADS
@pytest.mark.parametrize("kind", list(LoopKind))
@pytest.mark.parametrize(("n", "m"), [(5, 3), (1, 1), (0, 4), (7, 0)])
def test_loops_of_every_kind(kind: LoopKind, threads: int, n: int, m: int) -> None:
    a, c = Buffer("a", I32, (N, M)), Buffer("c", I32, (N, M))
    value = Binary(BinaryKind.ADD, Load(a, (ROW, COLUMN)), Cast(I32, add(times(ROW, 100), COLUMN)))
    inner = For(COLUMN, Const(0), M, Store(c, (ROW, COLUMN), value))
    function = Function("loops", (a, c, N, M), For(ROW, Const(0), N, inner, kind))
    arguments = {"a": counted((n, m), I32), "c": np.zeros((n, m), np.int32), "n": n, "m": m}
    agree(function, arguments, threads)


def test_loops_start_anywhere_and_unroll() -> None:
    c = Buffer("c", I64, (Const(20),))
    unrolled = For(
        COLUMN, Const(-2), Const(3), Store(c, (add(add(ROW, COLUMN), 2),), ROW), LoopKind.UNROLLED
    )
    negative = For(Var("k"), Const(0), Const(-4), Store(c, (Const(0),), Const(99)))
    body = Block((For(ROW, Const(3), Const(15), unrolled), negative))
    agree(Function("starts", (c,), body), {"c": np.zeros(20, np.int64)})


def test_loop_variable_of_32_bits() -> None:
    i = Var("i", I32)
    c = Buffer("c", I32, (Const(9),))
    loop = For(i, Const(0, I32), Const(9, I32), Store(c, (i,), Binary(BinaryKind.MULTIPLY, i, i)))
    agree(Function("narrow", (c,), loop), {"c": np.zeros(9, np.int32)})


def test_scalars_of_all_kinds() -> None:
    scalars = [Var("s", F32), Var("d", DType.FLOAT64), Var("i", I32), Var("b", DType.BOOL)]
    scalars.append(Var("h", DType.BFLOAT16))
    c = Buffer("c", DType.FLOAT64, (Const(5),))
    stores = [Store(c, (Const(k),), Cast(DType.FLOAT64, var)) for k, var in enumerate(scalars)]
    function = Function("scalars", (*scalars, c), Block(tuple(stores)))
    values = {"s": 1.1, "d": -2.2, "i": -7, "b": True, "h": 3.14159}
    agree(function, values | {"c": np.zeros(5)})


def test_rank_zero_and_bool_buffers() -> None:
    flag, c = Buffer("flag", DType.BOOL, ()), Buffer("c", DType.BOOL, (N,))
    loop = For(ROW, Const(0), N, Store(c, (ROW,), Compare(CompareKind.EQUAL, ROW, Const(2))))
    body = If(Load(flag, ()), loop, Store(c, (Const(0),), Const(True, DType.BOOL)))
    function = Function("flags", (flag, c, N), body)
    for state in (True, False):
        agree(function, {"flag": np.array(state), "c": np.zeros(4, bool), "n": 4})


def test_let_if_and_while() -> None:
    """How many steps the Collatz sequence of each number takes."""
    c, state = Buffer("c", I64, (N,)), Buffer("state", I64, (Const(2),), Scope.REGISTER)
    now, steps = Load(state, (Const(0),)), Load(state, (Const(1),))
    x = Var("x")
    even = Compare(CompareKind.EQUAL, Binary(BinaryKind.FLOOR_MODULO, x, Const(2)), Const(0))
    half = Store(state, (Const(0),), Binary(BinaryKind.FLOOR_DIVIDE, x, Const(2)))
    triple = Store(state, (Const(0),), add(times(x, 3), 1))
    step = Block((If(even, half, triple), Store(state, (Const(1),), add(steps, 1))))
    search = While(Compare(CompareKind.NOT_EQUAL, now, Const(1)), Let(x, now, step))
    start = [Store(state, (Const(0),), add(ROW, 1)), Store(state, (Const(1),), Const(0))]
    each = Block((*start, search, Store(c, (ROW,), steps)))
    function = Function("collatz", (c, N), Allocate(state, For(ROW, Const(0), N, each)))
    agree(function, {"c": np.zeros(30, np.int64), "n": 30})


@pytest.mark.parametrize("stride", [-4, -3, -1, 0, 1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("dtype", [F32, DType.UINT8, DType.BOOL])
def test_strided_access(stride: int, dtype: DType) -> None:
    lanes, count = 8, 8 * 16 * 3
    a = Buffer("a", dtype, (Const(count),))
    c = Buffer("c", dtype, (Const(count),))
    far = abs(stride) * (lanes - 1)
    ramp = Ramp(add(ROW, far if stride < 0 else 0), stride, lanes)
    plain = Ramp(times(ROW, lanes), 1, lanes)
    stores: list[Stmt] = [Store(c, (plain,), Load(a, (ramp,)))]
    if stride != 0:
        stores.append(Store(c, (ramp,), Load(a, (plain,))))
    function = Function("strided", (a, c), For(ROW, Const(0), Const(9), Block(tuple(stores))))
    values = counted((count,), DType.INT32)
    arrays = {"a": (values % 251 % (2 if dtype is DType.BOOL else 251)).astype(dtype.numpy)}
    agree(function, arrays | {"c": np.zeros(count, dtype.numpy)})


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_ramp_in_any_dimension(dimension: int) -> None:
    shape = (8, 9, 10)
    extents = tuple(Const(extent) for extent in shape)
    a, c = Buffer("a", F32, extents), Buffer("c", F32, extents)
    index: list[Expr] = [Const(1), Const(2), Const(3)]
    index[dimension] = Ramp(Const(0), 1, 8)
    other: list[Expr] = [Const(2), Const(0), Const(1)]
    other[dimension] = Binary(BinaryKind.ADD, Ramp(Const(-1), 1, 8), Broadcast(Const(1), 8))
    function = Function("ramps", (a, c), Store(c, tuple(other), Load(a, tuple(index))))
    agree(function, {"a": counted(shape), "c": np.zeros(shape, np.float32)})


def test_symbolic_extents_before_a_ramp() -> None:
    """The distance of lanes is only known when the kernel runs."""
    a, c = Buffer("a", F32, (Const(4), N)), Buffer("c", F32, (N, Const(4)))
    column, row = Load(a, (Ramp(Const(0), 1, 4), ROW)), (ROW, Ramp(Const(0), 1, 4))
    function = Function("transpose", (a, c, N), For(ROW, Const(0), N, Store(c, row, column)))
    agree(function, {"a": counted((4, 6)), "c": np.zeros((6, 4), np.float32), "n": 6})


@pytest.mark.parametrize("dtype", [F32, DType.UINT8])
@pytest.mark.parametrize("first", [-20, -3, 0, 1, 5, 9, 30])
def test_a_ramp_that_is_kept_inside(first: int, dtype: DType) -> None:
    """Outside on either side, partly or all, and not at all."""
    a, c = Buffer("a", dtype, (Const(3), N)), Buffer("c", dtype, (Const(8),))
    start = Var("start")
    low = Binary(BinaryKind.MAXIMUM, Const(0, I64, 8), Ramp(start, 1, 8))
    inside = Binary(BinaryKind.MINIMUM, low, Broadcast(add(N, -1), 8))
    body = Store(c, (Ramp(Const(0), 1, 8),), Load(a, (Const(1), inside)))
    function = Function("kept", (a, c, N, start), body)
    assert "masked.gather" in llvm_text(function, host_target())
    assert "load <8 x" in llvm_text(function, host_target())
    arrays = {"a": counted((3, 17), dtype), "c": np.zeros(8, dtype.numpy)}
    agree(function, arrays | {"n": 17, "start": first})


def test_gather_and_scatter() -> None:
    """Indices that come from memory, of 32 bits."""
    where = Buffer("where", I32, (Const(8),))
    a, c = Buffer("a", F32, (Const(50),)), Buffer("c", F32, (Const(50),))
    index = Load(where, (Ramp(Const(0), 1, 8),))
    body = Store(c, (index,), Load(a, (index,)))
    function = Function("gathers", (where, a, c), body)
    places = np.array([3, 49, 0, 7, 21, 8, 30, 2], np.int32)
    agree(function, {"where": places, "a": counted((50,)), "c": np.zeros(50, np.float32)})


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [F32, DType.INT8, DType.BOOL, DType.FLOAT64, DType.BFLOAT16])
def test_masked_tails_touch_nothing_else(dtype: DType, target: Target) -> None:
    """A tail of every length, at the very end of memory that may not be left."""
    kernel = compiled(elementwise([dtype], [lambda a: a], [dtype], 8, alignment=1), target)
    values = (counted((40,), DType.INT32) % 2).astype(dtype.numpy)
    edge = edge_of_memory()
    for n in range(18):
        source, sink = (page[len(page) - n * values.itemsize :] for page in edge)
        given, result = source.view(values.dtype), sink.view(values.dtype)
        given[:], result[:] = values[:n], values[1 : n + 1]
        kernel({"in0": given, "out0": result, "n": n})
        np.testing.assert_array_equal(result, values[:n])


def spread(value: Expr, lanes: int) -> Expr:
    return value if lanes == 1 else Broadcast(value, lanes)


def test_masked_gather_and_scatter() -> None:
    a, c = Buffer("a", F32, (N, Const(3))), Buffer("c", F32, (N, Const(3)))
    rows = Ramp(times(ROW, 8), 1, 8)
    inside = less(rows, Broadcast(N, 8))
    body = Store(c, (rows, Const(1)), Load(a, (rows, Const(2))), inside)
    function = Function("columns", (a, c, N), For(ROW, Const(0), Const(2), body))
    values = counted((11, 3))
    result = run(compiled(function), {"a": values, "c": np.zeros_like(values), "n": 11})
    np.testing.assert_array_equal(result["c"][:, 1], values[:, 2])
    assert not result["c"][:, [0, 2]].any()


def test_values_of_a_masked_store_are_read_in_its_lanes_only() -> None:
    """In the other lanes the index lies far outside."""
    a, c = Buffer("a", F32, (N,)), Buffer("c", F32, (N,))
    lanes = Ramp(Const(0), 1, 8)
    far = Ramp(Const(5), 100_000_000, 8)
    first = Compare(CompareKind.LESS, lanes, Const(1, I64, 8))
    function = Function("far", (a, c, N), Store(c, (far,), Load(a, (far,)), first))
    result = run(compiled(function), {"a": counted((9,)), "c": np.zeros(9, np.float32), "n": 9})
    np.testing.assert_array_equal(result["c"], [0, 0, 0, 0, 0, 5, 0, 0, 0])


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("flipped", [False, True])
def test_a_select_by_a_mask_reads_what_it_chooses_only(flipped: bool, target: Target) -> None:
    """Rows of every length, at the very end of memory that may not be left."""
    a = Buffer("a", F32, (N,), alignment=4)
    c = Buffer("c", F32, (Const(8),))
    lanes, nothing = Ramp(Const(0), 1, 8), Const(-1.0, F32, 8)
    found = Var("found", F32, 8)
    value: Expr = Select(less(lanes, Broadcast(N, 8)), Load(a, (lanes,)), nothing)
    if flipped:
        beyond = Compare(CompareKind.GREATER_EQUAL, lanes, Broadcast(N, 8))
        value = Select(beyond, nothing, Load(a, (lanes,)))
    body = Let(found, value, Store(c, (lanes,), found))
    kernel = compiled(Function("row", (a, c, N), body), target)
    page = edge_of_memory()[0]
    for n in range(9):
        row = page[len(page) - 4 * n :].view(np.float32)
        row[:] = np.arange(n)
        result = run_in_place(kernel, {"a": row, "n": n}, 8)
        np.testing.assert_array_equal(result, [*range(n), *[-1] * (8 - n)])


def run_in_place(kernel: Kernel, arguments: dict[str, Argument], size: int) -> Array:
    """The result `c` of that size; arguments stay where they are."""
    result = aligned(np.zeros(size, np.float32))
    kernel({**arguments, "c": result})
    return result


def test_hundreds_of_lets() -> None:
    c = Buffer("c", I64, (Const(1),))
    variables = [Var(f"x{k}") for k in range(700)]
    body: Stmt = Store(c, (Const(0),), variables[-1])
    for before, after in reversed(list(itertools.pairwise(variables))):
        body = Let(after, add(before, 1), body)
    function = Function("lets", (c,), Let(variables[0], Const(1), body))
    assert run(compiled(function), {"c": np.zeros(1, np.int64)})["c"] == [700]
    assert len(kernel_key(function, host_target())) == 64


def test_scalar_condition_of_a_store() -> None:
    c = Buffer("c", F32, (N,))
    value = Cast(F32, ROW)
    function = Function(
        "some", (c, N), For(ROW, Const(0), N, Store(c, (ROW,), value, less(ROW, Const(3))))
    )
    agree(function, {"c": np.full(6, -1, np.float32), "n": 6})


@THREADS
def test_scratch_memory_belongs_to_each_thread(threads: int) -> None:
    """Two buffers of symbolic size, used by all threads at once."""
    a, c = Buffer("a", F32, (N, M)), Buffer("c", F32, (N, M))
    first = Buffer("first", F32, (add(M, 1),), Scope.HEAP)
    second = Buffer("second", DType.INT16, (M, Const(3)), Scope.HEAP)
    k = Var("k")
    fill = For(COLUMN, Const(0), M, Block((
        Store(first, (COLUMN,), Load(a, (ROW, COLUMN))),
        Store(second, (COLUMN, Const(2)), Cast(DType.INT16, COLUMN)),
    )))  # fmt: skip
    backwards = Load(first, (Binary(BinaryKind.SUBTRACT, add(M, -1), k),))
    value = Binary(BinaryKind.ADD, backwards, Cast(F32, Load(second, (k, Const(2)))))
    drain = For(k, Const(0), M, Store(c, (ROW, k), value))
    each = Allocate(first, Allocate(second, Block((fill, drain))))
    function = Function("scratch", (a, c, N, M), For(ROW, Const(0), N, each, LoopKind.PARALLEL))
    arrays = {"a": counted((31, 17)), "c": np.zeros((31, 17), np.float32)}
    agree(function, arrays | {"n": 31, "m": 17}, threads)
    needed = compiled(function).scratch_bytes({"n": 31, "m": 17})
    assert needed == 128 + 128  # 18 floats, 51 times two bytes, each padded to 64


@THREADS
def test_barrier(threads: int) -> None:
    """Each round reads what the other threads wrote in the one before."""
    c = Buffer("c", I64, (Const(2), N))
    turn = Var("turn")
    here, there = (Binary(BinaryKind.FLOOR_MODULO, add(turn, k), Const(2)) for k in (0, 1))
    mirrored = Binary(BinaryKind.SUBTRACT, add(N, -1), ROW)
    value = Binary(BinaryKind.ADD, Load(c, (here, mirrored)), ROW)
    work = For(ROW, Const(0), N, Store(c, (there, ROW), value), LoopKind.PARALLEL)
    rounds = For(turn, Const(0), Const(60), Block((work, Barrier())))
    function = Function("rounds", (c, N), rounds)
    agree(function, {"c": np.zeros((2, 13), np.int64), "n": 13}, threads)


@pytest.mark.parametrize("dtype", [I32, I64, F32, DType.FLOAT64])
@pytest.mark.parametrize("lanes", [1, 4])
def test_atomic_add(dtype: DType, lanes: int) -> None:
    """Small whole numbers, so that the order of additions does not matter."""
    c = Buffer("c", dtype, (Const(4),))
    index: Expr = Ramp(Const(0), 1, 4) if lanes > 1 else Const(1)
    value = spread(Cast(dtype, ROW), lanes)
    loop = For(ROW, Const(0), Const(500), AtomicAdd(c, (index,), value), LoopKind.PARALLEL)
    agree(Function("sums", (c,), loop), {"c": np.zeros(4, dtype.numpy)}, threads=3)


def test_prefetch_changes_nothing() -> None:
    a, c = Buffer("a", F32, (N,)), Buffer("c", F32, (N,))
    near, far = Prefetch(a, (add(ROW, 64),)), Prefetch(a, (add(ROW, 640),), level=2)
    body = Block((near, far, Store(c, (ROW,), Load(a, (ROW,)))))
    function = Function("ahead", (a, c, N), For(ROW, Const(0), N, body))
    text = llvm_text(function, host_target())
    assert text.count("i32 0, i32 3, i32 1)") == text.count("i32 0, i32 2, i32 1)") == 1
    agree(function, {"a": counted((9,)), "c": np.zeros(9, np.float32), "n": 9})


def test_register_buffer_with_a_moving_index() -> None:
    """Not what registers are for, but it has to be right."""
    c, sums = Buffer("c", I64, (N,)), Buffer("sums", I64, (Const(4),), Scope.REGISTER)
    slot = Binary(BinaryKind.FLOOR_MODULO, ROW, Const(4))
    clear = For(COLUMN, Const(0), Const(4), Store(sums, (COLUMN,), Const(0)))
    count = For(ROW, Const(0), N, Block((
        Store(sums, (slot,), Binary(BinaryKind.ADD, Load(sums, (slot,)), ROW)),
        Store(c, (ROW,), Load(sums, (slot,))),
    )))  # fmt: skip
    function = Function("moving", (c, N), Allocate(sums, Block((clear, count))))
    agree(function, {"c": np.zeros(11, np.int64), "n": 11})


def test_what_breaks_the_rules_is_an_error() -> None:
    c = Buffer("c", F32, (N,))
    unknown = Function("wrong", (c, N), Store(c, (Var("nobody"),), Const(0.0, F32)))
    with pytest.raises(InternalError, match="wrong: variable 'nobody' is not defined here"):
        llvm_text(unknown, host_target())
    stranger = Function("wrong", (N,), Store(c, (Const(0),), Const(0.0, F32)))
    with pytest.raises(InternalError, match="buffer 'c' is not allocated here"):
        llvm_text(stranger, host_target())
    inner = For(COLUMN, Const(0), N, Store(c, (COLUMN,), Const(0.0, F32)), LoopKind.PARALLEL)
    nested = Function("wrong", (c, N), For(ROW, Const(0), N, inner, LoopKind.PARALLEL))
    with pytest.raises(InternalError, match="parallel loop 'j' inside another"):
        llvm_text(nested, host_target())
    half = Buffer("h", DType.FLOAT16, (N,))
    atomic = AtomicAdd(half, (Const(0),), Const(1.0, DType.FLOAT16))
    with pytest.raises(UnsupportedError, match="no atomic addition of float16"):
        llvm_text(Function("wrong", (half, N), atomic), host_target())


def test_loops_over_sums_in_registers_stay_rolled() -> None:
    """With 16 registers, or where a prefetcher follows the steps of instructions."""
    names = {"znver3": True, "icelake-server": True, "znver4": False, "neoverse-v1": False}
    for name, is_kept in names.items():
        target = named_target(name)
        text = llvm_text(micro_kernel(target), target)
        assert ("llvm.loop.unroll.disable" in text) is is_kept
    assembly = assembly_of(micro_kernel(named_target("znver3")), named_target("znver3"))
    assert not re.search(r"%ymm\d+, [-\d]*\(%rsp\)", assembly)  # no sum goes to the stack


def _stores(count: int, source: Buffer, sink: Buffer) -> Block:
    """sink[8 n ...] = exp(source[8 n ...]) for each n."""
    places = [(Ramp(Const(8 * n), 1, 8),) for n in range(count)]
    return Block(tuple(Store(sink, at, Call("exp", (Load(source, at),), F32)) for at in places))


def test_long_chains_are_interleaved() -> None:
    source, sink = (Buffer(name, F32, (Const(48),)) for name in ("source", "sink"))
    function = Function("chains", (source, sink), _stores(6, source, sink))
    text = llvm_text(function, host_target())
    order = re.findall(r"= (load) <8 x float>|(store) <8 x float>", text)
    kinds = [load or store for load, store in order]
    assert kinds == ["load"] * 4 + ["store"] * 4 + ["load"] * 2 + ["store"] * 2
    data = np.linspace(-3, 3, 48, dtype=np.float32)
    found = run(compiled(function), {"source": data, "sink": np.zeros(48, np.float32)})
    np.testing.assert_allclose(found["sink"], np.exp(data), rtol=3e-7)


def test_chains_that_need_one_another_stay_in_order() -> None:
    """The second store reads what the first one has written, the third writes what it has read."""
    one, other = (Buffer(name, F32, (Const(8),)) for name in ("one", "other"))
    at = (Ramp(Const(0), 1, 8),)

    def chain(sink: Buffer, source: Buffer) -> Stmt:
        return Store(sink, at, Call("sigmoid", (Load(source, at),), F32))

    body = Block((chain(other, one), chain(one, other), chain(other, one)))
    data = np.linspace(-3, 3, 8, dtype=np.float32)
    found = run(
        compiled(Function("ordered", (one, other), body)),
        {"one": data, "other": np.zeros(8, np.float32)},
    )
    for _ in range(3):
        data = 1 / (1 + np.exp(-data))
    np.testing.assert_allclose(found["other"], data, rtol=1e-6)
