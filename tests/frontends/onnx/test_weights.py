"""Tensors of every kind and place become read-only arrays; damaged ones become clear errors."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graft.base.dtypes import Array, DType
from graft.base.errors import ModelError, UserError
from graft.frontends.onnx.reader import Source, read_model
from graft.frontends.onnx.weights import Weights

NUMERIC = [dtype for dtype in DType if dtype is not DType.STRING]
ODD_SHAPES = [(), (1,), (3, 5), (0, 4), (2, 0), (7, 1, 3), (67, 31), (131, 67)]


def sample(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Every bit pattern that the element type has room for, NaN and infinity included."""
    generator = np.random.default_rng(len(shape) + math.prod(shape))
    if dtype is DType.BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.bits < 8:
        return generator.integers(0, 2**dtype.bits, shape).astype(np.uint8).view(dtype.numpy)
    size = math.prod(shape) * dtype.numpy.itemsize
    return np.frombuffer(generator.bytes(size), dtype.numpy).reshape(shape)


def same_bits(left: Array, right: Array) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and (left.tobytes() == right.tobytes())
    )


def model_of(*tensors: TensorProto) -> onnx.ModelProto:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", [tensors[0].name], ["y"])
    return helper.make_model(helper.make_graph([node], "g", [], [output], list(tensors)))


def external(name: str, data_type: int, dims: list[int], **entries: object) -> TensorProto:
    tensor = TensorProto(name=name, data_type=data_type, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def only(source: Source) -> Array:
    ((_, array),) = source.initializers()
    return array


def base_of(array: Array) -> object:
    """What the array is a view of, at the bottom."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base


@pytest.mark.parametrize("shape", ODD_SHAPES, ids=str)
@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_every_type_comes_back_from_bytes_and_from_memory(
    dtype: DType, shape: tuple[int, ...]
) -> None:
    """The larger shapes are cut out of the bytes, the smaller ones stay in the tensor."""
    array = sample(dtype, shape)
    model = model_of(numpy_helper.from_array(array, "w"))
    for source in (model, model.SerializeToString()):
        result = only(read_model(source))
        assert same_bits(result, array)
        assert not result.flags.writeable
        assert result.flags.aligned


@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_every_type_comes_back_from_a_file_beside_the_model(dtype: DType, tmp_path: Path) -> None:
    array = sample(dtype, (131, 67))
    raw = numpy_helper.from_array(array, "w").raw_data
    (tmp_path / "w.bin").write_bytes(b"abc" + raw + b"rest")
    tensor = numpy_helper.from_array(array[:0], "w")
    tensor = external("w", tensor.data_type, [131, 67], location="w.bin", offset=3, length=len(raw))
    (tmp_path / "m.onnx").write_bytes(model_of(tensor).SerializeToString())
    assert same_bits(only(read_model(tmp_path / "m.onnx")), array)


@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 5), (33, 65)], ids=str)
def test_every_type_comes_back_from_its_typed_field(dtype: DType, shape: tuple[int, ...]) -> None:
    array = sample(dtype, shape)
    data_type = numpy_helper.from_array(array).data_type
    tensor = TensorProto(name="w", data_type=data_type, dims=shape)
    field = getattr(tensor, helper.tensor_dtype_to_field(data_type))
    flat = array.reshape(-1)
    if dtype.is_complex:
        field.extend(flat.view(f"float{dtype.bits // 2}").tolist())
    elif dtype in (DType.FLOAT32, DType.FLOAT64) or (dtype.is_integer and dtype.bits >= 32):
        field.extend(flat.tolist())
    elif dtype.bits == 16:
        field.extend(flat.view(np.uint16).tolist())
    elif dtype.bits in (6, 8):
        field.extend(flat.view(np.uint8).tolist())
    else:
        field.extend(numpy_helper.from_array(array).raw_data)
    model = model_of(tensor)
    for source in (model, model.SerializeToString()):
        result = only(read_model(source))
        if (dtype.is_float or dtype.is_complex) and dtype.bits >= 32:
            np.testing.assert_array_equal(result, array)
        else:
            assert same_bits(result, array)


def test_packed_elements_start_in_the_lowest_bits() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], raw_data=b"\xf8\x07")
    array = Weights("m").array(tensor)
    assert array.dtype == ml_dtypes.int4
    assert array.astype(np.int8).tolist() == [-8, -1, 7]
    tensor = TensorProto(name="w", data_type=TensorProto.UINT2, dims=[5], raw_data=b"\xe4\x02")
    assert Weights("m").array(tensor).astype(np.int8).tolist() == [0, 1, 2, 3, 2]


def test_strings_keep_zeros_at_their_end_and_differ_in_length() -> None:
    words = ["", "a\0", "größer", "x" * 5000]
    encoded = [word.encode() for word in words]
    tensor = TensorProto(name="w", data_type=8, dims=[2, 2], string_data=encoded)
    array = Weights("m").array(tensor)
    assert array.dtype == object
    assert array.tolist() == [words[:2], words[2:]]
    assert not array.flags.writeable


def test_string_that_is_not_utf8_is_an_error() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    with pytest.raises(ModelError, match="initialiser 'w' holds a string that is not UTF-8"):
        Weights("m").array(tensor)


def test_odd_truth_values_become_true() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.BOOL, dims=[3], raw_data=b"\0\2\1")
    assert Weights("m").array(tensor).view(np.uint8).tolist() == [0, 1, 1]
    single = TensorProto(name="w", data_type=TensorProto.BOOL, raw_data=b"\2")
    assert Weights("m").array(single).view(np.uint8).tolist() == 1


def test_array_views_the_bytes_or_the_mapped_file(tmp_path: Path) -> None:
    """One of four paddings makes the payload's offset suit its type; then nothing is copied."""
    array = sample(DType.FLOAT32, (64, 33))
    viewed_bytes = viewed_file = copied = 0
    for padding in range(4):
        model = model_of(numpy_helper.from_array(array, "w"))
        model.producer_name = "p" * padding
        data = model.SerializeToString()
        path = tmp_path / f"{padding}.onnx"
        path.write_bytes(data)
        from_bytes, from_file = only(read_model(data)), only(read_model(path))
        assert same_bits(from_bytes, array)
        assert same_bits(from_file, array)
        viewed_bytes += base_of(from_bytes) is data
        viewed_file += isinstance(base_of(from_file), mmap.mmap)
        copied += base_of(from_file) is None
    assert (viewed_bytes, viewed_file) == (1, 1)
    assert copied == 3


def test_large_unaligned_tensor_is_copied_right() -> None:
    """Larger than what is copied at once."""
    array = np.arange(5_000_001, dtype=np.float32)
    data = b"x" + array.tobytes()
    tensor = external("w", TensorProto.FLOAT, [len(array)], location="m", offset=1)
    assert np.array_equal(Weights("m", data).array(tensor), array)


def test_one_file_is_mapped_once(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    first = external("a", TensorProto.FLOAT, [4], location="d.bin", length=16)
    second = external("b", TensorProto.FLOAT, [4], location="./d.bin", offset=16)
    source = read_model(model_of(first, second), folder=tmp_path)
    arrays = dict(source.initializers())
    assert arrays["a"].tolist() == [0, 1, 2, 3]
    assert arrays["b"].tolist() == [4, 5, 6, 7]
    assert isinstance(base_of(arrays["a"]), mmap.mmap)
    assert base_of(arrays["a"]) is base_of(arrays["b"])


def with_raw(data_type: int, dims: list[int], raw: bytes) -> TensorProto:
    return TensorProto(name="w", data_type=data_type, dims=dims, raw_data=raw)


def with_floats(dims: list[int], count: int) -> TensorProto:
    return TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, float_data=[0.5] * count)


def with_segment() -> TensorProto:
    tensor = with_raw(TensorProto.FLOAT, [1], bytes(4))
    tensor.segment.begin = 0
    return tensor


BAD_TENSORS = [
    (with_raw(1, [3], bytes(11)), r"'w' holds 11 bytes, but float32 \[3\] takes 12"),
    (with_raw(1, [3], bytes(16)), "holds 16 bytes"),
    (with_raw(22, [3], bytes(1)), r"holds 1 bytes, but int4 \[3\] takes 2"),
    (with_raw(22, [3], bytes(3)), "holds 3 bytes"),
    (with_raw(1, [-1, 3], bytes(12)), r"negative dimension: \[-1, 3\]"),
    (with_raw(1, [2**62, 2**62], b""), "absurd shape"),
    (with_raw(1, [0, 2**62, 2**62], b""), "absurd shape"),
    (with_raw(1, [2**40], bytes(4)), "holds 4 bytes"),
    (with_raw(1, [1] * 65, bytes(4)), "65 dimensions"),
    (with_raw(0, [1], bytes(4)), "element type 0, which ONNX does not define"),
    (with_raw(99, [1], bytes(4)), "element type 99"),
    (with_raw(8, [1], b"a"), "strings as raw bytes"),
    (with_floats([2, 3], 0), r"initialiser 'w' has no data, but float32 \[2, 3\] takes 6"),
    (with_floats([2, 3], 5), "has 5 entries"),
    (with_floats([2**50], 3), "has 3 entries"),
    (with_segment(), "segment"),
]


@pytest.mark.parametrize(("tensor", "message"), BAD_TENSORS, ids=[m for _, m in BAD_TENSORS])
def test_bad_tensor_is_named(tensor: TensorProto, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        Weights("net.onnx").array(tensor)
    assert "in net.onnx" in str(caught.value)


def test_type_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UserError, match="99"):
        Weights("m").array(with_raw(99, [4], bytes(3)))


BAD_REFERENCES = [
    ({}, "without a location"),
    ({"location": "/etc/passwd"}, "not inside the model's folder"),
    ({"location": "../outside.bin"}, "not inside the model's folder"),
    ({"location": "sub/../../outside.bin"}, "not inside the model's folder"),
    ({"location": "link.bin"}, "not inside the model's folder"),
    ({"location": "linked/outside.bin"}, "not inside the model's folder"),
    ({"location": "absent.bin"}, "'absent.bin', which cannot be read: No such file"),
    ({"location": "sub"}, "it is a folder"),
    ({"location": "."}, "it is a folder"),
    ({"location": "pipe"}, "not a regular file"),
    ({"location": "loop"}, "cannot be read"),
    ({"location": "a\0b"}, "cannot be read"),
    ({"location": "n" * 5000}, "cannot be read"),
    ({"location": "d.bin", "offset": -4}, "offset '-4' in 'd.bin': not a byte count"),
    ({"location": "d.bin", "offset": "1.5"}, "offset '1.5'"),
    ({"location": "d.bin", "offset": "9" * 5000}, "not a byte count"),
    ({"location": "d.bin", "length": "-1"}, "length '-1'"),
    ({"location": "d.bin", "length": "٣"}, "length"),
    ({"location": "d.bin", "offset": 4}, "bytes 4 to 20 of 'd.bin', which has only 16"),
    ({"location": "d.bin", "offset": 10**18}, "has only 16"),
    ({"location": "d.bin", "length": 12}, "holds 12 bytes"),
    ({"location": "empty.bin"}, "has only 0"),
]


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "outside.bin").write_bytes(bytes(16))
    (folder / "d.bin").write_bytes(bytes(16))
    (folder / "empty.bin").touch()
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "good.bin").symlink_to("d.bin")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize(("entries", "message"), BAD_REFERENCES, ids=[m for _, m in BAD_REFERENCES])
def test_bad_external_data_is_named(
    entries: dict[str, object], message: str, data_folder: Path
) -> None:
    tensor = external("w", TensorProto.FLOAT, [4], **entries)
    (data_folder / "m.onnx").write_bytes(model_of(tensor).SerializeToString())
    with pytest.raises(ModelError, match=message) as caught:
        list(read_model(data_folder / "m.onnx").initializers())
    assert "initialiser 'w'" in str(caught.value)


def test_link_within_the_folder_is_followed(data_folder: Path) -> None:
    tensor = external("w", TensorProto.FLOAT, [4], location="good.bin")
    assert only(read_model(model_of(tensor), folder=data_folder)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("location", ["d.bin", "sub/e.bin"])
def test_a_link_put_there_meanwhile_is_not_followed(
    location: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was found where a file lies, somebody replaces a part of its path."""
    (data_folder / "sub" / "e.bin").write_bytes(bytes(16))
    (data_folder.parent / "e.bin").write_bytes(bytes(16))
    tensor = external("w", TensorProto.FLOAT, [4], location=location)
    source = read_model(model_of(tensor), folder=data_folder)
    find = Path.resolve

    def found_and_replaced(path: Path, strict: bool = False) -> Path:
        result = find(path, strict)
        part = data_folder / Path(location).parts[0]
        part.rename(data_folder / "away")
        part.symlink_to(data_folder.parent / ("outside.bin" if part == result else "."))
        return result

    monkeypatch.setattr(Path, "resolve", found_and_replaced)
    with pytest.raises(ModelError, match="which cannot be read"):
        list(source.initializers())


def test_model_and_data_may_be_links_into_one_store(tmp_path: Path) -> None:
    """As download caches lay out files: named links to files named by their content."""
    store, snapshot = tmp_path / "store", tmp_path / "snapshot"
    store.mkdir()
    snapshot.mkdir()
    tensor = external("w", TensorProto.FLOAT, [4], location="m.onnx.data")
    (store / "1a").write_bytes(model_of(tensor).SerializeToString())
    (store / "2b").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (snapshot / "m.onnx").symlink_to("../store/1a")
    (snapshot / "m.onnx.data").symlink_to("../store/2b")
    assert only(read_model(snapshot / "m.onnx")).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["bytes", "message"])
def test_model_without_folder_has_no_external_data(kind: str) -> None:
    model = model_of(external("w", TensorProto.FLOAT, [4], location="d.bin"))
    source = read_model(model if kind == "message" else model.SerializeToString())
    with pytest.raises(ModelError, match="no folder to look in") as caught:
        list(source.initializers())
    assert "folder=" in caught.value.hint


def sparse_tensor(
    values: Array, indices: Array, dims: list[int], name: str = "s"
) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, name), numpy_helper.from_array(indices), dims
    )


FLOATS = np.array([1, 2], np.float32)


@pytest.mark.parametrize("dims", [[3, 5], [15], [5, 1, 3]], ids=str)
def test_sparse_tensor_becomes_dense(dims: list[int]) -> None:
    linear = np.array([4, 14])
    expected = np.zeros(15, np.float32)
    expected[linear] = FLOATS
    pairs = np.stack(np.unravel_index(linear, dims), axis=1)
    for indices in (linear, pairs):
        result = Weights("m").dense(sparse_tensor(FLOATS, indices, dims))
        assert same_bits(result, expected.reshape(dims))
        assert not result.flags.writeable


def test_sparse_strings_and_empty_sparse_tensors() -> None:
    words = np.array(["b"], object)
    result = Weights("m").dense(sparse_tensor(words, np.array([1]), [3]))
    assert result.tolist() == ["", "b", ""]
    empty = sparse_tensor(FLOATS[:0], np.zeros((0, 2), np.int64), [2, 3])
    assert same_bits(Weights("m").dense(empty), np.zeros((2, 3), np.float32))


BAD_SPARSE = [
    (FLOATS, np.array([1, 15]), [3, 5], "index outside its shape"),
    (FLOATS, np.array([-1, 3]), [3, 5], "index outside"),
    (FLOATS, np.array([[0, 0], [0, 5]]), [3, 5], "index outside"),
    (FLOATS, np.array([3, 1]), [3, 5], "do not ascend"),
    (FLOATS, np.array([1, 1]), [3, 5], "do not ascend"),
    (FLOATS, np.array([1, 2, 3]), [3, 5], "indices of type int64"),
    (FLOATS, np.array([1, 2], np.int32), [3, 5], "indices of type int32"),
    (FLOATS.reshape(1, 2), np.array([1, 2]), [3, 5], "not a list"),
    (FLOATS, np.array([1, 2]), [2**40], "too many to be made dense"),
    (FLOATS, np.array([1, 2]), [0, 2**62, 2**62], "absurd shape"),
    (FLOATS, np.array([1, 2]), [-3, 5], "negative dimension"),
]


@pytest.mark.parametrize(("values", "indices", "dims", "message"), BAD_SPARSE)
def test_bad_sparse_tensor_is_named(
    values: Array, indices: Array, dims: list[int], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        Weights("m").dense(sparse_tensor(values, indices, dims))
    assert "sparse initialiser 's'" in str(caught.value)
