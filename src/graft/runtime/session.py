"""What `graft.compile` and `graft.load` return: named arrays in, arrays out, with the habits of
ONNX Runtime; and `graft.load` itself, which compiles nothing.

Feeds are checked before anything runs. The code is linked into the process when it is first needed,
so that a model for another machine can be saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np

from graft.base.cores import available_cores
from graft.base.dims import AnyDim, bare_symbol
from graft.base.dtypes import Array
from graft.base.errors import ReferenceWarning, UserError, warn_user
from graft.base.names import printable
from graft.program.program import Program, Value
from graft.program.variants import switch_of, variant_name
from graft.program.verify import verify_program
from graft.runtime.artifact import Artifact, load_image
from graft.runtime.artifact import load as load_artifact
from graft.runtime.container import contradictory, write_image
from graft.runtime.context import RuntimeContext
from graft.runtime.dispatch import Binding, Dispatcher, bind
from graft.runtime.evaluated import Evaluator, SuppliedFunctions, evaluator_runtime
from graft.runtime.executor import EvaluatedProgram, Executor
from graft.runtime.feeds import (
    ONNX_NAMES,
    InputSlot,
    check_type,
    check_writable,
    chosen,
    dispatched,
    refuse_names,
    require_feeds,
    store_outputs,
)
from graft.runtime.incidents import Incidents
from graft.runtime.memory import is_usable, trim_heap
from graft.runtime.native import why_not_here
from graft.runtime.placement import BLOB, StoredPlacement
from graft.runtime.profile import Profile
from graft.runtime.regions import Region, incidents_of
from graft.runtime.spaces import Runner


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output: name, shape (symbolic extents as strings) and type in ONNX's words."""

    name: str
    shape: list[int | str] | None  # None: not even the rank is known
    type: str


# Writes a compiled model to a file; returns the operators that its evaluator must support.
Writer = Callable[[Path], Sequence[str]]


class Session:
    """A compiled model, ready to run; safe to call from several threads. It can be pickled; what
    `bind` gives cannot, since it is about arrays of this process.

    `threads` is how many threads share the work, by default as many as the program was compiled
    for, and at most one per physical core that the process may use. `supplied` are the Python
    functions that the program names. `writer` saves the model; of one out of a file, `image` are
    the bytes of that file, and `options` what it was loaded with. Of a model that was just compiled
    `kernels` are the labels of kernels by the values that they make, and `arena_bound` is the
    smallest arena that a static one can do with."""

    regions: Mapping[str, Region] = {}
    placement: Any = StoredPlacement()  # or what the compiler knows of it
    kernels: Mapping[str, str] = {}
    arena_bound: int | None = None
    writer: Writer | None = None
    image: memoryview | None = None
    options: Mapping[str, Any] = {}

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        supplied: SuppliedFunctions | None = None,
        at_once: bool = True,
        machine: str = "",
    ) -> None:
        """Without `at_once` the code is linked when it is first needed; `machine` is what the model
        was compiled for, in the user's words."""
        verify_program(program)
        self.program, self._threads, self._machine = program, threads, machine
        self._supplied = supplied or SuppliedFunctions()
        self._slots = {value.name: InputSlot(value) for value in program.inputs}
        if at_once:
            self._link()

    @cached_property
    def threads(self) -> int:
        """How many threads share the work."""
        return count_threads(self.program.threads, self._threads)

    @cached_property
    def executor(self) -> Executor | EvaluatedProgram:
        """The program, linked into this process; one for another machine is refused."""
        trim_heap()  # memory that the compiler has freed
        return self._link()

    @cached_property
    def dispatcher(self) -> Dispatcher | None:
        """The short way of a run, where there is one."""
        executor = self.executor
        return Dispatcher.of(executor) if isinstance(executor, Executor) else None

    def _link(self) -> Executor | EvaluatedProgram:
        reason = why_not_here(self.program.target)
        if reason:
            how = f"compiled with machine='{self._machine}'" if self._machine else "compiled"
            raise UserError(
                f"this model was {how}: it {reason}",
                hint="save it and run the file on such a machine",
            )
        executor: Executor | EvaluatedProgram
        if self.program.objects:
            context = RuntimeContext(self.program, self.threads)
            executor = Executor(self.program, context, self._supplied)
        else:
            executor = EvaluatedProgram(self.program, self._supplied)
        self.__dict__["executor"] = executor
        return executor

    @property
    def incidents(self) -> Incidents:
        """What failed on accelerators while the model ran, and was run on the host instead: the
        latest, and how many there were in all (`total`)."""
        return incidents_of(self.regions)

    def get_inputs(self) -> list[Argument]:
        """The inputs in order."""
        return [_argument(value.name, value) for value in self.program.inputs]

    def get_outputs(self) -> list[Argument]:
        """The outputs in order."""
        return [_argument(name, value) for name, value in self._outputs]

    @property
    def _outputs(self) -> Sequence[tuple[str, Value]]:
        return [*zip(self.program.output_names, self.program.outputs, strict=True)]

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        outputs: Mapping[str, Array] | None = None,
    ) -> list[Any]:
        """Run on named inputs; gives the named outputs, or all of them for None.

        Inputs are arrays, or whatever speaks the buffer protocol or DLPack. `outputs` may hold
        arrays to write results into; other results are fresh arrays.
        """
        names = self.program.output_names
        positions = None if output_names is None else chosen(output_names, names)
        results: list[Any] | None = None
        if not outputs and self.dispatcher is not None:
            results = dispatched(self.dispatcher, feeds)
        if results is None:
            inputs = self._accept(feeds)
            if outputs:
                self._check_outputs(outputs)
                results = self.executor(inputs, self._given(outputs, inputs))
                results = store_outputs(names, results, outputs)
            else:
                results = self.executor(inputs)
        return results if positions is None else [results[position] for position in positions]

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array] | None = None) -> Binding:
        """Bind the model to these very arrays, for loops that use the same ones again and again.

        Each call of what is returned runs the model on what the inputs hold by then and gives all
        results: in `outputs`, or in arrays of its own, the same ones every time. (Where sizes
        depend on data, or not all of the model is native, the latter are fresh arrays.) Wrong
        arrays are refused here, not by the calls. Calls from several threads wait for each other.
        """
        self._accept(feeds)
        if outputs:
            self._check_outputs(outputs)
        return bind(self.run, self.dispatcher, feeds, outputs)

    def profile(self, feeds: Mapping[str, Any]) -> Profile:
        """Run once and measure every instruction and kernel."""
        return self.executor.profile(self._accept(feeds))

    def variant(self, feeds: Mapping[str, Any]) -> str:
        """Which of the variants that `shapes=` asked for runs these feeds, as "batch=8"; empty
        where it is the general program."""
        switch = switch_of(self.program)
        inputs = self._accept(feeds)
        if switch is None:
            return ""
        by_key: dict[str, int] = {}
        for value, data in zip(self.program.inputs, inputs, strict=True):
            for dim, extent in zip(value.shape or (), np.shape(data), strict=False):
                by_key.setdefault(bare_symbol(dim) or "", extent)
        key = tuple(by_key[name] for name in switch.symbols)
        is_listed = any(key == sizes for sizes, _ in switch.cases)
        return variant_name(switch.symbols, key) if is_listed else ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model to a `.graft` file, which `graft.load` reads.

        Where nodes run on the reference evaluator, a warning says what loading the file needs."""
        operators = self._write(Path(path))
        if operators:
            count = sum(1 for _ in self.program.evaluated)
            nodes = len(self.placement.reasons) or count
            message = (
                f"of '{path}', {nodes} {'nodes run' if nodes != 1 else 'node runs'} on the"
                f" reference evaluator: loading it needs this version of Graft, with the"
                f" operators {', '.join(operators)}"
            )
            warn_user(printable(message), ReferenceWarning)

    def _write(self, path: Path) -> Sequence[str]:
        if self.image is not None:
            write_image(path, self.image)
            return ()
        if self.writer is None:
            raise TypeError("this session was made of a program alone, which cannot be saved")
        return self.writer(path)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """By the file that `save` writes: what comes back is what `graft.load` gives of it."""
        if self.image is not None:
            return restore, (bytes(self.image), dict(self.options))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "module.graft"
            self._write(path)
            return restore, (path.read_bytes(), {})

    def _accept(self, feeds: Mapping[str, Any]) -> list[Any]:
        slots = self._slots
        require_feeds(feeds)
        if feeds.keys() != slots.keys():
            refuse_names(feeds, list(slots))
        return [slot.accept(feeds[name]) for name, slot in slots.items()]

    def _check_outputs(self, outputs: Mapping[str, Array]) -> None:
        chosen(outputs, self.program.output_names)
        check_writable(outputs)
        for name, value in self._outputs:
            if name in outputs:
                if value.dtype is None:
                    raise UserError(f"the output '{name}' is a {value.type}, not an array")
                check_type("output", name, value.dtype, value, outputs[name])

    def _given(self, outputs: Mapping[str, Array], inputs: Sequence[Any]) -> dict[int, Array]:
        """The arrays that kernels can write results into where they lie, by number."""
        by_key: dict[int, Array] = {}
        arrays = [data for data in inputs if isinstance(data, np.ndarray)]
        for number, (name, value) in zip(self.program.body.outputs, self._outputs, strict=True):
            array = outputs.get(name)
            if array is None or number in by_key or not is_usable(array, value.alignment):
                continue
            if not any(np.may_share_memory(array, data) for data in arrays):
                by_key[number] = array
        return by_key


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    checksum: bool | None = None,
    verify: str | None = None,
    deadline: float | None = None,
) -> Session:
    """Load a compiled model from a `.graft` file.

    `threads` is how many threads run it, by default as many as it was compiled for, at most one per
    core; `checksum` says whether large constants are compared with their checksum here (True),
    never (False), or when they are used first. Regions of other backends are loaded by their own
    run times; where one is missing, the host stands in, with a warning, unless the model was
    compiled with `fallback="error"`. `verify` and `deadline` are as for `compile`, by default as
    the model was compiled with; what goes wrong is in `incidents`.

    A loaded model can be pickled: its file goes along, and so do these options.
    """
    return _session(load_artifact(path, checksum), threads, checksum, verify, deadline)


def restore(image: bytes, options: Mapping[str, Any]) -> Session:
    """A model out of a pickle, which holds the bytes of its file."""
    return _session(load_image(image, options.get("checksum")), **options)


def _session(
    artifact: Artifact,
    threads: int | None = None,
    checksum: bool | None = None,
    verify: str | None = None,
    deadline: float | None = None,
) -> Session:
    regions: Mapping[str, Region] = {}
    if artifact.blobs.keys() - {BLOB}:
        # lazy: most files have no regions, and worker processes take long to import
        from graft.runtime.grafted import load_regions

        regions = load_regions(artifact.blobs, threads, artifact_runner, verify, deadline)
    session = session_of(artifact, threads, regions)
    session.placement = StoredPlacement.from_blobs(artifact.blobs)
    session.image = artifact.image
    session.options = {
        "threads": threads,
        "checksum": checksum,
        "verify": verify,
        "deadline": deadline,
    }
    session.regions = regions
    if artifact.unverified is not None:
        _verify_before_use(session, artifact.unverified)
    return session


def session_of(
    artifact: Artifact,
    threads: int | None = None,
    functions: Mapping[str, Runner] | None = None,
) -> Session:
    """What runs an artifact's program; `functions` are those of the regions that it calls."""
    evaluators: dict[str, Evaluator] = {}
    if artifact.operators:
        runtime = evaluator_runtime(artifact.operators, artifact.origin.graft)
        for step in artifact.program.evaluated:
            try:
                evaluators[step.function] = runtime(step.graph)
            except (UserError, ValueError) as error:
                raise contradictory(error) from error
    return Session(artifact.program, threads, SuppliedFunctions(functions or {}, evaluators))


def _verify_before_use(session: Session, verify: Callable[[], None]) -> None:
    """Let whatever runs the session first compare its constants; nothing runs on damaged ones.

    The methods are replaced in the instance only until then: runs of small models take about as
    long as asking whether something is still to be done.
    """
    lock = Lock()
    names = ("run", "bind", "profile")

    def checked(name: str, *arguments: Any, **options: Any) -> Any:
        with lock:
            if name in vars(session):
                verify()
                for one in names:
                    delattr(session, one)
        return getattr(session, name)(*arguments, **options)

    for name in names:
        setattr(session, name, partial(checked, name))


def artifact_runner(blob: bytes | memoryview, threads: int | None = None) -> Runner:
    """What runs a region whose code is the bytes of an artifact."""
    return session_runner(session_of(load_image(blob), threads))


def session_runner(session: Session) -> Runner:
    """A session as a runner: arrays in order instead of by name."""
    names = [one.name for one in session.get_inputs()]
    program = session.program
    is_static = all(value.dtype and value.is_static for value in program.outputs)

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array] | None:
        feeds = dict(zip(names, inputs, strict=True))
        if not is_static:
            return [np.asarray(result) for result in session.run(None, feeds)]
        session.run(None, feeds, dict(zip(program.output_names, outputs, strict=True)))
        return None

    return run


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


def _argument(name: str, value: Value) -> Argument:
    dtype = value.dtype
    words = value.type if dtype is None else f"tensor({ONNX_NAMES.get(dtype, dtype)})"
    return Argument(name, None if value.shape is None else [*map(extent_name, value.shape)], words)


def extent_name(dim: AnyDim) -> int | str:
    """An extent as users see it: a number, the name that the model has for it, or a formula."""
    return dim if isinstance(dim, int) else bare_symbol(dim) or str(dim)
