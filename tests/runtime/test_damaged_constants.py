"""Large constants are compared with their checksums by whoever uses them first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graft
from graft.runtime import artifact as artifact_module
from graft.runtime.container import ArtifactError

X = np.ones((2, 3), np.float32)
PLAIN = "g (float[2, 3] x) => (float[2, 4] y) { z = MatMul (x, w)  y = Add (z, b) }"
SIZED = "g (float[n, 3] x) => (float[n, 4] y) { z = MatMul (x, w)  y = Add (z, b) }"


@pytest.fixture(params=[PLAIN, SIZED, "shapes"])
def path(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose constants count as large."""
    monkeypatch.setattr(artifact_module, "_VERIFIED_UNASKED", 1)
    text = SIZED if request.param == "shapes" else request.param
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    weights = {"w": np.arange(12.0).reshape(3, 4), "b": np.arange(4.0) + 100}
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    shapes = {"n": [2]} if request.param == "shapes" else None
    file = tmp_path / "model.graft"
    graft.compile(model, shapes=shapes).save(file)
    return file


def damaged(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    position = data.rindex(np.float32(103).tobytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    return path


USES: dict[str, Callable[[Any], Any]] = {
    "run": lambda session: session.run(None, {"x": X}),
    "run into": lambda session: session.run(None, {"x": X}, {"y": np.empty((2, 4), np.float32)}),
    "bind": lambda session: session.bind({"x": X}),
    "profile": lambda session: session.profile({"x": X}),
}


@pytest.mark.parametrize("use", USES)
def test_nothing_runs_on_a_damaged_constant(path: Path, use: str) -> None:
    session = graft.load(damaged(path))
    for _ in range(2):
        with pytest.raises(ArtifactError) as caught:
            USES[use](session)
        assert "this file is damaged: constant " in caught.value.message
        assert "does not match its checksum" in caught.value.message
        assert caught.value.location is not None
        assert caught.value.location.source == str(path)


@pytest.mark.parametrize("use", USES)
def test_constants_are_looked_at_once(
    path: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = graft.load(path)
    USES[use](session)
    monkeypatch.setattr(artifact_module, "_verify_constants", None)
    monkeypatch.setattr(artifact_module, "_digests", None)
    assert not {"run", "bind", "profile"} & vars(session).keys()
    assert session.run(None, {"x": X})[0].tolist() == [[112, 116, 120, 124]] * 2


def test_threads_that_come_at_once_see_one_check(path: Path) -> None:
    session = graft.load(path)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: session.run(None, {"x": X})[0], range(16)))
    assert all(result.tolist() == [[112, 116, 120, 124]] * 2 for result in results)


def test_asked_for_on_load_or_never(path: Path) -> None:
    with pytest.raises(ArtifactError, match="'constants' does not match its checksum"):
        graft.load(damaged(path), checksum=True)
    assert graft.load(path, checksum=False).run(None, {"x": X})[0].shape == (2, 4)
