"""What the tests of machine code share: kernels of one loop, compiled here and run beside NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from graft.base.dtypes import Array, DType
from graft.llvm.cache import kernel_key
from graft.llvm.compile import object_code
from graft.llvm.load import Argument, Kernel, aligned, load
from graft.loop.interpret import interpret
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Function,
    Load,
    LoopKind,
    Ramp,
    Store,
    Var,
)
from graft.target.target import Target, host_target, named_target

COUNT = Var("n")
Formula = Callable[..., Expr]


def runnable_targets() -> list[Target]:
    """This machine, and older ones whose code it can run."""
    host = host_target()
    older = [named_target(name) for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")]
    able = [one for one in older if host.is_x86 and set(one.features) <= set(host.features)]
    return [host, *able]


_KERNELS: dict[str, Kernel] = {}


def compiled(function: Function, target: Target | None = None) -> Kernel:
    """The function as machine code; compiled once, however many tests ask for it."""
    chosen = target or host_target()
    key = kernel_key(function, chosen)
    if key not in _KERNELS:
        _KERNELS[key] = load(function, object_code(function, chosen))
    return _KERNELS[key]


def run(kernel: Kernel, arguments: Mapping[str, Argument], threads: int = 1) -> dict[str, Array]:
    """Run on copies of the arguments; gives the arrays as they are afterwards."""
    copies = {
        name: aligned(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    kernel(copies, threads)
    return {name: value for name, value in copies.items() if isinstance(value, np.ndarray)}


def interpreted(
    function: Function, arguments: Mapping[str, Argument], threads: int = 1
) -> dict[str, Array]:
    """What the interpreter makes of the same arguments."""
    copies = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    interpret(function, copies, threads)
    return {name: value for name, value in copies.items() if isinstance(value, np.ndarray)}


def add(left: Expr, right: Expr | int) -> Binary:
    return Binary(BinaryKind.ADD, left, Const(right) if isinstance(right, int) else right)


def times(left: Expr, right: Expr | int) -> Binary:
    return Binary(BinaryKind.MULTIPLY, left, Const(right) if isinstance(right, int) else right)


def elementwise(
    inputs: Sequence[DType],
    formulas: Sequence[Formula],
    outputs: Sequence[DType],
    lanes: int,
    kind: LoopKind = LoopKind.SERIAL,
    alignment: int = 64,
) -> Function:
    """out_k[i] = formula_k(in_0[i], in_1[i], ...), in vectors with a masked tail if lanes > 1."""
    sources, sinks = (
        [
            Buffer(f"{name}{k}", dtype, (COUNT,), alignment=alignment)
            for k, dtype in enumerate(dtypes)
        ]
        for name, dtypes in (("in", inputs), ("out", outputs))
    )
    position = Var("i")
    index: Expr = position
    condition: Expr | None = None
    extent: Expr = COUNT
    if lanes > 1:
        index = Ramp(times(position, lanes), 1, lanes)
        condition = Compare(CompareKind.LESS, index, Broadcast(COUNT, lanes))
        extent = Binary(BinaryKind.FLOOR_DIVIDE, add(COUNT, lanes - 1), Const(lanes))
    loads = [Load(source, (index,)) for source in sources]
    stores = [
        Store(sink, (index,), formula(*loads), condition)
        for sink, formula in zip(sinks, formulas, strict=True)
    ]
    loop = For(position, Const(0), extent, Block(tuple(stores)), kind)
    return Function("kernel", (*sources, *sinks, COUNT), loop)


def check(
    inputs: Sequence[Array],
    formulas: Sequence[Formula],
    lanes: int,
    target: Target | None = None,
    threads: int = 1,
) -> None:
    """Machine code in vectors has to give what the interpreter gives element by element."""
    dtypes = [_dtype(array) for array in inputs]
    samples = [Load(Buffer("x", dtype, (COUNT,)), (Const(0),)) for dtype in dtypes]
    outputs = [formula(*samples).dtype for formula in formulas]
    count = len(inputs[0])
    arguments: dict[str, Argument] = {f"in{k}": array for k, array in enumerate(inputs)}
    arguments |= {f"out{k}": np.zeros(count, d.numpy) for k, d in enumerate(outputs)}
    arguments["n"] = count
    expected = interpreted(elementwise(dtypes, formulas, outputs, 1), arguments)
    kernel = compiled(elementwise(dtypes, formulas, outputs, lanes, LoopKind.PARALLEL), target)
    actual = run(kernel, arguments, threads)
    for k, dtype in enumerate(outputs):
        one, other = actual[f"out{k}"], expected[f"out{k}"]
        if dtype in (DType.FLOAT16, DType.BFLOAT16):
            one, other = one.astype(np.float32), other.astype(np.float32)
        np.testing.assert_array_equal(one, other, err_msg=f"formula {k}")


@cache
def _by_numpy() -> dict[np.dtype, DType]:
    return {one.numpy: one for one in DType}


def _dtype(array: Array) -> DType:
    return _by_numpy()[array.dtype]


AWKWARD = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -2.5, 3.5, 1e-40, 65504.0, 1e5)


def numbers(dtype: DType, count: int = 29, seed: int = 0) -> Array:
    """Random numbers of all sizes; floats begin with the awkward ones in an order of their own."""
    random = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return random.random(count) < 0.5
    if dtype.is_float:
        values = random.normal(size=count) * 10.0 ** random.integers(-4, 4, count)
        values[: len(AWKWARD)] = random.permutation(AWKWARD)
        with np.errstate(over="ignore"):
            return values.astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    values = random.integers(limits.min, limits.max, count, dtype.numpy, endpoint=True)
    values[:4] = [limits.min, limits.max, 1, 0]
    return values
