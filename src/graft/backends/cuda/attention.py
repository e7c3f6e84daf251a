"""Attention in one kernel: scores, softmax and the weighted sum of values in registers.

A block has 16 queries of one head; its warps share the keys, in tiles of 64. Each warp keeps the
largest score, the sum of exponentials and the weighted values of its keys (the online softmax of
Milakov and Gimelshein, as FlashAttention uses it), and at the end all are brought to one scale and
added. Scores never leave registers: those of a tile are the fragments that multiply the values.
Operands are read where they lie, by strides, so that heads need not be moved apart first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from graft.backends.cuda.code import ATOM, Int, TensorCode, Variable
from graft.backends.cuda.problem import CHUNK, PARTIAL_PAD, ROW, Epilogue
from graft.base.dtypes import DType
from graft.llvm.gpu import Kernel, KernelWriter
from graft.llvm.text import Value, constant
from graft.loop.ir import Buffer
from graft.loop.print import statement_text

QUERIES, KEYS, WARPS, LANES = 16, 64, 4, 8  # of a block, of a tile, of a block, of a store
THREADS = 32 * WARPS
_LOWEST = -math.inf
_PACK = {DType.FLOAT16: "cvt.rn.f16x2.f32", DType.BFLOAT16: "cvt.rn.bf16x2.f32"}


@dataclass(frozen=True, slots=True)
class Operand:
    """Queries, keys or values in memory: elements to the first, and from one batch member, head
    and row to the next; the elements of a row are neighbours."""

    offset: int
    batch: int
    head: int
    row: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of some heads. Rows of the result are numbered by batch member, query and head."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int  # of a head
    scale: float
    dtype: DType
    operands: tuple[Operand, ...]  # queries, keys, values

    @property
    def panels(self) -> int:
        """Rows of shared memory that a row of an operand fills."""
        return math.ceil(self.size * self.dtype.numpy.itemsize / ROW)

    @property
    def grid(self) -> tuple[int, int, int]:
        return math.ceil(self.queries / QUERIES), self.batch * self.heads, 1

    @property
    def shared_bytes(self) -> int:
        """Of operands, a warp's each, or of the partial results that take their place."""
        operands = self.panels * (QUERIES + 2 * KEYS) * ROW
        results = QUERIES * (self.size + PARTIAL_PAD + 2) * 4
        return WARPS * max(operands, results)


def attention_kernel(attention: Attention, epilogue: Epilogue) -> Kernel:
    """The kernel: its parameters are queries, keys, values and the epilogue's buffers."""
    operands = [Buffer(label, attention.dtype, ()) for label in ("query", "key", "value")]
    described = attention, statement_text(epilogue.body), epilogue.buffers
    return Kernel(
        (*operands, *epilogue.buffers),
        THREADS,
        attention.grid,
        lambda writer: _Tile(writer, attention, epilogue).write(),
        (attention, epilogue),
        str(described),
        shared_bytes=attention.shared_bytes,
    )


class _Tile(TensorCode):
    def __init__(self, writer: KernelWriter, attention: Attention, epilogue: Epilogue) -> None:
        self.attention, self.epilogue = attention, epilogue
        super().__init__(writer, attention.dtype)
        self.item = attention.dtype.numpy.itemsize

    def write(self) -> None:
        attention, writer = self.attention, self.writer
        self.thread = self.special("tid")
        self.lane, self.warp = self.thread & 31, self.thread // 32
        self.base = self.shared_memory()
        own = self.base + self.warp * (attention.shared_bytes // WARPS)
        self.places = [own, own + attention.panels * QUERIES * ROW]
        self.places.append(self.places[1] + attention.panels * KEYS * ROW)
        tile, head = (Int(writer, one) for one in writer.block())
        self.first = tile * QUERIES
        self.member, self.head = head // attention.heads, head % attention.heads
        writer.launch_next()
        writer.wait_for_inputs()
        self._load(0, self.first, QUERIES, attention.queries)
        self.sums = Variable(writer, "float", attention.size // 2)
        self.largest, self.total = Variable(writer, "float", 2), Variable(writer, "float", 2)
        for index in range(attention.size // 2):
            self.sums.set(constant(0.0, "float"), index)
        for row in range(2):
            self.largest.set(constant(_LOWEST, "float"), row)
            self.total.set(constant(0.0, "float"), row)
        keys, step = constant(attention.keys, "i32"), constant(WARPS * KEYS, "i32")
        writer.loop((self.warp * KEYS).value, keys, step, self._keys)
        writer.assembly("cp.async.wait_all;", "", ())
        self._share()

    def _load(self, number: int, first: Int, rows: int, limit: int) -> None:
        """Copy rows of an operand to this warp's memory, and zeros behind the last."""
        operand, panels = self.attention.operands[number], self.attention.panels
        start = self.member * operand.batch + self.head * operand.head + operand.offset
        chunks = self.attention.size * self.item // CHUNK
        across = min(8, chunks)
        for panel in range(panels):
            for step in range(rows * 8 // 32):
                row, chunk = self.lane // 8 + step * 4, self.lane & 7
                inside = (first + row).below(limit)
                if (panel + 1) * 8 > chunks or across < 8:
                    within = (chunk + panel * 8).below(chunks)
                    inside = self.builder.binary("and", inside, within)
                elements = start + (first + row) * operand.row
                source = self.moved(self.writer.pointers[number], elements.value, self.item)
                source = self.moved(source, ((chunk + panel * 8) * CHUNK).value)
                place = row * ROW + (chunk ^ (row & 7)) * CHUNK
                self.copy(self.places[number] + place + panel * rows * ROW, source, inside)

    def _keys(self, number: Value) -> None:
        """A tile of keys, from that number on."""
        first = Int(self.writer, number)
        self._load(1, first, KEYS, self.attention.keys)
        self._load(2, first, KEYS, self.attention.keys)
        self.writer.assembly("cp.async.wait_all;", "", ())
        self.writer.assembly("bar.warp.sync 0xffffffff;", "", ())
        self._add_values(self._weights(self._scores(first)))
        self.writer.assembly("bar.warp.sync 0xffffffff;", "", ())

    def _scores(self, first: Int) -> list[list[Value]]:
        """Scores of the tile, eight keys after eight, in powers of two."""
        lane = self.lane
        q_place = (lane & 15) * ROW + ((lane // 16) ^ (lane & 7)) * CHUNK
        row = (lane & 7) + (lane // 16) * 8
        k_place = row * ROW + (((lane // 8) & 1) ^ (lane & 7)) * CHUNK
        zero = constant(0.0, "float")
        scores = [[zero] * 4 for _ in range(KEYS // 8)]
        atoms = self.attention.size * self.item // ATOM
        for atom in range(atoms):
            panel, shift = divmod(atom * ATOM, ROW)
            at = self.places[0] + panel * QUERIES * ROW
            query = self.rounded(self.fragment(at + (q_place ^ shift)))
            for pair in range(KEYS // 16):
                at = self.places[1] + (panel * KEYS + pair * 16) * ROW
                key = self.rounded(self.fragment(at + (k_place ^ shift)))
                for half in range(2):
                    tile = 2 * pair + half
                    part = key[2 * half : 2 * half + 2]
                    scores[tile] = self.matrix_multiply(query, part, scores[tile])
        factor = constant(self.attention.scale * math.log2(math.e), "float")
        lowest, column = constant(_LOWEST, "float"), first + (lane & 3) * 2
        for tile, values in enumerate(scores):
            for index, value in enumerate(values):
                scaled = self.builder.binary("fmul", value, factor)
                inside = (column + (tile * 8 + index % 2)).below(self.attention.keys)
                values[index] = self.builder.select(inside, scaled, lowest)
        return scores

    def _weights(self, scores: list[list[Value]]) -> list[list[Value]]:
        """Exponentials of scores over the largest so far, to which all before are brought."""
        builder = self.builder
        for row in range(2):
            own = [value for tile in scores for value in tile[2 * row : 2 * row + 2]]
            before = self.largest.get(row)
            largest = self._across(self._folded("maxnum", [before, *own]), "maxnum")
            factor = self._power(builder.binary("fsub", before, largest))
            total = builder.binary("fmul", self.total.get(row), factor)
            for tile in scores:
                for index in (2 * row, 2 * row + 1):
                    tile[index] = self._power(builder.binary("fsub", tile[index], largest))
                    total = builder.binary("fadd", total, tile[index])
            self.largest.set(largest, row)
            self.total.set(total, row)
            for start in range(0, self.attention.size // 2, 4):
                for index in (start + 2 * row, start + 2 * row + 1):
                    self.sums.set(builder.binary("fmul", self.sums.get(index), factor), index)
        return scores

    def _folded(self, name: str, values: Sequence[Value]) -> Value:
        """Values combined in pairs."""
        level = list(values)
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            rest = level[-1:] if len(level) % 2 else []
            level = [self._combined(name, *pair) for pair in pairs] + rest
        return level[0]

    def _combined(self, name: str, left: Value, right: Value) -> Value:
        if name == "fadd":
            return self.builder.binary("fadd", left, right)
        return self.builder.elementwise(name, left, right)

    def _across(self, value: Value, name: str) -> Value:
        """A value of the four lanes that share a row, combined."""
        for mask in (1, 2):
            text = f"shfl.sync.bfly.b32 $0, $1, {mask}, 31, 0xffffffff;"
            made = self.writer.assembly(text, "=f,f", ["float"], value)
            value = self._combined(name, value, Value("float", 1, made))
        return value

    def _power(self, value: Value) -> Value:
        """Two to the power of a value, to 22 bits."""
        text = f'call float asm "ex2.approx.ftz.f32 $0, $1;", "=f,f"({value.typed})'
        return self.builder.make("float", 1, text)

    def _add_values(self, weights: list[list[Value]]) -> None:
        """Add the tile's values, weighted."""
        for a, first in self._weight_fragments(weights):
            for column in range(0, self.attention.size, 16):
                parts = self._value_fragments(first, column)
                for half in range(2):
                    at = (column // 8 + half) * 4
                    sums = [self.sums.get(at + index) for index in range(4)]
                    b = parts[2 * half : 2 * half + 2]
                    for index, value in enumerate(self.matrix_multiply(a, b, sums)):
                        self.sums.set(value, at + index)

    def _weight_fragments(self, weights: list[list[Value]]) -> list[tuple[list[Value], int]]:
        """Weights as left operands, with the number of their first key.

        With float32, lane t of four takes keys 2t and 2t + 1 where the instruction means t and
        t + 4: sums do not mind the order, as long as values come in the same one."""
        if self.dtype is DType.FLOAT32:
            made = []
            for tile, (w0, w1, w2, w3) in enumerate(weights):
                bits = [self.builder.convert("bitcast", w, "i32") for w in (w0, w2, w1, w3)]
                made.append((self.rounded(bits), tile * 8))
            return made
        pairs = zip(weights[::2], weights[1::2], strict=True)
        return [
            ([self._packed(*part) for one in pair for part in (one[:2], one[2:])], number * 16)
            for number, pair in enumerate(pairs)
        ]

    def _packed(self, low: Value, high: Value) -> Value:
        text = f'call i32 asm "{_PACK[self.dtype]} $0, $1, $2;", "=r,f,f"'
        return self.builder.make("i32", 1, f"{text}({high.typed}, {low.typed})")

    def _value_fragments(self, first: int, column: int) -> list[Value]:
        """Values of some keys and 16 columns as right operands."""
        lane, (panel, inner) = self.lane, divmod(column * self.item, ROW)
        base = self.places[2] + panel * KEYS * ROW
        if self.dtype is not DType.FLOAT32:
            row = (lane & 7) + ((lane // 8) & 1) * 8
            chunk = (lane // 16) + inner // CHUNK
            place = (row + first) * ROW + (chunk ^ (row & 7)) * CHUNK
            return self.fragment(base + place, is_transposed=True)
        parts = []
        for half in range(2):
            dim = lane // 4 + half * 8
            for odd in range(2):
                key = (lane & 3) * 2 + (first + odd)
                chunk = dim // 4 + inner // CHUNK
                place = key * ROW + (chunk ^ (key & 7)) * CHUNK + (dim & 3) * 4
                made = self.writer.assembly(
                    "ld.shared.b32 $0, [$1];", "=r,r", ["i32"], (base + place).value
                )
                parts.append(Value("i32", 1, made))
        return self.rounded(parts)

    def _share(self) -> None:
        """Bring what all warps have to one scale, add it up, and store the results."""
        size, pitch = self.attention.size, self.attention.size + PARTIAL_PAD
        block, builder = QUERIES * (pitch + 2) * 4, self.builder
        self.writer.barrier()
        own = self.base + self.warp * block
        for row in range(2):
            at = own + ((self.lane // 4 + row * 8) * pitch + (self.lane & 3) * 2) * 4
            for start in range(0, size // 2, 4):
                pair = [self.sums.get(start + 2 * row + index) for index in range(2)]
                self.store_pair(at + start // 4 * 32, pair)
            facts = self.largest.get(row), self._across(self.total.get(row), "fadd")
            self.store_pair(own + ((self.lane // 4 + row * 8) * 2 + QUERIES * pitch) * 4, facts)
        self.writer.barrier()
        vectors = QUERIES * size // LANES
        for iteration in range(math.ceil(vectors / (THREADS))):
            number = self.thread + iteration * THREADS
            at_row, column = number // (size // LANES), number % (size // LANES) * LANES
            query = self.first + at_row
            inside = builder.binary(
                "and", query.below(self.attention.queries), number.below(vectors)
            )
            result = partial(self._result, at_row, column, query, block, pitch)
            self.writer.when(inside, result)

    def _result(self, row: Int, column: Int, query: Int, block: int, pitch: int) -> None:
        builder = self.builder
        facts = []
        for warp in range(WARPS):
            at = self.base + warp * block + (row * 2 + QUERIES * pitch) * 4
            facts.append(self.load_floats(at.value, 2))
        largest = self._folded("maxnum", [fact[0] for fact in facts])
        factors = [self._power(builder.binary("fsub", fact[0], largest)) for fact in facts]
        totals = [builder.binary("fmul", f, one[1]) for f, one in zip(factors, facts, strict=True)]
        total = self._folded("fadd", totals)
        sums = [constant(0.0, "float")] * LANES
        for warp, factor in enumerate(factors):
            at = self.base + warp * block + (row * pitch + column) * 4
            values = self.load_floats(at.value, LANES)
            sums = [
                builder.binary("fadd", one, builder.binary("fmul", value, factor))
                for one, value in zip(sums, values, strict=True)
            ]
        results = [builder.binary("fdiv", value, total) for value in sums]
        attention, variables = self.attention, self.writer.context.variables
        m = (self.member * attention.queries + query) * attention.heads + self.head
        variables["m"], variables["n"] = m.wide(), (column // LANES).wide()
        self.store_results(self.epilogue, self.epilogue.body, results)
