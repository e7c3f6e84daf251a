"""Runs a program: contiguous arrays in, results in the arrays given for them.

A run makes one native call per stretch of kernels, as `prepared` has planned it. Between stretches
it calls Python functions and regions of other backends, and copies tensors to their devices and
back. A device that cannot be reached any more is given up: the run begins again, with the host in
its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.runtime.agreement import ADVANCE
from graft.runtime.context import Call, Context
from graft.runtime.engine import Engine
from graft.runtime.guard import AbandonedError
from graft.runtime.guards import check_guards
from graft.runtime.incidents import Fault
from graft.runtime.lending import ResultSpec
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.native_call import NativeCall
from graft.runtime.prepared import Prepared, Stretch
from graft.runtime.program import KernelCall, Operand, PythonStep, Remote, Transfer
from graft.runtime.regions import Region, deliver
from graft.runtime.spaces import (
    Device,
    DeviceMemory,
    FullDeviceError,
    LostDeviceError,
    Runner,
    Spent,
)
from graft.runtime.tensor_pool import Occupancy, TensorPool

_WORD = np.dtype(np.int64)
_NONE: Mapping[str, Device] = {}  # the same for all, so that contexts can be anybody's


@dataclass(frozen=True, eq=False)
class Times:
    """What a profiled run measured: seconds per step; by thread and step the seconds it worked, and
    when it began, in nanoseconds of `time.perf_counter_ns`, 0 where it took no part; of regions and
    of transfers for them (by step) also what the time went into."""

    seconds: Array
    busy: Array
    begins: Array
    spent: dict[int, Spent] = field(default_factory=dict)


class Executor:
    """A program, linked and ready to run. Safe to call from several threads.

    `contexts` are those of the same program at other sizes, which serve it at any size."""

    def __init__(
        self,
        prepared: Prepared,
        engine: Engine,
        functions: Mapping[str, Runner],
        contexts: list[Context] | None = None,
    ) -> None:
        self._prepared, self._plan = prepared, prepared.plan
        self._functions = functions
        for step in self._python_steps:
            if step.function not in self._functions:
                raise UserError(
                    f"the program calls the Python function '{step.function}', which is not given",
                    place=step.place,
                    hint=f"functions={{'{step.function}': ...}} supplies it",
                )
        self._engine, self._team = engine, engine.team
        self._regions = self._find_regions()
        self._devices = self._find_devices() or _NONE
        self._at_hand: Mapping[str, Device] = self._devices  # those that have not been lost
        self._free: list[Context] = [] if contexts is None else contexts
        self._occupancy, self._pool = Occupancy(), TensorPool(partial(_bounded, self._regions))

    @property
    def threads(self) -> int:
        return self._team.threads

    @property
    def turns_at_once(self) -> int:
        """How often the program can be run in one native call of some seconds; 0: never."""
        return self._prepared.turns_at_once

    @property
    def _python_steps(self) -> Iterator[PythonStep]:
        return (step for step in self._prepared.steps if isinstance(step, PythonStep))

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None = None
    ) -> None:
        """Run once; the arrays are contiguous and as the program describes them.

        Refuses results that come from indices outside of what they point into."""
        guarded = self._prepared.guarded
        found = [aligned_empty((guarded,), _WORD)] if guarded else []
        while not self._attempt(inputs, [*outputs, *found], times):
            pass  # each time without one more device
        for array in found:
            check_guards(self._prepared.guards, array)

    def native_call(
        self,
        count: int,
        sources: Sequence[int | Array],
        specs: Sequence[ResultSpec],
        order: Sequence[int],
    ) -> NativeCall | None:
        """The program as one native call; None where it has steps besides kernels."""
        if self._prepared.steps:
            return None
        return NativeCall(self._prepared, self._engine, count, sources, specs, order)

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
        stretch = self._prepared.turning(most)
        with self._team.turn() if stretch.shared else nullcontext():
            context, memory = self._take_context()
            try:
                context.bind(inputs, outputs)
                loop = lead_on(context)
                context.end_with(self._engine.library.address(ADVANCE), loop)
                self._team.run(context.job(stretch, more=1))
            finally:
                self._give_back(context, memory)
        return int(loop[1])

    def profile(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Times:
        """Run once and measure every step."""
        steps = self._prepared.count
        shape = self.threads, steps
        times = Times(np.zeros(steps), np.zeros(shape), np.zeros(shape, _WORD))
        self.run(inputs, outputs, times)
        return times

    def _attempt(
        self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None
    ) -> bool:
        """Run once; False where that was in vain, since a device has been lost on the way, or had
        no memory left."""
        since = self._occupancy.enter() if self._devices else 0
        full: FullDeviceError | None = None
        try:
            self._run_all(inputs, outputs, times)
        except FullDeviceError as error:
            full = error
        except LostDeviceError as error:
            self._lose(error.space)
            return False
        except AbandonedError as error:
            if error.error is not None:
                raise error.error from error.error.__cause__
            return False
        finally:
            if self._devices and full is None:
                self._occupancy.leave()
        if full is not None and not self._occupancy.wait(since):
            self._regions[full.space][0].failed(full.__cause__ or full, Fault.LOST)
            self._lose(full.space)
        return full is None

    def _run_all(
        self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None
    ) -> None:
        """Run once in a context, which is given up where foreign code may yet write into it."""
        context, memory = self._take_context()
        is_abandoned = False
        try:
            context.bind(inputs, outputs)
            for item in self._plan:
                if isinstance(item, Stretch):
                    self._run_stretch(item, context, times)
                else:
                    self._run_python(item, context, times)
        except (LostDeviceError, AbandonedError) as error:
            is_abandoned = isinstance(error, AbandonedError) or error.is_late
            raise
        finally:
            if not is_abandoned:
                self._give_back(context, memory)

    def _take_context(self) -> tuple[Context, Array]:
        """A context, and memory for it that nobody else works in."""
        if len(self._at_hand) < len(self._devices):
            self._recall()
        try:
            context = self._free.pop()
            context.fit(self._prepared)
        except IndexError:
            context = Context(self._prepared, self._at_hand, self._pool)
        memory = self._engine.memory.borrow(context.nbytes)
        context.lie_in(memory)
        return context, memory

    def _give_back(self, context: Context, memory: Array) -> None:
        context.release()
        self._engine.memory.give_back(memory)
        if context.devices is self._at_hand:
            self._free.append(context)

    def _lose(self, space: str) -> None:
        """Do without a device for a while; what is under way elsewhere may still use it."""
        self._at_hand = {name: one for name, one in self._at_hand.items() if name != space}
        self._free = []
        self._pool.clear()
        for region in self._regions[space]:
            if not region.device_breaker.is_open:
                region.device_breaker.fail(at_once=True)

    def _recall(self) -> None:
        """Try lost devices again whose breakers are half open."""
        back = {
            space: device
            for space, device in self._devices.items()
            if space in self._at_hand
            or not any(region.device_breaker.is_open for region in self._regions[space])
        }
        if len(back) > len(self._at_hand):
            self._at_hand, self._free = back, []

    def _run_stretch(self, stretch: Stretch, context: Context, times: Times | None) -> None:
        with self._team.turn() if stretch.shared else nullcontext():
            if times is None:
                self._team.run(context.job(stretch))
                return
            stamps = np.zeros((self.threads, 2 * stretch.count + 1), _WORD)
            self._team.run(context.job(stretch, address_of(stamps)))
        begun, ended = stamps[:, 0::2], stamps[:, 1::2]
        steps = slice(stretch.step, stretch.step + stretch.count)
        times.begins[:, steps] = begun[:, :-1]
        times.seconds[steps] = np.diff(begun[0]) * 1e-9
        times.busy[:, steps] = (ended - begun[:, :-1]) * 1e-9

    def _run_python(self, index: int, context: Context, times: Times | None) -> None:
        step = self._prepared.steps[index]
        assert not isinstance(step, KernelCall)
        before = time.perf_counter_ns()
        spent: Spent | None
        try:
            call = context.enter(index)
            if isinstance(step, Transfer):
                spent = self._transfer(step, call, context)
            else:
                spent = self._call(step, call, context)
            context.leave(index)
        except AbandonedError as error:
            raise AbandonedError(error.error and error.error.at(step.place)) from None
        except GraftError as error:
            raise error.at(step.place) from None
        if times is not None:
            seconds = (time.perf_counter_ns() - before) * 1e-9
            times.begins[0, index] = before
            times.seconds[index] = times.busy[0, index] = seconds
            if spent is not None:
                times.spent[index] = spent.with_launch(seconds)

    def _call(self, step: PythonStep, call: Call, context: Context) -> Spent | None:
        function = self._functions[step.function]
        if not isinstance(function, Region):
            deliver(function(call.inputs, call.outputs), call.outputs, step.function)
            return None
        space = _space_of(self._prepared, step)
        device = context.devices.get(space)
        if device is not None:
            inputs, outputs = _specs(step.inputs), _specs(step.outputs)
            memory = DeviceMemory(space, device, inputs, outputs)
            return function.run(call.inputs, call.outputs, memory)
        if space in self._devices:  # which has been lost
            return function.compute(call.inputs, call.outputs)
        if not function.guard.is_supervised:
            return function.run(call.inputs, call.outputs)
        own = call.private_outputs()
        spent = function.run(call.inputs, own)
        call.publish(own)
        return spent

    def _transfer(self, step: Transfer, call: Call, context: Context) -> Spent:
        region = self._functions[step.region]
        assert isinstance(region, Region)
        space = self._prepared.remotes[step.remote.index].space
        device = context.devices.get(space)
        (source,), (target,) = call.inputs, call.outputs
        begun = time.perf_counter()
        if device is None:
            np.copyto(target, source)
        else:
            own = call.private_outputs() if region.guard.is_supervised else call.outputs
            copy = device.upload if step.upload else device.download
            region.guard.transfer(region, partial(copy, source, own[0]), space)
            call.publish(own)
            if region.simulated:
                return Spent(region.transfer_seconds(step.home.nbytes), 0.0, 0.0, simulated=True)
        return Spent(time.perf_counter() - begun, 0.0, 0.0)

    def _find_regions(self) -> dict[str, list[Region]]:
        """The regions by memory space."""
        found: dict[str, list[Region]] = {}
        for step in self._python_steps:
            function, space = self._functions[step.function], _space_of(self._prepared, step)
            if not space:
                continue
            if not isinstance(function, Region):
                raise UserError(
                    f"the function '{step.function}' is to work in the memory of '{space}'",
                    hint="only regions of other backends can",
                )
            found.setdefault(space, []).append(function)
        return found

    def _find_devices(self) -> Mapping[str, Device]:
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


def _bounded(regions: Mapping[str, Sequence[Region]], space: str, task: Callable[[], Any]) -> Any:
    """What a device is asked for, within the deadline of its regions."""
    return regions[space][0].guard.bounded(task)


def _space_of(prepared: Prepared, step: PythonStep) -> str:
    """The memory space that a step works in; none is the host's."""
    buffer = step.outputs[0].buffer if step.outputs else None
    return prepared.remotes[buffer.index].space if isinstance(buffer, Remote) else ""


def _specs(operands: Sequence[Operand]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    return [(one.shape, one.dtype.numpy) for one in operands]
