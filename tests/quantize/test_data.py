"""Sample data: every form that users give, and every mistake with its message."""

from __future__ import annotations

import os
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from graft.base.capacity import MOST_BYTES
from graft.base.dims import symbol
from graft.base.errors import UserError
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.quantize.data import Pixels, Sample, read_samples

X = Value("x", tensor("float32", 1, 3, 4, 6))
PICKLED = b"\x80\x04]\x94K\x01a."  # a list, as pickle writes it
ARRAY = np.arange(72, dtype=np.float32).reshape(1, 3, 4, 6)


def read(data: Any, *inputs: Value, pixels: Pixels | None = None) -> list[Sample]:
    return list(read_samples(data, inputs or (X,), pixels))


def test_forms_of_one_array() -> None:
    for item in (ARRAY, ARRAY[0], [ARRAY], {"x": ARRAY}, {"anything": ARRAY}, ARRAY.astype("f8")):
        (found,) = read([item])
        assert found["x"].dtype == np.float32
        np.testing.assert_array_equal(found["x"], ARRAY)


def test_many_samples_in_one_array() -> None:
    many = np.concatenate([ARRAY, ARRAY + 1, ARRAY + 2])
    found = read([many])
    assert [float(one["x"][0, 0, 0, 0]) for one in found] == [0, 1, 2]
    pairs = read([many], Value("x", tensor("float32", 2, 3, 4, 6)))
    assert len(pairs) == 1  # the third has no partner
    (whole,) = read([many], Value("x", tensor("float32", symbol("n"), 3, 4, 6)))
    assert whole["x"].shape == many.shape


def test_one_file_is_many_samples_of_a_dynamic_batch(tmp_path: Path) -> None:
    """There is no other meaning: one sample is never enough. Several files are batches."""
    dynamic = Value("x", tensor("float32", symbol("n"), 3, 4, 6))
    many = np.concatenate([ARRAY, ARRAY + 1, ARRAY + 2])
    np.save(tmp_path / "many.npy", many)
    for path in (tmp_path, tmp_path / "many.npy"):
        found = read(path, dynamic)
        assert [float(one["x"][0, 0, 0, 0]) for one in found] == [0, 1, 2]
        assert found[0]["x"].shape == ARRAY.shape
    np.save(tmp_path / "more.npy", many[:2])
    assert [len(one["x"]) for one in read(tmp_path, dynamic)] == [3, 2]


def test_folder_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", ARRAY + 1)
    np.savez(tmp_path / "a.npz", x=ARRAY)
    (tmp_path / "notes.txt").write_text("not a sample")
    assert [float(one["x"][0, 0, 0, 0]) for one in read(tmp_path)] == [0, 1]
    assert len(read(tmp_path / "b.npy")) == 1


def test_several_inputs(tmp_path: Path) -> None:
    y = Value("y", tensor("int64", 2))
    np.savez(tmp_path / "s.npz", x=ARRAY, y=np.array([1, 2]))
    (found,) = read(tmp_path, X, y)
    assert found["y"].tolist() == [1, 2]
    (found,) = read([(ARRAY, np.array([3, 4]))], X, y)
    assert found["y"].tolist() == [3, 4]


@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_images_are_scaled_and_cut(tmp_path: Path, mode: str) -> None:
    PIL.Image.new("RGB", (20, 9), (255, 0, 51)).convert(mode).save(tmp_path / "one.png")
    (found,) = read(tmp_path, pixels=Pixels((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
    assert found["x"].shape == (1, 3, 4, 6)
    if mode == "RGB":
        np.testing.assert_allclose(found["x"][0, :, 0, 0], [1, -1, -0.6], atol=1e-5)


def test_images_with_channels_last(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (20, 9), (255, 0, 51)).save(tmp_path / "one.png")
    (found,) = read(tmp_path, Value("x", tensor("float32", symbol("n"), 4, 6, 3)))
    assert found["x"].shape == (1, 4, 6, 3)
    np.testing.assert_allclose(found["x"][0, 3, 5], [1, 0, 0.2], atol=1e-5)


def _refused(data: Any, *inputs: Value, pixels: Pixels | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read(data, *inputs, pixels=pixels)
    return str(caught.value)


def test_pixels_have_as_many_numbers_as_channels(tmp_path: Path) -> None:
    PIL.Image.new("RGB", (6, 4)).save(tmp_path / "one.png")
    message = "has 2 numbers\n  hint: give one number, or 3"
    assert f"the mean of pixels {message}" in _refused(tmp_path, pixels=Pixels((0.5, 0.5)))
    assert f"the std of pixels {message}" in _refused(tmp_path, pixels=Pixels(std=(0.5, 0.5)))
    assert "divided by a std of 0" in _refused(tmp_path, pixels=Pixels(std=(0.0,)))
    gray = Value("x", tensor("float32", 1, 1, 4, 6))
    assert "hint: give one number" in _refused(tmp_path, gray, pixels=Pixels((0.5,) * 3))


def test_mistakes_are_named(tmp_path: Path) -> None:
    assert "holds no .npy, .npz or image file" in _refused(tmp_path)
    assert "there is no" in _refused(tmp_path / "missing")
    assert "not samples" in _refused(ARRAY)
    assert "not samples" in _refused(3)
    wrong = _refused([ARRAY[:, :, :3]])
    assert "sample 0 holds float32[1, 3, 3, 6], and the input 'x' wants" in wrong
    assert "holds uint8[1, 3, 4, 6]" in _refused([ARRAY.astype(np.uint8)])
    assert "NaN or infinity" in _refused([np.where(ARRAY == 5, np.nan, ARRAY)])
    assert "has no array 'y'" in _refused([{"x": ARRAY, "z": ARRAY}], X, Value("y", X.type))
    assert "is 1 arrays" in _refused([ARRAY], X, Value("y", X.type))
    both = [{"x": ARRAY, "y": np.concatenate([ARRAY, ARRAY])}]
    assert "different numbers of samples" in _refused(both, X, Value("y", X.type))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"not an array")
    assert "bad.npy' is no NumPy file" in _refused(tmp_path)
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00and no header")
    assert "bad.npy' is not a readable NumPy file" in _refused(tmp_path)
    (tmp_path / "bad.npy").unlink()
    (tmp_path / "bad.png").write_bytes(b"not an image")
    assert "bad.png' is not a readable image" in _refused(tmp_path)
    flat = Value("x", tensor("float32", 10))
    assert "does not take one image" in _refused(tmp_path, flat)


def archive(path: Path, data: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("x.npy", data)
    return path


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        PICKLED,
        header("(2**60,)"),
        header("(1152921504606846976,)"),
        header("(4294967296, 4294967296)"),
        header("(-1,)"),
        header("(1,)", "|O") + PICKLED,
        header("(" * 3000),
        b"\x93NUMPY\x09\x00",
        b"PK\x03\x04",
        b"",
    ],
)
def test_hostile_arrays_are_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("a.npy", "a.npz"):
        (tmp_path / name).write_bytes(content)
        assert name in _refused(tmp_path / name)
    assert "x.npz" in _refused(archive(tmp_path / "x.npz", content))


def test_hostile_archives_are_refused(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "bomb.npz", header("(1,)"))
    size = (MOST_BYTES + 1).to_bytes(8, "little")
    data = bytearray(bomb.read_bytes())
    at = data.index(b"PK\x01\x02")  # the directory: this many bytes are said to come out of it
    extra = b"\x01\x00\x08\x00" + size
    data[at + 24 : at + 28] = b"\xff" * 4
    data[at + 30 : at + 32] = len(extra).to_bytes(2, "little")
    name_end = at + 46 + len("x.npy")
    data[name_end:name_end] = extra
    end = data.index(b"PK\x05\x06")
    data[end + 12 : end + 16] = (end - at).to_bytes(4, "little")
    bomb.write_bytes(bytes(data))
    assert "more than this machine's memory" in _refused(bomb)
    damaged = archive(tmp_path / "damaged.npz", header("(4,)") + bytes(range(16)) * 9)
    data = bytearray(damaged.read_bytes())
    data[50:70] = bytes(20)
    damaged.write_bytes(bytes(data))
    assert "damaged.npz' is not a readable NumPy file" in _refused(damaged)
    locked = archive(tmp_path / "locked.npz", header("(1,)") + bytes(4), zipfile.ZIP_STORED)
    data = bytearray(locked.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1  # encrypted
    locked.write_bytes(bytes(data))
    assert "locked.npz' is not a readable NumPy file" in _refused(locked)


def test_pipes_and_folders_are_no_samples(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    assert "a.npy' is no file" in _refused(tmp_path)
    (tmp_path / "a.npy").unlink()
    (tmp_path / "b.npz").mkdir()
    assert "b.npz' is no file" in _refused(tmp_path)


def test_a_line_of_pixels_is_no_large_image(tmp_path: Path) -> None:
    """Scaled as a whole it would be 4 x 400,000 pixels and more."""
    PIL.Image.new("RGB", (100_000, 1), (255, 255, 255)).save(tmp_path / "line.png")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (found,) = read(tmp_path, Value("x", tensor("float32", 1, 3, 2000, 2)))
    assert found["x"].shape == (1, 3, 2000, 2)
    assert (found["x"] == 1).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
