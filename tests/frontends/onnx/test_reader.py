"""Models of every source are read without copying weights; bad files become clear errors."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graft.base.dtypes import Array
from graft.base.errors import ModelError, UnsupportedError
from graft.frontends.onnx import wire
from graft.frontends.onnx.reader import filled_model, read_model

LARGE = np.arange(1500, dtype=np.float32).reshape(3, 500)
SMALL = np.array([1.5, -2.0], np.float32)


def sample_model() -> onnx.ModelProto:
    """Large and small tensors in every place that can have them."""
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    inner = helper.make_graph(
        [helper.make_node("Identity", ["inner_large"], ["z"])],
        "inner",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(LARGE + 1, "inner_large")],
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(LARGE + 2, "t")),
        helper.make_node("If", ["condition"], ["y"], then_branch=inner, else_branch=inner),
    ]
    values = numpy_helper.from_array(LARGE.reshape(-1), "sparse")
    indices = numpy_helper.from_array(np.arange(0, 3000, 2))
    initializers = [
        numpy_helper.from_array(SMALL, "small"),
        numpy_helper.from_array(LARGE, "large"),
        numpy_helper.from_array(np.array(True), "condition"),
        helper.make_tensor("typed", TensorProto.FLOAT, [1500], LARGE.reshape(-1)),
        TensorProto(name="words", data_type=8, dims=[2], string_data=[b"a", b"bc"]),
    ]
    graph = helper.make_graph(nodes, "g", [], [value], initializers)
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3000]))
    return helper.make_model(graph, producer_name="test")


def check_sample(arrays: dict[str, Array]) -> None:
    assert np.array_equal(arrays["small"], SMALL)
    assert np.array_equal(arrays["large"], LARGE)
    assert np.array_equal(arrays["typed"], LARGE.reshape(-1))
    assert np.array_equal(arrays["words"], np.array(["a", "bc"], object))
    dense = np.zeros(3000, np.float32)
    dense[::2] = LARGE.reshape(-1)
    assert np.array_equal(arrays["sparse"], dense)


def test_path_bytes_and_message_give_the_same(tmp_path: Path) -> None:
    model = sample_model()
    data = model.SerializeToString()
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    for given_model, name in (
        (model, "<ModelProto>"),
        (data, "<bytes>"),
        (path, "net.onnx"),
        (str(path), "net.onnx"),
    ):
        source = read_model(given_model)
        assert source.name == name
        check_sample(dict(source.initializers()))
        for node, expected in zip(source.model.graph.node, (2, 1), strict=True):
            tensor = node.attribute[0].t if expected == 2 else node.attribute[0].g.initializer[0]
            assert np.array_equal(source.weights.array(tensor, "constant"), LARGE + expected)
    assert model.SerializeToString() == data


def test_no_large_payload_reaches_the_parser() -> None:
    data = sample_model().SerializeToString()
    slim = wire.cut_out_payloads(memoryview(data), "<bytes>")
    payloads = 6 * LARGE.nbytes + 1500 * 8
    assert len(data) > payloads
    assert len(slim) < len(data) - payloads + 1500
    assert LARGE.tobytes()[:64] not in bytes(slim)


def test_filled_model_undoes_the_cutting() -> None:
    model = sample_model()
    typed = model.graph.initializer[3]
    typed.CopyFrom(numpy_helper.from_array(LARGE.reshape(-1), "typed"))
    assert filled_model(read_model(model.SerializeToString())) == model


@given(st.lists(st.integers(0, 3000), max_size=6), st.integers(0, 300))
def test_any_number_and_size_of_payloads_comes_back(sizes: list[int], padding: int) -> None:
    """Sizes around the limit, and enclosing lengths that change how many bytes they take."""
    tensors = [
        numpy_helper.from_array(np.arange(size, dtype=np.int16), f"w{index}")
        for index, size in enumerate(sizes)
    ]
    model = helper.make_model(helper.make_graph([], "g" * padding, [], [], tensors))
    source = read_model(model.SerializeToString())
    for index, (name, array) in enumerate(source.initializers()):
        assert name == f"w{index}"
        assert np.array_equal(array, np.arange(sizes[index]))
    assert filled_model(source) == model


def field(tag: int, payload: bytes) -> bytes:
    return bytes([tag]) + wire._encoded_varint(len(payload)) + payload


def one_tensor(tensor: bytes) -> bytes:
    """A model with one initialiser, given as it is serialised."""
    return b"\x08\x08" + field(0x3A, field(0x2A, tensor))


RAW = LARGE.tobytes()
RAW_FIELD = field(0x4A, RAW)
OTHER_FIELD = field(0x4A, RAW[::-1])
HEAD = TensorProto(name="w", data_type=1, dims=[1500]).SerializeToString()

UNUSUAL = {
    "payload before the rest": one_tensor(RAW_FIELD + HEAD),
    "two payloads": one_tensor(HEAD + OTHER_FIELD + RAW_FIELD),
    "unknown field": one_tensor(HEAD + b"\xfa\x07\x02ab" + RAW_FIELD),
    "location said to be inside": one_tensor(HEAD + b"\x70\x00" + RAW_FIELD),
    "length longer than needed": one_tensor(HEAD + b"\x4a\xf0\xae\x80\x00" + RAW),
    "floats one by one": one_tensor(
        HEAD + b"".join(b"\x25" + RAW[at : at + 4] for at in range(0, len(RAW), 4))
    ),
    "floats in two halves": one_tensor(
        HEAD + b"\x22\xb8\x17" + RAW[:3000] + b"\x22\xb8\x17" + RAW[3000:]
    ),
    "graph in two halves": one_tensor(HEAD + RAW_FIELD) + b"\x3a\x03\x12\x01g",
}


@pytest.mark.parametrize("data", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_encodings_mean_what_protobuf_says(data: bytes) -> None:
    ((name, array),) = read_model(data).initializers()
    assert name == "w"
    assert array.tobytes() == RAW


def test_deeply_nested_graphs_are_left_to_onnx() -> None:
    graph = field(0x2A, HEAD + RAW_FIELD)
    for _ in range(10_000):
        attribute = field(0x32, graph)
        graph = field(0x0A, field(0x2A, attribute))
    with pytest.raises(ModelError, match="not a readable ONNX model"):
        read_model(b"\x08\x08" + field(0x3A, graph))


@pytest.mark.parametrize("suffix", [".onnxtxt", ".onnxjson", ".textproto"])
def test_text_formats_are_read_by_their_suffix(suffix: str, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("w", TensorProto.FLOAT, [2], SMALL)],
    )
    path = tmp_path / f"net{suffix}"
    onnx.save(helper.make_model(graph), path)
    assert np.array_equal(dict(read_model(path).initializers())["w"], SMALL)
    path.write_text("not a model {")
    with pytest.raises(ModelError, match="not a readable ONNX model"):
        read_model(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="not a readable ONNX model"):
        read_model(path)


def test_suffix_does_not_matter_otherwise(tmp_path: Path) -> None:
    for name in ("net.bin", "net", "net.ONNX", "größer.onnx"):
        (tmp_path / name).write_bytes(sample_model().SerializeToString())
        assert read_model(tmp_path / name).name == name


def test_name_that_is_not_utf8_still_serves(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"n\xff.onnx")
    path.write_bytes(sample_model().SerializeToString())
    check_sample(dict(read_model(path).initializers()))


BAD_CONTENTS = [
    (b"", "the model is empty", "has it been written"),
    (b"just some text\n" * 20, "not a readable ONNX model", "this is a text file"),
    (b"<!DOCTYPE html><html>", "not a readable ONNX model", "download"),
    (b"version https://git-lfs.github.com/spec/v1\n", "not a readable", "git lfs pull"),
    (b"PK\x03\x04" + bytes(100), "not a readable", "ZIP"),
    (b"\x1f\x8b\x08" + bytes(30), "not a readable", "gzip"),
    (b"\x20\0\0\0ORTM" + bytes(30), "not a readable", "ONNX Runtime's own format"),
    (b"\x1c\0\0\0TFL3" + bytes(30), "not a readable", "TensorFlow Lite"),
    (random.Random(7).randbytes(20_000), "not a readable ONNX model", "size"),
    (b"\x08\x08", "it has no graph: truncated or damaged", "size"),
    (b"\x3a\x00", "it has no IR version", "size"),
    (sample_model().SerializeToString()[:-3000], "truncated or damaged", "size"),
]


@pytest.mark.parametrize(("content", "message", "hint"), BAD_CONTENTS, ids=range(len(BAD_CONTENTS)))
def test_bad_content_is_an_error_with_a_hint(
    content: bytes, message: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(ModelError, match=message) as caught:
            read_model(source)
        assert hint in caught.value.hint
        assert ("in net.onnx" if source is path else "in <bytes>") in str(caught.value)


def test_compiled_model_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "net.graft").write_bytes(b"\0" * 10)
    with pytest.raises(ModelError) as caught:
        read_model(tmp_path / "net.graft")
    assert "graft.load" in caught.value.hint


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


BAD_PATHS: list[tuple[Callable[[Path], object], str, str]] = [
    (lambda path: None, "No such file", "check the path"),
    (Path.mkdir, "it is a folder", "file inside it"),
    (make_pipe, "not a regular file", ""),
    (lambda path: path.symlink_to(path), "symbolic links", ""),
]


@pytest.mark.parametrize(("make", "message", "hint"), BAD_PATHS, ids=[m for _, m, _ in BAD_PATHS])
def test_bad_path_is_an_error_with_a_hint(
    make: Callable[[Path], object], message: str, hint: str, tmp_path: Path
) -> None:
    make(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=message) as caught:
        read_model(tmp_path / "net.onnx")
    assert "net.onnx" in str(caught.value)
    assert hint in caught.value.hint


def test_forbidden_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, since an administrator may read everything."""

    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("graft.frontends.onnx.weights.os.open", refuse)
    with pytest.raises(ModelError, match="Permission denied") as caught:
        read_model(tmp_path / "net.onnx")
    assert "permissions" in caught.value.hint


@pytest.mark.parametrize("source", [None, 3, ["net.onnx"], "a\0b"], ids=repr)
def test_what_is_no_source_is_an_error(source: object) -> None:
    with pytest.raises(ModelError):
        read_model(source)  # type: ignore[arg-type]


def test_name_that_is_not_utf8_in_the_model_is_an_error() -> None:
    data = sample_model().SerializeToString()
    for old, new in ((b"small", b"sm\xffll"), (b"Identity", b"Ident\xfety")):
        with pytest.raises(ModelError, match="not UTF-8"):
            read_model(data.replace(old, new))


def test_initializers_of_one_name_or_none_are_errors() -> None:
    tensor = numpy_helper.from_array(SMALL, "w")
    for tensors, message in (([tensor, tensor], "'w' is given twice"), ([TensorProto()], "lacks")):
        model = helper.make_model(helper.make_graph([], "g", [], []))
        model.graph.initializer.extend(tensors)
        with pytest.raises(ModelError, match=message):
            list(read_model(model, strict=True).initializers())


def survives(data: bytes) -> bool:
    """Whether the bytes are a model; anything but success or a user's error is a failure."""
    try:
        source = read_model(data)
        for _, array in source.initializers():
            assert not array.flags.writeable
    except (ModelError, UnsupportedError):
        return False
    return True


def small_models() -> list[bytes]:
    """One made here, one with external data, and one that ships with ONNX."""
    own = sample_model()
    outside = sample_model()
    outside.graph.initializer[1].ClearField("raw_data")
    reference = wire.external_reference("data.bin", 0, LARGE.nbytes)
    outside.graph.initializer[1].MergeFrom(reference)
    shipped = Path(onnx.__file__).parent / "backend/test/data/light/light_bvlc_alexnet.onnx"
    return [own.SerializeToString(), outside.SerializeToString(), shipped.read_bytes()]


@pytest.mark.parametrize("data", small_models(), ids=["own", "outside", "shipped"])
def test_truncated_model_is_an_error_or_a_model(data: bytes) -> None:
    whole = [length for length in range(0, len(data), 7) if survives(data[:length])]
    assert len(whole) <= 2


@pytest.mark.parametrize("data", small_models(), ids=["own", "outside", "shipped"])
def test_flipped_bytes_are_an_error_or_a_model(data: bytes) -> None:
    generator = random.Random(len(data))
    outcomes = set()
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(generator.choice((1, 1, 3, 20))):
            # Half of the flips hit the last part, which is names and numbers more than payloads.
            start = generator.choice((0, len(data) * 9 // 10))
            damaged[generator.randrange(start, len(data))] = generator.randrange(256)
        outcomes.add(survives(bytes(damaged)))
    assert False in outcomes


PEAK = textwrap.dedent(
    """
    import resource, sys
    from graft.frontends.onnx.reader import read_model

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    before = peak()
    arrays = dict(read_model(sys.argv[1]).initializers())
    if sys.argv[2] == "all":
        total = sum(float(array.sum()) for array in arrays.values())
        assert total == float(sys.argv[3]), total
    print(peak() - before, len(arrays))
    """
)


@pytest.mark.parametrize("touched", ["none", "all"])
def test_peak_memory_is_about_the_file(touched: str, tmp_path: Path) -> None:
    """200 MB, half as one weight, with offsets that suit float32 and offsets that do not."""
    path = tmp_path / "large.onnx"
    sizes = [25_000_000] + [2_500_001] * 10
    tensors = [
        numpy_helper.from_array(np.full(size, 0.5, np.float32), "w" * (index + 1))
        for index, size in enumerate(sizes)
    ]
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [], tensors)), path)
    total = str(sum(sizes) * 0.5)
    command = [sys.executable, "-c", PEAK, str(path), touched, total]
    source = Path(wire.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    used, count = (int(word) for word in result.stdout.split())
    assert count == len(sizes)
    assert used < 1.5 * path.stat().st_size
