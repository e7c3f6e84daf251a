"""Regions on the accelerator at run time: its RTL, translated by Verilator and run cycle by cycle.

The simulator is built when the first region is loaded. How long it runs says nothing about the
accelerator: what a call takes is a number of cycles.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from graft.base.dtypes import Array
from graft.runtime import verilator
from graft.runtime.array_file import unpack_arrays
from graft.runtime.loaders import versioned
from graft.runtime.memory import address_of

VERSION = "1"
LANES = 16  # rows and columns of the array, and bytes in a word
CLOCK = 200e6
MEMORY_LATENCY = 32  # cycles from an address to its word
LAUNCH_SECONDS = 1e-5  # assumed: a register written by the processor, and an interrupt

FOLDER = Path(__file__).with_name("rtl")
MODULES = ("isa", "ram", "delay", "pe", "systolic", "conv", "load", "store", "accelerator")
SOURCES = [FOLDER / f"{name}.sv" for name in MODULES]
_FAILURES = {-1: "reads or writes outside of its memory", -2: "does not end"}
_PATIENCE = 8  # times the cycles that a program takes, after which it does not end


class Region:
    """A region on the simulated accelerator. `seconds` is what its cycles take at `CLOCK`."""

    simulated = True
    launch_seconds = LAUNCH_SECONDS

    def __init__(self, blob: bytes) -> None:
        parts = unpack_arrays(blob)
        self.program, self._constants = parts["program"], parts["constants"]
        self._words, self.cycles = int(parts["words"]), int(parts["cycles"])
        self._tensors = parts["tensors"].tolist()
        self.seconds = self.cycles / CLOCK
        self._simulate = simulator().simulate

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.run(inputs, outputs)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], stall: int = 0) -> int:
        """As a call; returns the cycles that it took. With `stall` memory accepts nothing in every
        cycle of that multiple. Calls share nothing, and may come from several threads."""
        memory = np.zeros(self._words * LANES, np.uint8)
        memory[memory.size - self._constants.size :] = self._constants
        tensors = [_in_memory(memory, *tensor) for tensor in self._tensors]
        for array, tensor in zip(inputs, tensors, strict=False):
            np.copyto(tensor, blocked(array))
        code = (address_of(self.program), self.program.size)
        limits = (MEMORY_LATENCY, stall, _PATIENCE * self.cycles)
        took = self._simulate(address_of(memory), self._words, *code, *limits)
        if took < 0:
            raise RuntimeError(f"the program {_FAILURES[took]}")
        for array, tensor in zip(outputs, tensors[len(inputs) :], strict=True):
            _unblock(tensor, array)
        return int(took)


def _in_memory(
    memory: Array, address: int, images: int, channels: int, height: int, width: int
) -> Array:
    """A tensor in blocks, where it lies."""
    shape = (images, -(-channels // LANES), height, width, LANES)
    return memory[address * LANES :][: math.prod(shape)].reshape(shape)


def blocked(array: Array) -> Array:
    """Bytes as the accelerator has them: [images, blocks, height, width, 16 channels]."""
    if array.ndim == 5:  # NCHW16c already
        return array.view(np.uint8)
    pixels = _images(array.view(np.uint8))
    images, channels, *size = pixels.shape
    padded = np.pad(pixels, ((0, 0), (0, -channels % LANES), (0, 0), (0, 0)))
    return padded.reshape(images, -1, LANES, *size).transpose(0, 1, 3, 4, 2)


def _unblock(tensor: Array, array: Array) -> None:
    if array.ndim < 5:
        images, _, *size, _ = tensor.shape
        array = _images(array)
        plain = tensor.transpose(0, 1, 4, 2, 3).reshape(images, -1, *size)
        tensor = plain[:, : array.shape[1]]
    np.copyto(array.view(np.uint8), tensor)


def _images(array: Array) -> Array:
    """Images as [images, channels, height, width]; of others the rows are pixels of one column."""
    if array.ndim == 4:
        return array
    return array.reshape(-1, array.shape[-1] if array.ndim else 1).T[None, :, :, None]


@cache
def simulator() -> ctypes.CDLL:
    """The accelerator as Verilator has translated it."""
    library = verilator.simulator("fpga", SOURCES, FOLDER / "simulate.cpp")
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    library.simulate.argtypes = [pointer, number, pointer, *[number] * 4]
    library.simulate.restype = ctypes.c_int64
    return library


@versioned(VERSION)
def load(blob: bytes) -> Region:
    """What `graft.load` calls for a region of this backend."""
    return Region(blob)
