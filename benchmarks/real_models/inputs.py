"""What a real model is fed with: inputs as ONNX Runtime declares them in, sensible arrays out.

Names and types tell most: images are in 0..1, sounds in -1..1, tokens within the vocabulary, states
zero, masks one, sample rates 16000. Extents that the model leaves open get a few sizes in turn, the
same for the same name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from graft.base.dims import evaluate_dim, parse_dim, symbols_of
from graft.base.errors import GraftError

SIZES = 3  # rounds of extents for models that leave some open

_EDGES = (64, 96, 160)  # of images; whole multiples of 32 suit networks that halve five times
_LENGTHS = (16, 37, 64)  # of sequences
_BATCH = 1
_CHANNELS = 3
_SAMPLES = 512  # of sound
_MOST_TURNS = 4  # of loops whose trip count is an input
_LARGE = 1 << 20  # elements: of inputs with as many at least, open extents are small

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint64)": np.uint64,
    "tensor(uint32)": np.uint32,
    "tensor(uint16)": np.uint16,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}
# Of searches around a decoder, by the names that ONNX Runtime's tools give them.
_SETTINGS = {
    "max_length": 96,
    "min_length": 1,
    "num_beams": 2,
    "num_return_sequences": 1,
    "temperature": 1,
    "length_penalty": 1,
    "repetition_penalty": 1,
}
_RATE = re.compile(r"^(sr|rate|sample_?rate)$", re.IGNORECASE)
_STATE = re.compile(r"(^|_)(state|hidden|cache|past|h|c|h0|c0|hn|cn)(_|$|\d)", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_KIND = re.compile(r"(token_)?type|segment", re.IGNORECASE)
_SOUND = re.compile(r"audio|sound|wave|signal|speech|pcm", re.IGNORECASE)


@dataclass(frozen=True)
class Plan:
    """What inputs are like: integers below a limit, and one number for all open extents, if any."""

    limit: int | None = None
    extent: int | None = None


# Tried one after the other until a model takes the inputs: indices may have to be small, and
# extents that nothing relates may have to be equal, or to broadcast.
PLANS = (Plan(), Plan(limit=1), Plan(1, extent=1), Plan(1, extent=4), Plan(2, extent=2))


def feeds(
    model: onnx.ModelProto, arguments: Sequence[Any], turn: int, plan: Plan = PLANS[0]
) -> dict[str, Any]:
    """Inputs for one turn; `arguments` have a name, a shape and a type, as sessions give them."""
    random = np.random.default_rng(turn)
    chosen = _chosen(arguments, turn, plan)
    found = {}
    for argument in arguments:
        if argument.type not in _DTYPES:
            raise ValueError(f"no rule draws the input '{argument.name}' of {argument.type}")
        shape = tuple(
            extent if isinstance(extent, int) else _open_extent(argument, axis, turn, chosen, plan)
            for axis, extent in enumerate(argument.shape)
        )
        found[argument.name] = _drawn(model, argument, shape, random, plan)
    return found


def is_open(arguments: Sequence[Any]) -> bool:
    """Whether any extent is left open."""
    return any(not isinstance(extent, int) for a in arguments for extent in a.shape)


def _chosen(arguments: Sequence[Any], turn: int, plan: Plan) -> dict[str, int]:
    """An extent for each name; a name that is arithmetic on others ("past + length") follows."""
    chosen: dict[str, int] = {}
    for argument in arguments:
        for axis, name in enumerate(argument.shape):
            if isinstance(name, str) and name:
                chosen.setdefault(name, _size_of(argument, axis, turn, plan))
    for name in chosen:
        with suppress(GraftError):
            dim = parse_dim(name)
            if symbols_of(dim) <= chosen.keys() - {name}:
                chosen[name] = evaluate_dim(dim, chosen)
    return chosen


def _open_extent(argument: Any, axis: int, turn: int, chosen: Mapping[str, int], plan: Plan) -> int:
    """An extent for an axis; one that has a name gets the same everywhere."""
    name = argument.shape[axis]
    named = isinstance(name, str) and name
    return chosen[name] if named else _size_of(argument, axis, turn, plan)


def _size_of(argument: Any, axis: int, turn: int, plan: Plan) -> int:
    rank = len(argument.shape)
    if plan.extent is not None:
        return plan.extent
    if axis == 0:
        return _BATCH
    fixed = [extent for extent in argument.shape[1:] if isinstance(extent, int)]
    if math.prod(fixed) > _LARGE:
        return turn + 1
    if rank == 4 and argument.type in ("tensor(float)", "tensor(uint8)"):
        if axis == 1 and not fixed:
            return _CHANNELS
        return _EDGES[turn % len(_EDGES)]
    if _SOUND.search(argument.name):
        return _SAMPLES * (turn + 1)
    return _LENGTHS[turn % len(_LENGTHS)]


def _drawn(
    model: onnx.ModelProto, argument: Any, shape: tuple[int, ...], random: Any, plan: Plan
) -> Any:
    name, dtype = argument.name, np.dtype(_DTYPES[argument.type])
    if name in _SETTINGS:
        return np.full(shape, _SETTINGS[name], dtype)
    if _RATE.search(name):
        return np.full(shape, 16000, dtype)
    if _STATE.search(name):
        return np.zeros(shape, dtype)
    if _MASK.search(name):
        return np.ones(shape, dtype)
    if dtype.kind == "f":
        is_image = len(shape) == 4 and not _SOUND.search(name)
        return random.uniform(0 if is_image else -1, 1, shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype == np.object_:  # numerals: strings that may be cast to numbers
        return random.integers(0, 10, shape).astype(str).astype(object)
    if dtype == np.uint8:
        return random.integers(0, 256, shape).astype(dtype)
    limit = 2 if _KIND.search(name) else vocabulary(model, name)
    limit = min(limit, _MOST_TURNS + 1) if is_trip_count(model, name) else limit
    limit = limit if plan.limit is None else plan.limit
    return random.integers(0, limit, shape).astype(dtype)


def is_trip_count(model: onnx.ModelProto, name: str) -> bool:
    """Whether an input says how often a loop turns; loops in loops would multiply large numbers."""
    return any(n.op_type == "Loop" and n.input[:1] == [name] for n in model.graph.node)


def vocabulary(model: onnx.ModelProto, name: str) -> int:
    """How many rows the smallest table has that an input selects from; 100 if there is none."""
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    names = {name}
    found = []
    for node in model.graph.node:
        if node.op_type in ("Cast", "Identity", "Unsqueeze", "Reshape") and names & {
            *node.input[:1]
        }:
            names.update(node.output)
        if node.op_type == "Gather" and node.input[1] in names and node.input[0] in rows:
            found.append(rows[node.input[0]])
    return int(min(found, default=100))
