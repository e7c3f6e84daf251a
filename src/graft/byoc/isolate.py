"""Backends in separate processes: a backend in, one that cannot affect this process out.

Code generators, cost models and libraries of the backend run in a worker; patterns and predicates,
which are Python functions on graphs, run here.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

import graft.ops  # noqa: F401  which graphs from elsewhere name
from graft.base.dtypes import DType, dtype_of
from graft.base.errors import UserError
from graft.byoc.contract import Backend, Cost, Match, PatternTable, Source, declared, variant_of
from graft.byoc.executable import Settings
from graft.byoc.measure import DEADLINE
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.rewrite.rule import Refusal
from graft.runtime.isolation import IsolatedRunner, check_isolation
from graft.runtime.worker import Message, Task, Worker, keep_runner

Isolation = str | Mapping[str, str] | None  # for all backends, or by name; None: as they say


def isolated(backend: Backend, asked: Isolation, deadline: float) -> Backend:
    """The backend, in a process of its own if it or the user requires that."""
    wish = asked.get(backend.name) if isinstance(asked, Mapping) else asked
    isolation = check_isolation(wish or backend.isolation)
    return IsolatedBackend(backend, deadline) if isolation == "process" else backend


class IsolatedBackend(Backend):
    """A backend whose calls that may crash are made in a worker, within `deadline` seconds."""

    isolation = "process"
    keeps_deadlines = True

    def __init__(self, backend: Backend, deadline: float = DEADLINE) -> None:
        self.inner, self._deadline = backend, deadline
        self.name, self.version, self.device = backend.name, backend.version, backend.device
        self.limits, self.simulated = backend.limits, backend.simulated
        self.arguments = backend.arguments
        self.priced_by, self.prices_regions = backend.priced_by, backend.prices_regions
        self._reference = reference_of(backend)
        self.worker = Worker()

    @property
    def options(self) -> Mapping[str, str]:
        return self.inner.options

    def configured(self, settings: Settings) -> IsolatedBackend:
        return IsolatedBackend(self.inner.configured(settings), self._deadline)

    def missing(self) -> str:
        return self.inner.missing()

    def patterns(self) -> PatternTable:
        return self.inner.patterns()

    def check_patterns(self, names: Sequence[str]) -> None:
        self.inner.check_patterns(names)

    def supports(self, match: Match) -> Refusal | None:
        return self.inner.supports(match)

    def price(self, region: Graph) -> Cost | None:
        if type(self.inner).price is Backend.price:
            return None
        facts = self._ask(_price, pack_graph(region)).facts
        return None if facts is None else Cost(facts[0], Source(facts[1]), facts[2])

    def workspace(self, region: Graph) -> int:
        if type(self.inner).workspace is Backend.workspace:
            return 0
        return int(self._ask(_workspace, pack_graph(region)).facts)

    def compile(self, region: Graph) -> bytes:
        """Compile in the worker, the backend's own passes included."""
        return self._ask(_compile, pack_graph(region)).blobs[0]

    def load(self, blob: bytes, threads: int | None = None) -> IsolatedRunner:
        facts = [self._reference, threads]
        runner = IsolatedRunner(self.worker, _load, facts, blob, self._deadline)
        runner.prepare()
        return runner

    def _ask(self, task: Task, region: Message) -> Message:
        facts = [self._reference, region.facts]
        return self.worker.call(task, facts, *region.blobs, deadline=self._deadline)


def reference_of(backend: Backend) -> list[str]:
    """How another process makes an equal backend: from its module and class, the name of the
    variant (empty where it is none), and the arguments as JSON."""
    kind, variant = type(backend), backend.name.partition(":")[2]
    arguments = json.dumps(dict(backend.arguments), sort_keys=True)
    reference = [kind.__module__, kind.__qualname__, variant, arguments]
    try:
        if kind.__module__ == "__main__":
            raise TypeError("it is defined in a script")
        copy = _instantiate(*reference)
        if type(copy) is not kind:
            raise TypeError("its class is another one there")
        if dict(copy.options) != dict(backend.options):
            raise TypeError(f"its options are {dict(copy.options)} there")
    except Exception as error:
        raise UserError(
            f"'{backend.name}' cannot be isolated: another process cannot make it: {error}",
            hint="define its class in a module; what it is made with has to be in `arguments`",
        ) from error
    return reference


def _instantiate(module: str, name: str, variant: str, arguments: str) -> Backend:
    kind: Any = attrgetter(name)(importlib.import_module(module))
    return variant_of(kind, variant, name) if variant else kind(**json.loads(arguments))


def pack_graph(region: Graph) -> Message:
    """A graph as a message."""
    text = to_text(region)
    arrays = {name: np.ascontiguousarray(array) for name, array in text.constants.items()}
    described = [[name, dtype_of(a.dtype).value, a.shape] for name, a in arrays.items()]
    return Message([text.text, described], [array.tobytes() for array in arrays.values()])


def unpack_graph(message: Message) -> Graph:
    """The graph of a message."""
    text, described = message.facts
    constants = {
        name: np.frombuffer(blob, DType(dtype).numpy).reshape(shape)
        for (name, dtype, shape), blob in zip(described, message.blobs, strict=True)
    }
    return from_text(text, constants)


# In the worker.


@cache
def backend_of(module: str, name: str, variant: str, arguments: str) -> Backend:
    """The backend, made once: it may cache what it has compiled."""
    return _instantiate(module, name, variant, arguments)


def _question(message: Message) -> tuple[Backend, Graph]:
    """The backend and the region of a message."""
    reference, facts = message.facts
    return backend_of(*reference), unpack_graph(Message(facts, message.blobs))


def _price(message: Message) -> Message:
    cost = declared(*_question(message))
    return Message(cost and [cost.seconds, cost.source.value, cost.spread])


def _workspace(message: Message) -> Message:
    backend, region = _question(message)
    return Message(backend.workspace(region))


def _compile(message: Message) -> Message:
    backend, region = _question(message)
    return Message(None, [backend.code(region)])


def _load(message: Message) -> Message:
    reference, threads = message.facts
    return keep_runner(backend_of(*reference).loaded(message.blobs[0], threads))
