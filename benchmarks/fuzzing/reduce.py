"""Makes a failing case small: a case and a test in, a smaller case that still fails out.

Nodes and extents go as `graft check --reduce` drops them (`cli/check/reduce.py`). That takes one
set of inputs, so a case that fails at one of its sizes alone is cut down to that. One that needs
several sizes loses outputs only. What ONNX Runtime does not take is not smaller but another model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import onnx
from onnx import helper

from benchmarks.fuzzing.generate import Case, needed, operators
from benchmarks.fuzzing.peer import Peer, PeerError, tensor_type
from graft.cli.check import reduce

Fails = Callable[[Case], bool]

BUDGET = 20.0  # seconds


def reduced(case: Case, fails: Fails, budget: float = BUDGET) -> Case:
    """The smallest case found in the time that still fails."""
    deadline = time.monotonic() + budget
    if len(case.feeds) > 1:
        sizes = (replace(case, feeds=(feeds,)) for feeds in case.feeds)
        case = next(filter(fails, sizes), case)
    if len(case.feeds) > 1:
        return next(filter(fails, _single_outputs(case)), case)

    def still_fails(smaller: reduce.Case) -> bool:
        if time.monotonic() > deadline:
            return False
        made = _typed(case, smaller)
        return made is not None and fails(made)

    whole = reduce.Case(case.model, case.feeds[0])
    return _typed(case, reduce.reduce_case(whole, {}, reduce.Trials(still_fails))) or case


def _single_outputs(case: Case) -> list[Case]:
    cases = []
    for output in case.model.graph.output if len(case.model.graph.output) > 1 else ():
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        nodes = needed(list(model.graph.node), {output.name})
        del model.graph.node[:], model.graph.output[:]
        model.graph.node.extend(nodes)
        model.graph.output.append(output)
        cases.append(replace(case, model=model, operators=operators(nodes)))
    return cases


def _typed(case: Case, smaller: reduce.Case) -> Case | None:
    """A case of a smaller model, whose outputs have the types that the peer gives them; None where
    it does not run, or how far a result may be off is not known."""
    model = onnx.ModelProto()
    model.CopyFrom(smaller.model)
    names = [output.name for output in model.graph.output]
    if not set(names) <= case.tolerances.keys():
        return None
    try:
        results = Peer(model, optimized=False).run(dict(smaller.feeds))
    except PeerError:
        return None
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, tensor_type(array), [None] * array.ndim)
        for name, array in zip(names, results, strict=True)
    )
    counts = operators(list(model.graph.node))
    return replace(case, model=model, feeds=(smaller.feeds,), operators=counts)
