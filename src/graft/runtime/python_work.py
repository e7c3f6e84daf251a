"""What Python does while a program runs: calls of regions and of the evaluator, and
whatever is done to values that native code does not hold (lists, optional values, strings).

Operands come out of the frame, or from the objects of the run; results go back there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, InternalError
from graft.program.bytecode_work import (
    Assign,
    Collect,
    JoinSlices,
    PythonWork,
    ReadExtents,
    ReadItem,
    Release,
)
from graft.program.instructions import (
    Alias,
    Evaluate,
    ListOp,
    RegionCall,
    Slice,
    Transfer,
    writes,
)
from graft.program.program import Program
from graft.runtime.devices import Devices
from graft.runtime.evaluated import Evaluator
from graft.runtime.lists import run_list_op
from graft.runtime.loops import Data, ScanOutputs, empty_stack, sole_item
from graft.runtime.memory import aligned_copy, is_usable
from graft.runtime.regions import deliver
from graft.runtime.run import Run


class PythonWorker:
    """Does what Python does of a program."""

    def __init__(
        self,
        program: Program,
        devices: Devices,
        evaluators: Mapping[str, Evaluator],
    ) -> None:
        self._program, self._devices, self._evaluators = program, devices, evaluators

    def __call__(self, work: PythonWork, run: Run) -> None:
        """Do a piece of work in a run."""
        match work:
            case Assign(targets, sources):
                data = [run.values.lasting(number) for number in sources]
                for number, one in zip(targets, data, strict=True):
                    self._store(number, one, run)
            case ReadItem(value, register):
                item = int(sole_item(run.values[value]))
                run.values.frame.words[register] = item
            case ReadExtents(value, registers):
                shape = np.shape(run.values[value])
                for axis, register in registers:
                    run.values.frame.words[register] = shape[axis]
            case Release(numbers):
                for number in numbers:
                    tensor = run.values.objects.pop(number, None)
                    self._devices.release(self._program.values[number], tensor, run)
            case Collect(output, value):
                slices = run.slices.setdefault(output, ScanOutputs(1, "loop"))
                slices.append([run.values.lasting(value)])
            case JoinSlices():
                self._store(work.output, self._joined(work, run), run)
            case _:
                self._instruction(work, run)

    def _instruction(self, work: Any, run: Run) -> None:
        values = self._program.values
        results: Sequence[Data]
        match work:
            case RegionCall():
                inputs, outputs = ([values[n] for n in one] for one in (work.inputs, work.outputs))
                results = self._devices.call(work, inputs, outputs, run)
            case Transfer():
                ends = values[work.source], values[work.target]
                results = (self._devices.transfer(work, *ends, run),)
            case Evaluate():
                results = self._evaluators[work.function](_operands(work, run), run.symbols)
            case ListOp():
                results = (run_list_op(work, _operands(work, run), run.symbols),)
            case Slice():
                count = int(run.values[work.counts][-1])
                results = (run.values.lasting(work.value)[:count],)
            case Alias():
                results = (run.values.lasting(work.value),)
            case _:
                raise InternalError(f"Python has nothing to do with {type(work).__name__}")
        for number, data in zip(writes(work), results, strict=True):
            self._store(number, data, run)

    def _store(self, number: int, data: Data, run: Run) -> None:
        """Let a value be what has come out, if it can be; its extents are checked natively."""
        value = self._program.values[number]
        if value.dtype is None or value.space or number not in run.values.frame.image.values:
            run.values.put(number, data)
            return
        array = data if type(data) is np.ndarray else np.asarray(data)
        dtype = value.dtype.numpy
        if array.dtype != dtype:
            raise EvaluationError(f"'{value.name}' is {array.dtype} where {value.dtype} is wanted")
        if array.ndim != len(value.shape or ()):
            raise misshapen(value.name, array.shape, value.shape or ())
        if value.slot is not None:
            deliver((array,), (run.values.frame.view(number),), "a step")
            return
        run.values.put(number, array if is_usable(array) else aligned_copy(array))

    def _joined(self, work: JoinSlices, run: Run) -> Array:
        """Slices along an axis; without any, extents that only a slice would define are zero."""
        slices = run.slices.pop(work.output, None)
        if slices is not None:
            return slices.stack([work.axis], [work.backwards])[0]
        row = self._program.values[work.row]
        if row.dtype is None or row.shape is None:
            raise EvaluationError(f"no iteration tells what '{row.name}' is")
        extents = [dim if isinstance(dim, int) else 0 for dim in row.shape]
        return empty_stack(extents, row.dtype.numpy, work.axis)


def misshapen(name: str, shape: Sequence[int], expected: Sequence[object]) -> EvaluationError:
    """The error on a value of another shape than the program says."""
    return EvaluationError(
        f"'{name}' has the shape {list(shape)} where [{', '.join(map(str, expected))}] is wanted"
    )


def _operands(work: Evaluate | ListOp, run: Run) -> list[Data]:
    """Operands; what may live on in results is no memory of the frame, which is used again."""
    return [None if number is None else run.values.lasting(number) for number in work.inputs]
