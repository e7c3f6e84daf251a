"""Lowering: tensors and a schedule in, a verified loop function out.

The pipeline reads top to bottom in `lower`; each step is a module of its own. The arguments become
the function's buffers, in order: inputs, outputs, and any stage that the threads are to share.
Named extents become scalar parameters behind them; by these a function may choose its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from graft.base.bounds import Range
from graft.loop import ir
from graft.loop.element import Around, Memory
from graft.loop.fold_identities import fold_identities
from graft.loop.generate import Generator, full_box, one_thread
from graft.loop.guards import branch_on_selects, predicate_lanes, tighten_loops
from graft.loop.names import unique_names
from graft.loop.program import Program, make_program
from graft.loop.ranges import Context
from graft.loop.reuse import reuse_values
from graft.loop.schedule import Schedule, Variant
from graft.loop.simplify import simplify_stmt
from graft.loop.stages import reads
from graft.loop.tensor import Tensor, index_variables
from graft.loop.traverse import block, is_parallel
from graft.loop.unroll import check_registers, unroll
from graft.loop.vectorize import vectorize
from graft.loop.verify import verify


def lower(
    name: str,
    arguments: Sequence[Tensor],
    schedule: Schedule | None = None,
    notes: tuple[str, ...] = (),
) -> ir.Function:
    """The function that computes the arguments with a body from the others."""
    return lower_variants(name, arguments, [Variant(schedule or Schedule())], notes)


def lower_variants(
    name: str, arguments: Sequence[Tensor], variants: Sequence[Variant], notes: tuple[str, ...] = ()
) -> ir.Function:
    """As `lower`, choosing the first variant whose needs are met at run time; the last has none."""
    programs = [make_program(arguments, variant.schedule) for variant in variants]
    extents = index_variables([one for program in programs for one in program.tensors.values()])
    bodies = [
        _body(program, _assumptions(extents, variant.needs))
        for program, variant in zip(programs, variants, strict=True)
    ]
    body = bodies[-1]
    for variant, preferred in reversed(list(zip(variants, bodies[:-1], strict=False))):
        body = _either(variant.needs, preferred, body)
    parameters: tuple[ir.Buffer | ir.Var, ...] = (*_buffers(programs[0]), *extents)
    body = unique_names(body, [parameter.name for parameter in parameters])
    return verify(ir.Function(name, parameters, body, notes))


def _body(program: Program, context: Context) -> ir.Stmt:
    body = simplify_stmt(_generated(program, context), context)
    body = predicate_lanes(body, context)
    body = simplify_stmt(branch_on_selects(body, context), context)
    body = simplify_stmt(tighten_loops(body, context), context)
    body = simplify_stmt(vectorize(body, context), context)
    body = fold_identities(simplify_stmt(unroll(body, context), context))
    body = reuse_values(body)
    check_registers(body)
    return body


def _assumptions(scalars: Sequence[ir.Var], needs: Sequence[tuple[str, int]]) -> Context:
    """The assumptions of a variant: scalars are at least 0, or as large as it needs."""
    least = dict(needs)
    return Context({scalar.name: Range(least.get(scalar.name, 0), None) for scalar in scalars})


def _either(needs: Sequence[tuple[str, int]], body: ir.Stmt, otherwise: ir.Stmt) -> ir.Stmt:
    """`body` if all scalars are as large as needed, else `otherwise`."""
    tests: list[ir.Expr] = [
        ir.Compare(ir.CompareKind.GREATER_EQUAL, ir.Var(name), ir.Const(least))
        for name, least in needs
    ]
    return ir.If(
        reduce(lambda one, other: ir.Binary(ir.BinaryKind.AND, one, other), tests), body, otherwise
    )


def _generated(program: Program, context: Context) -> ir.Stmt:
    """All root stages in order, inside the allocations of their scratch memory."""
    memory: dict[str, Memory] = {}
    roots = program.roots()
    for tensor in [*(program.tensors[argument] for argument in program.arguments), *roots]:
        memory[tensor.name] = Memory(_buffer_of(program, tensor), full_box(tensor).starts)
    generator = Generator(program)
    around = Around(memory, context, {})
    stages = [(root, generator.stage(root, full_box(root), around)) for root in roots]
    body = block(*_synchronize(program, stages))
    for root in reversed(roots):
        if root.name not in program.arguments:
            body = ir.Allocate(memory[root.name].buffer, body)
    return body


def _buffers(program: Program) -> list[ir.Buffer]:
    return [program.tensors[argument].buffer for argument in program.arguments]


def _buffer_of(program: Program, tensor: Tensor) -> ir.Buffer:
    if tensor.name in program.arguments:
        return tensor.buffer
    return replace(tensor.buffer, scope=program.nests[tensor.name].scope)


def _synchronize(program: Program, stages: list[tuple[Tensor, ir.Stmt]]) -> list[ir.Stmt]:
    """Add barriers where a stage reads what other threads wrote, and let one thread run stages
    without a parallel loop that write shared memory.

    A function without any parallel loop is for one thread and needs neither.
    """
    if not any(is_parallel(stmt) for _, stmt in stages):
        return [stmt for _, stmt in stages]
    result: list[ir.Stmt] = []
    unseen: set[str] = set()
    for tensor, stmt in stages:
        if unseen & _reads_within(program, tensor):
            result.append(ir.Barrier())
            unseen = set()
        shared = tensor.name in program.arguments
        result.append(one_thread(stmt) if shared and not is_parallel(stmt) else stmt)
        if shared:
            unseen.add(tensor.name)
    return result


def _reads_within(program: Program, root: Tensor) -> set[str]:
    """What the stage and all stages computed in its loops read."""
    names = reads(root)
    for name, nest in program.nests.items():
        if nest.site is not None and nest.site.stage == root.name:
            names |= _reads_within(program, program.tensors[name])
    return names
