"""Sample data: every form that users give, and every mistake with its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from graft.base.dims import symbol
from graft.base.errors import UserError
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.quantize.data import Pixels, Sample, read_samples

X = Value("x", tensor("float32", 1, 3, 4, 6))
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


def _refused(data: Any, *inputs: Value) -> str:
    with pytest.raises(UserError) as caught:
        read(data, *inputs)
    return str(caught.value)


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
    assert "bad.npy' is not a readable NumPy file" in _refused(tmp_path)
    (tmp_path / "bad.npy").unlink()
    (tmp_path / "bad.png").write_bytes(b"not an image")
    assert "bad.png' is not a readable image" in _refused(tmp_path)
    flat = Value("x", tensor("float32", 10))
    assert "does not take one image" in _refused(tmp_path, flat)
