"""Memory of devices: what a run time says about it, and runners that work there.

A backend whose tensors live in a memory space of its own gives its runners an attribute `device`.
Programs then hold values in what the device allocates, and transfers are steps of their own. A
runner without a device works on arrays in the host's memory, where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.runtime.memory import aligned_copy, aligned_empty, unlocked

# Called with inputs and memory for the outputs; returns None, or arrays to copy there. Operands are
# arrays, or what the runner's device has allocated.
Runner = Callable[[Sequence[Any], Sequence[Any]], "Sequence[Array] | None"]


class LostDeviceError(Exception):
    """What is in the memory of a device is lost; the inference has to begin again without it.

    `is_late` where a copy to the host's memory is still under way."""

    def __init__(self, space: str = "", is_late: bool = False) -> None:
        super().__init__(f"the memory '{space}' is lost")
        self.space, self.is_late = space, is_late


class FullDeviceError(LostDeviceError):
    """A device gives no memory for one more tensor."""


class TimeSpent(NamedTuple):
    """Seconds of one call: bringing values to the region and back, getting it to start, computing.
    `simulated` says that they are a model's."""

    transfer: float
    launch: float
    execution: float
    simulated: bool = False

    def with_launch(self, total: float) -> TimeSpent:
        """The same where what is left of the whole went into getting started."""
        if self.simulated or not self.execution:
            return self
        return self._replace(launch=max(total - self.transfer - self.execution, 0.0))


class Device(Protocol):
    """The memory of a device. What `allocate` gives is the device's own affair: runners get it in
    place of arrays, and it is the device's again once it is unreferenced. Regions of one
    memory space hand it to each other, so that their devices have to understand it all.

    A device may also have `host_array(shape, dtype)`, which gives an array in the host's memory
    that downloads are fast to (page-locked)."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory for a tensor."""
        ...

    def upload(self, array: Array, memory: Any) -> None:
        """Copy a contiguous array of that shape and dtype to the device."""
        ...

    def download(self, memory: Any, array: Array) -> None:
        """Copy a tensor from the device into a contiguous array."""
        ...


# Shape and dtype of operands.
Specs = Sequence[tuple[tuple[int, ...], np.dtype[Any]]]


class OperandMemory:
    """Where the operands of a region's run lie, and how the host gets at them: in its own memory
    here, where operands are arrays."""

    space = ""
    inputs: Specs = ()
    outputs: Specs = ()

    def arrays(self, operands: Sequence[Any], specs: Specs) -> Sequence[Array]:
        """What operands hold, as arrays to read."""
        return operands

    def copies(self, operands: Sequence[Any], specs: Specs) -> Sequence[Array]:
        """What operands hold, in memory that a region does not reach."""
        return [aligned_copy(array) for array in operands]

    def empty(self, outputs: Sequence[Any]) -> list[Array]:
        """Arrays for results."""
        return [aligned_empty(array.shape, array.dtype) for array in outputs]

    def store(self, arrays: Sequence[Array], operands: Sequence[Any]) -> None:
        """Write arrays over operands, inputs too."""
        for array, operand in zip(arrays, operands, strict=True):
            if array.size:
                np.copyto(operand if operand.flags.writeable else unlocked(operand), array)


HOST_MEMORY = OperandMemory()


class DeviceMemory(OperandMemory):
    """The same for operands in the memory of a device."""

    def __init__(self, space: str, device: Device, inputs: Specs, outputs: Specs) -> None:
        self.space, self._device = space, device
        self.inputs, self.outputs = inputs, outputs

    def arrays(self, operands: Sequence[Any], specs: Specs) -> Sequence[Array]:
        arrays = [aligned_empty(*spec) for spec in specs]
        for memory, array in zip(operands, arrays, strict=True):
            self._device.download(memory, array)
        return arrays

    copies = arrays

    def empty(self, outputs: Sequence[Any]) -> list[Array]:
        return [aligned_empty(*spec) for spec in self.outputs]

    def store(self, arrays: Sequence[Array], operands: Sequence[Any]) -> None:
        for array, memory in zip(arrays, operands, strict=True):
            self._device.upload(array, memory)


def device_of(runner: Runner) -> Device | None:
    """The device whose memory a runner works on; None where that is the host's."""
    device: Device | None = getattr(runner, "device", None)
    return device


def host_array(device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array in the host's memory for what a device has."""
    make: Callable[..., Array] = getattr(device, "host_array", aligned_empty)
    return make(shape, dtype)


def is_simulated(runner: Runner) -> bool:
    """Whether the times of a runner are a model's: its `seconds`, its `launch_seconds`, how often
    it spends these (`calls` of the outputs, if it has that), and `transfer_seconds` of its device
    for so many bytes."""
    return bool(getattr(runner, "simulated", False))


def rounding_of(runner: Runner) -> DType:
    """What a runner rounds operands of float32 to: its `rounding`, by default nothing coarser."""
    rounding: DType = getattr(runner, "rounding", DType.FLOAT32)
    return rounding


def with_transfers(runner: Runner) -> Runner:
    """Wrap a runner to take host arrays: upload inputs, download outputs."""
    device = device_of(runner)
    if device is None:
        return runner

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        there = uploaded(device, inputs)
        results = [device.allocate(array.shape, array.dtype) for array in outputs]
        refuse_arrays(runner(there, results))
        for memory, array in zip(results, outputs, strict=True):
            device.download(memory, array)

    return run


def uploaded(device: Device, arrays: Sequence[Array]) -> list[Any]:
    """Arrays in new memory of a device."""
    there = [device.allocate(array.shape, array.dtype) for array in arrays]
    for array, memory in zip(arrays, there, strict=True):
        device.upload(np.ascontiguousarray(array), memory)
    return there


def refuse_arrays(results: Sequence[Array] | None) -> None:
    """Runners that work on a device leave their results there."""
    if results is not None:
        raise EvaluationError("a runner in memory of its own has to write its outputs there")
