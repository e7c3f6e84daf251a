"""Runs programs: values in order in, outputs in order out.

The native driver executes a program in a frame; Python does what it comes back for. Every run has
a frame of its own, so runs from several threads do not disturb each other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from graft.base import capacity
from graft.base.dims import bare_symbol, evaluate_dim, symbol, symbols_of
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, GraftError, InternalError, UserError
from graft.program.bytecode import encode
from graft.program.bytecode_work import (
    ShapeFailure,
    SizeFailure,
    StackFailure,
    SymbolFailure,
)
from graft.program.extents import Extents
from graft.program.guards import Guard, check_guards
from graft.program.instructions import Assert, Evaluate, ListOp, Segment
from graft.program.layout import Status
from graft.program.program import ALIGNMENT, Program, Value
from graft.runtime.context import RuntimeContext
from graft.runtime.devices import Devices
from graft.runtime.evaluated import SuppliedFunctions
from graft.runtime.frames import Frame, LinkedImage
from graft.runtime.guard import AbandonedError
from graft.runtime.lists import run_list_op
from graft.runtime.memory import ready
from graft.runtime.profile import CallTimes, Profile, Recorder
from graft.runtime.python_work import PythonWorker, misshapen
from graft.runtime.run import Run, Values
from graft.runtime.spaces import Device, FullDeviceError, LostDeviceError

_WORD = np.dtype(np.int64)
_NOTHING: Mapping[int, Array] = {}


class Executor:
    """A program, linked and ready to run. Safe to call from several threads."""

    def __init__(
        self, program: Program, context: RuntimeContext, supplied: SuppliedFunctions
    ) -> None:
        self.program, self.context = program, context
        self.linked = LinkedImage(encode(program, context.thread_pool.threads), program, context)
        self.devices = Devices(program, supplied.functions)
        self._worker = PythonWorker(program, self.devices, supplied.evaluators)
        self._constants = dict(program.constants)
        self.frames: list[Frame] = []  # that no run works in
        self._native = self.linked.image.values
        names = (bare_symbol(dim) for value in program.inputs for dim in value.shape or ())
        self.input_symbols = tuple(dict.fromkeys(name for name in names if name is not None))
        # Outputs that segments write, and whose sizes follow from the inputs'.
        self.sized = [
            (number, program.values[number])
            for number in dict.fromkeys(program.body.outputs)
            if number in self.linked.image.direct
            and _symbols(program.values[number]) <= {*self.input_symbols}
        ]

    def __call__(
        self,
        inputs: Sequence[Any],
        buffers: Mapping[int, Array] = _NOTHING,
        recorder: Recorder | None = None,
    ) -> list[Any]:
        """Run on the inputs in order; `given` are arrays that outputs may be written into, by
        their numbers."""
        return self.devices.run(partial(self._attempt, inputs, buffers, recorder))

    def profile(self, inputs: Sequence[Any]) -> Profile:
        """Run once and measure every instruction that takes time."""
        return measured(self, inputs)

    def take_frame(self) -> Frame:
        """A frame that no run uses."""
        try:
            return self.frames.pop()
        except IndexError:
            return Frame(self.linked)

    def run_in(
        self,
        frame: Frame,
        buffers: Mapping[int, Array] = _NOTHING,
        devices: Mapping[str, Device] | None = None,
        recorder: Recorder | None = None,
    ) -> Run:
        """A run that works in a frame."""
        available = self.devices.available if devices is None else devices
        return Run(Values(frame, self._constants), buffers, available, recorder)

    def _attempt(
        self,
        inputs: Sequence[Any],
        buffers: Mapping[int, Array],
        recorder: Recorder | None,
        devices: Mapping[str, Device],
    ) -> list[Any]:
        frame = self.take_frame()
        run = self.run_in(frame, buffers, devices, recorder)
        try:
            self._enter(inputs, run)
            presets = self._preset(inputs, run)
            self.finish(run, frame.go_on() if recorder is None else self._measured(run))
            outputs = [self._output(number, presets, run) for number in self.program.body.outputs]
        except (LostDeviceError, FullDeviceError, AbandonedError) as error:
            _forget_frames(error)
            raise
        finally:
            run.values.objects.clear()
        # A run that fails does not come here: the contents of its frame are undefined.
        self.frames.append(frame)
        return outputs

    def _enter(self, inputs: Sequence[Any], run: Run) -> None:
        """Let the inputs be where the program finds them."""
        run.values.frame.sizes = None  # which are others from here on
        for number, data in zip(self.program.body.inputs, inputs, strict=True):
            value = self.program.values[number]
            if number not in self._native or value.element is not None:
                run.values.put(number, data)
                continue
            array = data if type(data) is np.ndarray else np.asarray(data)
            assert value.dtype is not None
            if array.dtype != value.dtype.numpy:
                buffers = f"'{value.name}' is {array.dtype} where {value.dtype} is wanted"
                raise UserError(buffers)
            if array.ndim != len(value.shape or ()):
                raise _user_error(misshapen(value.name, array.shape, value.shape or ()))
            run.values.put(number, ready(array, value.alignment))

    def _preset(self, inputs: Sequence[Any], run: Run) -> dict[int, Array]:
        """Arrays for outputs whose sizes follow from the inputs', or the caller's arrays."""
        frame = run.values.frame
        frame.forget_outputs()
        presets: dict[int, Array] = {}
        symbols = self._symbols(inputs)
        for number, value in self.sized:
            assert value.dtype is not None
            try:
                shape = tuple(evaluate_dim(dim, symbols) for dim in value.shape or ())
            except GraftError:
                break  # sizes that do not fit together, of which the program's checks tell
            if min(shape, default=0) < 0:
                break
            array = run.given.get(number)
            if array is None or array.shape != shape:
                alignment = max(value.alignment, ALIGNMENT)
                array = self.context.results.empty(shape, value.dtype.numpy, alignment)
            presets[number] = array
            frame.put(number, array)
        return presets

    def _symbols(self, inputs: Sequence[Any]) -> dict[str, int]:
        symbols: dict[str, int] = {}
        for value, data in zip(self.program.inputs, inputs, strict=True):
            if value.dtype is not None:
                for dim, extent in zip(value.shape or (), np.shape(data), strict=False):
                    symbols.setdefault(bare_symbol(dim) or "", extent)
        return symbols

    def _output(self, number: int, presets: Mapping[int, Array], run: Run) -> Any:
        preset = presets.get(number)
        if preset is not None:
            return preset
        if number in self._native and number not in self._constants:
            return run.values.frame.copied(number)
        data = run.values[number]
        return data.copy() if isinstance(data, np.ndarray) else data

    def finish(self, run: Run, status: Status) -> None:
        """Do what the driver comes back for, until it is done."""
        while status is not Status.DONE:
            self._serve(run, status)
            status = run.values.frame.go_on()

    def _serve(self, run: Run, status: Status) -> None:
        """Do what the driver comes back for, or raise the error that it is."""
        match status:
            case Status.PYTHON:
                self._work(run)
            case Status.PAUSE:
                run.values.frame.pause()
            case Status.START:
                run.values.frame.start_workers()
            case _:
                self._fail(run, status)

    def _measured(self, run: Run) -> Status:
        """Run with times taken of every segment; gives the status that is none of that."""
        assert run.recorder is not None
        frame, threads = run.values.frame, self.context.thread_pool.threads
        longest = max((len(one.calls) for one in self.program.segments), default=0)
        status = Status.PROFILED
        while status is not Status.DONE:
            # Workers may be late to write theirs: each segment has an array of its own.
            stamps = np.zeros((threads, 2 * longest + 1), _WORD)
            frame.measure(stamps)
            begin = time.perf_counter_ns()
            status = frame.go_on()
            if status is Status.PROFILED:
                segment, path = frame.image.segments[frame.detail]
                own = stamps.reshape(-1)[: threads * (2 * len(segment.calls) + 1)]
                times = CallTimes.of(own.reshape(threads, -1))
                run.recorder.add(path, segment, run.symbols, times, begin)
            elif status is not Status.DONE:
                self._serve(run, status)
        frame.measure(None)
        return status

    def _work(self, run: Run) -> None:
        work, path, run.values.is_repeated = run.values.frame.image.work[run.values.frame.detail]
        location = getattr(work, "location", None)
        try:
            if run.recorder is None:
                self._worker(work, run)
            else:
                with run.recorder.measure(path, work):
                    self._worker(work, run)
        except GraftError as error:
            raise error.at(location) from error.__cause__
        except AbandonedError as error:
            raise AbandonedError(error.error and error.error.at(location)) from None

    def _fail(self, run: Run, status: Status) -> None:
        """Raise the error for a status."""
        frame = run.values.frame
        detail, symbols = frame.detail, frame.symbols()
        match status:
            case Status.GUARDED:
                segment, _ = frame.image.segments[detail]
                check_guards(
                    partial(_bound_guards, segment, symbols), _guard_indices(frame, segment)
                )
            case Status.MEMORY:
                raise self._no_memory(detail).at(frame.location)
            case Status.NUMBER:
                raise EvaluationError("some extent has no value here", frame.location)
            case Status.FAILED:
                raise self._failure(frame.image.failures[detail], run)
        raise InternalError(f"the driver gives {status}")

    def _no_memory(self, count: int) -> EvaluationError:
        if count < 0:
            return EvaluationError("the model would make a tensor with a negative extent")
        size = f"{count / 2**30:.1f} GiB"
        if count > capacity.MOST_BYTES:
            message = f"the model would make {size} at once, more than this machine's memory"
        else:
            message = f"there is no memory left for {size} that the model makes"
        return EvaluationError(message, hint="try smaller inputs, or a larger machine")

    def _failure(self, failure: Any, run: Run) -> GraftError:
        values = self.program.values
        match failure:
            case ShapeFailure(number, location):
                value = values[number]
                error = misshapen(value.name, run.values.frame.shape(number), value.shape or ())
                is_input = number in self.program.body.inputs
                return _user_error(error) if is_input else error.at(location)
            case StackFailure(number, location):
                return EvaluationError(
                    f"the results to be stacked differ in shape: '{values[number].name}'", location
                )
            case SymbolFailure(instruction):
                count = int(run.values[instruction.value].item())
                expected = run.symbols[instruction.symbol]
                return EvaluationError(f"{count} is found where {expected} are wanted")
            case Assert():
                return EvaluationError(failure.message, failure.location)
            case ListOp():
                return self._list_error(failure, run)
            case SizeFailure(refused, check, names, numbers):
                symbols, message = run.symbols, refused.message
                for one in numbers:
                    text = str(symbol(one.positive) - symbol(one.negative))
                    number = symbols[one.positive] - symbols[one.negative]
                    message = message.replace(text, str(number))
                sizes = ", ".join(f"{name} = {symbols[name]}" for name in names)
                message = f"{message} (with {sizes})" if sizes else message
                return EvaluationError(message, check.location, refused.hint)
        raise InternalError(f"nobody knows of {failure}")

    def _list_error(self, step: ListOp, run: Run) -> GraftError:
        """What Python says of a list operation that the driver has refused."""
        operands = [None if n is None else run.values.lasting(n) for n in step.inputs]
        try:
            run_list_op(step, operands, run.symbols)
        except GraftError as error:
            return error.at(step.location)
        raise InternalError(f"{step.operation} fails for no reason")


class EvaluatedProgram:
    """A program without native code, which runs on any machine: the evaluator does it all."""

    def __init__(self, program: Program, supplied: SuppliedFunctions) -> None:
        self.program, self._evaluators = program, supplied.evaluators

    def __call__(
        self,
        inputs: Sequence[Any],
        buffers: Mapping[int, Array] = _NOTHING,
        recorder: Recorder | None = None,
    ) -> list[Any]:
        """Run on the inputs in order; `given` is for programs that kernels write results of."""
        del buffers
        body = self.program.body
        values: dict[int, Any] = {**dict(self.program.constants)}
        values.update(zip(body.inputs, inputs, strict=True))
        for position, step in enumerate(body.instructions):
            if not isinstance(step, Evaluate):
                raise InternalError(f"there is no code for {type(step).__name__}")
            recorded = nullcontext() if recorder is None else recorder.measure((position,), step)
            operands = [values[number] for number in step.inputs]
            with recorded:
                results = self._evaluators[step.function](operands, {})
            values.update(zip(step.outputs, results, strict=True))
        return [values[number] for number in body.outputs]

    def profile(self, inputs: Sequence[Any]) -> Profile:
        """Run once and measure every instruction."""
        return measured(self, inputs)


def measured(executor: Executor | EvaluatedProgram, inputs: Sequence[Any]) -> Profile:
    """A run with all that takes time in it."""
    recorder = Recorder()
    begin = time.perf_counter()
    outputs = executor(inputs, recorder=recorder)
    return Profile(outputs, time.perf_counter() - begin, recorder.moments)


def _forget_frames(error: BaseException | None) -> None:
    """Let an error, and those that led to it, not hold on to tensors of devices."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _user_error(error: EvaluationError) -> UserError:
    return UserError(error.message)


def _symbols(value: Value) -> set[str]:
    return {name for dim in value.shape or () for name in symbols_of(dim)}


def _bound_guards(segment: Segment, symbols: Mapping[str, int]) -> tuple[Guard, ...]:
    extents = Extents(symbols)
    return tuple(guard.bound(extents) for guard in segment.guards)


def _guard_indices(frame: Frame, segment: Segment) -> Array:
    assert segment.guard_indices is not None
    indices: Array = frame.view(segment.guard_indices)
    return indices
