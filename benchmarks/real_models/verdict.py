"""What is said of a model: calls of ONNX Runtime and of Graft in, a verdict and an error out.

A model is the same if all outputs agree with ONNX Runtime's as `real_models_compare` has it, and if
they only do with the allowance for probabilities, the verdict says so. If they do not, Graft's
reference evaluator is asked, too:

- With narrow integers, its word counts, because ONNX Runtime's products of bytes may saturate. If
  one element in a million is rounded up instead of down, the next layers make many of it; such a
  model is called close if it still finds the same largest element.
- What agrees with ONNX Runtime without its optimiser is the same: some of its fusions change what
  a model means.
- What is off by no more than a few times as much as ONNX Runtime's own results when each input is
  off by one rounding is close: so much comes of adding in another order.
- What is at least as near as ONNX Runtime to the results in float64, by the mean square, is close:
  the sums of both are rounded, and ours no worse.
- Of models that draw random numbers, only the shapes are compared.
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
import onnxruntime

import graft
from benchmarks.real_models.compare import SLACK, Agreement, agreement
from benchmarks.real_models.exact import distance, exact
from benchmarks.real_models.makeup import Makeup, makeups

_NARROW = ("Integer", "QLinear", "Quantize")  # in the names of operators on narrow integers
_RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform")  # and "...Like"
_NUDGES = 4.0  # how many times what one rounding of the inputs changes a result may be off by
_ROUNDING = (
    0.06  # how far, of the largest, an integer rounded otherwise may carry in a deep network
)
_FARTHEST = 1e-3  # of the largest: what is further from float64 is no matter of rounding

AS_IT_IS = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
_OPTIMIZED = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


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
    is_random: bool
    narrowest: str  # float

    @staticmethod
    def of(path: Path, model: onnx.ModelProto, names: Sequence[str]) -> Judge:
        is_narrow = any(word in node.op_type for node in model.graph.node for word in _NARROW)
        operators = [node.op_type for node in model.graph.node]
        is_random = any(name.removesuffix("Like") in _RANDOM for name in operators)
        narrowest = "float16" if _has_float16(model) else "float64"
        return Judge(path, names, makeups(model), is_narrow, is_random, narrowest)

    def verdict(self, theirs: Call, ours: Call) -> tuple[str, float]:
        """In words, and the largest error."""
        found = self._compared(theirs.outputs, ours.outputs)
        error = found.error if np.isfinite(found.error) else 1.0
        if not found.difference:
            return "same", error
        if self.is_random and _same_shapes(theirs.outputs, ours.outputs):
            return "same, but for random numbers", 0.0
        if self._agree(theirs.outputs, ours.outputs):
            return f"same, as probabilities within {SLACK:g}: {found.difference}", error
        if self._agree(by_peer(self.path, theirs.given, AS_IT_IS), ours.outputs):
            return f"same as ONNX Runtime without its optimiser: {found.difference}", error
        nudged = by_peer(self.path, _nudged(theirs.given), _OPTIMIZED)
        moved = self._compared(theirs.outputs, nudged).error
        if 0 < error <= _NUDGES * moved < np.inf:
            return f"close, as far as rounded inputs allow ({moved:.1e}): {found.difference}", error
        nearer = self._nearer(theirs, ours)
        if nearer:
            return f"close, {nearer}: {found.difference}", error
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
        return not self._compared(expected, actual, SLACK).difference

    def _compared(
        self, expected: Sequence[Any], actual: Sequence[Any], slack: float = 0.0
    ) -> Agreement:
        return agreement(self.names, expected, actual, self.makeups, slack, self.narrowest)

    def _nearer(self, theirs: Call, ours: Call) -> str:
        """How far both are from float64's results, in words, if Graft's are no further."""
        wide = exact(self.path, ours.given)
        if wide is None:
            return ""
        off, allowed = (distance(wide, side.outputs) for side in (ours, theirs))
        if not off <= allowed <= _FARTHEST:
            return ""
        return f"and nearer to float64 ({off:.1e}) than ONNX Runtime ({allowed:.1e})"


def by_peer(path: Path, given: Mapping[str, Any], level: Any) -> Sequence[Any]:
    """What ONNX Runtime gives at a level of optimisation; nothing if it then does not run."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.enable_cpu_mem_arena = False
    providers = ["CPUExecutionProvider"]
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        results: Sequence[Any] = session.run(None, dict(given))
    except Exception:  # noqa: BLE001  (whatever it is, there is nothing to compare with)
        return []
    return results


def _nudged(given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of floats up or down by the last digit that they have."""
    random = np.random.default_rng(0)

    def nudge(data: Any) -> Any:
        if not isinstance(data, np.ndarray) or data.dtype.kind != "f":
            return data
        step = np.finfo(data.dtype).eps * random.choice((-1, 1), data.shape)
        return (data * (1 + step)).astype(data.dtype)

    return {name: nudge(data) for name, data in given.items()}


def _has_float16(model: onnx.ModelProto) -> bool:
    """Whether anything that the model says a type of is of half precision."""
    half = onnx.TensorProto.FLOAT16
    graph = model.graph
    declared = (*graph.input, *graph.output, *graph.value_info)
    return (
        any(value.type.tensor_type.elem_type == half for value in declared)
        or any(tensor.data_type == half for tensor in graph.initializer)
        or any(a.i == half for n in graph.node if n.op_type == "Cast" for a in n.attribute)
    )


def _same_shapes(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    return [np.shape(one) for one in expected] == [np.shape(one) for one in actual]


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
