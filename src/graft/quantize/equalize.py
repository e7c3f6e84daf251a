"""Equalises channels across layers: a graph and statistics of its channels in, an equal graph out.

An activation has one scale for all of its channels, so that small channels get few levels. If only
activations and pooling that scale with their operand lie between a layer and its readers, channels
are scaled up in the former, and weights down in the latter (Nagel et al., arXiv 1906.04721);
normalisations before a layer likewise (arXiv 2211.10438). The factors minimise the error that
rounding adds on both sides; a link that gains little is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.quantize.scheme import Scheme
from graft.quantize.units import Unit, channel_axis, constants_of

# f(k·x) = k·f(x) for every positive k.
SCALING = ("nn.relu", "nn.leaky_relu")
POOLING = tuple(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3))
NORMALIZATION = "nn.layer_norm"
_EXPONENTS = (0.25, 0.5, 0.75, 1.0)  # of a channel's share of the largest one
_LEAST_SHARE = 1e-3
_WORTH = 0.7  # of the squared error, above which nothing is changed


@dataclass(frozen=True, eq=False)
class Link:
    """Channels that may be scaled: their producers, with the positions of the constants to divide,
    and the layers that read them."""

    makers: tuple[tuple[Node, int], ...]
    readers: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Channels:
    """The largest magnitude and the mean square of each channel of a value."""

    peak: Array
    power: Array


def find_links(graph: Graph, units: Sequence[Unit]) -> list[Link]:
    """All channels that could be scaled, first to last."""
    layers = {unit.anchor: unit for unit in units if unit.weight is not None}
    constants = constants_of(graph)
    links = []
    for node in graph.nodes:
        if node in layers:
            makers, value, axis = *_made_by_layer(layers[node]), channel_axis(node)
        elif node.op.name == NORMALIZATION and all(v in constants for v in node.args[1:]):
            makers = tuple((node, position) for position in range(1, len(node.inputs)))
            value, axis = node.output, (node.output.tensor.rank or 0) - 1
            if node.attrs.axis not in (-1, axis):
                continue
        else:
            continue
        readers = None if value is None else _readers(graph, value, axis, layers)
        if readers:
            links.append(Link(makers, tuple(readers)))
    return links


def _made_by_layer(unit: Unit) -> tuple[tuple[tuple[Node, int], ...], Value | None]:
    """The constants of a layer that its results scale with, and its results; None if the epilogue
    does not scale with them."""
    has_bias = unit.bias is not None
    makers = [(unit.anchor, 1), *((node, 1) for node in unit.epilogue[:has_bias])]
    scales = all(node.op.name in SCALING for node in unit.epilogue[has_bias:])
    return tuple(makers), unit.output if scales and not unit.residuals else None


def _readers(
    graph: Graph, value: Value, axis: int, layers: Mapping[Node, Unit]
) -> list[Unit] | None:
    """The layers that read the channels along an axis; None if anything else reads them."""
    found: list[Unit] = []
    waiting = [value]
    while waiting:
        current = waiting.pop()
        users = graph.users.get(current, ())
        if not users or current in graph.outputs:
            return None
        for node in users:
            if node in layers and node.args[0] is current and channel_axis(node) == axis:
                found.append(layers[node])
            elif _passes(node, axis):
                waiting.append(node.output)
            else:
                return None
    return found


def _passes(node: Node, axis: int) -> bool:
    """Whether a node maps each channel along an axis to itself, and scales with it."""
    if len(node.inputs) != 1:
        return False
    if node.op.name == "mean":
        axes, rank = node.attrs.axes or (), node.args[0].tensor.rank or 1
        return bool(axes) and all(one % rank > axis for one in axes)
    return node.op.name in SCALING or (node.op.name in POOLING and axis == 1)


def channels_of(data: Array, axis: int) -> Channels:
    """The statistics of the channels along an axis."""
    rows = np.moveaxis(data, axis, -1).reshape(-1, data.shape[axis])
    return Channels(np.abs(rows).max(axis=0), np.mean(np.square(rows, dtype=np.float64), axis=0))


def observed_values(links: Sequence[Link]) -> list[Value]:
    """The values whose channels need statistics."""
    return list(dict.fromkeys(unit.operands[0] for link in links for unit in link.readers))


def equalize(
    graph: Graph, links: Sequence[Link], known: Mapping[Value, Sequence[Array]], scheme: Scheme
) -> tuple[Graph, int]:
    """The graph with scaled channels, and the number of scaled links; `known` has the values that
    layers read, for some samples."""
    constants = constants_of(graph)
    changed: dict[tuple[Node, int], Array] = {}

    def array(node: Node, position: int) -> Array:
        return changed.get((node, position), constants[node.args[position]])

    count = 0
    for link in links:
        held = _held(link, known)
        weights = [array(unit.anchor, 1) for unit in link.readers]
        factors = _factors(held, weights, scheme)
        if factors is None:
            continue
        count += 1
        for node, position in link.makers:
            old = array(node, position)
            changed[node, position] = old / factors.reshape(-1, *[1] * (old.ndim - 1))
        for unit, weight in zip(link.readers, weights, strict=True):
            changed[unit.anchor, 1] = _scaled(weight, factors)
    return (_with_constants(graph, changed) if changed else graph), count


def _held(link: Link, known: Mapping[Value, Sequence[Array]]) -> Channels:
    """Over all readers and samples: the largest, and the mean."""
    parts = [
        channels_of(data, channel_axis(unit.anchor))
        for unit in link.readers
        for data in known[unit.operands[0]]
        if data.size
    ]
    if not parts:
        return Channels(np.zeros(0), np.zeros(0))
    peak = np.max([one.peak for one in parts], axis=0)
    return Channels(peak, np.mean([one.power for one in parts], axis=0))


def _factors(held: Channels, weights: Sequence[Array], scheme: Scheme) -> Array | None:
    """The divisor of each channel; None if no choice gains enough."""
    largest = float(held.peak.max(initial=0.0))
    if not 0 < largest < np.inf:
        return None
    share = np.where(held.peak > 0, np.maximum(held.peak / largest, _LEAST_SHARE), 1.0)
    candidates = [share**exponent for exponent in (0.0, *_EXPONENTS)]
    errors = [
        sum(_error(one, held, weight, largest, scheme) for weight in weights) for one in candidates
    ]
    best = int(np.argmin(errors))
    return candidates[best].astype(np.float32) if errors[best] < _WORTH * errors[0] else None


def _error(factors: Array, held: Channels, weight: Array, largest: float, scheme: Scheme) -> float:
    """The expected square that roundings of data and weights add to a layer's results."""
    scaled = _scaled(weight, factors)
    step = largest / scheme.levels
    of_data = step**2 * float(np.sum(np.square(scaled, dtype=np.float64)))
    outputs, inputs = weight.shape[:2]
    groups = len(factors) // inputs
    taps = scaled.size / (outputs * inputs)
    steps = np.abs(scaled).reshape(outputs, -1).max(axis=1) / scheme.most_weight
    powers = (held.power / factors**2).reshape(groups, inputs).sum(axis=1)
    of_weights = float(taps * np.sum(steps.reshape(groups, -1) ** 2 * powers[:, None]))
    return of_data + of_weights


def _scaled(weight: Array, factors: Array) -> Array:
    """Weights [outputs, inputs, ...] times a factor per input, of all groups."""
    outputs, inputs = weight.shape[:2]
    groups = len(factors) // inputs
    cut = weight.reshape(groups, outputs // groups, inputs, -1)
    return np.asarray(cut * factors.reshape(groups, 1, inputs, 1)).reshape(weight.shape)


def _with_constants(graph: Graph, changed: Mapping[tuple[Node, int], Array]) -> Graph:
    """The graph with other constants as operands of some nodes."""
    builder = Builder.beside(graph, "e")
    for node in graph.nodes:
        new: dict[Value, Value] = {}
        for position, value in enumerate(node.args):
            if (node, position) in changed:
                array = changed[node, position].astype(np.float32)
                new[value] = builder.constant(array, f"{value.name}_equalized")
        builder.append(node.on(new))
    return eliminate_dead_code(builder.build(*graph.outputs, names=graph.output_names))
