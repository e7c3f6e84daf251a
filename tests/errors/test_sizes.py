"""Absurd sizes: importing such a model costs nothing, running it is refused before memory is gone.

Sizes that import can tell, and those that only the data decide, are compared with the machine's
memory before anything is made.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends.onnx.small_models import (
    BOOL,
    FLOAT,
    INT64,
    graph,
    it,
    model,
    node,
    refused,
    tensor,
    value,
)

from graft.base.errors import EvaluationError, TypeRuleError, UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate

MILLION = 10**6
IMAGE = [value("x", FLOAT, [1, 1, 2, 2])]
TEN_MILLION_TIMES = np.array([1, 1, 1e7, 1e7], np.float32)
KERNEL = np.ones((1, 1, 2, 2), np.float32)


def sized(op_type: str, operands: str, inputs: list[Any] | None = None, **given: Any) -> Any:
    """An operator of named operands, some of which are weights; other names are attributes."""
    names = [name if name != "-" else "" for name in operands.split()]
    weights = [tensor(name, array) for name, array in given.items() if name in names]
    attributes = {name: array for name, array in given.items() if name not in names}
    opsets = {"": attributes.pop("opset", 18)}
    return model(it(op_type, names, **attributes), inputs, weights=weights, opsets=opsets)


STATIC: dict[str, onnx.ModelProto] = {
    "ConstantOfShape": sized("ConstantOfShape", "s", [], s=[MILLION, MILLION]),
    "ConstantOfShape of 10**30": sized("ConstantOfShape", "s", [], s=[10**15, 10**15]),
    "Expand": sized("Expand", "x s", [value("x", FLOAT, [1, 1])], s=[MILLION, MILLION]),
    "Tile": sized("Tile", "x s", s=[MILLION, MILLION]),
    "Range": sized("Range", "a b c", [], a=0, b=10**13, c=1),
    "Pad": sized("Pad", "x p", p=[0, 0, MILLION, MILLION]),
    "Resize": sized("Resize", "x - s", IMAGE, s=TEN_MILLION_TIMES),
    "Upsample": sized("Upsample", "x s", IMAGE, s=TEN_MILLION_TIMES, opset=9),
    "OneHot": sized(
        "OneHot", "x d v", [value("x", INT64)], d=10**13, v=np.array([0, 1], np.float32)
    ),
    "RandomNormal": sized("RandomNormal", "", [], shape=[MILLION, MILLION]),
    "HannWindow": sized("HannWindow", "n", [], n=10**13),
    "Conv": sized("Conv", "x w", IMAGE, w=KERNEL, pads=[MILLION] * 4),
    "MaxPool": sized("MaxPool", "x", IMAGE, kernel_shape=[MILLION] * 2, pads=[MILLION - 1] * 4),
}  # fmt: skip


@pytest.mark.parametrize("proto", STATIC.values(), ids=STATIC)
def test_sizes_that_import_can_tell(proto: onnx.ModelProto) -> None:
    tracemalloc.start()
    found = import_model(proto)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20
    inputs = [np.zeros(v.shape, v.dtype.numpy) for v in found.inputs]
    with pytest.raises(EvaluationError, match="more than this machine's memory") as caught:
        evaluate(found, inputs)
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


def test_a_message_in_full() -> None:
    with pytest.raises(EvaluationError) as caught:
        evaluate(import_model(STATIC["ConstantOfShape"]), [])
    assert str(caught.value) == (
        "full would make %y of 3725 GiB, more than this machine's memory\n"
        "  at node 'it' (ConstantOfShape) in <ModelProto>"
    )


def test_what_needs_no_memory_is_computed() -> None:
    """The shape of a tensor that could never be made is known on import."""
    nodes = [it("ConstantOfShape", ["s"], ["z"]), node("Shape", "z", "y")]
    found = import_model(model(nodes, [], weights=[tensor("s", [MILLION, MILLION])]))
    assert str(found.outputs[0].type) == "int64[2]"


def test_sizes_that_shapes_tell_at_run_time() -> None:
    inputs = [value("x", FLOAT, ["n", 1]), value("z", FLOAT, [1, "m"])]
    found = import_model(model(it("Add", ["x", "z"]), inputs))
    column = np.zeros((MILLION, 1), np.float32)
    with pytest.raises(EvaluationError, match="add would make %y of 3725 GiB"):
        evaluate(found, [column, column.T])
    declared = import_model(model(it("Relu"), [value("x", FLOAT, [MILLION, MILLION])]))
    with pytest.raises(EvaluationError, match=r"nn\.relu would make %y of 3725 GiB"):
        evaluate(declared, [np.broadcast_to(np.float32(0), (MILLION, MILLION))])


FLAGS = [value("i", INT64, []), value("c", BOOL, [])]
PAIR = [value("x", FLOAT, [1, 1]), value("s", INT64, [2])]
DYNAMIC: dict[str, tuple[onnx.ModelProto, list[Any]]] = {
    "ConstantOfShape": (sized("ConstantOfShape", "s", PAIR[1:]), [[10**9, 10**9]]),
    "Expand": (sized("Expand", "x s", PAIR), [[[1]], [10**9, 10**9]]),
    "Tile": (sized("Tile", "x s", PAIR), [[[1]], [10**9, 10**9]]),
    "Range": (sized("Range", "a s c", [value("s", INT64, [])], a=0, c=1), [10**18]),
    "Range of floats": (
        sized("Range", "a s c", [value("s", FLOAT, [])], a=np.float32(0), c=np.float32(1)),
        [1e30],
    ),
    "Pad": (sized("Pad", "x s", [PAIR[0], value("s", INT64, [4])]), [[[1]], [0, 0, 10**9, 10**9]]),
    "Resize": (
        sized("Resize", "x - s", [PAIR[0], value("s", FLOAT, [2])]),
        [[[1]], [1e9, 1e9]],
    ),
    "DFT": (
        sized("DFT", "x s", [value("x", FLOAT, [1, 2, 1]), value("s", INT64, [])]),
        [np.ones((1, 2, 1)), 10**15],
    ),
    "MelWeightMatrix": (
        sized(
            "MelWeightMatrix",
            "s n r l h",
            [value("s", INT64, [])],
            n=64,
            r=8000,
            l=np.float32(0),
            h=np.float32(4000),
        ),
        [10**15],
    ),
    "OneHot": (
        sized(
            "OneHot",
            "x s v",
            [value("x", INT64), value("s", INT64, [])],
            v=np.array([0, 1], np.float32),
        ),
        [np.zeros((2, 3)), 10**18],
    ),
}


@pytest.mark.parametrize(("proto", "feeds"), DYNAMIC.values(), ids=DYNAMIC)
def test_sizes_that_the_data_decide(proto: onnx.ModelProto, feeds: list[Any]) -> None:
    found = import_model(proto)
    inputs = [np.array(f, v.dtype.numpy) for f, v in zip(feeds, found.inputs, strict=True)]
    with pytest.raises(EvaluationError, match="more than this machine's memory") as caught:
        evaluate(found, inputs)
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


def test_loops_that_stack_without_end() -> None:
    made = graph([node("Identity", "c", "d"), node("Identity", "x", "v")], "d v", FLAGS)
    column = [value("x", FLOAT, [1 << 20]), value("c", BOOL, [])]
    endless = import_model(model(it("Loop", ["", "c"], body=made), column))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graft.base.capacity.MOST_BYTES", 100 << 20)
        with pytest.raises(EvaluationError, match="after 25 iterations loop would stack results"):
            evaluate(endless, [np.zeros(1 << 20, np.float32), np.array(True)])


LONG = 10**5


def test_long_attributes_are_taken() -> None:
    found = import_model(model(it("Constant", [], value_ints=list(range(MILLION))), []))
    assert evaluate(found, [])[0].sum() == MILLION * (MILLION - 1) // 2
    words = [f"word {i}" for i in range(LONG)]
    text = [value("x", 8, [2])]
    found = import_model(model(it("StringNormalizer", stopwords=words), text))
    assert evaluate(found, [np.array(["word 7", "word"], object)])[0].tolist() == ["word"]
    found = import_model(model(it("Concat", ["x"] * LONG, axis=0)))
    assert found.outputs[0].shape == (2 * LONG, 3)


@pytest.mark.parametrize(
    ("proto", "error"),
    [
        (model(it("Transpose", perm=list(range(LONG)))), TypeRuleError),
        (model(it("Einsum", equation="ij->" + "ij" * LONG)), TypeRuleError),
        (model(it("Einsum", equation="(" * LONG)), TypeRuleError),
        (sized("Slice", "x b e", b=[0] * LONG, e=[1] * LONG), UserError),
        (sized("Conv", "x w", IMAGE, w=KERNEL, pads=[0] * LONG), UserError),
    ],
    ids=["Transpose", "Einsum result", "Einsum nonsense", "Slice", "Conv"],
)  # fmt: skip
def test_long_attributes_that_make_no_sense(proto: onnx.ModelProto, error: type[UserError]) -> None:
    with pytest.raises(error) as caught:
        evaluate(import_model(proto), [np.zeros((2, 3), np.float32)])
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


def test_more_axes_than_numpy_has() -> None:
    proto = sized("Reshape", "x s", s=[6] + [1] * LONG)
    refused(lambda: proto, TypeRuleError, "a tensor cannot have 100001 axes", "it")
    found = import_model(sized("Reshape", "x s", s=[6] + [1] * 65))
    with pytest.raises(EvaluationError, match="maximum supported dimension") as caught:
        evaluate(found, [np.zeros((2, 3), np.float32)])
    assert caught.value.location is not None


def test_windows_beyond_reason() -> None:
    huge = {"kernel_shape": [1 << 62, 1 << 62]}
    refused(
        lambda: sized("MaxPool", "x", IMAGE, **huge),
        TypeRuleError,
        "a window that spans 4611686018427387904 does not fit into 2 padded to 2",
        "it",
    )
