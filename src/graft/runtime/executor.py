"""Runs a program: contiguous arrays in, results in the arrays given for them.

A run makes one native call per stretch of kernels; a program without Python steps is one stretch,
unless it takes so long that somebody may want to interrupt it. Between stretches it calls Python
functions and regions of other backends, and copies tensors to their devices and back. A device that
cannot be reached any more is given up: the run begins again, with the host in its place. Stretches
with so little to do that threads would only wait for each other are the caller's alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.runtime.agreement import ADVANCE
from graft.runtime.context import Call, Context, Tables
from graft.runtime.engine import Engine
from graft.runtime.guards import check_guards
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.program import KernelCall, Program, PythonStep, Remote, Transfer
from graft.runtime.regions import LostDeviceError, Region, Spent, deliver
from graft.runtime.spaces import Device, Runner

# Work after which a native call ends, so that Python can see to Ctrl-C: some seconds' worth.
_LONG_FLOPS, _LONG_BYTES = 100_000_000_000, 20_000_000_000
_LONG_CALLS = 10_000_000  # of kernels

# Of a core and its caches, roughly: operations and bytes per second. What it takes to call the
# other threads, and to meet them after a kernel, in seconds: far more than tools/barrier.py finds
# where they are awake and have cores of their own, for they may sleep, or others want these cores.
_FLOPS, _BYTES = 3e10, 3e10
CALLING, MEETING = 20e-6, 2e-6

_WORD = np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Kernel calls between Python steps: positions among the records, and among the steps."""

    record: int
    step: int
    count: int
    shared: bool = True  # by all threads


@dataclass(frozen=True, eq=False)
class Times:
    """What a profiled run measured: seconds per step, and per thread and step those it worked; when
    steps began, on the clock of `time.perf_counter`; of regions and of transfers for them (by step)
    also what the time went into."""

    seconds: Array
    busy: Array
    begins: Array
    spent: dict[int, Spent] = field(default_factory=dict)


class Executor:
    """A program, linked and ready to run. Safe to call from several threads."""

    def __init__(self, program: Program, engine: Engine, functions: Mapping[str, Runner]) -> None:
        self._program = program
        self._functions = dict(functions)
        for step in program.python_steps:
            if step.function not in self._functions:
                raise UserError(
                    f"the program calls the Python function '{step.function}', which is not given",
                    place=step.place,
                    hint=f"functions={{'{step.function}': ...}} supplies it",
                )
        self._engine, self._team = engine, engine.team
        self._tables = Tables(program, engine)
        self._plan = [_planned(item, program, engine.team.threads) for item in _plan(program)]
        shared = any(isinstance(item, int) or item.shared for item in self._plan)
        self._turn = self._team.turn if shared else nullcontext
        self._regions = self._find_regions()
        self._devices = self._find_devices()
        self._at_hand: Mapping[str, Device] = self._devices  # those that have not been lost
        self._free: list[Context] = []

    @property
    def threads(self) -> int:
        return self._team.threads

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None = None
    ) -> None:
        """Run once; the arrays are contiguous and as the program describes them.

        Refuses results that come from indices outside of what they point into."""
        guards = self._program.guards
        found = [aligned_empty((len(guards),), _WORD)] if guards else []
        with self._turn():
            while not self._attempt(inputs, [*outputs, *found], times):
                pass  # each time without one more device
        for array in found:
            check_guards(guards, array)

    @property
    def turns_at_once(self) -> int:
        """How often the program can be run in one native call of some seconds; 0: never."""
        if len(self._plan) != 1 or isinstance(self._plan[0], int):
            return 0
        calls = [step for step in self._program.steps if isinstance(step, KernelCall)]
        flops = sum(call.flops for call in calls)
        moved = sum(call.bytes for call in calls)
        most = min(_LONG_CALLS // len(calls), _LONG_FLOPS // max(flops, 1))
        return max(1, min(most, _LONG_BYTES // max(moved, 1)))

    def run_turns(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        most: int,
        lead_on: Callable[[Context], Array],
    ) -> int:
        """Run at most so many times in one native call, and tell how often it was.

        `lead_on` tells what happens between two turns, in the words of `agreement`. What guards
        find is an output like all others here."""
        context = self._take_context()
        item = _planned(self._plan[0], self._program, self.threads, most)
        assert isinstance(item, Stretch)
        try:
            with self._team.turn() if item.shared else nullcontext():
                context.bind(inputs, outputs)
                loop = lead_on(context)
                context.end_with(self._engine.library.address(ADVANCE), loop)
                self._team.run(context.records_at(0), item.count + 1, item.shared)
        finally:
            self._free.append(context)
        return int(loop[1])

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Times:
        """Run once and measure every step."""
        steps = len(self._program.steps)
        times = Times(np.zeros(steps), np.zeros((self.threads, steps)), np.zeros(steps))
        self.run(inputs, outputs, times)
        return times

    def _attempt(
        self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None
    ) -> bool:
        """Run once; False where that was in vain, since a device has been lost on the way."""
        try:
            context = self._take_context()
        except LostDeviceError as error:
            cause = error.__cause__
            self._regions[error.space][0].failed(cause if isinstance(cause, Exception) else error)
            self._lose(error.space)
            return False
        try:
            context.bind(inputs, outputs)
            for item in self._plan:
                if isinstance(item, Stretch):
                    self._run_stretch(item, context, times)
                else:
                    self._run_python(item, context, times)
        except LostDeviceError as error:
            self._lose(error.space)
            return False
        finally:
            context.release()
            if context.devices is self._at_hand:
                self._free.append(context)
        return True

    def _take_context(self) -> Context:
        try:
            return self._free.pop()
        except IndexError:
            return Context(self._program, self._tables, self.threads, self._at_hand)

    def _lose(self, space: str) -> None:
        """From now on, do without a device; what is under way elsewhere may still use it."""
        self._at_hand = {name: one for name, one in self._at_hand.items() if name != space}
        self._free = []
        for region in self._regions[space]:
            region.open = True

    def _run_stretch(self, stretch: Stretch, context: Context, times: Times | None) -> None:
        records = context.records_at(stretch.record)
        if times is None:
            self._team.run(records, stretch.count, stretch.shared)
            return
        stamps = np.zeros((self.threads, 2 * stretch.count + 1), _WORD)
        self._team.run(records, stretch.count, stretch.shared, address_of(stamps))
        begun, ended = stamps[:, 0::2], stamps[:, 1::2]
        steps = slice(stretch.step, stretch.step + stretch.count)
        times.begins[steps] = begun[0, :-1] * 1e-9
        times.seconds[steps] = np.diff(begun[0]) * 1e-9
        times.busy[:, steps] = (ended - begun[:, :-1]) * 1e-9

    def _run_python(self, index: int, context: Context, times: Times | None) -> None:
        step = self._program.steps[index]
        assert not isinstance(step, KernelCall)
        before = time.perf_counter()
        spent: Spent | None
        try:
            if isinstance(step, Transfer):
                spent = self._transfer(step, context.calls[index], context)
            else:
                spent = self._call(step, context.calls[index], context)
        except GraftError as error:
            raise error.at(step.place) from None
        if times is not None:
            seconds = time.perf_counter() - before
            times.begins[index] = before
            times.seconds[index] = times.busy[0, index] = seconds
            if spent is not None:
                times.spent[index] = spent.with_launch(seconds)

    def _call(self, step: PythonStep, call: Call, context: Context) -> Spent | None:
        function = self._functions[step.function]
        if not isinstance(function, Region):
            deliver(function(call.inputs, call.outputs), call.outputs, step.function)
            return None
        space = self._space_of(step)
        device = context.devices.get(space)
        if device is None and space in self._devices:
            return function.stand_in(call.inputs, call.outputs)  # the device has been lost
        try:
            spent = function.attempt(call.inputs, call.outputs)
        except LostDeviceError as error:
            raise LostDeviceError(space) from error
        if spent is not None:
            return spent
        if device is None:
            return function.stand_in(call.inputs, call.outputs)
        return self._by_the_host(function, step, call, device)

    def _by_the_host(self, region: Region, step: PythonStep, call: Call, device: Device) -> Spent:
        """A region of a device that the host runs this time: its operands go home and back."""
        inputs = [aligned_empty(one.shape, one.dtype.numpy) for one in step.inputs]
        outputs = [aligned_empty(one.shape, one.dtype.numpy) for one in step.outputs]
        begun = time.perf_counter()
        with _reaching(region, self._space_of(step)):
            for memory, array in zip(call.inputs, inputs, strict=True):
                device.download(memory, array)
        spent = region.stand_in(inputs, outputs)
        with _reaching(region, self._space_of(step)):
            for array, memory in zip(outputs, call.outputs, strict=True):
                device.upload(array, memory)
        return spent.with_transfer(time.perf_counter() - begun - spent.execution)

    def _transfer(self, step: Transfer, call: Call, context: Context) -> Spent:
        region = self._functions[step.region]
        assert isinstance(region, Region)
        space = self._program.remotes[step.remote.index].space
        device = context.devices.get(space)
        (source,), (target,) = call.inputs, call.outputs
        begun = time.perf_counter()
        if device is None:
            np.copyto(target, source)
        else:
            with _reaching(region, space):
                (device.upload if step.upload else device.download)(source, target)
            if region.simulated:
                return Spent(region.transfer_seconds(step.home.nbytes), 0.0, 0.0, simulated=True)
        return Spent(time.perf_counter() - begun, 0.0, 0.0)

    def _space_of(self, step: PythonStep) -> str:
        """The memory space that a step works in; none is the host's."""
        buffer = step.outputs[0].buffer if step.outputs else None
        return self._program.remotes[buffer.index].space if isinstance(buffer, Remote) else ""

    def _find_regions(self) -> dict[str, list[Region]]:
        """The regions by memory space."""
        found: dict[str, list[Region]] = {}
        for step in self._program.python_steps:
            function, space = self._functions[step.function], self._space_of(step)
            if not space:
                continue
            if not isinstance(function, Region):
                raise UserError(
                    f"the function '{step.function}' is to work in the memory of '{space}'",
                    hint="only regions of other backends can",
                )
            found.setdefault(space, []).append(function)
        return found

    def _find_devices(self) -> dict[str, Device]:
        """The devices by memory space. A region whose code could not be loaded has none, and gets
        that of the others."""
        found: dict[str, Device] = {}
        for space, regions in self._regions.items():
            device = next((one.device for one in regions if one.device is not None), None)
            if device is not None:
                found[space] = device
                for region in regions:
                    region.device = region.device or device
        return found


@contextmanager
def _reaching(region: Region, space: str) -> Iterator[None]:
    """Whatever a device raises meanwhile, it is lost."""
    try:
        yield
    except Exception as error:
        region.failed(error)
        raise LostDeviceError(space) from error


def _plan(program: Program) -> list[Stretch | int]:
    """Stretches of kernel calls, and the positions of other steps, in order."""
    plan: list[Stretch | int] = []
    record = flops = moved = 0
    for index, step in enumerate(program.steps):
        if not isinstance(step, KernelCall):
            plan.append(index)
            continue
        last = plan[-1] if plan else None
        if isinstance(last, Stretch) and flops < _LONG_FLOPS and moved < _LONG_BYTES:
            plan[-1] = Stretch(last.record, last.step, last.count + 1)
        else:
            plan.append(Stretch(record, index, 1))
            flops = moved = 0
        flops += step.flops
        moved += step.bytes
        record += 1
    return plan


def _planned(item: Stretch | int, program: Program, threads: int, turns: int = 1) -> Stretch | int:
    """The same with the answer to whether several threads are faster than one."""
    if isinstance(item, int):
        return item
    seconds = 0.0
    for step in program.steps[item.step : item.step + item.count]:
        assert isinstance(step, KernelCall)
        if step.serial:
            continue
        if not step.flops and not step.bytes:
            return item  # nobody has said how much work it is
        seconds += step.flops / _FLOPS + step.bytes / _BYTES
    spared = seconds - seconds / threads
    return replace(item, shared=spared > CALLING / turns + item.count * MEETING)
