"""What the code looks like: registers, fused multiply-add, other machines, nothing left to link."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.llvm.kernels import compiled, elementwise, run, runnable_targets
from tests.llvm.micro_kernel import micro_kernel, register_tile

from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.llvm.codegen import compile_text
from graft.llvm.compile import assembly, object_code, optimized_text, processor_of
from graft.llvm.emit import llvm_text
from graft.llvm.math import KERNELS
from graft.loop.ir import (
    Barrier,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Call,
    Cast,
    Const,
    For,
    Function,
    Load,
    LoopKind,
    Store,
    Var,
)
from graft.runtime.elf import read_object
from graft.target.target import Target, host_target, known_targets, named_target

F32 = DType.FLOAT32
every_name = pytest.mark.parametrize("name", known_targets())


def inner_loop(text: str) -> list[str]:
    """The instructions of the block that multiplies and jumps back to itself."""
    blocks = re.split(r"^(\.L\w+):", text, flags=re.MULTILINE)
    for label, body in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = [line.strip() for line in body.splitlines() if line.startswith("\t")]
        lines = [line for line in lines if not line.startswith(".")]
        jump = next((k for k, line in enumerate(lines) if label in line), None)
        if jump is not None and any("fm" in line for line in lines):
            return lines[: jump + 1]
    raise AssertionError("there is no such loop")


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_sums_of_a_matrix_product_stay_in_registers(name: str) -> None:
    target = named_target(name)
    rows, columns = register_tile(target, F32)
    loop = inner_loop(assembly(micro_kernel(target), target))
    fused = [line for line in loop if line.startswith(("vfmadd", "fmla"))]
    assert len(fused) == rows * columns // target.lanes(F32)
    wide = {"x86-64-v3": "%ymm", "x86-64-v4": "%zmm", "aarch64": ".4s"}[name]
    assert all(wide in line for line in fused)
    stack = ("rsp", "rbp") if target.is_x86 else ("sp,", "[sp", "x29")
    assert not [line for line in loop if any(register in line for register in stack)]
    stores = [line for line in loop if line.startswith(("st", "vmov")) and line.endswith(")")]
    assert not stores


def test_the_tile_of_avx2_is_six_by_sixteen() -> None:
    assert register_tile(named_target("x86-64-v3"), F32) == (6, 16)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
def test_micro_kernel_multiplies(target: Target) -> None:
    rows, columns = register_tile(target, F32)
    random = np.random.default_rng(0)
    a = random.integers(-9, 9, (37, rows)).astype(np.float32)
    b = random.integers(-9, 9, (37, columns)).astype(np.float32)
    arguments = {"a": a, "b": b, "c": np.zeros((rows, columns), np.float32)}
    result = run(compiled(micro_kernel(target), target), arguments | {"depth": 37, "turns": 2})
    np.testing.assert_array_equal(result["c"], 2 * a.T @ b)


def test_products_and_sums_are_fused_where_the_processor_can() -> None:
    def formula(a, b):
        return Binary(BinaryKind.ADD, Binary(BinaryKind.MULTIPLY, a, b), a)

    function = elementwise([F32, F32], [formula], [F32], 8)
    assert "vfmadd" in assembly(function, named_target("x86-64-v3"))
    assert "fmla" in assembly(function, named_target("aarch64"))
    assert "mulps" in assembly(function, named_target("x86-64"))
    # Nothing else is loosened: sums keep their order, NaN and infinity their meaning.
    assert not re.search(
        r"\b(fast|reassoc|nnan|ninf|nsz|arcp|afn)\b", llvm_text(function, host_target())
    )


def test_rectifying_is_one_instruction() -> None:
    def formula(a):
        return Binary(BinaryKind.MAXIMUM, a, Const(0.0, F32, a.lanes))

    text = assembly(elementwise([F32], [formula], [F32], 8), named_target("x86-64-v3"))
    assert "vmaxps" in text
    assert "vcmp" not in text


def everything() -> Function:
    """All math functions, conversions, masks and a barrier."""
    formulas = [
        lambda a, name=name: Call(name, (a, a) if name == "pow" else (a,), a.dtype)
        for name in [*KERNELS, "floor", "round", "rsqrt", "trunc"]
    ]
    formulas += [
        lambda a, dtype=dtype: Cast(F32, Cast(dtype, a))
        for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.UINT64, DType.FLOAT64)
    ]
    formulas.append(lambda a: Call("fma", (a, a, a), a.dtype))
    function = elementwise([F32], formulas, [F32] * len(formulas), 8, LoopKind.PARALLEL)
    return Function("kernel", function.parameters, Block((function.body, Barrier())))


@every_name
def test_object_code_needs_no_library(name: str) -> None:
    assert read_object(object_code(everything(), named_target(name))).undefined == set()


@every_name
def test_float64_needs_no_library_either(name: str) -> None:
    formulas = [
        lambda a, name=name: Call(name, (a, a) if name == "pow" else (a,), a.dtype)
        for name in [*KERNELS, "floor", "ceil", "round", "trunc"]
    ]
    wide = DType.FLOAT64
    function = elementwise([wide], formulas, [wide] * len(formulas), 4)
    assert read_object(object_code(function, named_target(name))).undefined == set()


def test_clearing_memory_calls_nobody() -> None:
    """LLVM likes to make such loops calls of the C library."""
    c, i, n = Buffer("c", F32, (Var("n"),)), Var("i"), Var("n")
    clear = For(i, Const(0), n, Store(c, (i,), Const(0.0, F32)))
    function = Function("clear", (c, n), clear)
    assert read_object(object_code(function, host_target())).undefined == set()


def test_code_for_another_machine() -> None:
    text = assembly(everything(), named_target("aarch64"))
    assert re.search(r"fmla\tv\d+\.4s", text)
    assert re.search(r"fcvtn\tv\d+\.4h", text)
    assert "yield" in text
    assert object_code(everything(), named_target("aarch64"))[18:20] == b"\xb7\x00"


def test_stages_can_be_printed() -> None:
    a, c, i = Buffer("a", F32, (Const(8),)), Buffer("c", F32, (Const(8),)), Var("i")
    loop = For(i, Const(0), Const(8), Store(c, (i,), Load(a, (i,))))
    function = Function("copy", (a, c), loop)
    assert 'define void @"copy"' in llvm_text(function, host_target())
    assert "!alias.scope" in llvm_text(function, host_target())
    assert "define void @copy" in optimized_text(function, host_target())


def test_text_that_llvm_refuses() -> None:
    with pytest.raises(InternalError, match="LLVM refuses the code made for it"):
        compile_text("define void @f() { ret i32 }", processor_of(host_target()))
