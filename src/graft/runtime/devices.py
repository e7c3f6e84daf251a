"""Calls of regions, and device memory for their operands: allocation, transfers, lost devices.

If a device is lost (unreachable, or out of memory for good), the run is repeated without it, with
the host's code for its regions, until its circuit breaker lets it be tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graft.base.dims import evaluate_dim
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.program.instructions import RegionCall, Transfer
from graft.program.program import ALIGNMENT, Program, Value
from graft.program.verify import nbytes_of
from graft.runtime.guard import AbandonedError
from graft.runtime.incidents import Fault
from graft.runtime.memory import aligned_empty, ready
from graft.runtime.profile import Recorder
from graft.runtime.regions import Region, deliver
from graft.runtime.run import Run
from graft.runtime.spaces import (
    Device,
    DeviceMemory,
    FullDeviceError,
    LostDeviceError,
    Runner,
    TimeSpent,
    host_array,
)
from graft.runtime.tensor_pool import DeviceTensor, Occupancy, TensorPool

Attempt = Callable[[Mapping[str, Device]], list[Any]]


class Devices:
    """The devices of a program's regions by memory space, and which of them are available."""

    def __init__(self, program: Program, functions: Mapping[str, Runner]) -> None:
        self._functions = functions
        self._regions = _regions_by_space(program, functions)
        self._by_space = _find_devices(self._regions)
        self.available: Mapping[str, Device] = self._by_space  # without lost ones
        self._occupancy = Occupancy()
        self._pool = TensorPool(partial(_bounded, self._regions))

    def run(self, attempt: Attempt) -> list[Any]:
        """The results of `attempt` on the available devices. It is repeated without a device that
        is lost meanwhile, and, if a device is full, after another run has freed its memory."""
        while True:
            if len(self.available) < len(self._by_space):
                self._restore()
            results = self._try(attempt)
            if results is not None:
                return results

    def _try(self, attempt: Attempt) -> list[Any] | None:
        since = self._occupancy.enter() if self._by_space else 0
        full: FullDeviceError | None = None
        try:
            return attempt(self.available)
        except FullDeviceError as error:
            full = error
        except LostDeviceError as error:
            self._lose(error.space)
            return None
        except AbandonedError as error:
            if error.error is not None:
                raise error.error from error.error.__cause__
            return None
        finally:
            if self._by_space and full is None:
                self._occupancy.leave()
        if not self._occupancy.wait(since):
            self._regions[full.space][0].failed(full.__cause__ or full, Fault.LOST)
            self._lose(full.space)
        return None

    def _lose(self, space: str) -> None:
        """Mark a device as unavailable for new attempts; runs in progress may still use it."""
        self.available = {name: one for name, one in self.available.items() if name != space}
        self._pool.clear()
        for region in self._regions[space]:
            if not region.device_breaker.is_open:
                region.device_breaker.fail(at_once=True)

    def _restore(self) -> None:
        """Make lost devices available again whose circuit breakers are no longer open."""
        back = {
            space: device
            for space, device in self._by_space.items()
            if space in self.available
            or not any(region.device_breaker.is_open for region in self._regions[space])
        }
        if len(back) > len(self.available):
            self.available = back

    def allocate(self, value: Value, run: Run) -> Any:
        """Allocate memory for a value on its device, or a host array if that is lost."""
        kind = _tensor(value)
        device = run.devices.get(value.space)
        return (
            aligned_empty(kind.shape, kind.dtype)
            if device is None
            else self._pool.allocate(kind, device)
        )

    def release(self, value: Value, tensor: Any, run: Run) -> None:
        """Return the device memory of a dead value to the pool."""
        if value.space in run.devices and tensor is not None:
            self._pool.release(_tensor(value), tensor)

    def call(
        self, step: RegionCall, inputs: Sequence[Value], outputs: Sequence[Value], run: Run
    ) -> Sequence[Any]:
        """Run a region, or the host's code for it if its device is lost."""
        function = self._functions[step.function]
        space = (*outputs, *inputs)[0].space if outputs or inputs else ""
        if not space:
            return _call_in_host_memory(step, function, inputs, outputs, run)
        assert isinstance(function, Region)
        operands = [run.values[number] for number in step.inputs]
        results = [self.allocate(value, run) for value in outputs]
        device = run.devices.get(space)
        if device is None:  # it has been lost, or there is none
            lost = space in self._by_space
            spent = (function.compute if lost else function.run)(operands, results)
        else:
            specs = ([_tensor(value)[1:] for value in values] for values in (inputs, outputs))
            spent = function.run(operands, results, DeviceMemory(space, device, *specs))
        _record(run.recorder, spent)
        return results

    def transfer(self, step: Transfer, source: Value, target: Value, run: Run) -> Any:
        """Copy a value to a device, or from it."""
        region = self._functions[step.region]
        assert isinstance(region, Region)
        space = target.space if step.upload else source.space
        device, data = run.devices.get(space), run.values[step.source]
        memory: Any
        if step.upload:
            memory = self.allocate(target, run)
        else:
            private = region.guard.is_supervised
            make = partial(host_array, device) if device else aligned_empty
            (memory,) = _outputs((target,), (step.target,), private, run, make)
        start = time.perf_counter()
        if device is None:
            np.copyto(memory, data)
        else:
            copy = device.upload if step.upload else device.download
            task = partial(copy, np.ascontiguousarray(data) if step.upload else data, memory)
            region.guard.transfer(region, task, space)
            if region.simulated:
                modelled = region.transfer_seconds(nbytes_of(target))
                _record(run.recorder, TimeSpent(modelled, 0.0, 0.0, simulated=True))
                return memory
        _record(run.recorder, TimeSpent(time.perf_counter() - start, 0.0, 0.0))
        return memory


def _record(recorder: Recorder | None, spent: TimeSpent | None) -> None:
    if recorder is not None:
        recorder.spent = spent


def _call_in_host_memory(
    step: RegionCall,
    function: Runner,
    operands: Sequence[Value],
    outputs: Sequence[Value],
    run: Run,
) -> Sequence[Array]:
    """A region, or another function, on arrays in the host's memory."""
    inputs = [
        _read_only(ready(run.values[number], value.alignment))
        for number, value in zip(step.inputs, operands, strict=True)
    ]
    if not isinstance(function, Region):
        buffers = _outputs(outputs, step.outputs, False, run)
        deliver(function(inputs, buffers), buffers, step.function)
        return buffers
    private = function.guard.is_supervised
    while True:
        buffers = _outputs(outputs, step.outputs, private, run)
        try:
            _record(run.recorder, function.run(inputs, buffers))
        except AbandonedError as error:
            if error.error is not None:
                raise error.error.at(step.location) from error.error.__cause__
            private = True  # in other arrays, without the accelerator
        else:
            return buffers


def _outputs(
    values: Sequence[Value],
    numbers: Sequence[int],
    private: bool,
    run: Run,
    make: Callable[[tuple[int, ...], np.dtype[Any]], Array] = aligned_empty,
) -> list[Array]:
    """Result arrays for foreign code. `private` ones are neither in the arena nor a user's: a call
    that is abandoned at its deadline may still write into them later."""
    arrays = []
    for value, number in zip(values, numbers, strict=True):
        array = run.values[number] if value.slot is not None else run.given.get(number)
        shape = tuple(evaluate_dim(dim, run.symbols) for dim in value.shape or ())
        if private or array is None or array.shape != shape:
            assert value.dtype is not None
            strictly = partial(aligned_empty, alignment=value.alignment)
            array = (strictly if value.alignment > ALIGNMENT else make)(shape, value.dtype.numpy)
        arrays.append(array)
    return arrays


def _read_only(data: Array) -> Array:
    view = data.view()
    view.flags.writeable = False
    return view


def _tensor(value: Value) -> DeviceTensor:
    assert value.dtype is not None
    extents = tuple(dim for dim in value.shape or () if isinstance(dim, int))
    return DeviceTensor(value.space, extents, value.dtype.numpy)


def _regions_by_space(program: Program, functions: Mapping[str, Runner]) -> dict[str, list[Region]]:
    """The regions that work in the memory of a device."""
    by_space: dict[str, list[Region]] = {}
    for step in _region_calls(program):
        if step.function not in functions:
            raise UserError(
                f"the program calls the function '{step.function}', which is not given",
                location=step.location,
                hint=f"functions={{'{step.function}': ...}} supplies it",
            )
        function = functions[step.function]
        spaces = {program.values[number].space for number in (*step.inputs, *step.outputs)}
        for space in spaces - {""}:
            if not isinstance(function, Region):
                raise UserError(
                    f"the function '{step.function}' is to work in the memory of '{space}'",
                    hint="only regions of other backends can",
                )
            by_space.setdefault(space, []).append(function)
    return by_space


def _region_calls(program: Program) -> Iterable[RegionCall]:
    return (one for one in program.instructions if isinstance(one, RegionCall))


def _find_devices(regions_by_space: Mapping[str, Sequence[Region]]) -> Mapping[str, Device]:
    """The devices by memory space. A region whose code could not be loaded has no device of its own
    and is assigned the one of its space."""
    by_space: dict[str, Device] = {}
    for space, regions in regions_by_space.items():
        device = next((one.device for one in regions if one.device is not None), None)
        if device is not None:
            by_space[space] = device
            for region in regions:
                region.device = region.device or device
    return by_space


def _bounded(regions: Mapping[str, Sequence[Region]], space: str, task: Callable[[], Any]) -> Any:
    """Run a request to a device within the deadline of its regions."""
    return regions[space][0].guard.bounded(task)
