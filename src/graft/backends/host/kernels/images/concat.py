"""Images joined along their channels into one blocked image, with a pointwise epilogue.

Each image may be in blocks of its own size, or row-major. The threads share the (block, row) pairs
of the result; each pair is filled from the images whose channels it holds, in vectors that neither
side's blocks cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from graft.backends.host.coordinates import BlockedCoordinate, Channels
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.image import (
    ImageWriter,
    no_image,
    source_block,
    unfit_epilogue,
    unfit_prologue,
    vector_lanes,
)
from graft.backends.host.storage import BLOCKS, Storage, shape_of
from graft.ir.graph import Node, Value
from graft.loop.ir import Binary, BinaryKind, Block, Compare, CompareKind, Const, Expr, If, Stmt
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class ConcatSchedule:
    """What a search may vary: vectors that are copied side by side."""

    vectors: int = 4


def _layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """Images joined along their channels may be in any blocks, or in rows."""
    anchor = group.sole_anchor
    if block and anchor.attrs.axis % 4 == 1:
        yield dict.fromkeys(anchor.args, (block, *BLOCKS, 0))


@kernel_template(("concatenate",), Layout.BLOCKED, schedule=ConcatSchedule, layouts=_layouts)
def image_concat(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Images joined along axis 1 with whatever follows."""
    anchor = group.sole_anchor
    result = stores[group.output]
    if anchor.attrs.axis % 4 != 1 or anchor.output.dtype is not result.dtype:
        return Refusal("the images are not joined along their channels")
    reasons = (_unfit(group, stores, value, result) for value in anchor.args)
    reason = no_image(result) or unfit_epilogue(group, stores, anchor)
    reason = reason or next(filter(None, reasons), None)
    if reason:
        return Refusal(reason)
    return plan_of(group, stores, lambda p: _Writer(p, ConcatSchedule(), anchor, target).body())


def _unfit(group: Group, stores: Stores, value: Value, result: Storage) -> str | None:
    """Why an image that is computed in the group cannot be, if it cannot."""
    if not group.leading_to(value):
        return None
    size = source_block(group, stores, value)
    if not size or result.block % size:
        return "an image is computed from others whose blocks do not fit"
    return unfit_prologue(group, stores, value, size)


@dataclass(frozen=True, slots=True)
class _Run:
    """Blocks of the result from `begin` on that take channels `low` to `high` from one image."""

    value: Value
    offset: int  # where the image's channels begin in the result
    begin: int
    end: int
    low: int
    high: int


class _Writer(ImageWriter):
    """Writes the loop nest of one concatenation."""

    def __init__(
        self, parameters: Parameters, schedule: ConcatSchedule, anchor: Node, target: Target
    ) -> None:
        super().__init__(parameters, 1)
        self.schedule = schedule
        self.anchor = anchor
        self.machine = target

    def body(self) -> Stmt:
        return self.rows([self.filled(run) for run in self.runs()])

    def runs(self) -> Iterator[_Run]:
        """Which blocks are filled from where: cut ones at an image's ends, and whole ones."""
        size, offset = self.result.block, 0
        for value in self.anchor.args:
            channels = shape_of(value)[1]
            assert isinstance(channels, int)
            end = offset + channels
            cuts = {offset, end, -(-offset // size) * size, end // size * size}
            edges = sorted(cut for cut in cuts if offset <= cut <= end)
            for low, high in pairwise(edges):
                begin = low // size
                whole = low % size == 0 and high % size == 0
                if whole:
                    yield _Run(value, offset, begin, high // size, 0, size)
                else:
                    yield _Run(value, offset, begin, begin + 1, low % size, high - begin * size)
            offset = end

    def filled(self, run: _Run) -> Stmt:
        """A row of the channels that a run of blocks takes from one image."""
        block = source_block(self.group, self.parameters.stores, run.value)
        cuts = (run.low, run.high, self.result.block, run.offset, block or run.high)
        lanes = vector_lanes(self.machine, self.result.dtype, math.gcd(*cuts))
        pixels = max(1, self.schedule.vectors * lanes // (run.high - run.low))
        body = Block(tuple(self.across(pixels, partial(self.tile, run, lanes))))
        if (run.begin, run.end) == (0, self.result.blocks):
            return body
        after = Compare(CompareKind.GREATER_EQUAL, self.block, Const(run.begin))
        before = Compare(CompareKind.LESS, self.block, Const(run.end))
        return If(Binary(BinaryKind.AND, after, before), body)

    def tile(self, run: _Run, lanes: int, column: Expr, size: int) -> Stmt:
        """Some pixels of the channels that come from one image."""
        statements = []
        for coordinate in self.coordinates(column, size, range(run.low, run.high, lanes), lanes):
            offset = coordinate.first - run.offset
            at = (self.batch, self.block, self.row, coordinate.column)
            channels = Channels(*at, self.result.block, offset, lanes)
            statements.append(self.copied(run.value, channels, coordinate))
        return Block(tuple(statements))

    def copied(self, value: Value, channels: Channels, coordinate: BlockedCoordinate) -> Stmt:
        """A vector of one image to its place in the result."""

        def stored(vector: Expr) -> Stmt:
            return self.store(coordinate, {self.anchor.output: vector})

        if self.group.leading_to(value):
            block = source_block(self.group, self.parameters.stores, value)
            return self.evaluator.at(channels.coordinate(block), value, {}, stored)
        return stored(channels.load(*self.parameters.value(value)))
