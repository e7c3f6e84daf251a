"""Random typed graphs with matching inputs, as hypothesis strategies.

`samples()` draws a graph node by node: an operator, then operands that fit it, then attributes. All
families take part, and so do symbolic extents, empty tensors, constants with NaN in them, control
flow, values returned twice and inputs returned as they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.property import data, elementwise, layers, movement, nested
from tests.property.sketch import Info, Sketch

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import Location
from graft.byoc.kit.draw import Draw
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.printer import to_text
from graft.ir.types import TensorType

LARGEST_GRAPH = 16  # emitters, each of which adds one node or a few
LARGEST_OUTPUTS = 12

_PLACES = (
    None,
    Location("model.onnx", "conv_1", "Conv"),
    Location("model.onnx", 'odd "name"\n', ""),
    Location("other file.onnx", "", "ai.graft.Node"),
)


@dataclass(frozen=True)
class Sample:
    """A graph, data for its inputs, and what is known of its values."""

    graph: Graph
    inputs: tuple[Array, ...]
    info: dict[str, Info]  # by name, of the outermost graph's values

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What hypothesis shows of an example that fails."""
        printer.text(f"\n{to_text(self.graph)}on {self.inputs!r}")


def fill(s: Sketch, count: int) -> None:
    """Add what `count` emitters emit."""
    for _ in range(count):
        if not s.depth and s.chance(5):
            s.g.location = s.pick(_PLACES)
        families: Sequence[tuple[Callable[..., None], ...]] = (
            elementwise.EMITTERS,
            movement.EMITTERS,
            layers.EMITTERS,
            nested.EMITTERS,
        )
        family = s.pick((0, 1, 2, 0, 1, 2, 3)) if s.depth < 2 else s.pick((0, 1, 2))
        emitter = s.pick(families[family])
        arguments: tuple[Any, ...] = (s, fill) if family == 3 else (s,)
        emitter(*arguments)


def outputs_of(s: Sketch) -> list[Value]:
    """Most of what nobody reads; at times an inner value, an input, or a value twice."""
    values = [value for value in s.info if isinstance(value.type, TensorType)]
    loose = [value for value in values if value not in s.read and not s.chance(4)]
    chosen = loose[-LARGEST_OUTPUTS:] or values[-1:]
    if s.chance(3):
        chosen.append(s.pick(values))
    if s.chance(5) and s.feeds:
        chosen.append(s.pick(s.feeds).value)
    if s.chance(5):
        chosen.append(chosen[0])
    return chosen


def samples() -> st.SearchStrategy[Sample]:
    """Random graphs with data for their inputs."""
    return decisions().map(sample)


def decisions() -> st.SearchStrategy[Draw]:
    """Sources of decisions that Hypothesis makes, and makes simpler where a test fails."""
    return st.randoms(use_true_random=False).map(lambda chance: Draw(chance, plain=True))


def sample(draw: Draw) -> Sample:
    """A random graph with data for its inputs."""
    s = Sketch(draw, Builder("main"))
    extents: dict[str, int] = {}
    if s.chance(2):
        for name in (s.pick(("n", "a]b", 'q"', "a,b")), s.pick(("m", "batch size", "`", "(p"))):
            extents[name] = s.pick((3, 1, 2, 5, 7, 7, 0)) if s.chance(3) else s.pick((3, 5, 7))
        n, batch = (symbol(name) for name in extents)
        s.symbols = (n, batch, n + 1, batch * 2)
        s.input(s.pick(data.COMMON), (n, batch), "tame")
    for _ in range(s.number(1, 2)):
        s.source(s.pick(data.EVERY if s.chance(3) else data.COMMON), s.shape())
    fill(s, s.number(1, LARGEST_GRAPH))
    outputs = outputs_of(s)
    names = [f"result {i}" for i in range(len(outputs))] if s.chance(3) else []
    graph = s.g.build(*outputs, names=names)
    inputs = tuple(feed.array(extents) for feed in s.feeds)
    return Sample(graph, inputs, {value.name: info for value, info in s.info.items()})
