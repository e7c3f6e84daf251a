"""Tries damaged files: a seed in; whether Graft refused the file, ran it rightly, or did worse out.

A damaged model is refused with an error of Graft's own, or it runs and its numbers are those of
ONNX Runtime or, where that does not take it, of the reference evaluator. A damaged artifact is
refused, or it gives what the sound one gives. An artifact whose program was changed and whose
checksums are right is refused, or it runs to its end, whatever it gives. Anything else is a
finding: another exception, wrong numbers, a process that dies, takes too long or asks for more
memory than it may have.
"""

from __future__ import annotations

import resource
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

import graft
from benchmarks.fuzzing.generate import Case, generate
from benchmarks.fuzzing.judge import (
    ALL_DIFFER,
    GRAFT_DIFFERS,
    HOST_DIFFERS,
    RAISED,
    SAME,
    Stage,
    Verdict,
)
from benchmarks.fuzzing.mutations import damaged_bytes, damaged_model
from benchmarks.fuzzing.peer import Peer, PeerError
from benchmarks.fuzzing.programs import changed_program
from benchmarks.real_models.compare import agreement
from benchmarks.real_models.inputs import feeds
from graft.base.errors import UserError
from graft.byoc.kit.draw import Draw

DECLINED = "refused, with a reason"
DECLINED_INPUTS = "refused when run, with a reason"
UNFED = "compiled, but no inputs are drawn for it"
BY_EVALUATOR = "same as the evaluator; ONNX Runtime refuses it"
UNSPECIFIED = "ran; random numbers and the order of an unsorted TopK are not compared"
RAN = "ran to its end"
MODELS, ARTIFACTS, PROGRAMS = "models", "artifacts", "programs"

_BYTES = 4 << 30  # of address space beyond what is mapped when work begins
_PER_BASE = 10  # damaged files made of one model; of one artifact, as many as a worker makes
_PER_ARTIFACT = 100
_MOST_ELEMENTS = 1 << 22  # of an input
_RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform")


def limit_memory() -> None:
    """Let nothing in this process have much more memory than it has now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + _BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def tried_mutant(kind: str, seed: int, corpus: Path | None, stage: Stage) -> Verdict:
    """What came of the damaged model or artifact of a seed."""
    stage("draw")
    data = mutant(kind, seed, corpus)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in (ARTIFACTS, PROGRAMS):
            return _artifact(kind, data, seed, stage)
        return _model(data, _case(seed // _PER_BASE).feeds[0] if corpus is None else {}, stage)


def mutant(kind: str, seed: int, corpus: Path | None) -> bytes:
    """The damaged file of a seed."""
    draw = Draw(f"mutate {kind} {seed}")
    if kind == ARTIFACTS:
        return damaged_bytes(_sound(seed // _PER_ARTIFACT)[1].read_bytes(), draw)
    if kind == PROGRAMS:
        sound = _sound(seed // _PER_ARTIFACT)[1]
        return changed_program(sound, sound.with_name("changed.graft"), draw)
    if corpus is None:
        base = _case(seed // _PER_BASE).model.SerializeToString()
    else:
        files = _files(corpus)
        base = files[seed % len(files)].read_bytes()
    if draw.chance(0.4):
        return damaged_bytes(base, draw)
    return damaged_model(onnx.load_from_string(base), draw).SerializeToString()


def _model(data: bytes, given: Mapping[str, Any], stage: Stage) -> Verdict:
    stage("graft")
    try:
        module = graft.compile(data, threads=1)
    except UserError as error:
        return Verdict(DECLINED, f"{type(error).__name__}: {error.message}")
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        return Verdict(RAISED, f"{type(error).__name__}: {error}")
    inputs = _inputs(data, module.get_inputs(), given)
    if inputs is None:
        return Verdict(UNFED)
    try:
        outputs = module.run(None, inputs)
    except UserError as error:
        return Verdict(DECLINED_INPUTS, f"{type(error).__name__}: {error.message}")
    except Exception as error:  # noqa: BLE001  (likewise)
        return Verdict(RAISED, f"{type(error).__name__}: {error}")
    names = [output.name for output in module.get_outputs()]
    return _compared(data, names, inputs, outputs, stage)


@cache
def _files(corpus: Path) -> list[Path]:
    return sorted(corpus.rglob("*.onnx"))


@lru_cache(maxsize=1)
def _case(seed: int) -> Case:
    """The generated model of a seed, or of the next one that there is a model of."""
    while (case := generate(seed)) is None:
        seed += 1
    return case


def _inputs(
    data: bytes, arguments: Sequence[Any], given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The inputs of the sound model where they are still asked for, and drawn ones elsewhere."""
    if any(argument.shape is None for argument in arguments):
        return None
    extents = [[n if isinstance(n, int) else 64 for n in argument.shape] for argument in arguments]
    if any(np.prod(shape, dtype=float) > _MOST_ELEMENTS for shape in extents):
        return None
    try:
        model = onnx.load_from_string(data)
        inputs = feeds(model, arguments, 0)
    except (DecodeError, ValueError, IndexError):
        return None
    for name, array in inputs.items():
        known = given.get(name)
        if known is not None and (known.dtype, known.shape) == (array.dtype, array.shape):
            inputs[name] = known
    return inputs


def _compared(
    data: bytes,
    names: Sequence[str],
    inputs: Mapping[str, Any],
    outputs: Sequence[Any],
    stage: Stage,
) -> Verdict:
    """Ask ONNX Runtime at both of its levels; the reference evaluator has a vote."""
    model = onnx.load_from_string(data)
    if any(_is_unspecified(node) for node in model.graph.node):
        return Verdict(UNSPECIFIED)
    stage("peer")
    difference = ""
    expected: Sequence[Any] | None = None
    for optimized in (False, True):
        try:
            expected = Peer(model, optimized).run(inputs)
        except PeerError:
            continue
        difference = agreement(names, expected, outputs).difference
        if not difference:
            return Verdict(SAME)
    stage("graft")
    try:
        third = graft.compile(data, target="reference").run(None, dict(inputs))
    except Exception as error:  # noqa: BLE001  (the host ran it, so this one should, too)
        return Verdict(HOST_DIFFERS, f"{difference}; the evaluator raised {error}")
    from_third = agreement(names, third, outputs).difference
    if expected is None:
        return Verdict(HOST_DIFFERS, from_third) if from_third else Verdict(BY_EVALUATOR)
    if not from_third:
        return Verdict(GRAFT_DIFFERS, difference)
    is_theirs = not agreement(names, expected, third).difference
    return Verdict(HOST_DIFFERS if is_theirs else ALL_DIFFER, difference)


def _is_unspecified(node: onnx.NodeProto) -> bool:
    """Whether ONNX leaves a node's results open: random numbers, the order of an unsorted TopK."""
    if node.op_type == "TopK":
        return any(a.name == "sorted" and not a.i for a in node.attribute)
    return node.op_type.removesuffix("Like") in _RANDOM


@lru_cache(maxsize=1)
def _sound(seed: int) -> tuple[Case, Path, Sequence[Any]]:
    """A generated model, the artifact it is compiled to, and what that gives."""
    case = _case(seed)
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    path = folder / "sound.graft"
    target = ("simnpu", "host") if seed % 4 == 0 else ("host",)
    module = graft.compile(case.model, target=target, threads=1)
    module.save(path)
    return case, path, module.run(None, dict(case.feeds[0]))


def _artifact(kind: str, data: bytes, seed: int, stage: Stage) -> Verdict:
    case, sound, expected = _sound(seed // _PER_ARTIFACT)
    path = sound.with_name("damaged.graft")
    path.write_bytes(data)
    stage("graft")
    try:
        outputs = graft.load(path, threads=1).run(None, dict(case.feeds[0]))
    except UserError as error:
        return Verdict(DECLINED, f"{type(error).__name__}: {error.message}")
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        return Verdict(RAISED, f"{type(error).__name__}: {error}")
    if kind == PROGRAMS:
        return Verdict(RAN)
    names = [output.name for output in case.model.graph.output]
    difference = agreement(names, expected, outputs).difference
    return Verdict(HOST_DIFFERS, difference) if difference else Verdict(SAME)
