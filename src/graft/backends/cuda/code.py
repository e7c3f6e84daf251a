"""Kernels for tensor cores, instruction by instruction: integers, fragments and matrix products.

What kernels that multiply matrices share. Rows of shared memory are 128 bytes, whose chunks of 16
are permuted by the row number modulo 8, so that neither copies nor `ldmatrix` meet a bank conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graft.backends.cuda.problem import CHUNK, Epilogue
from graft.base.dtypes import DType
from graft.llvm.context import MemRef
from graft.llvm.emit_stmt import statement
from graft.llvm.gpu import KernelWriter
from graft.llvm.text import Value, constant
from graft.loop.ir import Stmt

ATOM = 32  # bytes of K that one matrix instruction takes

_SHAPES = {
    DType.FLOAT16: "m16n8k16.row.col.f32.f16.f16.f32",
    DType.BFLOAT16: "m16n8k16.row.col.f32.bf16.bf16.f32",
    DType.FLOAT32: "m16n8k8.row.col.f32.tf32.tf32.f32",
}
_WARPGROUP_SHAPES = {
    DType.FLOAT16: "k16.f32.f16.f16",
    DType.BFLOAT16: "k16.f32.bf16.bf16",
    DType.FLOAT32: "k8.f32.tf32.tf32",
}
# A descriptor's fields beside the address: permuted by eight rows, of which groups are 1 KB apart.
_ROWS_OF_128 = 1 << 62 | (1024 // CHUNK) << 32 | 1 << 16


@dataclass(frozen=True, slots=True)
class Int:
    """A 32-bit integer with Python's operators; constants stay Python's as long as they can."""

    writer: KernelWriter
    value: Value

    def _binary(self, operation: str, other: Int | int) -> Int:
        right = constant(other, "i32") if isinstance(other, int) else other.value
        return Int(self.writer, self.writer.builder.binary(operation, self.value, right))

    def __add__(self, other: Int | int) -> Int:
        return self if other == 0 else self._binary("add", other)

    def __sub__(self, other: Int | int) -> Int:
        return self if other == 0 else self._binary("sub", other)

    def __mul__(self, other: Int | int) -> Int:
        return self if other == 1 else self._binary("mul", other)

    def __floordiv__(self, other: int) -> Int:
        return self if other == 1 else self._binary("udiv", other)

    def __mod__(self, other: Int | int) -> Int:
        return self._binary("urem", other)

    def __and__(self, other: Int | int) -> Int:
        return self._binary("and", other)

    def __xor__(self, other: Int | int) -> Int:
        return self._binary("xor", other)

    def __or__(self, other: Int | int) -> Int:
        return self._binary("or", other)

    def below(self, other: Int | int) -> Value:
        """Whether it is from 0 on and below another: one comparison of unsigned numbers."""
        right = constant(other, "i32") if isinstance(other, int) else other.value
        return self.writer.builder.compare("ult", self.value, right)

    def wide(self) -> Value:
        return self.writer.builder.convert("sext", self.value, "i64")


class Variable:
    """A variable of the kernel, which LLVM keeps in registers."""

    def __init__(self, writer: KernelWriter, element: str, count: int = 1) -> None:
        self._writer, self._element = writer, element
        self.pointer = writer.builder.allocate(element, count, 16)

    def _slot(self, index: int) -> str:
        builder = self._writer.builder
        text = f"getelementptr {self._element}, {self.pointer.typed}, i64 {index}"
        return builder.make("ptr", 1, text).text

    def get(self, index: int = 0) -> Value:
        text = f"load {self._element}, ptr {self._slot(index)}"
        return self._writer.builder.make(self._element, 1, text)

    def set(self, value: Value, index: int = 0) -> None:
        self._writer.builder.do(f"store {value.typed}, ptr {self._slot(index)}")


class TensorCode:
    """A kernel that is written instruction by instruction, on operands of one dtype."""

    def __init__(self, writer: KernelWriter, dtype: DType) -> None:
        self.writer, self.builder, self.dtype = writer, writer.builder, dtype

    def special(self, register: str, axis: str = "x") -> Int:
        return Int(self.writer, self.writer.special(register, axis))

    def shared_memory(self) -> Int:
        """Where the shared memory begins that the launch asks for."""
        base = self.writer.module.shared("memory", "i32")
        text = f"ptrtoint ptr addrspace(3) {base} to i32"
        return Int(self.writer, self.builder.make("i32", 1, text))

    def number(self, number: int) -> Int:
        return Int(self.writer, constant(number, "i32"))

    def fragment(self, address: Int, is_transposed: bool = False) -> list[Value]:
        """Four matrices of 8 rows of 16 bytes, whose addresses the lanes of a warp give."""
        kind = ".trans" if is_transposed else ""
        text = f"ldmatrix.sync.aligned.m8n8.x4{kind}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
        made = self.writer.assembly(text, "=r,=r,=r,=r,r", ["i32"] * 4, address.value)
        return self.parts(made, "i32", 4)

    def load_floats(self, address: Value, count: int, space: str = "shared") -> list[Value]:
        """Neighbouring sums in shared memory, four at a time."""
        result: list[Value] = []
        for first in range(0, count, 4):
            width = min(4, count - first)
            names = ", ".join(f"${index}" for index in range(width))
            kind, target = (f".v{width}", f"{{{names}}}") if width > 1 else ("", names)
            text = f"ld.{space}{kind}.f32 {target}, [${width}+{first * 4}];"
            constraints = ",".join(["=f"] * width + ["r"])
            made = self.writer.assembly(text, constraints, ["float"] * width, address)
            result += self.parts(made, "float", width) if width > 1 else [Value("float", 1, made)]
        return result

    def store_pair(self, address: Int, pair: Sequence[Value]) -> None:
        """Two neighbouring sums, to shared memory."""
        self.writer.assembly("st.shared.v2.f32 [$0], {$1, $2};", "r,f,f", (), address.value, *pair)

    def store_results(self, epilogue: Epilogue, body: Stmt, sums: Sequence[Value]) -> None:
        """Write an epilogue, or what is left of it, on some sums."""
        registers = Variable(self.writer, "float", len(sums))
        for index, value in enumerate(sums):
            registers.set(value, index)
        context = self.writer.context
        context.memrefs[epilogue.sums.name] = MemRef(epilogue.sums, registers.pointer, (1,))
        statement(context, body)

    def parts(self, struct: str, element: str, count: int) -> list[Value]:
        kind = f"{{{', '.join([element] * count)}}}"
        return [
            self.builder.make(element, 1, f"extractvalue {kind} {struct}, {index}")
            for index in range(count)
        ]

    def rounded(self, parts: list[Value]) -> list[Value]:
        """float32 rounded to the 19 bits that tensor cores multiply: they would cut it off."""
        if self.dtype is not DType.FLOAT32:
            return parts
        text = 'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,r"({})'
        return [self.builder.make("i32", 1, text.format(part.typed)) for part in parts]

    def matrix_multiply(
        self, a: Sequence[Value], b: Sequence[Value], sums: Sequence[Value]
    ) -> list[Value]:
        """Sums of 16 rows and 8 columns, with the products of fragments added."""
        inside = ", ".join(value.typed for value in (*a, *b, *sums))
        text = (
            "call {float, float, float, float} asm "
            f'"mma.sync.aligned.{_SHAPES[self.dtype]} '
            '{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};", '
            f'"=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"({inside})'
        )
        made = self.builder.make("struct", 1, text).text
        return self.parts(made, "float", 4)

    def descriptor(self, address: Int) -> Value:
        """Rows of 128 permuted bytes in shared memory, eight after eight, as `wgmma` reads them."""
        wide = self.builder.convert("zext", (address // CHUNK).value, "i64")
        return self.builder.binary("or", wide, constant(_ROWS_OF_128, "i64"))

    def warpgroup_multiply(
        self, a: Sequence[Value], b: Value, sums: Sequence[Value]
    ) -> list[Value]:
        """Begin to add products to sums of a warp group's 64 rows: A is the descriptor of its rows,
        or this warp's fragment of them; B the descriptor of as many columns as the sums have."""
        count, columns = len(sums), len(sums) * 2
        names = [f"${number}" for number in range(2 * count + len(a) + 1)]
        fragment = ", ".join(names[count : count + len(a)])
        left = f"{{{fragment}}}" if len(a) > 1 else fragment
        # All operands have their sign; those in shared memory have K innermost.
        flags = "1, 1"
        if self.dtype is not DType.FLOAT32:
            flags += ", 0" if len(a) > 1 else ", 0, 0"
        text = (
            "{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned"
            f".m64n{columns}{_WARPGROUP_SHAPES[self.dtype]} "
            f"{{{', '.join(names[:count])}}}, {left}, {names[count + len(a)]}, p, {flags}; }}"
        )
        kinds = ["=f"] * count + (["r"] * len(a) if len(a) > 1 else ["l"]) + ["l"]
        constraints = ",".join([*kinds, *map(str, range(count))])
        made = self.writer.assembly(text, constraints, ["float"] * count, *a, b, *sums)
        return self.parts(made, "float", count)

    def copy(self, target: Int, source: Value, inside: Value) -> None:
        """Start to copy a chunk to shared memory, or zeros where it is not inside."""
        size = self.builder.select(inside, constant(CHUNK, "i32"), constant(0, "i32"))
        text = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
        self.writer.assembly(text, "r,l,r", (), target.value, source, size)

    def moved(self, pointer: Value, offset: Value, size: int = 1) -> Value:
        """A pointer so many elements further."""
        wide = self.builder.convert("sext", offset, "i64")
        if size > 1:
            wide = self.builder.binary("mul", wide, constant(size, "i64"))
        return self.builder.make("ptr", 1, f"getelementptr i8, {pointer.typed}, {wide.typed}")
