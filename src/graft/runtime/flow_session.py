"""What users hold of a flow: named arrays in, arrays out, as a `Session` does for a program.

Shapes are checked as far as they are known before anything runs; symbols get their numbers from
the inputs, and the rest is found out on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graft.base.dims import Dim
from graft.base.dtypes import Array, dtype_of
from graft.base.errors import UserError
from graft.runtime.dispatch import Binding, bind, check_home
from graft.runtime.engine import Engine
from graft.runtime.flow import Kind
from graft.runtime.flow_checks import Data
from graft.runtime.flow_executor import FlowExecutor, Supplied
from graft.runtime.flow_profile import FlowProfile
from graft.runtime.flow_program import FlowProgram
from graft.runtime.placement import Placed
from graft.runtime.session import (
    Argument,
    argument,
    as_array,
    check_homes,
    chosen,
    count_threads,
    refuse_names,
)

STRINGS = "tensor(string)"


class FlowSession(Placed):
    """A compiled flow, ready to run; safe to call from several threads.

    `threads` and `engine` are as for `Session`; `supplied` are the Python functions that the flow
    names."""

    def __init__(
        self,
        program: FlowProgram,
        threads: int | None = None,
        supplied: Supplied | None = None,
        engine: Engine | None = None,
    ) -> None:
        program.validate()
        self.threads = engine.team.threads if engine else count_threads(program.threads, threads)
        self.program = program
        programs = program.programs
        if engine is None and programs:
            engine = Engine(programs, self.threads)
        self.executor = FlowExecutor(program.flow, engine, supplied or Supplied({}))
        self.dispatcher = self.executor.dispatcher(program.output_names)

    def get_inputs(self) -> list[Argument]:
        """The inputs in order."""
        return [_argument(kind.name, kind) for kind in self.program.inputs]

    def get_outputs(self) -> list[Argument]:
        """The outputs in order."""
        pairs = zip(self.program.output_names, self.program.outputs, strict=True)
        return [_argument(name, kind) for name, kind in pairs]

    def run(
        self,
        names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        outputs: Mapping[str, Array] | None = None,
    ) -> list[Data]:
        """Run on named inputs; gives the named outputs, or all of them for None.

        `outputs` may hold arrays to write results into; other results are fresh arrays.
        """
        wanted = None if names is None else chosen(names, self.program.output_names)
        results: list[Data] | None = None
        if not outputs and self.dispatcher is not None:
            results = self.dispatcher.run(feeds)
        if results is None:
            self._check_homes(outputs or {})
            results = self.executor(self._fed(feeds))
            results = deliver_home(self.program.output_names, results, outputs or {})
        return results if wanted is None else [results[position] for position in wanted]

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array] | None = None) -> Binding:
        """As `Session.bind`. Where sizes depend on data, or not all of the model is native, other
        results than those in `outputs` are fresh arrays in every call."""
        self._check_homes(outputs or {})
        self._fed(feeds)
        return bind(self.run, self.dispatcher, feeds, outputs)

    def profile(self, feeds: Mapping[str, Any]) -> FlowProfile:
        """Run once and measure every step."""
        return self.executor.profile(self._fed(feeds))

    def _check_homes(self, homes: Mapping[str, Array]) -> None:
        chosen(homes, self.program.output_names)
        check_homes(homes)

    def _fed(self, feeds: Mapping[str, Any]) -> list[Data]:
        inputs = self.program.inputs
        refuse_names(feeds, [kind.name for kind in inputs])
        return [_accepted(kind, feeds[kind.name]) for kind in inputs]


def deliver_home(
    names: Sequence[str], results: Sequence[Data], homes: Mapping[str, Array]
) -> list[Data]:
    """The results, those that have a home (by name) written into it."""
    given = [homes.get(name) for name in names]
    # A result that lies where another one goes has to be saved before anything is written.
    kept = [
        result if result is home else _apart(result, homes.values())
        for result, home in zip(results, given, strict=True)
    ]
    for position, home in enumerate(given):
        if home is not None and kept[position] is not home:
            _store(names[position], kept[position], home)
            kept[position] = home
    return kept


def _apart(result: Data, homes: Iterable[Array]) -> Data:
    """The result, copied if it shares memory with one of the arrays."""
    if isinstance(result, np.ndarray) and any(np.may_share_memory(result, one) for one in homes):
        return result.copy()
    return result


def _store(name: str, result: Data, home: Array) -> None:
    array = np.asarray(result)
    check_home(name, array.shape, array.dtype, home)
    home[...] = array


def _accepted(kind: Kind, data: Any) -> Data:
    """The data for an input, refused where they are not what the flow takes."""
    if kind.dtype is None:
        return _strings(kind.name, data) if kind.type == STRINGS else data
    array = as_array(kind.name, data)
    extents = kind.shape if kind.shape is not None else array.shape
    same = len(extents) == array.ndim and all(map(_may_be, extents, array.shape))
    if array.dtype == kind.dtype.numpy and same:
        return array
    hint = "" if array.dtype == kind.dtype.numpy else f"convert it with .astype('{kind.dtype}')"
    actual = f"{dtype_of(array.dtype)}[{', '.join(map(str, array.shape))}]"
    raise UserError(f"the input '{kind.name}' wants {_type(kind)}, not {actual}", hint=hint)


def _strings(name: str, data: Any) -> Array:
    array = as_array(name, data)
    return array.astype(object) if array.dtype.kind in "UST" else array


def _may_be(dim: Dim, extent: int) -> bool:
    return not isinstance(dim, int) or dim == extent


def _type(kind: Kind) -> str:
    return f"{kind.dtype}[{'*' if kind.shape is None else ', '.join(map(str, kind.shape))}]"


def _argument(name: str, kind: Kind) -> Argument:
    return argument(name, kind.dtype, kind.shape, kind.type)
