"""What users hold of a model with variants: named arrays in, arrays out, by the program whose sizes
they have. Also what makes a session of any artifact.

All programs share one engine: their kernels are linked once, and one team of threads runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.artifact import Artifact
from graft.runtime.container import contradictory
from graft.runtime.dispatch import Binding, Call, Dispatcher
from graft.runtime.engine import Engine
from graft.runtime.evaluated import Evaluator, EvaluatorRuntime, evaluator_runtime
from graft.runtime.flow_checks import Data
from graft.runtime.flow_executor import Supplied
from graft.runtime.flow_profile import FlowProfile
from graft.runtime.flow_program import FlowProgram
from graft.runtime.flow_session import FlowSession
from graft.runtime.placement import Placed
from graft.runtime.program import PythonStep
from graft.runtime.session import (
    Argument,
    Profile,
    Session,
    as_array,
    count_threads,
    refuse_names,
)
from graft.runtime.spaces import Runner
from graft.runtime.specialized import (
    AnyProgram,
    Key,
    SpecializedProgram,
    evaluated_steps,
    output_names,
)

PlainSession = Session | FlowSession


class SpecializedSession(Placed):
    """A model with variants, ready to run; safe to call from several threads.

    `threads` is as for `Session`; `supplied` are the Python functions of each program, by the name
    of the variant; that of the general one is empty."""

    def __init__(
        self,
        program: SpecializedProgram,
        threads: int | None = None,
        supplied: Mapping[str, Supplied] | None = None,
    ) -> None:
        program.validate()
        self.program = program
        self.threads = count_threads(program.threads, threads)
        native = list(program.programs)
        engine = Engine(native, self.threads) if native else None
        nothing = Supplied({})

        def session(one: AnyProgram, name: str) -> PlainSession:
            return _session(one, self.threads, (supplied or {}).get(name, nothing), engine)

        self.general = session(program.general, "")
        self._variants = {
            key: session(one, program.name(key)) for key, one in program.variants.items()
        }
        self._choose = partial(_choose, program, self.general, self._variants)
        self.dispatcher = self._dispatcher()

    def get_inputs(self) -> list[Argument]:
        """The inputs in order."""
        return self.general.get_inputs()

    def get_outputs(self) -> list[Argument]:
        """The outputs in order."""
        return self.general.get_outputs()

    def variant(self, feeds: Mapping[str, Any]) -> str:
        """The variant that runs these feeds, as "batch=8"; empty for the general program."""
        return self.program.name(self.program.key(list(self._fed(feeds).values())))

    def run(
        self,
        names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        outputs: Mapping[str, Array] | None = None,
    ) -> Sequence[Data]:
        """Run on named inputs, as any session does."""
        if not outputs and names is None and self.dispatcher is not None:
            results = self.dispatcher.run(feeds)
            if results is not None:
                return results
        fed = self._fed(feeds)
        return self.chosen(list(fed.values())).run(names, fed, outputs)

    def profile(self, feeds: Mapping[str, Any]) -> Profile | FlowProfile:
        """Run once and measure every step."""
        fed = self._fed(feeds)
        return self.chosen(list(fed.values())).profile(fed)

    def bind(self, feeds: Mapping[str, Any], outputs: Mapping[str, Array] | None = None) -> Binding:
        """As any session does."""
        fed = self._fed(feeds)
        return self.chosen(list(fed.values())).bind(feeds, outputs)

    def _dispatcher(self) -> Dispatcher | None:
        """The short way, for sizes whose program has one."""
        sessions = [self.general, *self._variants.values()]
        own = [one.dispatcher.inputs for one in sessions if one.dispatcher is not None]
        if not own:
            return None
        inputs = [
            (name, dtype, max(alignment for *_, alignment in alike))
            for alike in zip(*own, strict=True)
            for name, dtype, _ in alike[:1]
        ]
        prepare = partial(_native_call, self._choose)
        return Dispatcher(inputs, output_names(self.program.general), prepare)

    def chosen(self, inputs: Sequence[Any]) -> PlainSession:
        """The session that runs these inputs, given in order."""
        return self._choose(inputs)

    def _fed(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The feeds in the order of the inputs, with shapes to look at."""
        kinds = self.program.general.inputs
        refuse_names(feeds, [kind.name for kind in kinds])
        return {
            name: feeds[name] if kind.dtype is None else as_array(name, feeds[name])
            for name, kind in ((kind.name, kind) for kind in kinds)
        }


AnySession = PlainSession | SpecializedSession


def _choose(
    program: SpecializedProgram,
    general: PlainSession,
    variants: Mapping[Key, PlainSession],
    inputs: Sequence[Any],
) -> PlainSession:
    return variants.get(program.key(inputs), general)


def _native_call(
    choose: Callable[[Sequence[Any]], PlainSession], inputs: Sequence[Array]
) -> Call | None:
    dispatcher = choose(inputs).dispatcher
    return None if dispatcher is None else dispatcher.find(inputs)


def _session(
    program: AnyProgram, threads: int | None, supplied: Supplied, engine: Engine | None
) -> PlainSession:
    if isinstance(program, FlowProgram):
        return FlowSession(program, threads, supplied, engine)
    return Session(program, threads, supplied.functions, engine)


def session_of(
    artifact: Artifact,
    threads: int | None = None,
    functions: Mapping[str, Mapping[str, Runner]] | None = None,
) -> AnySession:
    """What runs an artifact's program; `functions` are those that it names, by variant."""
    program, own = artifact.program, functions or {}
    evaluator: EvaluatorRuntime | None = None
    if artifact.operators:
        evaluator = evaluator_runtime(artifact.operators, artifact.origin.graft)
    if isinstance(program, SpecializedProgram):
        parts: dict[str, AnyProgram] = {"": program.general}
        parts |= {program.name(key): one for key, one in program.variants.items()}
        supplied = {
            name: _supplied(one, own.get(name, {}), evaluator) for name, one in parts.items()
        }
        return SpecializedSession(program, threads, supplied)
    return _session(program, threads, _supplied(program, own.get("", {}), evaluator), None)


def _supplied(
    program: AnyProgram, functions: Mapping[str, Runner], evaluator: EvaluatorRuntime | None
) -> Supplied:
    """What a program's steps name: regions, and functions of what the evaluator runs."""
    if evaluator is None:
        return Supplied(functions)
    evaluators: dict[str, Evaluator] = {}
    runners = {**functions}
    for step, graph in evaluated_steps(program):
        try:
            function = evaluator(graph)
        except (UserError, ValueError) as error:
            raise contradictory(error) from error
        if isinstance(step, PythonStep):
            runners[step.function] = partial(_evaluate, function)
        else:
            evaluators[step.function] = function
    return Supplied(runners, evaluators)


def _evaluate(
    function: Evaluator, inputs: Sequence[Array], _outputs: Sequence[Array]
) -> Sequence[Array]:
    """A step of a program, whose sizes are all known."""
    return function(inputs, {})
