"""Statements -> control flow.

Part of the emitter. Loops are written with their test at the end, the shape that LLVM optimises
best. A function with a single parallel loop that is run once lets threads claim its iterations
(`claim.py`). With several, or one that is run again and again, threads may rely on results of their
own in the loop before: of extent n, thread t of T runs [n t // T, n (t + 1) // T) of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from graft.base.errors import InternalError, UnsupportedError
from graft.base.names import identifier
from graft.llvm import emit_memory
from graft.llvm.barrier import barrier
from graft.llvm.claim import share
from graft.llvm.context import Context, MemRef
from graft.llvm.emit_expr import expression, scalar
from graft.llvm.text import Value, constant, when
from graft.llvm.types import WIDENED, byte_size, memory_type, register_type
from graft.loop import ir
from graft.loop.traverse import has_chain, loads_in, walk_stmt

ONE = constant(1, "i64")
THREAD = Value("i64", 1, "%thread")
THREADS = Value("i64", 1, "%threads")
SHARED = Value("ptr", 1, "%shared")
BLOCK_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
_CHAINS = 4  # that are interleaved: with two units and 4 cycles each, the next ones fit between
_TWO_ITERATIONS = 4  # registers beside the sums: of each, a vector of weights and an element


def statement(context: Context, stmt: ir.Stmt) -> None:
    """Write the code of a statement."""
    while isinstance(stmt, (ir.Let, ir.Allocate)):  # which may be nested by the hundred
        if isinstance(stmt, ir.Let):
            context.variables[stmt.var.name] = expression(context, stmt.value)
            context.limit(stmt.var, stmt.value, stmt.value)
        else:
            _allocate(context, stmt.buffer)
        stmt = stmt.body
    match stmt:
        case ir.Block():
            _block(context, stmt.statements)
        case ir.For():
            _for(context, stmt)
        case ir.If():
            _if(context, stmt)
        case ir.While():
            _while(context, stmt)
        case ir.Store():
            _store(context, stmt)
        case ir.AtomicAdd():
            _atomic_add(context, stmt)
        case ir.Prefetch():
            _prefetch(context, stmt)
        case ir.Barrier():
            barrier(context.builder, THREADS, SHARED)


def _block(context: Context, statements: Sequence[ir.Stmt]) -> None:
    """Statements in order, but for neighbouring stores that take long chains of instructions.

    Cores look at some hundred instructions ahead, which are few such chains one behind the other,
    and constants would be loaded for each; they are written an instruction of each in turn."""
    position, interleaves = 0, not context.builder.target.is_gpu
    while position < len(statements):
        group = _chains(statements[position : position + _CHAINS]) if interleaves else ()
        if len(group) > 1:
            context.builder.interleave([partial(statement, context, one) for one in group])
        else:
            statement(context, statements[position])
        position += max(1, len(group))


def _chains(statements: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
    """The first ones of the statements that take long chains, none of which needs another's."""
    targets: set[str] = set()
    read: set[str] = set()
    for count, one in enumerate(statements):
        values, last = [], one
        while isinstance(last, ir.Let):
            values.append(last.value)
            last = last.body
        if not isinstance(last, ir.Store) or last.condition is not None:
            return statements[:count]
        if last.buffer.scope is ir.Scope.REGISTER:  # thousands of them, sums
            return statements[:count]
        values += [last.value, *last.indices]
        if not has_chain(*values):
            return statements[:count]
        read |= {load.buffer.name for load in loads_in(*values)}
        targets.add(last.buffer.name)
        if targets & read:
            return statements[:count]
    return statements


def _for(context: Context, loop: ir.For) -> None:
    extent, start = loop.extent, loop.start
    end = ir.Binary(ir.BinaryKind.ADD, start, extent)
    context.limit(loop.var, start, ir.Binary(ir.BinaryKind.SUBTRACT, end, ir.Const(1)))
    if (
        loop.kind is ir.LoopKind.UNROLLED
        and isinstance(extent, ir.Const)
        and isinstance(start, ir.Const)
    ):
        first = int(start.value)
        for value in range(first, first + int(extent.value)):
            context.variables[loop.var.name] = constant(value, register_type(loop.var.dtype))
            statement(context, loop.body)
        return
    begin, count = scalar(context, start), scalar(context, extent)
    if context.builder.target.is_gpu and loop.kind in (ir.LoopKind.PARALLEL, ir.LoopKind.THREAD):
        _strided(context, loop, begin, count)
        return
    if loop.kind is not ir.LoopKind.PARALLEL:
        hints = _no_unrolling(context) if _stays_rolled(context, loop) else ""
        _count(context, loop.var, begin, count, lambda: statement(context, loop.body), hints=hints)
        return
    if context.in_parallel:
        raise InternalError(f"{context.function}: parallel loop '{loop.var.name}' inside another")
    if count.element != "i64":
        raise InternalError(f"{context.function}: a parallel loop needs an int64 variable")
    context.in_parallel = True
    count = context.builder.elementwise("smax", count, constant(0, "i64"))

    def run(first: Value, length: Value) -> None:
        start = context.builder.binary("add", begin, first)
        _count(context, loop.var, start, length, lambda: statement(context, loop.body))

    if context.claims:
        share(context.builder, (SHARED, THREAD, THREADS), count, run)
    else:
        run(*_share(context, count))
    context.in_parallel = False


def _stays_rolled(context: Context, loop: ir.For) -> bool:
    """Whether a loop over sums in registers is better left as it is.

    LLVM unrolls it, hoists the loads of two iterations and spills sums if both do not fit. That
    matters where an element occupies a register until it is multiplied: AVX-512 has embedded
    broadcasts, NEON multiplies by a lane.

    Where L1 fills compete with loads (Intel), prefetching relies on the IP-stride prefetcher, which
    covers strides up to 2 KiB: five vectors of weights times eight iterations exceed that. One
    instruction keeps its stride from one tap of a kernel to the next, so the surrounding loops stay
    rolled, too."""
    target = context.builder.target
    if not target.is_x86:
        return False
    by_steps = not target.machine.fills_beside_loads
    if target.has("avx512f") and not by_steps:
        return False
    sums: dict[str, ir.Buffer] = {}
    is_innermost, stores = True, False
    for one in walk_stmt(loop.body):
        if isinstance(one, ir.For) and one.kind is not ir.LoopKind.UNROLLED:
            if not by_steps:
                return False
            is_innermost = False
        if isinstance(one, ir.Store):
            if one.buffer.scope is ir.Scope.REGISTER:
                sums[one.buffer.name] = one.buffer
            else:
                stores = True
    if stores and not is_innermost:
        return False
    bits = sum(
        one.dtype.bits * math.prod(int(n.value) for n in one.extents if isinstance(n, ir.Const))
        for one in sums.values()
    )
    vectors, registers = bits // target.vector_bits, target.vector_registers
    return vectors >= registers // 2 if by_steps else vectors + _TWO_ITERATIONS >= registers


def _no_unrolling(context: Context) -> str:
    """Metadata that keeps LLVM from unrolling a loop."""
    module = context.builder.module
    disable = module.metadata('!{!"llvm.loop.unroll.disable"}')
    return f", !llvm.loop {module.metadata(f'distinct !{{SELF, {disable}}}')}"


def _strided(context: Context, loop: ir.For, begin: Value, count: Value) -> None:
    """A loop whose iterations are dealt out in turn: neighbours in memory to neighbouring threads.

    Threads of a block meet at the end of a loop that they share."""
    builder = context.builder
    inside = (one.kind for one in walk_stmt(loop.body) if isinstance(one, ir.For))
    among = "block" if ir.LoopKind.THREAD in inside else "grid"
    is_thread = loop.kind is ir.LoopKind.THREAD
    first, step = context.shares["thread" if is_thread else among]
    start, length = builder.binary("add nsw", begin, first), builder.binary("sub", count, first)
    _count(context, loop.var, start, length, lambda: statement(context, loop.body), step)
    if is_thread:
        builder.module.declare(BLOCK_BARRIER, "void", ["i32"])
        builder.do(f"call void @{BLOCK_BARRIER}(i32 0)")


def _share(context: Context, count: Value) -> tuple[Value, Value]:
    """First iteration and number of iterations that this thread owns."""
    builder = context.builder
    following = builder.binary("add nuw nsw", THREAD, constant(1, "i64"))
    bounds = [
        builder.binary("udiv", builder.binary("mul", count, thread), THREADS)
        for thread in (THREAD, following)
    ]
    return bounds[0], builder.binary("sub", bounds[1], bounds[0])


def _count(
    context: Context,
    var: ir.Var,
    begin: Value,
    count: Value,
    body: Callable[[], None],
    step: Value = ONE,
    hints: str = "",
) -> None:
    """A loop over those of `count` values from `begin` on that are a multiple of `step` further;
    `hints` is LLVM's metadata of it."""
    builder = context.builder
    inside, after = builder.fresh(f"loop.{identifier(var.name)}"), builder.fresh("after")
    end = builder.binary("add nsw", begin, count)
    if builder.target.is_hexagon:  # whose addresses have 32 bits, and loop counters as well
        begin, end = (builder.convert("trunc", one, "i32") for one in (begin, end))
    before = builder.fresh("before")
    builder.jump(before)
    builder.start(before)
    if count.text.isdigit() and int(count.text) > 0:
        builder.jump(inside)
    else:
        builder.branch(builder.compare("sgt", count, constant(0, count.element)), inside, after)
    builder.start(inside)
    # The name of the next value is needed before the value is: it comes from the loop's end.
    following, last = f"%{builder.fresh('next')}", builder.fresh("latch")
    current = builder.phi(begin.element, 1, (begin.text, before), (following, last))
    wide = builder.convert("sext", current, register_type(var.dtype))
    context.variables[var.name] = wide if step is ONE else _short(context, var, wide)
    body()
    builder.jump(last)
    builder.start(last)
    builder.do(f"{following} = add nsw {current.typed}, {step.text}")
    again = builder.compare("slt", Value(current.element, 1, following), end)
    builder.branch(again, inside, after, hints)
    builder.start(after)


def _short(context: Context, var: ir.Var, value: Value) -> Value:
    """A variable of a strided loop without the bits that it never has.

    LLVM does not see how large it gets, and divides by constants with 64 bits otherwise."""
    bounds = context.ranges.get(var.name)
    if bounds is None or bounds.low is None or bounds.high is None or bounds.low < 0:
        return value
    most = (1 << max(bounds.high, 1).bit_length()) - 1
    return context.builder.binary("and", value, constant(most, value.element))


def _if(context: Context, stmt: ir.If) -> None:
    builder = context.builder
    condition = scalar(context, stmt.condition)
    yes, no, after = (builder.fresh(hint) for hint in ("then", "else", "endif"))
    builder.branch(condition, yes, after if stmt.otherwise is None else no)
    builder.start(yes)
    statement(context, stmt.then)
    builder.jump(after)
    if stmt.otherwise is not None:
        builder.start(no)
        statement(context, stmt.otherwise)
        builder.jump(after)
    builder.start(after)


def _while(context: Context, stmt: ir.While) -> None:
    builder = context.builder
    test, inside, after = (builder.fresh(hint) for hint in ("while", "do", "done"))
    builder.jump(test)
    builder.start(test)
    builder.branch(scalar(context, stmt.condition), inside, after)
    builder.start(inside)
    statement(context, stmt.body)
    builder.jump(test)
    builder.start(after)


def _allocate(context: Context, buffer: ir.Buffer) -> None:
    if buffer.scope is ir.Scope.ARGUMENT:
        raise InternalError(f"{context.function}: '{buffer.name}' is allocated as an argument")
    if buffer.scope is not ir.Scope.HEAP and buffer.name not in context.memrefs:
        context.memrefs[buffer.name] = _fixed(context, buffer)


def _fixed(context: Context, buffer: ir.Buffer) -> MemRef:
    """Memory of constant size: of a block, or a thread's stack, which LLVM keeps in registers if
    all indices are constant."""
    strides: list[int] = []
    count = 1
    for extent in reversed(buffer.extents):
        if not isinstance(extent, ir.Const):
            raise InternalError(f"{context.function}: '{buffer.name}' needs constant extents")
        strides.insert(0, count)
        count *= int(extent.value)
    element = memory_type(buffer.dtype)
    if buffer.scope is ir.Scope.SHARED:
        name = context.builder.module.shared(buffer.name, element, count)
        pointer = Value("ptr", 1, f"addrspacecast (ptr addrspace(3) {name} to ptr)")
        return MemRef(buffer, pointer, tuple(strides))
    pointer = context.builder.allocate(element, count, buffer.alignment)
    return MemRef(buffer, pointer, tuple(strides))


def _store(context: Context, stmt: ir.Store) -> None:
    builder = context.builder

    def write() -> None:
        value = expression(context, stmt.value)
        lanes = max((index.lanes for index in stmt.indices), default=1)
        if value.lanes == 1 and lanes > 1:
            value = builder.splat(value, lanes)
        emit_memory.store(context, stmt.buffer, stmt.indices, value, expression)

    if stmt.condition is None:
        write()
        return
    condition = expression(context, stmt.condition)
    if condition.lanes > 1:
        with context.under(condition):
            write()
        return
    when(builder, condition, write)


def _atomic_add(context: Context, stmt: ir.AtomicAdd) -> None:
    builder, dtype = context.builder, stmt.buffer.dtype
    if dtype in WIDENED or dtype.bits < 8 or not dtype.is_number:
        raise UnsupportedError(f"machine code has no atomic addition of {dtype}")
    value = expression(context, stmt.value)
    pointers = emit_memory.address(context, stmt.buffer, stmt.indices, expression)
    operation = "fadd" if dtype.is_float else "add"
    for lane in range(value.lanes):
        pointer = builder.extract(pointers, lane)
        one = builder.extract(value, lane)
        align = byte_size(dtype)
        text = f"atomicrmw {operation} {pointer.typed}, {one.typed} monotonic, align {align}"
        builder.make(one.element, 1, text)


def _prefetch(context: Context, stmt: ir.Prefetch) -> None:
    pointer = emit_memory.address(context, stmt.buffer, stmt.indices, expression)
    builder = context.builder
    builder.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    for lane in range(pointer.lanes):
        one = builder.extract(pointer, lane)
        # For reading, of data, to be kept in all caches from the level on.
        locality = max(1, 4 - stmt.level)
        builder.do(f"call void @llvm.prefetch.p0({one.typed}, i32 0, i32 {locality}, i32 1)")
