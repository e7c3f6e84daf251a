"""Graph drawing: edges in, coordinates of nodes and bends of edges out.

Layers by longest path, long edges broken by a bend in every layer they pass, the order within
layers by barycentres, positions by least squares. Networks are deep and narrow, screens are wide:
the layers are folded into columns, cut where few edges cross.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

NODE_WIDTH, NODE_HEIGHT = 132.0, 30.0
_ACROSS, _DOWN = 148.0, 52.0  # from one node, or layer, to the next
_BEND = 18.0  # what an edge that passes by takes
_BETWEEN_COLUMNS = 70.0
_SWEEPS = 6
_LONGEST_BROKEN = 80  # layers; longer edges are drawn straight
_ASPECT = 1.7  # width over height of the whole, as screens have it
_WINDOW = 6  # layers around an even cut in which to look for a narrow place

Edge = tuple[int, int]
Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Centres of nodes and bends of edges, in the given order; `gutters` between columns are where
    edges lead up to the next column."""

    nodes: tuple[Point, ...]
    bends: tuple[tuple[Point, ...], ...]
    gutters: tuple[float, ...]
    width: float
    height: float


def layout(count: int, edges: Sequence[Edge]) -> Layout:
    """Lay out `count` nodes; edges lead from lower numbers to higher ones."""
    if not count:
        return Layout((), (), (), 0.0, 0.0)
    layer_of = layers(count, edges)
    drawing = _Drawing(count, edges, layer_of)
    drawing.order()
    across = drawing.across()
    points, gutters = _folded(drawing, across)
    width = max(x for x, _ in points) + NODE_WIDTH
    height = max(y for _, y in points) + NODE_HEIGHT
    bends = tuple(tuple(points[item] for item in chain) for chain in drawing.chains)
    return Layout(tuple(points[:count]), bends, gutters, width, height)


def layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """Each node one layer below its lowest producer; nodes without producers just above their first
    reader."""
    result = [0] * count
    readers: dict[int, list[int]] = {}
    reads = [False] * count
    for before, after in sorted(edges, key=lambda edge: edge[1]):
        result[after] = max(result[after], result[before] + 1)
        readers.setdefault(before, []).append(after)
        reads[after] = True
    for node in range(count):
        if not reads[node] and node in readers:
            result[node] = max(0, min(result[reader] for reader in readers[node]) - 1)
    return result


class _Drawing:
    """Nodes and bends by layer. Items below `count` are nodes, the others bends."""

    def __init__(self, count: int, edges: Sequence[Edge], layer_of: Sequence[int]) -> None:
        self.count = count
        self.layer_of = list(layer_of)
        self.layers: list[list[int]] = [[] for _ in range(max(layer_of) + 1)]
        for node in range(count):
            self.layers[layer_of[node]].append(node)
        self.chains: list[list[int]] = []
        self.above: dict[int, list[int]] = {}
        self.below: dict[int, list[int]] = {}
        for before, after in edges:
            self.chains.append(self._chain(before, after))

    def _chain(self, before: int, after: int) -> list[int]:
        span = self.layer_of[after] - self.layer_of[before]
        chain: list[int] = []
        if 1 < span <= _LONGEST_BROKEN:
            for layer in range(self.layer_of[before] + 1, self.layer_of[after]):
                item = len(self.layer_of)
                self.layer_of.append(layer)
                self.layers[layer].append(item)
                chain.append(item)
        if span <= _LONGEST_BROKEN:
            path = [before, *chain, after]
            for upper, lower in pairwise(path):
                self.below.setdefault(upper, []).append(lower)
                self.above.setdefault(lower, []).append(upper)
        return chain

    def order(self) -> None:
        """Sort each layer by the barycentres of neighbours in the layer above, then below."""
        positions: dict[int, float] = {}
        for layer in self.layers:
            positions.update((item, float(position)) for position, item in enumerate(layer))
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for layer in self.layers if down else reversed(self.layers):
                targets = {item: _mean(neighbours, item, positions) for item in layer}
                layer.sort(key=targets.__getitem__)
                positions.update((item, float(position)) for position, item in enumerate(layer))

    def across(self) -> dict[int, float]:
        """Horizontal positions: near the neighbours, in order, and apart."""
        positions: dict[int, float] = {}
        for layer in self.layers:
            offsets = self._offsets(layer)
            middle = offsets[-1] / 2 if offsets else 0.0
            positions.update((i, offset - middle) for i, offset in zip(layer, offsets, strict=True))
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            for layer in self.layers if down else reversed(self.layers):
                offsets = self._offsets(layer)
                targets = [_mean(neighbours, item, positions) for item in layer]
                shifted = [w - offset for w, offset in zip(targets, offsets, strict=True)]
                fitted = rising(shifted)
                for item, position, offset in zip(layer, fitted, offsets, strict=True):
                    positions[item] = position + offset
        return positions

    def _offsets(self, layer: Sequence[int]) -> list[float]:
        """Positions of adjacent items, the first at 0."""
        offsets: list[float] = []
        for number, item in enumerate(layer):
            own = _ACROSS if item < self.count else _BEND
            before = 0.0
            if number:
                last = _ACROSS if layer[number - 1] < self.count else _BEND
                before = offsets[-1] + (own + last) / 2
            offsets.append(before)
        return offsets

    def crossing(self) -> list[int]:
        """The number of edges that a cut above each layer crosses."""
        return [sum(len(self.above.get(item, ())) for item in layer) for layer in self.layers]


def _mean(neighbours: Mapping[int, list[int]], item: int, positions: Mapping[int, float]) -> float:
    own = neighbours.get(item)
    return fmean(positions[other] for other in own) if own else positions[item]


def rising(targets: Sequence[float]) -> list[float]:
    """The non-decreasing numbers nearest to `targets`, by pooling adjacent violators."""
    pools: list[tuple[float, int]] = []  # mean and how many
    for value in targets:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def _folded(
    drawing: _Drawing, across: Mapping[int, float]
) -> tuple[list[Point], tuple[float, ...]]:
    """Coordinates of layers folded into columns, and the gutters between them."""
    spans = [
        (min(across[i] for i in layer), max(across[i] for i in layer)) for layer in drawing.layers
    ]
    cuts = _cuts(drawing.crossing(), spans)
    points: list[Point] = [(0.0, 0.0)] * len(drawing.layer_of)
    left = 0.0
    gutters: list[float] = []
    for first, end in pairwise(cuts):
        low = min(low for low, _ in spans[first:end])
        high = max(high for _, high in spans[first:end])
        for row, layer in enumerate(drawing.layers[first:end]):
            for item in layer:
                x = left + across[item] - low + NODE_WIDTH
                points[item] = (round(x, 1), round((row + 1) * _DOWN, 1))
        left += high - low + NODE_WIDTH + _BETWEEN_COLUMNS
        gutters.append(round(left + (NODE_WIDTH - _BETWEEN_COLUMNS) / 2, 1))
    return points, tuple(gutters[:-1])


def _cuts(torn: Sequence[int], spans: Sequence[tuple[float, float]]) -> list[int]:
    """The first layers of columns, and the end; the number of columns fills a screen best."""
    depth = len(torn)
    best, fit = [0, depth], float("inf")
    for columns in range(1, min(depth, 40) + 1):
        cuts = _narrow_cuts(torn, columns)
        pairs = list(pairwise(cuts))
        width = sum(
            max(high for _, high in spans[a:b])
            - min(low for low, _ in spans[a:b])
            + NODE_WIDTH
            + _BETWEEN_COLUMNS
            for a, b in pairs
        )
        aspect = width / (_DOWN * max(b - a for a, b in pairs))
        misfit = max(aspect / _ASPECT, _ASPECT / aspect)
        if misfit < fit:
            best, fit = cuts, misfit
    return best


def _narrow_cuts(torn: Sequence[int], columns: int) -> list[int]:
    """Even cuts, each moved to the nearby layer that the fewest edges cross."""
    depth = len(torn)
    cuts = [0]
    for column in range(1, columns):
        middle = round(depth * column / columns)
        nearby = range(max(cuts[-1] + 1, middle - _WINDOW), min(depth, middle + _WINDOW + 1))
        if nearby:
            cuts.append(min(nearby, key=lambda layer: (torn[layer], abs(layer - middle))))
    return [*cuts, depth]
