"""Runs a case everywhere and says what came of it: agreement, or whose results differ.

The peer runs with its optimisations off and on. Where the two differ by more than the tolerance,
or one of them fails, the model is set aside: there is nothing to compare with. Graft runs it on the
host; nodes that it leaves to the reference evaluator are noted. Where it differs, the evaluator
runs the whole model and has a vote.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

import graft
from benchmarks.fuzzing.generate import Case
from benchmarks.fuzzing.peer import Peer, PeerError
from graft.base.compare import Bound, Difference, compare_arrays
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.target.target import HOST

IN_TURN = 8  # of so many models one is run by two threads

Outputs = list[list[Array]]  # at each size
Stage = Callable[[str], None]

SAME = "same"
EVALUATED = "same, in part by the evaluator"
INVALID = "set aside: ONNX's own checker refuses it"
PEER_FAILS = "set aside: ONNX Runtime fails"
PEER_DIFFERS = "set aside: ONNX Runtime differs from itself"
REFUSED = "refused"
RAISED = "raised"
HOST_DIFFERS = "host differs from evaluator and ONNX Runtime"
GRAFT_DIFFERS = "host and evaluator differ from ONNX Runtime"
ALL_DIFFER = "host, evaluator and ONNX Runtime all differ"
AGREEING = (SAME, EVALUATED)
FINDINGS = (REFUSED, RAISED, HOST_DIFFERS, GRAFT_DIFFERS, ALL_DIFFER)


@dataclass(frozen=True)
class Verdict:
    """What came of a case, and the particulars."""

    kind: str
    detail: str = ""


def judge(case: Case, stage: Stage = lambda name: None, machine: str = HOST) -> Verdict:
    """Run a case everywhere. `stage` is told who runs, lest a process that dies says nothing.

    `machine` names the one that Graft's code is for, which has to run here."""
    stage("checker")
    try:
        onnx.checker.check_model(case.model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return Verdict(INVALID, str(error))
    stage("peer")
    try:
        plain, optimized = (_peer(case, level) for level in (False, True))
    except PeerError as error:
        return Verdict(PEER_FAILS, str(error))
    if apart := difference(case, plain, optimized):
        return Verdict(PEER_DIFFERS, apart)
    stage("graft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _graft(case, plain, machine)


def _peer(case: Case, optimized: bool) -> Outputs:
    session = Peer(case.model, optimized)
    return [session.run(feeds) for feeds in case.feeds]


def _graft(case: Case, expected: Outputs, machine: str) -> Verdict:
    threads = 2 if case.seed % IN_TURN == 0 else 1
    try:
        module = graft.compile(case.model, threads=threads, machine=machine)
        found = [module.run(None, feeds) for feeds in case.feeds]
    except UserError as error:
        return Verdict(REFUSED, f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        return Verdict(RAISED, f"{type(error).__name__}: {error}")
    apart = difference(case, expected, found)
    if apart:
        return _vote(case, expected, found, apart)
    evaluated = module.placement.reasons
    return Verdict(EVALUATED, str(dict(evaluated))) if evaluated else Verdict(SAME)


def _vote(case: Case, expected: Outputs, found: Outputs, apart: str) -> Verdict:
    try:
        evaluator = graft.compile(case.model, target="reference")
        third = [evaluator.run(None, feeds) for feeds in case.feeds]
    except Exception as error:  # noqa: BLE001  (likewise)
        return Verdict(HOST_DIFFERS, f"{apart}; the evaluator raised {error}")
    if not difference(case, expected, third):
        return Verdict(HOST_DIFFERS, apart)
    if not difference(case, third, found):
        return Verdict(GRAFT_DIFFERS, apart)
    return Verdict(ALL_DIFFER, apart)


def difference(case: Case, expected: Outputs, found: Outputs) -> str:
    """The first output that is off, in words; nothing if none is."""
    names = [output.name for output in case.model.graph.output]
    for size, (one, other) in enumerate(zip(expected, found, strict=True)):
        words = _first(names, one, other, case.tolerances)
        if words:
            return f"{words}, at size {size}"
    return ""


def _first(
    names: Sequence[str],
    expected: Sequence[Array],
    found: Sequence[Array],
    tolerances: Mapping[str, float],
) -> str:
    for name, one, other in zip(names, expected, found, strict=True):
        bound = Bound(absolute=tolerances[name])
        apart = compare_arrays(np.asarray(other), np.asarray(one), bound)
        if not apart.agrees:
            return f"{name}: {apart.problem or _counted(apart, bound.absolute)}"
    return ""


def _counted(apart: Difference, tolerance: float) -> str:
    wrong = f"{apart.mismatches} of {apart.size} differ"
    return f"{wrong}, by {apart.max_absolute:.3g}, allowed {tolerance:.3g}"
