"""Concatenation of row-major tensors, whatever their sizes: a copy of each operand to its place.

Along the axes before the one that is joined, every operand is a series of runs of elements, and so
is the result; a run of the result is one run of each operand after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from graft.backends.host.extents import Extents
from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template
from graft.backends.host.point import modulo, over, plus, times
from graft.backends.host.storage import Storage
from graft.base.dims import AnyDim, product
from graft.base.dtypes import Array
from graft.ir.graph import Value
from graft.llvm.types import SMALL_FLOATS
from graft.loop.index import add, multiply
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Function,
    Let,
    Load,
    LoopKind,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.loop.traverse import walk_all, walk_expr
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_PIECE_VECTORS = 64  # that a thread copies at a time


@kernel_template(("concatenate",), Layout.ROW_MAJOR, alone=True, empty=True)
def joining(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A concatenation, operand by operand."""
    dtype = group.output.dtype
    if dtype in SMALL_FLOATS:
        return Refusal(f"{dtype} is not moved as it is")
    return lambda: _Writer(group, stores, target).kernel()


class _Writer:
    """Writes one loop per operand."""

    def __init__(self, group: Group, stores: Stores, target: Target) -> None:
        self._group, self._extents = group, Extents()
        self._lanes = target.lanes(group.output.dtype)
        self._axis = group.node.attrs.axis % len(stores[group.output].shape)
        self._result = self._flat("result", stores[group.output])
        self._sources: list[tuple[Buffer, Value | Array, Storage]] = []
        for number, value in enumerate(group.node.args):
            literal = group.constants.get(value)
            if literal is None:
                storage, argument = stores[value], value
                self._sources.append((self._flat(f"a{number}", storage), argument, storage))
            else:
                storage = Storage(literal.type.dtype, literal.array.shape)
                packed = storage.pack(literal.array)
                self._sources.append((self._flat(f"a{number}", storage), packed, storage))
        self._whole = self._run(stores[group.output])
        self._runs = product(stores[group.output].shape[: self._axis])

    def _flat(self, name: str, storage: Storage) -> Buffer:
        count = self._extents.expr(product(storage.shape))
        return Buffer(name, storage.dtype, (count,), alignment=storage.alignment)

    def _run(self, storage: Storage) -> AnyDim:
        """How many elements of a tensor come one after the other."""
        return product(storage.shape[self._axis :])

    def kernel(self) -> Kernel:
        node = self._group.node
        loops: list[Stmt] = []
        offset: AnyDim = 0
        for number, (buffer, _, storage) in enumerate(self._sources):
            run, start = self._run(storage), self._extents.expr(offset)
            loops.append(self._copied(buffer, self._extents.expr(run), start, str(number)))
            offset = offset + run
        body = Block(tuple(loops))
        buffers = (*(buffer for buffer, _, _ in self._sources), self._result)
        named = [part for extent in self._used(body, buffers) for part in walk_expr(extent)]
        names = {part.name for part in named if isinstance(part, Var)} & self._extents.names
        scalars = tuple(Var(name) for name in sorted(names, key=lambda name: int(name[1:])))
        place = (node.place.node if node.place else "") or node.output.name
        function = Function("kernel", (*buffers, *scalars), body, (f"concatenate {place}",))
        work = node.op.work(node.attrs, [v.type for v in node.args], [node.output.type])
        arguments = (*(argument for _, argument, _ in self._sources), node.output)
        return Kernel(function, arguments, work, self._extents.passed(function))

    def _used(self, body: Stmt, buffers: tuple[Buffer, ...]) -> Iterator[Expr]:
        """Everything that may mention a scalar."""
        yield from walk_all(body)
        for buffer in buffers:
            yield from buffer.extents

    def _copied(self, source: Buffer, run: Expr, offset: Expr, tag: str) -> Stmt:
        """All runs of one operand; the threads share pieces of them."""
        length = self._lanes * _PIECE_VECTORS
        job, line, start = Var(f"job{tag}"), Var(f"line{tag}"), Var(f"start{tag}")
        rest, vector, element = Var(f"rest{tag}"), Var(f"vector{tag}"), Var(f"element{tag}")
        pieces = over(plus(run, length - 1), length)

        def moved(at: Expr, lanes: int) -> Stmt:
            here = add(multiply(line, run), at)
            there = add(add(multiply(line, self._extents.expr(self._whole)), offset), at)
            if lanes > 1:
                here, there = Ramp(here, 1, lanes), Ramp(there, 1, lanes)
            return Store(self._result, (there,), Load(source, (here,)))

        wide = moved(plus(start, times(vector, self._lanes)), self._lanes)
        done = times(over(rest, self._lanes), self._lanes)
        body: Stmt = Block(
            (
                For(vector, Const(0), over(rest, self._lanes), wide),
                For(element, done, modulo(rest, self._lanes), moved(plus(start, element), 1)),
            )
        )
        left = Binary(BinaryKind.SUBTRACT, run, start)
        body = Let(rest, Binary(BinaryKind.MINIMUM, Const(length), left), body)
        body = Let(start, times(Binary(BinaryKind.FLOOR_MODULO, job, pieces), length), body)
        body = Let(line, Binary(BinaryKind.FLOOR_DIVIDE, job, pieces), body)
        jobs = multiply(self._extents.expr(self._runs), pieces)
        return For(job, Const(0), jobs, body, LoopKind.PARALLEL)
