"""What is said of a model: calls of ONNX Runtime and of Graft in, a verdict and an error out.

A model is the same if all outputs agree with ONNX Runtime's as `real_models_compare` has it, and if
they only do with the allowance for probabilities, the verdict says so. If they do not, Graft's
reference evaluator is asked, too:

- With narrow integers, its word counts, because ONNX Runtime's products of bytes may saturate. If
  one element in a million is rounded up instead of down, the next layers make many of it; such a
  model is called close if it still finds the same largest element.
- With floats, it only tells where to look. It runs the graph that Graft imported, so an operator
  that is misread is wrong in both: the model is said to differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import graft
from real_models_compare import SLACK, agreement
from real_models_makeup import Makeup, makeups

_NARROW = ("Integer", "QLinear", "Quantize")  # in the names of operators on narrow integers
_ROUNDING = (
    0.06  # how far, of the largest, an integer rounded otherwise may carry in a deep network
)


@dataclass(frozen=True)
class Call:
    """One call of a model: what it was given, what it gave, and how long it took."""

    given: Mapping[str, Any]
    outputs: Sequence[Any]
    seconds: float


@dataclass(frozen=True)
class Judge:
    """What has to be known of a model to compare calls of it."""

    path: Path
    names: Sequence[str]
    makeups: Mapping[str, Makeup]
    is_narrow: bool

    @staticmethod
    def of(path: Path, model: onnx.ModelProto, names: Sequence[str]) -> Judge:
        is_narrow = any(word in node.op_type for node in model.graph.node for word in _NARROW)
        return Judge(path, names, makeups(model), is_narrow)

    def verdict(self, theirs: Call, ours: Call) -> tuple[str, float]:
        """In words, and the largest error."""
        found = agreement(self.names, theirs.outputs, ours.outputs, self.makeups)
        error = found.error if np.isfinite(found.error) else 1.0
        if not found.difference:
            return "same", error
        if self._agree(theirs.outputs, ours.outputs):
            return f"same, as probabilities within {SLACK:g}: {found.difference}", error
        reference = graft.compile(str(self.path), target="reference").run(None, dict(ours.given))
        is_ours = self._agree(reference, ours.outputs)
        if self.is_narrow:
            if is_ours:
                return f"same as the reference; ONNX Runtime differs: {found.difference}", error
            if error <= _ROUNDING and all(map(_same_place, theirs.outputs, ours.outputs)):
                return f"close, but rounded otherwise: {found.difference}", error
        is_theirs = self._agree(theirs.outputs, reference)
        sides = {(True, False): "Graft", (False, True): "ONNX Runtime"}
        relation = sides.get((is_ours, is_theirs), "neither")
        return f"differs: {found.difference}; the reference evaluator is with {relation}", error

    def _agree(self, expected: Sequence[Any], actual: Sequence[Any]) -> bool:
        """With what probabilities are allowed."""
        return not agreement(self.names, expected, actual, self.makeups, SLACK).difference


def is_good(verdict: str) -> bool:
    return verdict.startswith(("same", "close"))


def gravest(verdicts: Iterable[str]) -> str:
    """Of a model's calls, the verdict with most to say: it stands for the model."""
    grades = ("same", "close")

    def gravity(verdict: str) -> tuple[int, bool]:
        word = next((n for n, grade in enumerate(grades) if verdict.startswith(grade)), len(grades))
        return word, verdict != grades[0]

    return max(verdicts, key=gravity)


def _same_place(expected: Any, actual: Any) -> bool:
    """Whether the largest element is the same one."""
    return int(np.argmax(expected)) == int(np.argmax(actual))
