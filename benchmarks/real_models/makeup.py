"""What the outputs of a model are made of: a model in, the scale of each output's parts out.

How far a number may be off depends on the numbers beside it, so what is merely laid side by side,
as boxes and scores are by detectors, has to be told apart; and what comes straight out of a sigmoid
or a softmax is a probability, whose scale is one however small all of them happen to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import onnx

_MOVING = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
_BOUNDED = ("Sigmoid", "Softmax")

Producers = Mapping[str, onnx.NodeProto]


@dataclass(frozen=True)
class Makeup:
    """Which parts of an output are probabilities, and where it is cut into parts along an axis."""

    bounded: tuple[bool, ...] = (False,)
    axis: int = 0
    cuts: tuple[int, ...] = ()

    def parts(self, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        return np.split(array, self.cuts, self.axis) if self.cuts else [array]


def makeups(model: onnx.ModelProto) -> dict[str, Makeup]:
    """The makeup of each output, by name."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except onnx.shape_inference.InferenceError:  # operators that ONNX has no schema of
        graph = model.graph
    dims: dict[str, Sequence[Any]] = {
        value.name: value.type.tensor_type.shape.dim for value in (*graph.value_info, *graph.input)
    }
    producers = {name: node for node in graph.node for name in node.output}
    return {output.name: _makeup(output.name, producers, dims) for output in graph.output}


def _makeup(name: str, producers: Producers, dims: Mapping[str, Sequence[Any]]) -> Makeup:
    """Of one output; it is left whole if the model does not say how far each part reaches."""
    node = producers.get(name)
    if node is None or node.op_type != "Concat":
        return Makeup((_is_bounded(name, producers),))
    axis = next(attribute.i for attribute in node.attribute if attribute.name == "axis")
    extents = [_extent(dims.get(part, ()), axis) for part in node.input]
    if 0 in extents:
        return Makeup()
    bounded = tuple(_is_bounded(part, producers) for part in node.input)
    return Makeup(bounded, axis, tuple(accumulate(extents[:-1])))


def _is_bounded(name: str, producers: Producers) -> bool:
    """Whether a value is a probability, seen through the nodes that only move it."""
    node = producers.get(name)
    while node is not None and node.op_type in _MOVING:
        node = producers.get(node.input[0])
    return node is not None and node.op_type in _BOUNDED


def _extent(dims: Sequence[Any], axis: int) -> int:
    """How far a value reaches along an axis, 0 if that is not known."""
    is_there = -len(dims) <= axis < len(dims)
    return int(dims[axis].dim_value) if is_there else 0
