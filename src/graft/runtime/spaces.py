"""Memory of devices: what a run time says about it, and runners that work there.

A backend whose tensors live in a memory space of its own gives its runners an attribute `device`.
Programs then hold values in what the device allocates, and transfers are steps of their own. A
runner without a device works on arrays in the host's memory, where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError

# Called with inputs and memory for the outputs; returns None, or arrays to copy there. Operands are
# arrays, or what the runner's device has allocated.
Runner = Callable[[Sequence[Any], Sequence[Any]], "Sequence[Array] | None"]


class Device(Protocol):
    """The memory of a device. What `allocate` gives is the device's own affair: runners get it in
    place of arrays, and it is the device's again when nobody holds it any more. Regions of one
    memory space hand it to each other, so that their devices have to understand it all."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Memory for a tensor."""
        ...

    def upload(self, array: Array, memory: Any) -> None:
        """Copy a contiguous array of that shape and dtype to the device."""
        ...

    def download(self, memory: Any, array: Array) -> None:
        """Copy a tensor from the device into a contiguous array."""
        ...


def device_of(runner: Runner) -> Device | None:
    """The device whose memory a runner works on; None where that is the host's."""
    device: Device | None = getattr(runner, "device", None)
    return device


def is_simulated(runner: Runner) -> bool:
    """Whether the times of a runner are a model's: its `seconds`, its `launch_seconds`, and
    `transfer_seconds` of its device for so many bytes."""
    return bool(getattr(runner, "simulated", False))


def from_home(runner: Runner) -> Runner:
    """The same on arrays in the host's memory: brings inputs to the device, and outputs back."""
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
