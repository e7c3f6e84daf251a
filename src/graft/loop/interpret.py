"""The meaning of loop IR: runs a function on NumPy arrays, in place.

A `Function` and its arguments by name enter; the arrays it stores to are changed. This is the
oracle that schedules and code generators are tested against, so it favours plainness over speed:
every expression becomes a closure over the environment. Scalars of int64 and bool are Python's,
everything else is NumPy's in the exact dtype; a vector is an array with one element per lane.

With several threads every thread runs the whole function, as native code does: thread t of T gets
the iterations [extent*t//T, extent*(t+1)//T) of a parallel loop, and allocations are its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.loop import ir
from graft.loop.evaluate_expr import (
    Compiled,
    Environment,
    compile_expr,
    indices_of,
    masked_indices,
    under,
)

Argument = Array | int | float
Runner = Callable[[Environment], None]


def interpret(function: ir.Function, arguments: Mapping[str, Argument], threads: int = 1) -> None:
    """Run the function on its arguments, with that many threads."""
    environment = _bind(function, arguments)
    shared = _Shared(threads)

    def run(thread: int) -> None:
        try:
            with np.errstate(all="ignore"):
                _Statements(shared, thread).compile(function.body)(dict(environment))
        except Exception as error:  # noqa: BLE001 - handed to the calling thread
            shared.failures.append(error)
            shared.meeting.abort()

    if threads == 1:
        run(0)
    else:
        workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for failure in shared.failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure


@dataclass(frozen=True)
class _Shared:
    """What the threads of one run share."""

    threads: int
    failures: list[Exception] = field(default_factory=list)
    meeting: threading.Barrier = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meeting", threading.Barrier(self.threads))


def _bind(function: ir.Function, arguments: Mapping[str, Argument]) -> Environment:
    """The arguments under their names, checked against what the function declares."""
    environment: Environment = {}
    names = {parameter.name for parameter in function.parameters}
    if names != set(arguments):
        difference = ", ".join(sorted(names ^ set(arguments)))
        raise EvaluationError(f"{function.name}: missing or unknown arguments: {difference}")
    for parameter in function.parameters:
        if not isinstance(parameter, ir.Buffer):
            value = parameter.dtype.numpy.type(arguments[parameter.name])
            plain = parameter.dtype in (DType.INT64, DType.BOOL)
            environment[parameter.name] = value.item() if plain else value
    for parameter in function.parameters:
        if isinstance(parameter, ir.Buffer):
            environment[parameter.name] = _checked(function, parameter, arguments, environment)
    return environment


def _checked(
    function: ir.Function,
    buffer: ir.Buffer,
    arguments: Mapping[str, Argument],
    environment: Environment,
) -> Array:
    array = arguments[buffer.name]
    shape = _shape(buffer, environment)
    what = f"{function.name}: argument '{buffer.name}'"
    if not isinstance(array, np.ndarray) or array.dtype != buffer.dtype.numpy:
        raise EvaluationError(f"{what} has to be an array of {buffer.dtype}")
    if array.shape != shape:
        raise EvaluationError(f"{what} has shape {array.shape} where {shape} is expected")
    return array


def _shape(buffer: ir.Buffer, environment: Environment) -> tuple[int, ...]:
    return tuple(compile_expr(extent)(environment) for extent in buffer.extents)


class _Statements:
    """Turns statements into closures for one thread."""

    def __init__(self, shared: _Shared, thread: int) -> None:
        self._shared = shared
        self._thread = thread

    def compile(self, stmt: ir.Stmt) -> Runner:
        match stmt:
            case ir.Block():
                return self._block([self.compile(statement) for statement in stmt.statements])
            case ir.For():
                return self._loop(stmt)
            case ir.If():
                return self._if(stmt)
            case ir.While():
                return self._while(compile_expr(stmt.condition), self.compile(stmt.body))
            case ir.Let():
                return self._let(stmt.var.name, compile_expr(stmt.value), self.compile(stmt.body))
            case ir.Allocate():
                return self._allocate(stmt.buffer, self.compile(stmt.body))
            case ir.Store():
                return _store(stmt)
            case ir.AtomicAdd():
                return self._atomic(stmt)
            case ir.Prefetch():
                return lambda environment: None
            case ir.Barrier():
                return self._barrier

    def _block(self, runners: list[Runner]) -> Runner:
        def run(environment: Environment) -> None:
            for runner in runners:
                runner(environment)

        return run

    def _loop(self, loop: ir.For) -> Runner:
        start, extent = compile_expr(loop.start), compile_expr(loop.extent)
        body, name = self.compile(loop.body), loop.var.name
        share = loop.kind is ir.LoopKind.PARALLEL
        thread, threads = self._thread, self._shared.threads
        plain = loop.var.dtype is DType.INT64
        convert = int if plain else loop.var.dtype.numpy.type

        def run(environment: Environment) -> None:
            first, count = int(start(environment)), max(int(extent(environment)), 0)
            begin, end = 0, count
            if share:
                begin, end = count * thread // threads, count * (thread + 1) // threads
            for value in range(first + begin, first + end):
                environment[name] = convert(value)
                body(environment)

        return run

    def _if(self, stmt: ir.If) -> Runner:
        condition, then = compile_expr(stmt.condition), self.compile(stmt.then)
        otherwise = self.compile(stmt.otherwise or ir.Block(()))

        def run(environment: Environment) -> None:
            if condition(environment):
                then(environment)
            else:
                otherwise(environment)

        return run

    def _while(self, condition: Compiled, body: Runner) -> Runner:
        def run(environment: Environment) -> None:
            while condition(environment):
                body(environment)

        return run

    def _let(self, name: str, value: Compiled, body: Runner) -> Runner:
        def run(environment: Environment) -> None:
            environment[name] = value(environment)
            body(environment)

        return run

    def _allocate(self, buffer: ir.Buffer, body: Runner) -> Runner:
        def run(environment: Environment) -> None:
            array = np.empty(_shape(buffer, environment), buffer.dtype.numpy)
            # Reading what was never written should be seen, not come out right by chance.
            array.reshape(-1).view(np.uint8).fill(0xFF)
            environment[buffer.name] = array
            body(environment)

        return run

    def _atomic(self, stmt: ir.AtomicAdd) -> Runner:
        name, value = stmt.buffer.name, compile_expr(stmt.value)
        position = indices_of(stmt.buffer, stmt.indices)

        def run(environment: Environment) -> None:
            with self._shared.lock:
                # Lanes that hit the same element all count.
                np.add.at(environment[name], position(environment), value(environment))

        return run

    def _barrier(self, environment: Environment) -> None:
        self._shared.meeting.wait()


def _store(stmt: ir.Store) -> Runner:
    if stmt.condition is not None and stmt.condition.lanes > 1:
        return _masked_store(stmt, compile_expr(stmt.condition))
    name, value = stmt.buffer.name, compile_expr(stmt.value)
    position = indices_of(stmt.buffer, stmt.indices)

    def run(environment: Environment) -> None:
        environment[name][position(environment)] = value(environment)

    if stmt.condition is None:
        return run
    condition = compile_expr(stmt.condition)

    def run_if(environment: Environment) -> None:
        if condition(environment):
            run(environment)

    return run_if


def _masked_store(stmt: ir.Store, condition: Compiled) -> Runner:
    """Lanes outside the mask are neither written nor read for."""
    name, value = stmt.buffer.name, compile_expr(stmt.value, masked=True)
    indices = [compile_expr(index, masked=True) for index in stmt.indices]

    def run(environment: Environment) -> None:
        mask, array = condition(environment), environment[name]
        values = np.broadcast_to(under(mask, value, environment), mask.shape)
        positions = [under(mask, index, environment) for index in indices]
        array[masked_indices(name, array.shape, positions, mask)] = values[mask]

    return run
