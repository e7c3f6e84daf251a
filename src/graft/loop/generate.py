"""Loop nests from stages: the heart of lowering.

Tensors, their nests and the sites where stages are computed enter; a statement per root stage
leaves, with guards as plain branches and vector and unrolled loops still marked as such. One
recursion walks a nest from the outside in; at each loop it emits the stages computed there, for
the region that the rest of the iteration needs, and a remainder simply walks the rest twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from graft.loop import ir
from graft.loop.element import Around, Memory, Part, element
from graft.loop.index import ONE, ZERO
from graft.loop.nest import Loop, Nest, short
from graft.loop.position import Position, binary
from graft.loop.program import Program
from graft.loop.ranges import Context
from graft.loop.regions import Box, allocation, axis_extents, infer_boxes
from graft.loop.schedule import Fuse, Split
from graft.loop.statements import bound
from graft.loop.tensor import Reduce, Tensor
from graft.loop.tensorize import MICRO_KERNELS, Tile, TileError
from graft.loop.traverse import block, variables

LoopBody = Callable[[ir.Expr, ir.Expr, Position], ir.Stmt]  # start, extent, where the inside stands


@dataclass(frozen=True)
class Here:
    """Where in a stage's nest code is emitted."""

    tensor: Tensor
    position: Position
    part: Part
    around: Around

    @property
    def context(self) -> Context:
        return self.around.context

    def enter(self, name: str, value: ir.Expr) -> Here:
        """Inside an iteration of a loop."""
        return replace(self, position=self.position.enter(name, value))


class Generator:
    """Emits the stages of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def stage(self, tensor: Tensor, box: Box, around: Around) -> ir.Stmt:
        """Loops that compute a box of a stage into its memory."""
        nest = self._program.nests[tensor.name]
        if nest.along is not None:
            return block()
        starts = {short(axis.name): s for axis, s in zip(tensor.axes, box.starts, strict=True)}
        extents = {short(name): extent for name, extent in axis_extents(tensor).items()}
        extents |= {short(a.name): e for a, e in zip(tensor.axes, box.extents, strict=True)}
        here = Here(tensor, Position(nest, starts, extents), Part.WHOLE, around)
        return self._loops(here, nest.loops)

    def _loops(self, here: Here, pending: Sequence[Loop]) -> ir.Stmt:
        tensor, position, part, context = here.tensor, here.position, here.part, here.context
        if not pending:
            computed = [self._program.tensors[name] for name in tensor.computes]
            return element(tensor, position, part, here.around, computed)
        loop, tensorized = pending[0], position.nest.tensorize
        is_tile = tensorized is not None and tensorized.loop == loop.name
        if is_tile and part is not Part.INITIAL and (part is Part.UPDATE or not _reduces(tensor)):
            return _tile(here, pending)
        if part is Part.WHOLE and (loop.reduces or (is_tile and _reduces(tensor))):
            outside = [one for one in pending if not one.reduces]
            initial = self._loops(replace(here, part=Part.INITIAL), outside)
            return block(initial, self._loops(replace(here, part=Part.UPDATE), pending))
        count = position.extent(loop.name, context)

        def body(start: ir.Expr, extent: ir.Expr, inner: Position) -> ir.Stmt:
            inside = replace(here, position=inner)
            if extent == ONE and loop.kind is not ir.LoopKind.PARALLEL:
                return self._iteration(inside.enter(loop.name, start), pending)
            var = ir.Var(f"{tensor.name}.{loop.name}")
            once = context.at_most(extent, ONE)
            within = here.around.inside(var, start, extent)
            if loop.masked:
                within = replace(within, masked=within.masked | {var.name})
            inside = replace(inside, around=within).enter(loop.name, start if once else var)
            return ir.For(var, start, extent, self._iteration(inside, pending), loop.kind)

        split = position.origin(loop.name)
        if isinstance(split, Split) and _has_remainder(position, loop, context):
            return self._with_remainder(position, split, context, body)
        return body(ZERO, count, position)

    def _with_remainder(
        self, position: Position, split: Split, context: Context, body: LoopBody
    ) -> ir.Stmt:
        """Loops over the full tiles, then one partial tile if there is a remainder."""
        tiles, rest = _tiles(position, split, context)
        main = body(ZERO, tiles, position.with_extent(split.inner, ir.Const(split.factor)))
        once = binary(ir.BinaryKind.MINIMUM, rest, ONE, context)
        return block(main, body(tiles, once, position.with_extent(split.inner, rest)))

    def _iteration(self, here: Here, pending: Sequence[Loop]) -> ir.Stmt:
        """One iteration: guards around the stages computed here and the rest of the nest."""
        here, lets = _decomposed(here)
        position, context = here.position, here.context
        split = _branching(position, context)
        if split is None:
            return bound(lets, self._guarded(here, pending))
        outer = position.value(split.outer, context)
        tiles, remaining = _tiles(position, split, context)
        is_whole = ir.Compare(ir.CompareKind.LESS, outer, tiles)
        tile = position.with_extent(split.inner, ir.Const(split.factor))
        last = position.with_extent(split.inner, remaining)
        if position.nest.is_masked(split.inner):
            last = position.enter(split.outer, tiles).with_tail(split.loop)
        sides = []
        for side, holds in ((tile, True), (last, False)):
            inner = replace(here.around, context=context.assume(is_whole, holds))
            sides.append(self._guarded(replace(here, position=side, around=inner), pending))
        return bound(lets, ir.If(is_whole, *sides))

    def _guarded(self, here: Here, pending: Sequence[Loop]) -> ir.Stmt:
        around, guards = here.around, _guards(here.position, pending[0], here.context)
        for guard in guards:
            around = replace(around, context=around.context.assume(guard))
        masks = tuple(guard for guard in guards if around.masked & variables(guard))
        guards = [guard for guard in guards if guard not in masks]
        here = replace(here, around=replace(around, masks=(*around.masks, *masks)))
        if here.part is Part.INITIAL:
            stmt = self._loops(here, pending[1:])
        else:
            stmt = self._with_producers(here, pending)
        for guard in reversed(guards):
            stmt = ir.If(guard, stmt)
        return stmt

    def _with_producers(self, here: Here, pending: Sequence[Loop]) -> ir.Stmt:
        tensor, position, around, loop = here.tensor, here.position, here.around, pending[0]
        producers = self._program.computed_at(tensor.name, loop.name)
        inside = self._program.inside(tensor.name, loop.name)
        boxes = infer_boxes(tensor, position, inside, around.context) if producers else {}
        stmts: list[ir.Stmt] = []
        allocated: list[ir.Buffer] = []
        for producer in producers:
            box, nest = boxes[producer.name], self._program.nests[producer.name]
            if nest.store_with is None:
                memory = self._allocate(producer, box, around)
                allocated.append(memory.buffer)
            else:
                memory = around.memory[tensor.name]
                if box != infer_boxes(tensor, position, [producer], around.context)[producer.name]:
                    what = f"cannot store it with {tensor.name}"
                    raise nest.fail(f"{what}: others read more of it than an iteration of that")
            around = around.holding(producer.name, memory)
            stmts.append(self.stage(producer, box, around))
        stmt = block(*stmts, self._loops(replace(here, around=around), pending[1:]))
        for buffer in reversed(allocated):
            stmt = ir.Allocate(buffer, stmt)
        return stmt

    def _allocate(self, tensor: Tensor, box: Box, around: Around) -> Memory:
        nest = self._program.nests[tensor.name]
        extents = allocation(box, tensor, around.loops, around.context)
        if nest.scope is ir.Scope.REGISTER:
            if not all(isinstance(e, ir.Const) for e in extents):
                raise nest.fail("cannot keep it in registers: its extents have no constant bound")
            extents = _whole_vectors(tensor, nest, extents)
        order = _lanes_last(tensor, nest) if nest.scope is ir.Scope.REGISTER else ()
        if order:
            extents = tuple(extents[dimension] for dimension in order)
        buffer = replace(tensor.buffer, extents=extents, scope=nest.scope)
        return Memory(buffer, box.starts, order)


def _lanes_last(tensor: Tensor, nest: Nest) -> tuple[int, ...]:
    """The order of dimensions in which vectors of registers are contiguous, if it is another."""
    lanes = {loop.name for loop in nest.loops if loop.kind is ir.LoopKind.VECTOR}
    wide = [d for d, axis in enumerate(tensor.axes) if nest.leaves(short(axis.name)) & lanes]
    if len(wide) != 1 or wide[0] == len(tensor.axes) - 1:
        return ()
    return (*(d for d in range(len(tensor.axes)) if d != wide[0]), wide[0])


def _whole_vectors(tensor: Tensor, nest: Nest, extents: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
    """Extents of registers that have room for the lanes which masks rule out."""
    widths = {
        split.loop: split.factor
        for split in nest.relations
        if isinstance(split, Split) and nest.is_masked(split.inner)
    }
    return tuple(
        ir.Const(-(-int(extent.value) // width) * width) if isinstance(extent, ir.Const) else extent
        for extent, width in zip(
            extents, (widths.get(short(axis.name), 1) for axis in tensor.axes), strict=True
        )
    )


def _has_remainder(position: Position, loop: Loop, context: Context) -> bool:
    """Whether a partial tile follows the loop's iterations."""
    split = position.origin(loop.name)
    if not isinstance(split, Split) or split.outer != loop.name or split.tail != "remainder":
        return False
    return not position.is_exact(split, context)


def _branching(position: Position, context: Context) -> Split | None:
    """A split whose tile has just got a number, which decides whether it is a whole one."""
    for split in position.nest.relations:
        if isinstance(split, Split) and split.tail == "branch":
            is_decided = split.inner in position.extents or split.loop in position.tails
            is_open = not is_decided and position.has_value(split.outer)
            if is_open and not position.is_exact(split, context):
                return split
    return None


def _reduces(tensor: Tensor) -> bool:
    return isinstance(tensor.body, Reduce)


def _tiles(position: Position, split: Split, context: Context) -> tuple[ir.Expr, ir.Expr]:
    """The number of whole tiles of a split, and how far the last one goes that is none."""
    whole, factor = position.extent(split.loop, context), ir.Const(split.factor)
    tiles = binary(ir.BinaryKind.FLOOR_DIVIDE, whole, factor, context)
    return tiles, binary(ir.BinaryKind.FLOOR_MODULO, whole, factor, context)


def _tile(here: Here, pending: Sequence[Loop]) -> ir.Stmt:
    """Replace the remaining loops and the statement inside them by a micro-kernel."""
    tensor, position, around = here.tensor, here.position, here.around
    nest = position.nest
    if nest.tensorize is None or nest.tensorize.kernel not in MICRO_KERNELS:
        names = ", ".join(sorted(MICRO_KERNELS))
        raise nest.fail("there is no such micro-kernel", hint=f"there are {names}")
    what = f"cannot tensorize loop '{nest.tensorize.loop}'"
    loops: list[tuple[ir.Var, int]] = []
    for loop in pending:
        extent = position.extent(loop.name, around.context)
        if not isinstance(extent, ir.Const):
            raise nest.fail(f"{what}: the extent of '{loop.name}' inside is not constant")
        var = ir.Var(f"{tensor.name}.{loop.name}")
        if _has_remainder(position, loop, around.context):
            raise nest.fail(f"{what}: '{loop.name}' inside has a remainder")
        position = position.enter(loop.name, var)
        around = around.inside(var, ZERO, extent)
        if _guards(position, loop, around.context):
            raise nest.fail(f"{what}: '{loop.name}' inside has a guarded tail")
        loops.append((var, int(extent.value)))
    tile = Tile(tensor.name, tuple(loops), element(tensor, position, here.part, around))
    try:
        return MICRO_KERNELS[nest.tensorize.kernel](tile)
    except TileError as error:
        raise nest.fail(f"{what}: {error.message}") from None


def _decomposed(here: Here) -> tuple[Here, list[tuple[ir.Var, ir.Expr]]]:
    """Names for the loops that a fused loop was made of, as soon as it has a value.

    Dividing once per iteration of the fused loop keeps divisions out of the loops inside.
    """
    tensor, position, around = here.tensor, here.position, here.around
    lets: list[tuple[ir.Var, ir.Expr]] = []
    for fuse in reversed(position.nest.relations):
        if not isinstance(fuse, Fuse) or not position.has_value(fuse.fused):
            continue
        for name in (fuse.outer, fuse.inner):
            if name in position.values:
                continue
            value = position.value(name, around.context)
            if not isinstance(value, (ir.Const, ir.Var)):
                var = ir.Var(f"{tensor.name}.{name}")
                lets.append((var, value))
                extent = position.extent(name, around.context)
                around, value = around.inside(var, ZERO, extent), var
            position = position.enter(name, value)
    return replace(here, position=position, around=around), lets


def _guards(position: Position, loop: Loop, context: Context) -> list[ir.Expr]:
    """Conditions that can be tested once this loop has a value, and not before."""
    guards: list[ir.Expr] = []
    nest = position.nest
    for split in nest.relations:
        if not isinstance(split, Split):
            continue
        if split.tail != "guard" and split.loop not in position.tails:
            continue
        if loop.name not in nest.leaves(split.loop) or not position.has_value(split.loop):
            continue
        if position.is_exact(split, context):
            continue
        value = position.value(split.loop, context)
        guards.append(ir.Compare(ir.CompareKind.LESS, value, position.extent(split.loop, context)))
    return guards


def one_thread(stmt: ir.Stmt) -> ir.Stmt:
    """The statement run by just one of the threads."""
    return ir.For(ir.Var("once"), ZERO, ONE, stmt, ir.LoopKind.PARALLEL)


def full_box(tensor: Tensor) -> Box:
    """All of a tensor."""
    return Box(tuple(ZERO for _ in tensor.shape), tensor.shape)
