"""Scaled dot-product attention in one pass per tile of queries, on row-major tensors.

The threads share (batch, head, query tile) jobs. A job transposes its queries, so that vectors run
along them: scores are then register tiles of keys times queries and their softmax never crosses
lanes. The products with the values have vectors along the values' own axis. Scores stay in scratch
memory of keys times one tile. Batch, queries and keys may be counted only at run time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from graft.backends.host.coordinates import PlainCoordinate, modulo, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template
from graft.backends.host.kernels.epilogue import Epilogue, epilogue_of
from graft.backends.host.kernels.product import MANY
from graft.backends.host.kernels.tile import Running, Tile, runs
from graft.backends.host.kernels.vectors import Span, lanes_for, mask_of, masked_store
from graft.backends.host.kernels.views import numbers, shared_loop, unclear
from graft.backends.host.storage import shape_of
from graft.base.dims import Dim
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, call, compare, equal, select
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
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import with_memory
from graft.rewrite.rule import Refusal
from graft.target.register_tile import most_pixels, step_cycles
from graft.target.target import Target


class Visibility:
    """The rules of one attention node."""

    def __init__(self, node: Node, parameters: Parameters) -> None:
        attrs = node.attrs
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        self.mask = None if mask is None else parameters.value(mask, "mask")
        self.softcap: float = attrs.softcap
        self.offset: int = attrs.offset
        self.behind: int | None = attrs.left_window if attrs.left_window >= 0 else None
        ahead = [attrs.right_window] if attrs.right_window >= 0 else []
        self.ahead: int | None = min([*ahead, *([0] if attrs.causal else [])], default=None)

    @property
    def hides(self) -> bool:
        """Whether a query may see no key at all."""
        return self.mask is not None or self.behind is not None or self.ahead is not None

    def biased(self, score: Expr, batch: Expr, head: Expr, span: Span, key: Expr) -> Expr:
        """Scores of one key for a vector of queries; the same expression if nothing happens."""
        if not self.hides and not self.softcap:
            return score
        value = Term(score)
        if self.softcap:
            value = call("tanh", value * (1 / self.softcap)) * self.softcap
        if self.mask is not None:
            storage, buffer = self.mask
            coordinate = PlainCoordinate((batch, head, span.index, key), span.lanes)
            mask = Term(coordinate.load(storage, buffer))
            is_bool = storage.dtype is DType.BOOL
            value = select(mask, value, -math.inf) if is_bool else value + mask
        position = Span(plus(span.first, self.offset), span.lanes, 0, "").index
        for limit, kind in (
            (self.ahead, CompareKind.GREATER_EQUAL),
            (None if self.behind is None else -self.behind, CompareKind.LESS_EQUAL),
        ):
            if limit is not None:
                is_visible = compare(kind, Term(position) + limit, key)
                value = select(is_visible, value, -math.inf)
        return value.expr


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """What a search may vary: lanes and vectors of queries, lanes and vectors of values."""

    lanes: int
    vectors: int
    value_lanes: int
    value_vectors: int


@kernel_template(("nn.attention",), Layout.ROW_MAJOR, dtypes=FLOATS)
def attention(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Attention without cached lengths, and whatever follows it."""
    anchor = group.sole_anchor
    if len(anchor.outputs) > 1 or any(value is not None for value in anchor.inputs[4:]):
        return Refusal("the scores are wanted too, or lengths and offsets are given at run time")
    if anchor.attrs.softmax_dtype not in (None, anchor.output.dtype):
        return Refusal(f"the softmax is in {anchor.attrs.softmax_dtype}")
    if not isinstance(anchor.attrs.offset, int):
        return Refusal("the offset is not a plain number")
    refused = _unfit_extents(anchor)
    if refused is not None:
        return refused
    epilogue = epilogue_of(group, stores, anchor, {}, apart=4)
    if isinstance(epilogue, Refusal):
        return epilogue
    return lambda: epilogue.parameters.kernel(_Writer(epilogue, target).body())


def _unfit_extents(anchor: Node) -> Refusal | None:
    """Why loops cannot be written for the extents of the operands, if they cannot."""
    (_, heads, _, size), *others = (shape_of(value) for value in anchor.args[:3])
    fixed = (heads, size, others[1][3], *(shape[1] for shape in others))
    if not all(isinstance(extent, int) for extent in fixed):
        return Refusal("heads, or how long queries and values are, become known only at run time")
    return unfit_batches(anchor)


def unfit_batches(anchor: Node) -> Refusal | None:
    """Why it is not known which item of a batch operands or the mask belong to, if it is not."""
    (batch, heads, queries, _), keys, values = (shape_of(value) for value in anchor.args[:3])
    if keys[0] != batch or values[0] != batch:
        return Refusal("the batches of queries, keys and values may differ")
    mask = anchor.inputs[3] if len(anchor.inputs) > 3 else None
    return None if mask is None else unclear((batch, heads, queries, keys[2]), [shape_of(mask)])


def default_schedule(target: Target, dtype: DType, queries: Dim, size: int) -> AttentionSchedule:
    """Two vectors of queries, or one where there is no more, and as many of values as are cheapest;
    an unknown number of queries counts as many."""
    queries = queries if isinstance(queries, int) else MANY
    lanes, value_lanes = (lanes_for(target, {dtype}, max(2, n)) for n in (queries, size))
    vectors = 2 if queries > lanes else 1

    def cycles(count: int) -> float:
        """Of a step for one query and all values."""
        pixels = min(vectors * lanes, most_pixels(target.vector_registers, count))
        step = step_cycles(target.machine, pixels, count)
        return step * -(-size // (count * value_lanes)) / pixels

    return AttentionSchedule(lanes, vectors, value_lanes, min(range(1, 5), key=cycles))


class _Writer:
    """Writes the jobs of one attention."""

    def __init__(self, epilogue: Epilogue, target: Target) -> None:
        anchor, parameters = epilogue.anchor, epilogue.parameters
        self.epilogue, self.target = epilogue, target
        self.dtype = anchor.output.dtype
        query, key, value = anchor.args[:3]
        batches, _, queries, _ = shape_of(query)
        self.heads, self.size = numbers(shape_of(query)[1::2])
        (self.shared_heads,) = numbers(shape_of(key)[1:2])
        (self.values,) = numbers(shape_of(value)[3:])
        counts = (batches, queries, shape_of(key)[2])
        self.batches, self.queries, self.keys = map(parameters.extent, counts)
        self.schedule = default_schedule(target, self.dtype, queries, self.values)
        _, self.query = parameters.value(query, "query")
        _, self.key = parameters.value(key, "key")
        _, self.value = parameters.value(value, "value")
        self.visibility = Visibility(anchor, parameters)
        scale = anchor.attrs.scale
        self.scale: float = 1 / math.sqrt(self.size) if scale is None else scale
        self.batch, self.head, self.shared = Var("batch"), Var("head"), Var("shared_head")

    def body(self) -> Stmt:
        width = self.schedule.vectors * self.schedule.lanes
        whole, remainder = over(self.queries, width), modulo(self.queries, width)
        tile = Var("tile")
        body = self.tiles(tile, width, whole, remainder)
        body = Let(self.shared, over(self.head, self.heads // self.shared_heads), body)
        tiles = over(plus(self.queries, width - 1), width)
        parts = ((self.batch, self.batches), (self.head, Const(self.heads)), (tile, tiles))
        return shared_loop(parts, body)

    def tiles(self, tile: Var, width: int, whole: Expr, left: Expr) -> Stmt:
        """A tile of full width, or what is left of the queries in as few vectors as will do."""
        lanes = self.schedule.lanes
        full = _Part(self, "_w", self.schedule.vectors, Const(width)).body(times(tile, width))
        if left == Const(0):
            return full

        def rest(vectors: int) -> Stmt:
            return _Part(self, f"_l{vectors}", vectors, left).body(times(whole, width))

        if isinstance(left, Const):
            last = rest(-(-int(left.value) // lanes))
        elif self.schedule.vectors == 1:
            last = rest(1)
        else:
            many = Compare(CompareKind.GREATER, left, Const(lanes))
            last = If(many, rest(self.schedule.vectors), rest(1))
        if whole == Const(0):
            return last
        return If(Compare(CompareKind.LESS, tile, whole), full, last)


class _Part:
    """Writes a job of one kind: `count` queries in some vectors."""

    def __init__(self, writer: _Writer, tag: str, vectors: int, count: Expr) -> None:
        self.writer, self.tag, self.vectors, self.count = writer, tag, vectors, count
        self.lanes, self.dtype = writer.schedule.lanes, writer.dtype
        self.width = vectors * self.lanes
        self.first = Var(f"first{tag}")
        self.transposed = self.scratch("transposed", Const(writer.size), Const(self.width))
        self.scores = self.scratch("scores", writer.keys, Const(self.width))
        self.factors = self.scratch("factors", Const(self.width))
        self.top = Running(f"top{tag}", BinaryKind.MAXIMUM, vectors, self.lanes, self.dtype)
        self.sums = Running(f"sums{tag}", BinaryKind.ADD, vectors, self.lanes, self.dtype)

    def scratch(self, name: str, *extents: Expr) -> Buffer:
        return Buffer(f"{name}{self.tag}", self.dtype, extents, Scope.HEAP)

    def vector(self, number: int) -> Expr:
        """The lanes of one vector of queries within the tile."""
        first = Const(number * self.lanes)
        return Ramp(first, 1, self.lanes) if self.lanes > 1 else first

    def body(self, first: Expr) -> Stmt:
        steps = (
            self.transpose(),
            self.top.clear(),
            self.score(),
            self.sums.clear(),
            self.powers(),
            self.invert(),
            self.combine(),
        )
        memory = self.sums.buffer, self.top.buffer, self.factors, self.scores, self.transposed
        return Let(self.first, first, with_memory(Block(steps), *memory))

    def transpose(self) -> Stmt:
        """The queries, scaled, with neighbours side by side; the last one fills up the vectors."""
        writer = self.writer
        row, step = Var(f"row{self.tag}"), Var(f"column{self.tag}")
        query = plus(self.first, row)
        if self.count != Const(self.width):
            query = Binary(BinaryKind.MINIMUM, query, plus(writer.queries, -1))
        element = Load(writer.query, (writer.batch, writer.head, query, step))
        scaled = (Term(element) * writer.scale).expr
        inner = For(step, Const(0), Const(writer.size), Store(self.transposed, (step, row), scaled))
        return For(row, Const(0), Const(self.width), inner)

    def score(self) -> Stmt:
        """Scores of all keys, and the greatest one of each query."""
        most = most_pixels(self.writer.target.vector_registers, self.vectors)
        return Block(
            tuple(
                run.loop(Var(f"keys{self.tag}k{run.size}"), partial(self.scored, run.size))
                for run in runs(self.writer.keys, most)
            )
        )

    def scored(self, size: int, first: Expr) -> Stmt:
        """A tile of `size` keys."""
        writer = self.writer
        tile = Tile(size, self.vectors, self.lanes, f"{self.tag}k{size}", self.dtype)
        step, key = Var(f"step{tile.tag}"), Var(f"key{tile.tag}")

        def element(pixel: int) -> Expr:
            return Load(writer.key, (writer.batch, writer.shared, plus(key, pixel), step))

        def queries(vector: int) -> Expr:
            return Load(self.transposed, (step, self.vector(vector)))

        reduction = For(step, Const(0), Const(writer.size), tile.step(element, queries))
        whole = Block((tile.clear(), reduction, self.keep(tile, key)))
        return Let(key, first, Allocate(tile.accumulators, whole))

    def keep(self, tile: Tile, first: Expr) -> Stmt:
        """Scores to scratch memory, with what the mask says."""
        writer = self.writer

        def store_score(pixel: int, vector: int) -> Stmt:
            key = plus(first, pixel)
            query = plus(self.first, vector * self.lanes)
            mask = mask_of(plus(self.count, -vector * self.lanes), self.lanes)
            span = Span(query, self.lanes, vector, tile.tag, mask)
            score = tile.value(pixel, vector)
            biased = writer.visibility.biased(score, writer.batch, writer.head, span, key)
            # lanes without a query keep what the scratch memory held; they are never read
            condition = None if biased is score else span.condition
            indices = (key, self.vector(vector))
            store = masked_store(self.scores, indices, biased, condition)
            return Block((store, self.top.add(vector, Load(self.scores, indices))))

        return tile.each(store_score)

    def powers(self) -> Stmt:
        """Exponentials in place of the scores, and their sums."""
        key = Var(f"power_of{self.tag}")

        def power(vector: int) -> Stmt:
            name = Var(f"power{self.tag}{vector}", self.dtype, self.lanes)
            indices = (key, self.vector(vector))
            value = call("exp", Term(Load(self.scores, indices)) - self.greatest(vector))
            both = Block((Store(self.scores, indices, name), self.sums.add(vector, name)))
            return Let(name, value.expr, both)

        body = Block(tuple(power(vector) for vector in range(self.vectors)))
        return For(key, Const(0), self.writer.keys, body)

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
        whole, rest = divmod(writer.values, width)
        most = most_pixels(writer.target.vector_registers, schedule.value_vectors)

        def rows(size: int, query: Expr) -> Stmt:
            inner: list[Stmt] = []
            if whole:
                block = Var(f"block{self.tag}q{size}")
                body = self.weighted(size, query, times(block, width), width)
                inner.append(For(block, Const(0), Const(whole), body))
            if rest:
                inner.append(self.weighted(size, query, Const(whole * width), rest))
            return Block(tuple(inner))

        return Block(
            tuple(
                run.loop(Var(f"rows{self.tag}q{run.size}"), partial(rows, run.size))
                for run in runs(self.count, most)
            )
        )

    def weighted(self, size: int, query: Expr, first: Expr, count: int) -> Stmt:
        """A tile of `size` queries and `count` values."""
        writer, lanes = self.writer, self.writer.schedule.value_lanes
        vectors = -(-count // lanes)
        tile = Tile(size, vectors, lanes, f"{self.tag}v{size}_{count}", self.dtype)
        key, row = Var(f"over{tile.tag}"), Var(f"row{tile.tag}")
        spans = [
            Span(
                plus(first, v * lanes), lanes, v, tile.tag, mask_of(Const(count - v * lanes), lanes)
            )
            for v in range(vectors)
        ]

        def weights(vector: int) -> Expr:
            indices = (writer.batch, writer.shared, key, spans[vector].index)
            return spans[vector].loaded(Load(writer.value, indices), 0.0)

        def store(pixel: int, vector: int) -> Stmt:
            span, position = spans[vector], plus(row, pixel)
            value = Term(tile.value(pixel, vector)) * Load(self.factors, (position,))
            at = (writer.batch, writer.head, plus(self.first, position), span.index)
            return writer.epilogue.store(at, value.expr, span.condition)

        step = tile.step(lambda pixel: Load(self.scores, (key, plus(row, pixel))), weights)
        reduction = For(key, Const(0), writer.keys, step)
        whole = Block((tile.clear(), reduction, tile.each(store)))
        return Let(row, query, Allocate(tile.accumulators, whole))
