"""Skeletons are filled with the weights their seeds describe, in memory and on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graft.base.dtypes import Array
from graft.base.errors import ModelError, UserError
from graft.frontends.onnx import skeleton
from graft.frontends.onnx.reader import filled_model, read_model, write_filled
from graft.frontends.onnx.skeleton import SeededWeight

SPEC = {"shape": [3, 5], "std": 0.25, "seed": 11}


def drawn(shape: list[int], std: float, seed: int) -> Array:
    """What a skeleton's entry means, said once more."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(std)


def skeleton_of(metadata: object, *tensors: TensorProto) -> onnx.ModelProto:
    """y = x @ w + b, of which the metadata may describe w and b."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(tensors))
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    model.metadata_props.add(key="author", value="nobody")
    model.metadata_props.add(key="seeded_weights", value=text)
    return model


BIAS = numpy_helper.from_array(np.arange(5, dtype=np.float32), "b")


@pytest.mark.parametrize("shape", [[], [1], [0, 3], [3, 5], [7, 1, 2, 3]], ids=str)
def test_weight_is_what_its_seed_says(shape: list[int]) -> None:
    array = SeededWeight(tuple(shape), 0.1, 42).draw()
    expected = drawn(shape, 0.1, 42)
    assert array.dtype == np.float32
    assert array.shape == expected.shape
    assert array.tobytes() == expected.tobytes()
    assert not array.flags.writeable


def test_initializers_include_seeded_weights_in_order() -> None:
    source = read_model(skeleton_of({"w": SPEC}, BIAS).SerializeToString())
    names, arrays = zip(*source.initializers(), strict=True)
    assert names == ("b", "w")
    assert arrays[1].tobytes() == drawn([3, 5], 0.25, 11).tobytes()


def test_filled_model_is_no_skeleton_and_the_skeleton_stays() -> None:
    model = skeleton_of({"w": SPEC}, BIAS)
    before = model.SerializeToString()
    filled = filled_model(read_model(model))
    assert model.SerializeToString() == before
    onnx.checker.check_model(filled)
    assert [tensor.name for tensor in filled.graph.initializer] == ["b", "w"]
    assert [entry.key for entry in filled.metadata_props] == ["author"]


def test_weight_that_is_there_already_is_not_drawn() -> None:
    """Other tools fill skeletons, too, and leave the metadata where it is."""
    stored = numpy_helper.from_array(np.ones((3, 5), np.float32), "w")
    source = read_model(skeleton_of({"w": SPEC}, BIAS, stored))
    assert not source.seeded
    assert dict(source.initializers())["w"].tolist() == np.ones((3, 5)).tolist()


def entry(**changes: object) -> dict[str, Any]:
    return {"w": {**SPEC, **changes}}


BAD_METADATA = [
    ("{", "bad JSON"),
    ("[" * 100_000, "bad JSON"),
    ('{"w": ' + "9" * 5000 + "}", "bad JSON"),
    ('{"w": {"seed": 1}, "w": {"seed": 2}}', "bad JSON: a name is given twice"),
    ([1], "not a JSON object"),
    ({"w": 3}, "'w' has no shape"),
    ({"w": {}}, "'w' has no shape"),
    (entry(shape=3), "has no shape"),
    (entry(shape=[3, -5]), "has no shape"),
    (entry(shape=[3, 5.0]), "has no shape"),
    (entry(shape=[True]), "has no shape"),
    (entry(shape=[2**16, 2**16]), "absurd shape"),
    (entry(shape=[0, 2**40]), "absurd shape"),
    (entry(shape=[1] * 65), "absurd shape"),
    (entry(std=None), "has no std"),
    (entry(std="1"), "has no std"),
    (entry(std=float("nan")), "has no std"),
    (entry(std=float("inf")), "has no std"),
    (entry(std=1e39), "has no std"),
    (entry(std=10**400), "has no std"),
    (entry(seed=-1), "has no seed"),
    (entry(seed=1.5), "has no seed"),
    (entry(seed=None), "has no seed"),
    ({"xw": SPEC}, "clashes: 'xw' is also what a node computes"),
    ({"": SPEC}, "clashes: it has no name"),
]


@pytest.mark.parametrize(("metadata", "message"), BAD_METADATA, ids=range(len(BAD_METADATA)))
def test_bad_metadata_is_an_error(metadata: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_model(skeleton_of(metadata, BIAS))


def test_metadata_given_twice_is_an_error() -> None:
    model = skeleton_of({"w": SPEC}, BIAS)
    model.metadata_props.add(key="seeded_weights", value="{}")
    with pytest.raises(ModelError, match="seeded_weights is given 2 times"):
        read_model(model)


def large_skeleton(folder: Path) -> Path:
    """With a seeded weight, one cut out of the file, one beside it, and one inside a constant."""
    model = skeleton_of({"w": SPEC}, BIAS)
    model.graph.initializer.append(numpy_helper.from_array(np.arange(3001.0), "own"))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(7.0), "beside"))
    onnx.external_data_helper.set_external_data(model.graph.initializer[-1], "beside.bin")
    (folder / "beside.bin").write_bytes(model.graph.initializer[-1].raw_data)
    model.graph.initializer[-1].ClearField("raw_data")
    constant = numpy_helper.from_array(np.arange(2001, dtype=np.int16), "constant")
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=constant))
    path = folder / "skeleton.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def assert_complete(path: Path) -> None:
    """The file has what `large_skeleton` describes, as read by ONNX, and runs elsewhere."""
    model = onnx.load(path)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert arrays.keys() == {"b", "own", "beside", "w"}
    assert arrays["w"].tobytes() == drawn([3, 5], 0.25, 11).tobytes()
    assert np.array_equal(arrays["own"], np.arange(3001.0))
    assert np.array_equal(arrays["beside"], np.arange(7.0))
    constant = numpy_helper.to_array(model.graph.node[-1].attribute[0].t)
    assert np.array_equal(constant, np.arange(2001))
    ours = dict(read_model(path).initializers())
    assert all(np.array_equal(ours[name], arrays[name]) for name in arrays)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.ones((2, 3), np.float32)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, x @ arrays["w"] + arrays["b"], rtol=1e-5)


def test_write_filled_makes_one_ordinary_file(tmp_path: Path) -> None:
    out = tmp_path / "out" / "full.onnx"
    out.parent.mkdir()
    write_filled(large_skeleton(tmp_path), out)
    assert_complete(out)
    assert [path.name for path in out.parent.iterdir()] == ["full.onnx"]


def test_write_filled_puts_too_large_weights_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skeleton, "_LARGEST_FILE", 20_000)
    out = tmp_path / "out" / "full.onnx"
    out.parent.mkdir()
    write_filled(large_skeleton(tmp_path), out)
    assert_complete(out)
    assert {path.name for path in out.parent.iterdir()} == {"full.onnx", "full.onnx.data"}
    assert out.stat().st_size < 20_000


def test_write_filled_may_replace_what_it_reads(tmp_path: Path) -> None:
    path = large_skeleton(tmp_path)
    source = read_model(path)
    write_filled(path, path)
    assert_complete(path)
    assert np.array_equal(dict(source.initializers())["own"], np.arange(3001.0))


def test_write_filled_says_where_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write '.*full.onnx': No such file"):
        write_filled(large_skeleton(tmp_path), tmp_path / "absent" / "full.onnx")


def test_real_skeleton_has_the_weights_it_was_measured_with(models_dir: Path) -> None:
    """ResNet-18: all weights are there, and one is checked against the meaning of its entry."""
    path = models_dir / "resnet18.onnx"
    model = onnx.load(path)
    (metadata,) = [entry.value for entry in model.metadata_props if entry.key == "seeded_weights"]
    specs = json.loads(metadata)
    arrays = dict(read_model(path).initializers())
    stored = {tensor.name for tensor in model.graph.initializer}
    assert arrays.keys() == stored | specs.keys()
    assert {name: list(arrays[name].shape) for name in specs} == {
        name: spec["shape"] for name, spec in specs.items()
    }
    name = min(specs)
    assert arrays[name].tobytes() == drawn(**specs[name]).tobytes()
    needed = {name for node in model.graph.node for name in node.input if name}
    made = {name for node in model.graph.node for name in node.output}
    assert needed - made - {value.name for value in model.graph.input} <= arrays.keys()
