"""Whatever is done to a model, it runs or is refused: no crash, no hang, no riddle.

ONNX's own node cases and pieces of a network are damaged, imported, optimised and run. Anything but
success or a `UserError` that says where it happened, and that does so in words of its own, fails.
"""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from onnx import helper
from tests.conformance.cases import TRAINING, described
from tests.examples import MANY, sharded, share
from tests.property.damage import DAMAGES, Damage, Feeds, damaged, data_for

from graft.base.errors import EvaluationError, UserError
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.reader import filled_model, read_model
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.verify import VerifyError, verify
from graft.ops import control
from graft.passes.pipeline import optimize

MODELS = Path(__file__).resolve().parents[2] / "models"

SECONDS = 20  # no example takes one, but the machine may be busy
MOST_BYTES = 1 << 27
MOST_TURNS = 500
LARGEST_SEED = 200_000  # bytes of a model or of its inputs

# What Python and NumPy say when nobody has thought of a case.
RIDDLES = re.compile(
    r"has no attribute|NoneType|object is not|unsupported operand|unpack|positional arg"
    r"|index out of range|zip\(\)|m(ax|in)\(\) |subscriptable|not iterable|argument must be"
    r"|cannot convert|invalid literal|descriptor|ufunc|has no len|instances of|must be str"
    r"|'(int|str|float)'|truth value|inhomogeneous|unhashable|interpreted as an integer|<class"
)


@dataclass(frozen=True)
class Seed:
    """A valid model, to be damaged, and data for its inputs."""

    name: str
    model: onnx.ModelProto
    feeds: Feeds


@functools.cache
def seeds() -> Sequence[Seed]:
    return [*_node_cases(), *_pieces_of_a_network()]


def _node_cases() -> Iterator[Seed]:
    for test in described("node"):
        model, data = test.model, test.data_sets[0][0]
        size = model.ByteSize() + sum(getattr(array, "nbytes", 0) for array in data)
        if size < LARGEST_SEED and not any(n.domain == TRAINING for n in model.graph.node):
            names = [info.name for info in model.graph.input]
            yield Seed(test.name, model, dict(zip(names, data, strict=True)))


def _pieces_of_a_network() -> Iterator[Seed]:
    """Three nodes each of ResNet-18, on small images."""
    whole = onnx.shape_inference.infer_shapes(filled_model(read_model(MODELS / "resnet18.onnx")))
    nodes = whole.graph.node
    weights = {tensor.name: tensor for tensor in whole.graph.initializer}
    infos = (*whole.graph.input, *whole.graph.value_info, *whole.graph.output)
    ranks = {info.name: info.type.tensor_type.shape.dim for info in infos}
    for first in range(0, len(nodes) - 2, 3):
        piece = nodes[first : first + 3]
        made = {name for node in piece for name in node.output}
        read = dict.fromkeys(name for node in piece for name in node.input if name not in made)
        used = [weights[name] for name in read if name in weights]
        if sum(tensor.ByteSize() for tensor in used) > LARGEST_SEED:
            continue
        shapes = {
            name: [dim.dim_value if axis < 2 else 5 for axis, dim in enumerate(ranks[name])]
            for name in read
            if name not in weights
        }
        inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in piece[-1].output]
        graph = helper.make_graph(list(piece), f"piece{first}", inputs, outputs, used)
        model = helper.make_model(graph, opset_imports=whole.opset_import)
        feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        yield Seed(graph.name, model, feeds)


@pytest.fixture(autouse=True, scope="module")
def tight_limits() -> Iterator[None]:
    """Little memory, and few turns of loops, which may rightly go on for ever."""
    turns = 0

    def run_graph(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        nonlocal turns
        turns += 1
        if turns % MOST_TURNS == 0:
            raise EvaluationError("enough turns")
        return real(graph, inputs)

    real = control.run_graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graft.base.capacity.MOST_BYTES", MOST_BYTES)
        patch.setattr(control, "run_graph", run_graph)
        yield


@contextmanager
def in_time() -> Iterator[None]:
    def give_up(_signal: int, _frame: Any) -> None:
        raise AssertionError(f"it takes more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def success_or_refusal(stage: str) -> Iterator[None]:
    refusal: UserError | None = None
    try:
        yield
    except VerifyError:
        raise  # Graft itself has made a bad graph
    except UserError as error:
        refusal = error
    event(f"{stage}: {type(refusal).__name__ if refusal else 'success'}")
    if refusal is not None:
        note(f"{stage}: {refusal}")
        assert refusal.location is not None
        assert not RIDDLES.search(refusal.message)


def survives(model: onnx.ModelProto | bytes, feeds: Feeds, random: Random) -> None:
    """Import, optimise and run a model."""
    graphs: list[Graph] = []
    with success_or_refusal("import"):
        graphs.append(import_model(model))
    if graphs:
        verify(graphs[0])
        with success_or_refusal("optimising"):
            graphs.append(optimize(graphs[0]))
        data = data_for(graphs[0], feeds, random)
        for graph in graphs if data is not None else ():
            with success_or_refusal("running"):
                evaluate(graph, data or [])


DAMAGE = st.tuples(st.sampled_from(DAMAGES), st.integers(0, 1 << 30))


@sharded
@settings(max_examples=share(MANY, short=200))
@given(
    data=st.data(),
    damages=st.lists(DAMAGE, min_size=1, max_size=3),
    feeding=st.integers(0, 1 << 30),
)
def test_damaged_models(
    shard: int, data: st.DataObject, damages: list[tuple[Damage, int]], feeding: int
) -> None:
    seed = seeds()[data.draw(st.integers(0, len(seeds()) - 1))]
    model = damaged(seed.model, seed.feeds, damages)
    note(f"{seed.name}, damaged by {[damage.__name__ for damage, _ in damages]}")
    with in_time():
        survives(model, seed.feeds, Random(feeding))


@pytest.mark.parametrize("name", ["test_conv_with_strides_padding", "test_loop11", "piece0"])
def test_whole_models_run(name: str) -> None:
    """What is damaged above is sound, and does run."""
    seed = next(seed for seed in seeds() if seed.name == name)
    graph = import_model(seed.model)
    assert evaluate(optimize(graph), [seed.feeds[value.name] for value in graph.inputs])
