"""What users hold: named arrays in, arrays out, with the habits of ONNX Runtime.

Feeds are checked before anything runs. Arrays, and whatever speaks the buffer protocol or DLPack,
are used where they lie; only what is not contiguous, or not aligned as the kernels need it, is
copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from graft.base.dims import AnyDim, bare_symbol
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import EvaluationError, UserError
from graft.runtime.cores import available_cores
from graft.runtime.dispatch import Binding, Dispatcher, bind
from graft.runtime.engine import Engine
from graft.runtime.executor import Executor
from graft.runtime.lending import Recycled
from graft.runtime.memory import ALIGNMENT, aligned_copy, is_usable
from graft.runtime.native_call import NativeCall
from graft.runtime.placement import Placed
from graft.runtime.prepared import prepared
from graft.runtime.program import Program, Step, TensorSpec
from graft.runtime.spaces import Runner, Spent

_ONNX_NAMES = {DType.FLOAT32: "float", DType.FLOAT64: "double"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output: name, shape (symbolic extents as strings) and type in ONNX's words."""

    name: str
    shape: list[int | str] | None  # None: not even the rank is known
    type: str


@dataclass(frozen=True, eq=False)
class Profile:
    """A measured run: its outputs, the steps, the seconds each took, how long each thread worked on
    each of them (`busy[thread, step]`), when it began that (in nanoseconds of one clock, 0 where it
    took no part), and what regions and transfers spent it on, by step."""

    outputs: list[Array]
    steps: tuple[Step, ...]
    seconds: Array
    busy: Array
    begins: Array
    spent: Mapping[int, Spent] = field(default_factory=dict)


class Session(Placed):
    """A compiled program, ready to run; safe to call from several threads.

    `threads` is how many threads share the work, by default as many as the program was compiled
    for, and at most one per physical core that the process may use. `functions` are the Python
    functions that the program's Python steps name. An `engine` is given where several sessions
    share one, with its threads.
    """

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        functions: Mapping[str, Runner] | None = None,
        engine: Engine | None = None,
    ) -> None:
        program.validate()
        engine = engine or Engine([program], count_threads(program.threads, threads))
        self.program = program
        self._executor = Executor(prepared(program, engine), engine, functions or {})
        self._input_names = {spec.name for spec in program.inputs}
        self._output_names = [spec.name for spec in program.results]
        self._inputs = [_Slot(spec, engine.results) for spec in program.inputs]
        self._outputs = [_Slot(spec, engine.results) for spec in program.results]
        self.dispatcher: Dispatcher | None = None
        if program.is_native:
            expected = [(one.name, one.dtype.numpy, one.alignment) for one in program.inputs]
            self.dispatcher = Dispatcher(
                expected,
                self._output_names,
                partial(_native_call, program, self._executor),
                sizes_change=False,
            )

    @property
    def threads(self) -> int:
        """How many threads share the work."""
        return self._executor.threads

    def get_inputs(self) -> list[Argument]:
        """The inputs in order."""
        return [argument(spec.name, spec.dtype, spec.shape) for spec in self.program.inputs]

    def get_outputs(self) -> list[Argument]:
        """The outputs in order."""
        return [argument(spec.name, spec.dtype, spec.shape) for spec in self.program.results]

    def run(
        self,
        names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        outputs: Mapping[str, Array] | None = None,
    ) -> list[Array]:
        """Run on named inputs; gives the named outputs, or all of them for None.

        `outputs` may hold arrays to write results into; other results are fresh arrays.
        """
        wanted = None if names is None else chosen(names, self._output_names)
        if not outputs and self.dispatcher is not None:
            found = dispatched(self.dispatcher, feeds)
            if found is not None:
                return found if wanted is None else [found[position] for position in wanted]
        arrays = self._fed(feeds)
        if outputs:
            homes, results = self._given(outputs, arrays)
        else:
            homes = results = [slot.fresh() for slot in self._outputs]
        self._executor.run(arrays, homes)
        if homes is not results:
            _copy_home(homes, results)
        return results if wanted is None else [results[position] for position in wanted]

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array] | None = None) -> Binding:
        """What runs on these very arrays, for loops that use the same ones again and again.

        Each call of it reads what the feeds hold by then, writes into `outputs`, or into arrays of
        its own, the same ones every time, and gives all results. Wrong arrays are refused here.
        """
        arrays = self._fed(feeds)
        if outputs:
            self._given(outputs, arrays)
        return bind(self.run, self.dispatcher, feeds, outputs)

    def profile(self, feeds: Mapping[str, Any]) -> Profile:
        """Run once and measure every step."""
        arrays = self._fed(feeds)
        results = [slot.fresh() for slot in self._outputs]
        times = self._executor.profile(arrays, results)
        parts = times.seconds, times.busy, times.begins, times.spent
        return Profile(results, self.program.steps, *parts)

    def _fed(self, feeds: Mapping[str, Any]) -> list[Array]:
        require_feeds(feeds)
        if feeds.keys() != self._input_names:
            refuse_names(feeds, [spec.name for spec in self.program.inputs])
        return [slot.accept(feeds[slot.spec.name]) for slot in self._inputs]

    def _given(
        self, outputs: Mapping[str, Array], inputs: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Where kernels write, and where the results are to go: mostly the same arrays."""
        chosen(outputs, self._output_names)
        check_homes(outputs)
        results = [
            slot.check_home(outputs[slot.spec.name]) if slot.spec.name in outputs else slot.fresh()
            for slot in self._outputs
        ]
        homes = [
            result
            if slot.usable(result) and not any(np.may_share_memory(result, x) for x in inputs)
            else slot.fresh()
            for slot, result in zip(self._outputs, results, strict=True)
        ]
        return homes, results


def _native_call(
    program: Program, executor: Executor, inputs: Sequence[Array]
) -> NativeCall | None:
    if [array.shape for array in inputs] != [spec.shape for spec in program.inputs]:
        return None
    specs = [(one.shape, one.dtype.numpy, one.alignment) for one in program.results]
    return executor.native_call(len(inputs), range(len(inputs)), specs, range(len(specs)))


# More threads than processors wait for each other at every barrier; small machines may try some.
_MOST_THREADS, _MOST_PER_PROCESSOR = 64, 4


def count_threads(wish: int | None, threads: int | None) -> int:
    """How many threads run a program: as many as asked for, or as it wishes.

    Its wish is of the machine it was compiled on, which may have had more cores."""
    cores = available_cores()
    if threads is None:
        return min(wish or cores, cores)
    if not isinstance(threads, int):
        raise UserError(f"threads={threads!r} is no whole number")
    if threads < 1:
        raise UserError(f"threads={threads}: at least one thread has to run the program")
    most = max(_MOST_THREADS, _MOST_PER_PROCESSOR * (os.cpu_count() or 1))
    if threads > most:
        raise UserError(
            f"threads={threads}: this machine runs a program by at most {most}",
            hint="leave threads= out for one per core; more than that only wait for each other",
        )
    return threads


def dispatched(dispatcher: Dispatcher, feeds: Mapping[str, Any]) -> list[Any] | None:
    """What the fast way gives, whose own checks are few; None where it does not serve."""
    try:
        return dispatcher.run(feeds)
    except (AttributeError, TypeError):
        require_feeds(feeds)
        raise
    except MemoryError as error:
        raise no_memory(str(error)) from None


def require_feeds(feeds: Any) -> None:
    """Refuse what does not say which array is for which input."""
    if not isinstance(feeds, Mapping):
        raise UserError(
            f"inputs are given by name, in a dict, not as {type(feeds).__name__}",
            hint='run(None, {"x": array}), or {} where there are no inputs',
        )


def no_memory(detail: str) -> EvaluationError:
    """The error of a run that the system has no memory for."""
    return EvaluationError(
        f"there is not enough memory: {detail or 'an allocation failed'}",
        hint="try smaller inputs, or a larger machine",
    )


def chosen(names: Iterable[str], known: Sequence[str]) -> list[int]:
    """The positions of named outputs; refuses names that are none's."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise UserError(
            f"output names are None or a list, not {names!r}", hint=f"outputs: {_listed(known)}"
        )
    try:
        return [known.index(name) for name in names]
    except ValueError:
        unknown = next(name for name in names if name not in known)
    raise UserError(f"there is no output '{unknown}'", hint=f"outputs: {_listed(known)}")


def refuse_names(feeds: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse feeds that lack an input, or that are for none."""
    hint = f"inputs: {_listed(known)}"
    for name in feeds:
        if name not in known:
            raise UserError(f"there is no input '{name}'", hint=hint)
    for name in known:
        if name not in feeds:
            raise UserError(f"the input '{name}' is missing", hint=hint)


class _Slot:
    """How arrays for one input or output are taken, checked and made."""

    def __init__(self, spec: TensorSpec, results: Recycled) -> None:
        self.spec, self._dtype = spec, spec.dtype.numpy
        self.fresh = results.allocator(spec.shape, self._dtype, spec.alignment)

    def usable(self, array: Array) -> bool:
        """Whether kernels can work on the array where it lies."""
        return is_usable(array, self.spec.alignment)

    def accept(self, data: Any) -> Array:
        """The input as an array that kernels can read."""
        array = data if type(data) is np.ndarray else as_array(self.spec.name, data)
        if array.dtype != self._dtype or array.shape != self.spec.shape:
            self._refuse("input", array)
        return (
            array
            if self.usable(array)
            else aligned_copy(array, max(self.spec.alignment, ALIGNMENT))
        )

    def check_home(self, array: Array) -> Array:
        """The array that a user wants the output in."""
        if array.dtype != self._dtype or array.shape != self.spec.shape:
            self._refuse("output", array)
        return array

    def _refuse(self, kind: str, array: Array) -> None:
        name, dtype = self.spec.name, _dtype_name(array)
        actual = f"{dtype}[{', '.join(map(str, array.shape))}]"
        hint = ""
        if array.dtype != self._dtype and kind == "input":
            hint = f"convert it with .astype('{self.spec.dtype}')"
        raise UserError(f"the {kind} '{name}' wants {self.spec}, not {actual}", hint=hint)


def as_array(name: str, data: Any) -> Array:
    """Anything that holds a tensor as an array, without copying where that is possible."""
    from_numpy = isinstance(data, np.ndarray | np.generic)
    try:
        if hasattr(data, "__dlpack__") and not from_numpy:
            return np.from_dlpack(data)
        array = np.asarray(data)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"the input '{name}' cannot be read: {error}",
            hint="tensors have to lie in the memory of the host and be of a type NumPy knows",
        ) from error


def check_homes(homes: Mapping[str, Array]) -> None:
    """Refuse, by the outputs' names, what no results can be written into."""
    seen: list[Array] = []
    for name, array in homes.items():
        if not isinstance(array, np.ndarray):
            raise UserError(
                f"the array for the output '{name}' is a {type(array).__name__}",
                hint="outputs= takes NumPy arrays; np.from_dlpack makes one of most tensors",
            )
        if not array.flags.writeable:
            raise UserError(f"the array for the output '{name}' is read-only")
        if any(np.may_share_memory(array, other) for other in seen):
            raise UserError(f"the array for the output '{name}' overlaps another output's")
        seen.append(array)


def _dtype_name(array: Array) -> str:
    try:
        return dtype_of(array.dtype)
    except UserError:
        return str(array.dtype)


def _copy_home(homes: Sequence[Array], results: Sequence[Array]) -> None:
    for home, result in zip(homes, results, strict=True):
        if home is not result:
            result[...] = home


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def argument(
    name: str, dtype: DType | None, shape: Sequence[AnyDim] | None, type_: str = ""
) -> Argument:
    """A tensor as users see it; what is none has a type in words."""
    words = type_ if dtype is None else f"tensor({_ONNX_NAMES.get(dtype, dtype)})"
    return Argument(name, None if shape is None else [*map(extent_name, shape)], words)


def extent_name(dim: AnyDim) -> int | str:
    """An extent as users see it: a number, the name that the model has for it, or a formula."""
    return dim if isinstance(dim, int) else bare_symbol(dim) or str(dim)
