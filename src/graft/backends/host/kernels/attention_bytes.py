"""Attention on bytes: both products in integers, with softmax and rounding between them, in cache.

The threads share (batch, head, chunk of queries) jobs. A job packs the keys and values of its head
into words, once for all its queries. A few queries at a time then go through scores (vectors along
the keys), softmax, quantisation and the product with the values. Where results are divided by the
sums of codes, exponentials are quantised without being normalised first.

Softmax is invariant under a constant per query, so that the zero point of the keys is left out,
except where scores are rounded.

Four codes of a row make a word: those of keys a quarter of a vector apart, as `interleave4` joins
them. The words of values are made of the same four keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

from graft.backends.host.coordinates import PlainCoordinate, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template
from graft.backends.host.kernels.attention import unfit_batches
from graft.backends.host.kernels.epilogue import Epilogue, epilogue_of
from graft.backends.host.kernels.integer_weights import (
    QUAD,
    joined_bytes,
    signed,
    signed_byte,
    unsigned,
)
from graft.backends.host.kernels.tile import Running, Tile, balanced, numbered_tile, runs
from graft.backends.host.kernels.vectors import Span, lanes_for, mask_of
from graft.backends.host.kernels.views import numbers, shared_loop
from graft.backends.host.storage import shape_of
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, call, cast, minimum, select
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    Let,
    Load,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import with_memory
from graft.loop.vectors import combine_lanes
from graft.ops.integer import HALF, score_of
from graft.rewrite.rule import Refusal
from graft.target.register_tile import most_pixels
from graft.target.target import Target

# Sums of this many products are whole numbers that float32 holds, whatever is left off them that
# all scores of a query have in common: 2 * 256 * 255 * 128 is less than 2 ** 24.
LARGEST_SIZE = 256
_ONES = 0x01010101
_JOBS_PER_CORE = 4
_MANY_REGISTERS = 32


@dataclass(frozen=True, slots=True)
class ByteAttentionSchedule:
    """What a search may vary: queries of a tile and their lanes, vectors of keys and of values."""

    rows: int
    lanes: int
    vectors: int
    value_lanes: int
    chunks: int  # of queries per head


@kernel_template(
    ("qnn.attention",),
    Layout.ROW_MAJOR,
    dtypes=frozenset({DType.INT32, DType.FLOAT32}),
    schedule=ByteAttentionSchedule,
)
def attention_bytes(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Attention on bytes, and whatever follows it."""
    anchor = group.sole_anchor
    refused = _unfit(group, anchor)
    if refused is not None:
        return refused
    epilogue = epilogue_of(group, stores, anchor, {}, apart=4)
    if isinstance(epilogue, Refusal):
        return epilogue
    return lambda: epilogue.parameters.kernel(_Writer(epilogue, target).body())


def _unfit(group: Group, anchor: Node) -> Refusal | None:
    """Why loops cannot be written for such operands, if they cannot."""
    if any(value in group.constants for value in anchor.args):
        return Refusal("an operand is constant")
    (_, heads, _, size), *others = (shape_of(value) for value in anchor.args[:3])
    fixed = (heads, size, *others[0][1:], *others[1][1:])
    if not all(isinstance(extent, int) and extent for extent in fixed):
        return Refusal("heads, keys or sizes are none, or become known only at run time")
    if not isinstance(size, int) or size % QUAD or size > LARGEST_SIZE:
        return Refusal(f"{size} steps are no fours, or more than {LARGEST_SIZE}")
    return unfit_batches(anchor)


def default_schedule(
    target: Target, shape: tuple[Dim, ...], keys: int, values: int
) -> ByteAttentionSchedule:
    """Tiles that fill the registers, and enough jobs for all cores."""
    batch, heads, queries, _ = (extent if isinstance(extent, int) else 1 for extent in shape)
    lanes, value_lanes = (lanes_for(target, {DType.INT32}, max(QUAD, n)) for n in (keys, values))
    widest = 4 if target.vector_registers >= _MANY_REGISTERS else 2
    widest = min(widest, max(-(-keys // lanes), -(-values // value_lanes)))
    most = most_pixels(target.vector_registers, widest)
    jobs_per_head = -(-_JOBS_PER_CORE * target.machine.cores // max(1, batch * heads))
    chunks = max(1, min(jobs_per_head, -(-queries // most)))
    return ByteAttentionSchedule(most, lanes, widest, value_lanes, chunks)


class _Writer:
    """Writes the jobs of one attention."""

    def __init__(self, epilogue: Epilogue, target: Target) -> None:
        anchor, parameters = epilogue.anchor, epilogue.parameters
        self.epilogue, self.target, self.attrs = epilogue, target, anchor.attrs
        query, key, value = anchor.args[:3]
        shape = shape_of(query)
        batches, _, queries, _ = shape
        self.heads, self.size = numbers(shape[1::2])
        self.shared_heads, self.keys = numbers(shape_of(key)[1:3])
        (self.values,) = numbers(shape_of(value)[3:])
        self.batches, self.queries = map(parameters.extent, (batches, queries))
        self.schedule = default_schedule(target, shape, self.keys, self.values)
        self.dtypes = query.dtype, key.dtype, value.dtype
        _, self.query = parameters.words(query, "query")
        _, self.key = parameters.words(key, "key")
        _, self.value = parameters.value(value, "value")
        mask = anchor.inputs[3] if len(anchor.inputs) > 3 else None
        self.mask = None if mask is None else parameters.value(mask, "mask")
        self.batch, self.head, self.shared = Var("batch"), Var("head"), Var("shared_head")
        lanes = self.schedule.lanes
        self.vectors = -(-self.keys // lanes)
        self.steps, self.words = self.size // QUAD, self.vectors * lanes // QUAD
        self.value_vectors = -(-self.values // self.schedule.value_lanes)
        whole, wide = self.vectors * lanes, self.value_vectors * self.schedule.value_lanes
        self.key_words = _scratch("key_words", DType.INT32, self.steps, whole)
        self.key_terms = _scratch("key_terms", DType.INT32, whole)
        self.value_words = _scratch("value_words", DType.INT32, self.words, wide)

    @property
    def taken_off(self) -> tuple[int, int]:
        """Zero points of queries as unsigned bytes, and of values as signed ones."""
        query, _, value = self.attrs.zero_points
        more = HALF if self.dtypes[0] is DType.INT8 else 0
        less = HALF if self.dtypes[2] is DType.UINT8 else 0
        return query + more, value - less

    @property
    def key_offset(self) -> int:
        """The zero point of keys as signed bytes, where it counts."""
        less = HALF if self.dtypes[1] is DType.UINT8 else 0
        return self.attrs.zero_points[1] - less if self.attrs.roundings else 0

    def body(self) -> Stmt:
        row_runs = runs(self.queries, self.schedule.rows)
        tiles = reduce(plus, (run.count for run in row_runs))
        chunk, number = Var("chunk"), Var("number")
        per_chunk = over(plus(tiles, self.schedule.chunks - 1), self.schedule.chunks)
        first = times(chunk, per_chunk)
        rest = Binary(BinaryKind.SUBTRACT, tiles, first)
        count = Binary(BinaryKind.MINIMUM, per_chunk, rest) if self.schedule.chunks > 1 else tiles
        body = numbered_tile(number, row_runs, lambda row, size: _Rows(self, size).body(row))
        loop = For(number, first, count, body)
        job: Stmt = Block((self.pack_keys(), self.pack_values(), loop))
        job = with_memory(job, self.value_words, self.key_terms, self.key_words)
        job = Let(self.shared, over(self.head, self.heads // self.shared_heads), job)
        chunks = Const(self.schedule.chunks)
        parts = ((self.batch, self.batches), (self.head, Const(self.heads)), (chunk, chunks))
        return shared_loop(parts, job)

    def pack_keys(self) -> Stmt:
        """Words of the keys with neighbours side by side, and what comes off their scores."""
        key, step = Var("packed_key"), Var("key_step")
        word = Load(self.key, (self.batch, self.shared, key, step))
        flipped = word if self.dtypes[1] is DType.INT8 else signed(word)
        inner = For(step, Const(0), Const(self.steps), Store(self.key_words, (step, key), flipped))
        packed = For(key, Const(0), Const(self.keys), inner)
        if not self.taken_off[0]:
            return packed
        lanes, vector = self.schedule.lanes, Var("key_vector")
        total = Running("key_total", BinaryKind.ADD, 1, lanes, DType.INT32)
        along, step = Ramp(times(vector, lanes), 1, lanes), Var("term_step")
        ones = Const(_ONES, DType.INT32, lanes)
        words = Load(self.key_words, (step, along))
        added = Call("dot4", (ones, words, total.value(0)), DType.INT32)
        sums = For(step, Const(0), Const(self.steps), Store(total.buffer, total.at(0), added))
        term = Term(total.value(0)) * -self.taken_off[0]
        stored = Block((total.clear(), sums, Store(self.key_terms, (along,), term.expr)))
        terms = For(vector, Const(0), Const(self.vectors), Allocate(total.buffer, stored))
        return Block((packed, terms))

    def pack_values(self) -> Stmt:
        """Words of four keys' values each; the last key stands for those that are not there, whose
        codes are zero."""
        vector, word, lanes = Var("value_vector"), Var("value_word"), self.schedule.value_lanes
        quarter = self.schedule.lanes // QUAD
        stores = []
        for number in range(self.value_vectors):
            first = number * lanes
            span = Span(Const(first), lanes, number, "", mask_of(Const(self.values - first), lanes))
            parts = []
            for place in range(QUAD):
                key = plus(plus(times(vector, quarter * QUAD), place * quarter), word)
                if self.keys % (quarter * QUAD):
                    key = Binary(BinaryKind.MINIMUM, key, Const(self.keys - 1))
                loaded = Load(self.value, (self.batch, self.shared, key, span.index))
                parts.append(signed_byte(span.loaded(loaded, 0)))
            at = (plus(times(vector, quarter), word), Ramp(Const(first), 1, lanes))
            stores.append(Store(self.value_words, at, joined_bytes(parts)))
        inner = For(word, Const(0), Const(quarter), Block(tuple(stores)))
        return For(vector, Const(0), Const(self.vectors), inner)


def _scratch(name: str, dtype: DType, *extents: int) -> Buffer:
    return Buffer(name, dtype, tuple(map(Const, extents)), Scope.HEAP)


class _Rows:
    """Writes what is done to a few queries."""

    def __init__(self, writer: _Writer, count: int) -> None:
        self.writer, self.count, self.tag = writer, count, f"_q{count}"
        self.lanes = writer.schedule.lanes
        whole = writer.vectors * self.lanes
        self.row = Var(f"row{self.tag}")
        self.scores = _scratch(f"scores{self.tag}", DType.FLOAT32, count, whole)
        self.codes = _scratch(f"codes{self.tag}", DType.INT32, count, writer.words)
        quarter = self.lanes // QUAD
        self.top = self.running("top", BinaryKind.MAXIMUM, self.lanes, DType.FLOAT32)
        self.sums = self.running("sums", BinaryKind.ADD, self.lanes, DType.FLOAT32)
        self.totals = self.running("totals", BinaryKind.ADD, quarter, DType.INT32)
        self.terms = self.running("terms", BinaryKind.ADD, self.lanes, DType.INT32)
        self.firsts = Buffer(f"firsts{self.tag}", DType.INT32, (Const(count),), Scope.REGISTER)
        self.most = self.named("most", self.lanes)
        self.factors = self.named("factor", self.lanes)
        self.parts = self.named("part", writer.schedule.value_lanes)

    def running(self, name: str, kind: BinaryKind, lanes: int, dtype: DType) -> Running:
        return Running(f"{name}{self.tag}", kind, self.count, lanes, dtype)

    def named(self, name: str, lanes: int) -> list[Var]:
        """A number per query, in so many lanes."""
        return [Var(f"{name}{row}{self.tag}", DType.FLOAT32, lanes) for row in range(self.count)]

    def body(self, row: Expr) -> Stmt:
        steps = (self.score(), self.top.clear(), self.greatest(), self.softmax(), self.combine())
        memory = [self.firsts, self.totals.buffer, self.sums.buffer, self.top.buffer]
        body: Stmt = Block(steps)
        if self.writer.key_offset:
            body, memory = Block((self.query_terms(), *steps)), [self.terms.buffer, *memory]
        return Let(self.row, row, with_memory(body, *memory, self.codes, self.scores))

    def query_word(self, row: int, step: Expr) -> Expr:
        """Four unsigned bytes of a query."""
        writer = self.writer
        at = (writer.batch, writer.head, plus(self.row, row), step)
        return unsigned(Load(writer.query, at), writer.dtypes[0])

    def query_terms(self) -> Stmt:
        """What the zero point of the keys takes off all scores of a query, in all lanes."""
        writer, step, offset = self.writer, Var(f"sum_step{self.tag}"), self.writer.key_offset
        ones = Const(_ONES, DType.INT32, self.lanes)

        def add(row: int) -> Stmt:
            word = Broadcast(self.query_word(row, step), self.lanes)
            added = Call("dot4", (word, ones, self.terms.value(row)), DType.INT32)
            return Store(self.terms.buffer, self.terms.at(row), added)

        def finish(row: int) -> Stmt:
            centred = Term(self.terms.value(row)) - writer.size * writer.taken_off[0]
            return Store(self.terms.buffer, self.terms.at(row), (centred * -offset).expr)

        loop = For(step, Const(0), Const(writer.steps), self.each_row(add))
        return Block((self.terms.clear(), loop, self.each_row(finish)))

    def score(self) -> Stmt:
        """The scores of all keys, a few vectors of them at a time."""
        statements: list[Stmt] = []
        first = 0
        for vectors, count in balanced(self.writer.vectors, self.writer.schedule.vectors):
            number = Var(f"keys{self.tag}v{vectors}")
            begin = plus(times(number, vectors), first)
            last = first + vectors * count == self.writer.vectors
            whole = count - 1 if last and self.writer.keys % self.lanes else count
            tile = Tile(self.count, vectors, self.lanes, f"{self.tag}v{vectors}", DType.INT32)
            if whole:
                statements.append(For(number, Const(0), Const(whole), self.scored(tile, begin)))
            if whole < count:
                tag = f"{self.tag}e{vectors}"
                tile = Tile(self.count, vectors, self.lanes, tag, DType.INT32)
                statements.append(self.scored(tile, Const(self.writer.vectors - vectors), True))
            first += vectors * count
        return Block(tuple(statements))

    def scored(self, tile: Tile, first: Expr, is_last: bool = False) -> Stmt:
        """A tile of scores; of the last vector, lanes may be no key."""
        writer, step, begin = self.writer, Var(f"step{tile.tag}"), Var(f"begin{tile.tag}")

        def along(vector: int) -> Expr:
            return Ramp(times(plus(begin, vector), self.lanes), 1, self.lanes)

        def store(pixel: int, vector: int) -> Stmt:
            total = Term(tile.value(pixel, vector))
            if writer.key_offset:
                total = total + self.terms.value(pixel)
            is_cut = is_last and vector == tile.vectors - 1
            left = writer.keys - (writer.vectors - 1) * self.lanes
            there = mask_of(Const(left), self.lanes) if is_cut else None
            real = cast(DType.FLOAT32, total)
            score = self.masked(real, pixel, along(vector), there)
            return Store(self.scores, (Const(pixel), along(vector)), score.expr)

        starts = tile.clear()
        if writer.taken_off[0]:
            starts = tile.clear(lambda vector: Load(writer.key_terms, (along(vector),)))
        sums = tile.step(
            partial(self.query_word, step=step),
            lambda vector: Load(writer.key_words, (step, along(vector))),
        )
        reduction = For(step, Const(0), Const(writer.steps), sums)
        whole = Block((starts, reduction, tile.each(store)))
        return Let(begin, first, Allocate(tile.accumulators, whole))

    def masked(self, sums: Term, pixel: int, along: Expr, there: Expr | None) -> Term:
        """Scores with what the mask adds; those of lanes that are no key never count."""
        writer, mask = self.writer, None
        if writer.mask is not None:
            storage, buffer = writer.mask
            at = (writer.batch, writer.head, plus(self.row, pixel), along)
            added = Term(PlainCoordinate(at, self.lanes).load(storage, buffer))
            mask = added if there is None else select(Term(there), added, 0.0)
        score = score_of(writer.attrs, sums, mask)
        return score if there is None else select(Term(there), score, -math.inf)

    def each_vector(self, name: str, action: Callable[[Var, Expr], Stmt]) -> Stmt:
        """A statement per vector of keys."""
        vector = Var(f"{name}{self.tag}")
        along = Ramp(times(vector, self.lanes), 1, self.lanes)
        return For(vector, Const(0), Const(self.writer.vectors), action(vector, along))

    def each_row(self, action: Callable[[int], Stmt]) -> Stmt:
        return Block(tuple(action(row) for row in range(self.count)))

    def greatest(self) -> Stmt:
        def add(_vector: Var, along: Expr) -> Stmt:
            return self.each_row(
                lambda row: self.top.add(row, Load(self.scores, (Const(row), along)))
            )

        return self.each_vector("greatest", add)

    def softmax(self) -> Stmt:
        """Probabilities, or exponentials, as codes, and what sums of values start from."""
        scale: float = 1.0 / self.writer.attrs.step

        def exponential(row: int, along: Expr) -> Term:
            score = Term(Load(self.scores, (Const(row), along)))
            return call("exp", score - self.most[row]) * scale

        body: Stmt = Block((self.totals.clear(), self.round(exponential)))
        if not self.writer.attrs.divided:
            body = self.shares()
        for row in range(self.count):
            most = combine_lanes(BinaryKind.MAXIMUM, self.top.value(row))
            body = Let(self.most[row], Broadcast(most, self.lanes), body)
        return body

    def shares(self) -> Stmt:
        """Probabilities as codes."""
        begin = Block((self.sums.clear(), self.powers(), self.totals.clear()))

        def share(row: int, along: Expr) -> Term:
            return Term(Load(self.scores, (Const(row), along))) * self.factors[row]

        rounded: Stmt = self.round(share)
        for row in range(self.count):
            total = Term(combine_lanes(BinaryKind.ADD, self.sums.value(row)))
            factor = 1.0 / total * (1.0 / self.writer.attrs.step)
            rounded = Let(self.factors[row], Broadcast(factor.expr, self.lanes), rounded)
        return Block((begin, rounded))

    def powers(self) -> Stmt:
        """Exponentials in place of the scores, and their sums."""

        def power(row: int, along: Expr) -> Stmt:
            name = Var(f"power{row}{self.tag}", DType.FLOAT32, self.lanes)
            at = (Const(row), along)
            value = call("exp", Term(Load(self.scores, at)) - self.most[row])
            both = Block((Store(self.scores, at, name), self.sums.add(row, name)))
            return Let(name, value.expr, both)

        return self.each_vector(
            "powers", lambda _, along: self.each_row(lambda row: power(row, along))
        )

    def round(self, ratio: Callable[[int, Expr], Term]) -> Stmt:
        """Codes of what probabilities or exponentials are in steps of a code, in words, and their
        sums."""
        quarter, attrs = self.lanes // QUAD, self.writer.attrs
        ones = Const(_ONES, DType.INT32, quarter)

        def code(row: int, vector: Var, along: Expr) -> Stmt:
            name = Var(f"code{row}{self.tag}", DType.INT32, quarter)
            share = ratio(row, along)
            if attrs.most < 255:
                share = minimum(share, float(attrs.most))
            codes = call("to_uint8", share, 0.0).expr
            first = times(vector, quarter)
            at = (Const(row), Ramp(first, 1, quarter) if quarter > 1 else first)
            added = Call("dot4", (name, ones, self.totals.value(row)), DType.INT32)
            stores = [Store(self.codes, at, name)]
            if self.writer.taken_off[1] or attrs.divided:
                stores.append(Store(self.totals.buffer, self.totals.at(row), added))
            return Let(name, Call("interleave4", (codes,), DType.INT32), Block(tuple(stores)))

        return self.each_vector(
            "round", lambda vector, along: self.each_row(lambda row: code(row, vector, along))
        )

    def combine(self) -> Stmt:
        """The values, weighted by codes."""
        writer, schedule = self.writer, self.writer.schedule
        statements: list[Stmt] = [self.first_sums()]
        first = 0
        for vectors, count in balanced(writer.value_vectors, schedule.vectors):
            for _ in range(count):
                statements.append(self.weighted(first, vectors))
                first += vectors
        body: Stmt = Block(tuple(statements))
        if writer.attrs.divided:
            for row in range(self.count):
                one = (1.0 / cast(DType.FLOAT32, self.total(row))).expr
                body = Let(self.parts[row], Broadcast(one, schedule.value_lanes), body)
        return body

    def total(self, row: int) -> Term:
        """The sum of all codes of a query."""
        return Term(combine_lanes(BinaryKind.ADD, self.totals.value(row)))

    def first_sums(self) -> Stmt:
        """What comes off the sums of a query, in front of them."""
        less = self.writer.taken_off[1]

        def start(row: int) -> Stmt:
            return Store(self.firsts, (Const(row),), (self.total(row) * -less).expr)

        return self.each_row(start) if less else Block(())

    def weighted(self, first: int, vectors: int) -> Stmt:
        """A tile of some vectors of values."""
        writer, lanes = self.writer, self.writer.schedule.value_lanes
        tile = Tile(self.count, vectors, lanes, f"{self.tag}r{first}", DType.INT32)
        step = Var(f"word{tile.tag}")

        def along(vector: int) -> Expr:
            return Ramp(Const((first + vector) * lanes), 1, lanes)

        def start(pixel: int, vector: int) -> Stmt:
            value = Broadcast(Load(self.firsts, (Const(pixel),)), lanes)
            return Store(tile.accumulators, tile.at(pixel, vector), value)

        def store(pixel: int, vector: int) -> Stmt:
            at = (writer.batch, writer.head, plus(self.row, pixel), along(vector))
            left = writer.values - (first + vector) * lanes
            value = tile.value(pixel, vector)
            if writer.attrs.divided:
                value = (cast(DType.FLOAT32, Term(value)) * self.parts[pixel]).expr
            return writer.epilogue.store(at, value, mask_of(Const(left), lanes))

        starts = tile.each(start) if writer.taken_off[1] else tile.clear()
        sums = tile.step(
            lambda pixel: Load(self.codes, (Const(pixel), step)),
            lambda vector: Load(writer.value_words, (step, along(vector))),
        )
        reduction = For(step, Const(0), Const(writer.words), sums)
        whole = Block((starts, reduction, tile.each(store)))
        return Allocate(tile.accumulators, whole)
