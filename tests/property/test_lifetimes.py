"""Lifetimes of memory: random models of branches, loops, scans, lists and slices of unknown size
agree with the evaluator, on a driver that overwrites every buffer with NaN when it is released.

Each model is run several times in one session, at sizes that change, so that buffers are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, note, settings
from onnx import TensorProto, helper
from tests.examples import examples
from tests.property.graphs import decisions

import graft
from graft.backends.host.backend import HostBackend
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.byoc.executable import Settings
from graft.byoc.kit.draw import Draw
from graft.byoc.outline import outline
from graft.ir.builder import Builder
from graft.ir.types import TensorType
from graft.runtime import driver, driver_memory
from graft.runtime.regions import Region

FLOAT, WIDTH, MOST_ROWS, DEEPEST = TensorProto.FLOAT, 3, 6, 2


@pytest.fixture(autouse=True, scope="module")
def poisoned_driver() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_memory, "POISON", True)
        driver.driver_object.cache_clear()
        yield
    driver.driver_object.cache_clear()


class Net:
    """A graph while it is drawn: matrices of some rows and lists of them, by name."""

    def __init__(self, draw: Draw, outer: Net | None = None) -> None:
        self.draw, self.nodes, self.depth = draw, [], 0 if outer is None else outer.depth + 1
        self.count: list[int] = [0] if outer is None else outer.count
        self.tensors: list[str] = [] if outer is None else list(outer.tensors)
        self.lists: list[str] = [] if outer is None else list(outer.lists)

    nodes: list[onnx.NodeProto]

    def name(self) -> str:
        self.count[0] += 1
        return f"v{self.count[0]}"

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attrs))
        return names

    def constant(self, array: Array) -> str:
        (name,) = self.add("Constant", [], value=onnx.numpy_helper.from_array(array))
        return name

    def tensor(self) -> str:
        return self.draw.among(self.tensors)

    def keep(self, name: str) -> None:
        self.tensors.append(name)

    def fill(self, count: int) -> None:
        """Add what some emitters add."""
        flat = [unary, summed, joined, rows, filtered, listed, inserted, erased, element, split]
        nested: list[Callable[[Net], None]] = [branch, loop, scan]
        for _ in range(count):
            kinds = flat if self.depth >= DEEPEST else [*flat, *nested, *nested]
            self.draw.among(kinds)(self)


def unary(net: Net) -> None:
    net.keep(net.add(net.draw.among(("Tanh", "Neg", "Abs", "Identity")), [net.tensor()])[0])


def summed(net: Net) -> None:
    (total,) = net.add("ReduceSum", [net.tensor(), net.constant(np.array([0]))], keepdims=1)
    net.keep(net.add("Add", [net.tensor(), total])[0])


def joined(net: Net) -> None:
    (both,) = net.add("Concat", [net.tensor(), net.tensor()], axis=0)
    first, last = net.constant(np.array([0])), net.constant(np.array([MOST_ROWS]))
    net.keep(net.add("Slice", [both, first, last, first])[0])


def rows(net: Net) -> None:
    """Between bounds that are data."""
    (shape,) = net.add("Shape", [net.tensor()], end=1)
    (half,) = net.add("Div", [shape, net.constant(np.array([2]))])
    bounds = [net.constant(np.array([0])), half]
    net.keep(net.add("Slice", [net.tensor(), *bounds])[0])


def filtered(net: Net) -> None:
    data = net.tensor()
    (largest,) = net.add("ReduceMax", [data, net.constant(np.array([1]))], keepdims=0)
    (test,) = net.add("Greater", [largest, net.constant(np.float32(0))])
    net.keep(net.add("Compress", [data, test], axis=0)[0])


def listed(net: Net) -> None:
    count = net.draw.between(1, 3)
    net.lists += net.add("SequenceConstruct", [net.tensor() for _ in range(count)])


def position(net: Net) -> list[str]:
    where = net.draw.among((None, 0, -1))
    return [] if where is None else [net.constant(np.array(where))]


def inserted(net: Net) -> None:
    if net.lists:
        source = net.draw.among(net.lists)
        net.lists += net.add("SequenceInsert", [source, net.tensor(), *position(net)])


def erased(net: Net) -> None:
    if net.lists:
        net.lists += net.add("SequenceErase", [net.draw.among(net.lists), *position(net)])


def element(net: Net) -> None:
    if net.lists:
        where = net.constant(np.array(net.draw.among((0, -1, 1))))
        net.keep(net.add("SequenceAt", [net.draw.among(net.lists), where])[0])


def split(net: Net) -> None:
    parts = [] if net.draw.chance(0.5) else [net.constant(np.array(net.draw.between(1, 2)))]
    made = net.add("SplitToSequence", [net.tensor(), *parts], axis=0, keepdims=1)
    net.lists += made
    if net.draw.chance(0.5):
        net.keep(net.add("ConcatFromSequence", made, axis=0)[0])


def flag(net: Net) -> str:
    (total,) = net.add("ReduceSum", [net.tensor()], keepdims=0)
    return net.add("Greater", [total, net.constant(np.float32(0))])[0]


def matrix(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, [None, WIDTH])


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, FLOAT, [None, WIDTH])


def copied(net: Net, name: str) -> str:
    return net.add("Identity", [name])[0]


def body_of(net: Net, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
    return helper.make_graph(net.nodes, net.name(), inputs, outputs)


def branch(net: Net) -> None:
    bodies, with_list = [], net.draw.chance(0.5)
    for _ in range(2):
        inner = Net(net.draw, net)
        inner.fill(net.draw.between(0, 3))
        outputs = [matrix(copied(inner, inner.tensor()))]
        if with_list:
            if not inner.lists:
                listed(inner)
            outputs.append(sequence(copied(inner, net.draw.among(inner.lists))))
        bodies.append(body_of(inner, [], outputs))
    names = {"then_branch": bodies[0], "else_branch": bodies[1]}
    made = net.add("If", [flag(net)], 1 + with_list, **names)
    net.keep(made[0])
    net.lists += made[1:]


def loop(net: Net) -> None:
    """Carries a matrix, a number and maybe a list; stacks rows and numbers."""
    inner, with_list = Net(net.draw, net), net.draw.chance(0.6)
    number, going, state, last = (inner.name() for _ in range(4))
    inputs = [
        helper.make_tensor_value_info(number, TensorProto.INT64, []),
        helper.make_tensor_value_info(going, TensorProto.BOOL, []),
        helper.make_tensor_value_info(last, TensorProto.INT64, []),
        matrix(state),
    ]
    starts = [net.constant(np.array(-1)), net.tensor()]
    inner.tensors.append(state)
    if with_list:
        if not net.lists:
            listed(net)
        starts.append(net.draw.among(net.lists))
        inner.lists = [inner.name(), *inner.lists]
        inputs.append(sequence(inner.lists[0]))
    inner.fill(net.draw.between(1, 4))
    after = net.draw.among((number, last))
    (together,) = inner.add("Add", [number, last])
    outputs = [
        helper.make_tensor_value_info(copied(inner, going), TensorProto.BOOL, []),
        helper.make_tensor_value_info(copied(inner, after), TensorProto.INT64, []),
        matrix(copied(inner, inner.tensor())),
    ]
    if with_list:
        if net.draw.chance(0.7):
            inserted(inner)
        outputs.append(sequence(copied(inner, inner.lists[-1])))
    (row,) = inner.add("ReduceSum", [inner.tensor(), inner.constant(np.array([0]))], keepdims=0)
    outputs.append(helper.make_tensor_value_info(row, FLOAT, [WIDTH]))
    outputs.append(helper.make_tensor_value_info(together, TensorProto.INT64, []))
    count = net.constant(np.array(net.draw.between(0, 4)))
    made = net.add(
        "Loop", [count, "", *starts], len(outputs) - 1, body=body_of(inner, inputs, outputs)
    )
    end, matrix_name, *rest = made
    net.keep(matrix_name)
    if with_list:
        net.lists.append(rest.pop(0))
    net.keep(rest[0])
    (numbers,) = net.add("Cast", [rest[1]], to=FLOAT)
    (total,) = net.add("ReduceSum", [numbers], keepdims=0)
    (final,) = net.add("Cast", [end], to=FLOAT)
    (shift,) = net.add("Add", [total, final])
    net.keep(net.add("Add", [net.tensor(), shift])[0])


def scan(net: Net) -> None:
    """Over the rows of a matrix, forwards or backwards."""
    inner = Net(net.draw)
    inner.count = net.count
    state, row = inner.name(), inner.name()
    (total,) = inner.add("Add", [state, row])
    (bounded,) = inner.add("Tanh", [total])
    chosen = [net.draw.among((total, bounded, state, row)) for _ in range(2)]
    outputs = [helper.make_tensor_value_info(copied(inner, one), FLOAT, [WIDTH]) for one in chosen]
    inputs = [helper.make_tensor_value_info(name, FLOAT, [WIDTH]) for name in (state, row)]
    (start,) = net.add("ReduceSum", [net.tensor(), net.constant(np.array([0]))], keepdims=0)
    back = [net.draw.between(0, 1)]
    made = net.add(
        "Scan",
        [start, net.tensor()],
        2,
        body=body_of(inner, inputs, outputs),
        num_scan_inputs=1,
        scan_input_directions=back,
        scan_output_directions=[net.draw.between(0, 1)],
    )
    net.keep(net.add("Add", [net.tensor(), made[0]])[0])
    net.keep(made[1])


def model_of(draw: Draw) -> onnx.ModelProto:
    net = Net(draw)
    net.tensors = ["x", "y"]
    net.fill(draw.between(2, 9))
    outputs = [copied(net, name) for name in net.tensors[-4:]]
    results = [matrix(name) for name in outputs]
    if net.lists:
        results.append(sequence(copied(net, net.lists[-1])))
    inputs = [helper.make_tensor_value_info(n, FLOAT, [n * 2, WIDTH]) for n in ("x", "y")]
    graph = helper.make_graph(net.nodes, "net", inputs, results)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def outcome(module: Any, feeds: dict[str, Array]) -> list[Any] | None:
    """The results; None where the run is refused."""
    try:
        return list(module.run(None, feeds))
    except GraftError:
        return None


def assert_same(found: Any, wanted: Any) -> None:
    if wanted is None:
        assert found is None
    elif isinstance(wanted, list):
        assert isinstance(found, list)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@settings(max_examples=examples(400, short=15))
@given(decisions())
def test_released_memory_is_never_read(draw: Draw) -> None:
    model = model_of(draw)
    note(onnx.printer.to_text(model))
    host, reference = graft.compile(model, threads=1), graft.compile(model, target="reference")
    random = np.random.default_rng(0)
    for sizes in ((3, 2), (5, 1), (3, 2), (1, 4)):
        arrays = [random.standard_normal((count, WIDTH)).astype(np.float32) for count in sizes]
        feeds = dict(zip(("x", "y"), arrays, strict=True))
        wanted = outcome(reference, feeds)
        assert_same(outcome(host, feeds), wanted)


def test_the_driver_overwrites_what_is_released() -> None:
    """The poison is there: of what is released, nothing is left."""
    assert driver.driver_text("x86_64-unknown-linux-gnu").count("i8 -1") == 1


@settings(max_examples=examples(100, short=5))
@given(decisions())
def test_regions_that_return_views(draw: Draw) -> None:
    """Regions hand on parts of their operands, which lie in memory that is used again."""
    build, count = Builder(), draw.between(1, 4)
    value = build("tanh", build.input("x", TensorType(DType.FLOAT32, (symbol("n"), 4))))
    values = [value]
    for _ in range(count):
        values.append(build("nn.relu", draw.among(values)))
        values.append(build("add", draw.among(values), draw.among(values)))
    graph = build.build(*values)
    regions = [node for node in graph.nodes if node.op.name == "nn.relu"]
    outlined = outline(graph, [("views", [node]) for node in regions])
    labels = [node.attrs.label for node in outlined.nodes if node.op.name == "region"]
    runners = {label: Region(label, "views", _mirrored, None) for label in labels}
    session = HostBackend(Settings(1)).build(outlined, runners).session
    for rows_ in (3, 5, 0, 3):
        data = np.random.default_rng(rows_).standard_normal((rows_, 4)).astype(np.float32)
        known = {value: np.tanh(data)}
        for node in graph.nodes[1:]:
            operands = [known[one] for one in node.args]
            known[node.output] = operands[0][:, ::-1] if len(operands) == 1 else sum(operands)
        for found, one in zip(session.run(None, {"x": data}), graph.outputs, strict=True):
            np.testing.assert_allclose(found, known[one], rtol=1e-5, atol=1e-6)


def _mirrored(inputs: Sequence[Array], _outputs: Sequence[Array]) -> list[Array]:
    return [inputs[0][:, ::-1]]
