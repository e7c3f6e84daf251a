"""Scaled dot-product attention in one pass per tile of queries, on row-major tensors.

The threads share (batch, head, query tile) jobs. A job turns its queries over, so that vectors run
along them: scores are then register tiles of keys times queries and their softmax never crosses
lanes. The products with the values have vectors along the values' own axis. Scores stay in scratch
memory of keys times one tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernels.attention_scores import Visibility
from graft.backends.host.kernels.epilogue import Epilogue, epilogue_of
from graft.backends.host.kernels.running import Running
from graft.backends.host.kernels.tile import Tile, balanced, most_pixels
from graft.backends.host.kernels.vectors import Span, lanes_for, mask_of, masked_store
from graft.backends.host.kernels.views import not_in_rows, unflattened
from graft.backends.host.point import plus, times
from graft.backends.host.storage import index, static_shape
from graft.base.dtypes import DType
from graft.llvm.target import Target
from graft.loop.build import Term, call, equal, select
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """What a search may vary: lanes and vectors of queries, lanes and vectors of values."""

    lanes: int
    vectors: int
    value_lanes: int
    value_vectors: int


def attention(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """Attention without cached lengths, and whatever follows it."""
    anchor = group.anchor
    if anchor is None or anchor.op.name != "nn.attention":
        return Refusal("there is no attention")
    refused = not_in_rows(group, stores)
    if refused is not None:
        return refused
    if anchor.output.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return Refusal(f"the elements are {anchor.output.dtype}")
    if len(anchor.outputs) > 1 or any(value is not None for value in anchor.inputs[4:]):
        return Refusal("the scores are wanted too, or lengths and offsets are given at run time")
    if anchor.attrs.softmax_dtype not in (None, anchor.output.dtype):
        return Refusal(f"the softmax is in {anchor.attrs.softmax_dtype}")
    if not isinstance(anchor.attrs.offset, int):
        return Refusal("the offset is not a plain number")
    epilogue = epilogue_of(group, stores, anchor, {}, apart=4)
    if isinstance(epilogue, Refusal):
        return epilogue
    return epilogue.parameters.kernel(_Writer(epilogue, target).body())


def default_schedule(target: Target, dtype: DType, queries: int, size: int) -> AttentionSchedule:
    """Two vectors each way, or one where there is no more."""
    lanes, value_lanes = (lanes_for(target, {dtype}, max(2, n)) for n in (queries, size))
    vectors, value_vectors = (
        2 if extent > width else 1 for extent, width in ((queries, lanes), (size, value_lanes))
    )
    return AttentionSchedule(lanes, vectors, value_lanes, value_vectors)


class _Writer:
    """Writes the jobs of one attention."""

    def __init__(self, epilogue: Epilogue, target: Target) -> None:
        anchor, parameters = epilogue.anchor, epilogue.parameters
        self.epilogue, self.target = epilogue, target
        self.dtype = anchor.output.dtype
        query, key, value = anchor.args[:3]
        _, self.heads, self.queries, self.size = static_shape(query)
        _, self.shared_heads, self.keys, _ = static_shape(key)
        self.values = static_shape(value)[3]
        self.schedule = default_schedule(target, self.dtype, self.queries, self.values)
        _, self.query = parameters.value(query, "query")
        _, self.key = parameters.value(key, "key")
        _, self.value = parameters.value(value, "value")
        self.visibility = Visibility(anchor, parameters)
        scale = anchor.attrs.scale
        self.scale: float = 1 / math.sqrt(self.size) if scale is None else scale
        self.batch, self.head, self.shared = Var("batch"), Var("head"), Var("shared_head")

    def body(self) -> Stmt:
        width = self.schedule.vectors * self.schedule.lanes
        whole, left = divmod(self.queries, width)
        tiles = whole + bool(left)
        job, tile = Var("job"), Var("tile")
        parts = []
        if whole:
            parts.append(_Part(self, "_w", self.schedule.vectors, width).body(times(tile, width)))
        if left:
            vectors = -(-left // self.schedule.lanes)
            parts.append(_Part(self, "_l", vectors, left).body(Const(whole * width)))
        body = parts[0]
        if len(parts) > 1:
            body = If(Compare(CompareKind.LESS, tile, Const(whole)), *parts)
        body = Let(self.shared, _over(self.head, self.heads // self.shared_heads), body)
        batches = static_shape(self.epilogue.anchor.output)[0]
        variables = (self.batch, self.head, tile)
        indices = unflattened(job, (batches, self.heads, tiles))
        for var, found in reversed(list(zip(variables, indices, strict=True))):
            body = Let(var, found, body)
        count = batches * self.heads * tiles
        return For(job, Const(0), Const(count), body, LoopKind.PARALLEL)


class _Part:
    """Writes a job of one kind: `count` queries in some vectors."""

    def __init__(self, writer: _Writer, tag: str, vectors: int, count: int) -> None:
        self.writer, self.tag, self.vectors, self.count = writer, tag, vectors, count
        self.lanes, self.dtype = writer.schedule.lanes, writer.dtype
        self.width = vectors * self.lanes
        self.first = Var(f"first{tag}")
        self.turned = self.scratch("turned", writer.size, self.width)
        self.scores = self.scratch("scores", writer.keys, self.width)
        self.factors = self.scratch("factors", self.width)
        self.top = Running(f"top{tag}", BinaryKind.MAXIMUM, vectors, self.lanes, self.dtype)
        self.sums = Running(f"sums{tag}", BinaryKind.ADD, vectors, self.lanes, self.dtype)

    def scratch(self, name: str, *extents: int) -> Buffer:
        return Buffer(f"{name}{self.tag}", self.dtype, index(*extents), Scope.HEAP)

    def vector(self, number: int) -> Expr:
        """The lanes of one vector of queries within the tile."""
        first = Const(number * self.lanes)
        return Ramp(first, 1, self.lanes) if self.lanes > 1 else first

    def body(self, first: Expr) -> Stmt:
        steps = (
            self.turn(),
            self.top.clear(),
            self.score(),
            self.sums.clear(),
            self.powers(),
            self.invert(),
            self.combine(),
        )
        body: Stmt = Block(steps)
        for buffer in (
            *(self.turned, self.scores, self.factors),
            *(self.top.buffer, self.sums.buffer),
        ):
            body = Allocate(buffer, body)
        return Let(self.first, first, body)

    def turn(self) -> Stmt:
        """The queries, scaled, with neighbours side by side; the last one fills up the vectors."""
        writer = self.writer
        place, step = Var(f"place{self.tag}"), Var(f"turn{self.tag}")
        query = plus(self.first, place)
        if self.count < self.width:
            last = Const(writer.queries - 1)
            query = Binary(BinaryKind.MINIMUM, query, last)
        element = Load(writer.query, (writer.batch, writer.head, query, step))
        scaled = (Term(element) * writer.scale).expr
        inner = For(step, Const(0), Const(writer.size), Store(self.turned, (step, place), scaled))
        return For(place, Const(0), Const(self.width), inner)

    def score(self) -> Stmt:
        """Scores of all keys, and the greatest one of each query."""
        most = most_pixels(self.writer.target, self.vectors)
        found: list[Stmt] = []
        start = 0
        for size, count in balanced(self.writer.keys, most):
            number = Var(f"keys{self.tag}k{size}")
            body = self.scored(size, plus(times(number, size), start))
            found.append(For(number, Const(0), Const(count), body))
            start += size * count
        return Block(tuple(found))

    def scored(self, size: int, first: Expr) -> Stmt:
        """A tile of `size` keys."""
        writer = self.writer
        tile = Tile(size, self.vectors, self.lanes, f"{self.tag}k{size}", self.dtype)
        step, key = Var(f"step{tile.tag}"), Var(f"key{tile.tag}")

        def element(pixel: int) -> Expr:
            return Load(writer.key, (writer.batch, writer.shared, plus(key, pixel), step))

        def queries(vector: int) -> Expr:
            return Load(self.turned, (step, self.vector(vector)))

        reduction = For(step, Const(0), Const(writer.size), tile.step(element, queries))
        whole = Block((tile.clear(), reduction, self.keep(tile, key)))
        return Let(key, first, Allocate(tile.accumulators, whole))

    def keep(self, tile: Tile, first: Expr) -> Stmt:
        """Scores to scratch memory, with what the mask says."""
        writer = self.writer

        def kept(pixel: int, vector: int) -> Stmt:
            key = plus(first, pixel)
            query = plus(self.first, vector * self.lanes)
            mask = mask_of(self.count - vector * self.lanes, self.lanes)
            span = Span(query, self.lanes, vector, tile.tag, mask)
            score = tile.value(pixel, vector)
            biased = writer.visibility.biased(score, writer.batch, writer.head, span, key)
            # lanes that are no query keep what the scratch memory held; nobody looks at them
            condition = None if biased is score else span.condition
            place = (key, self.vector(vector))
            store = masked_store(self.scores, place, biased, condition)
            return Block((store, self.top.add(vector, Load(self.scores, place))))

        return tile.each(kept)

    def powers(self) -> Stmt:
        """Exponentials in place of the scores, and their sums."""
        key = Var(f"power_of{self.tag}")

        def power(vector: int) -> Stmt:
            name = Var(f"power{self.tag}{vector}", self.dtype, self.lanes)
            place = (key, self.vector(vector))
            value = call("exp", Term(Load(self.scores, place)) - self.greatest(vector))
            both = Block((Store(self.scores, place, name), self.sums.add(vector, name)))
            return Let(name, value.expr, both)

        body = Block(tuple(power(vector) for vector in range(self.vectors)))
        return For(key, Const(0), Const(self.writer.keys), body)

    def greatest(self, vector: int) -> Term:
        """The greatest score; 0 for queries that see no key, whose scores are all infinite."""
        top = Term(self.top.value(vector))
        if not self.writer.visibility.hides:
            return top
        return select(equal(top, -math.inf), 0.0, top)

    def invert(self) -> Stmt:
        """What the exponentials have to be multiplied by to become probabilities."""

        def factor(vector: int) -> Stmt:
            total = Term(self.sums.value(vector))
            if self.writer.visibility.hides:
                total = select(equal(total, 0.0), 1.0, total)
            return Store(self.factors, (self.vector(vector),), (1.0 / total).expr)

        return Block(tuple(factor(vector) for vector in range(self.vectors)))

    def combine(self) -> Stmt:
        """The values, weighted, in tiles of queries times vectors of values."""
        writer, schedule = self.writer, self.writer.schedule
        width = schedule.value_lanes * schedule.value_vectors
        whole, left = divmod(writer.values, width)
        most = most_pixels(writer.target, schedule.value_vectors)
        found: list[Stmt] = []
        start = 0
        for size, count in balanced(self.count, most):
            number = Var(f"rows{self.tag}q{size}")
            query = plus(times(number, size), start)
            inner: list[Stmt] = []
            if whole:
                block = Var(f"block{self.tag}q{size}")
                body = self.weighted(size, query, times(block, width), width)
                inner.append(For(block, Const(0), Const(whole), body))
            if left:
                inner.append(self.weighted(size, query, Const(whole * width), left))
            found.append(For(number, Const(0), Const(count), Block(tuple(inner))))
            start += size * count
        return Block(tuple(found))

    def weighted(self, size: int, query: Expr, first: Expr, count: int) -> Stmt:
        """A tile of `size` queries and `count` values."""
        writer, lanes = self.writer, self.writer.schedule.value_lanes
        vectors = -(-count // lanes)
        tile = Tile(size, vectors, lanes, f"{self.tag}v{size}_{count}", self.dtype)
        key, row = Var(f"over{tile.tag}"), Var(f"row{tile.tag}")
        spans = [
            Span(plus(first, v * lanes), lanes, v, tile.tag, mask_of(count - v * lanes, lanes))
            for v in range(vectors)
        ]

        def weights(vector: int) -> Expr:
            place = (writer.batch, writer.shared, key, spans[vector].index)
            return spans[vector].loaded(Load(writer.value, place), 0.0)

        def store(pixel: int, vector: int) -> Stmt:
            span, place = spans[vector], plus(row, pixel)
            value = Term(tile.value(pixel, vector)) * Load(self.factors, (place,))
            at = (writer.batch, writer.head, plus(self.first, place), span.index)
            return writer.epilogue.store(at, value.expr, span.condition)

        step = tile.step(lambda pixel: Load(self.scores, (key, plus(row, pixel))), weights)
        reduction = For(key, Const(0), Const(writer.keys), step)
        whole = Block((tile.clear(), reduction, tile.each(store)))
        return Let(row, query, Allocate(tile.accumulators, whole))


def _over(left: Expr, right: int) -> Expr:
    return left if right == 1 else Binary(BinaryKind.FLOOR_DIVIDE, left, Const(right))
