"""Draws whole models: decisions in; a valid model, inputs at each of its sizes, tolerances out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.fuzzing import (  # noqa: F401  (register emitters)
    elementwise,
    layers,
    movement,
    reduction,
)
from benchmarks.fuzzing.control import drawn
from benchmarks.fuzzing.emitters import NEWEST, OLDEST
from benchmarks.fuzzing.peer import model_of, tensor_type
from benchmarks.fuzzing.sketch import Setting, Sketch, Value, largest, spread
from graft.base.dtypes import Array
from graft.byoc.kit.draw import Draw

LARGEST_MODEL = 25  # nodes
MOST_OUTPUTS = 6
# Small models are the most: they are quick, and what is wrong in them is easily found.
_NODES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 12, LARGEST_MODEL)
_EXTENTS = ((3, 5), (1, 4), (7, 2), (5, 8), (2, 17))
# By dtype: how many times as far as the disturbed numbers a result may be off, and by how many
# units of rounding of its largest number at least.
_TIMES = {"float16": 8.0, "float32": 64.0, "float64": 64.0}
_UNITS = {"float16": 8.0, "float32": 64.0, "float64": 64.0}


@dataclass(frozen=True)
class Case:
    """A model with inputs, and how far results may be off, by name: a smaller model made of this
    one has others for outputs."""

    seed: int
    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Array], ...]  # at each size
    tolerances: Mapping[str, float]
    operators: Mapping[str, int]


def generate(seed: int) -> Case | None:
    """The case of a seed."""
    return draw_case(Draw(f"fuzz {seed}"), seed)


def draw_case(draw: Draw, seed: int = 0) -> Case | None:
    """A case; none where the peer took nothing of what was drawn."""
    symbols = {}
    if draw.chance(0.3):
        symbols = {name: draw.among(_EXTENTS) for name in ("n", "m")[: draw.between(1, 2)]}
    opset = draw.between(OLDEST, NEWEST)
    s = Sketch(Setting(draw, opset, symbols, 2 if symbols else 1))
    wanted = draw.among(_NODES)
    for _ in range(4 * wanted):
        drawn(s, 1)
        if _count(s) >= wanted:
            break
    return _finished(s, seed) if _count(s) else None


def _count(s: Sketch) -> int:
    return sum(node.op_type != "Constant" for node in s.nodes)


def _finished(s: Sketch, seed: int) -> Case:
    computed = {name for node in s.nodes for name in node.output if node.op_type != "Constant"}
    results = [value for value in s.values if value.name in computed]
    loose = [value for value in results if value.name not in s.read]
    outputs = loose[-MOST_OUTPUTS:]
    inner = [value for value in results if value not in outputs]
    if inner and s.draw.chance(0.3):
        outputs.append(s.draw.among(inner))
    nodes = needed(s.nodes, {value.name for value in outputs})
    read = read_by(nodes)
    inputs = [(value, shape) for value, shape in s.inputs if value.name in read]
    info = helper.make_tensor_value_info
    model = model_of(
        nodes,
        [info(value.name, tensor_type(value.arrays[0]), shape) for value, shape in inputs],
        [_output(value, bool(s.setting.symbols)) for value in outputs],
        [numpy_helper.from_array(v.arrays[0], v.name) for v in s.constants if v.name in read],
        s.opset,
    )
    feeds = tuple(
        {value.name: value.arrays[size] for value, _ in inputs} for size in range(s.setting.sizes)
    )
    tolerances = {value.name: tolerance(value) for value in results}
    return Case(seed, model, feeds, tolerances, operators(nodes))


def _output(value: Value, dynamic: bool) -> onnx.ValueInfoProto:
    shape = [None] * value.rank if dynamic else value.shape
    return helper.make_tensor_value_info(value.name, tensor_type(value.arrays[0]), shape)


def needed(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """The nodes that lead to the outputs."""
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted = wanted | read_by([node])
    return kept[::-1]


def read_by(nodes: list[onnx.NodeProto]) -> set[str]:
    """All names that nodes read, those in nested graphs too."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= read_by(list(attribute.g.node))
                names.update(output.name for output in attribute.g.output)
    return names


def operators(nodes: list[onnx.NodeProto]) -> dict[str, int]:
    """How often each operator occurs, in nested graphs too."""
    counts: dict[str, int] = {}
    for node in nodes:
        if node.op_type != "Constant":
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
        for attribute in node.attribute:
            if attribute.HasField("g"):
                for op, count in operators(list(attribute.g.node)).items():
                    counts[op] = counts.get(op, 0) + count
    return counts


def tolerance(value: Value) -> float:
    """How far a result may be off: nothing for what is no float or was never rounded."""
    if not value.is_float or value.exact:
        return 0.0
    found = 0.0
    for array, noisy in zip(value.arrays, value.noisy, strict=True):
        unit = float(np.finfo(array.dtype).eps) * largest(array)
        found = max(found, _TIMES[value.dtype] * spread(array, noisy), _UNITS[value.dtype] * unit)
    return found
