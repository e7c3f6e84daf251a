"""The seven static networks as native programs: ONNX Runtime's numbers, nothing on the evaluator.

`make test` runs the small ones; the others are marked `full`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import graft
from graft.base.dtypes import Array
from graft.frontends.onnx.reader import filled_model, read_model

QUICK = ("resnet18", "mobilenet_v2")
FULL = ("resnet50", "inception_v3", "darknet53", "vgg19", "vit_b_16")
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)]


def _image(module: graft.Module) -> Array:
    (argument,) = module.get_inputs()
    return np.random.default_rng(0).random(argument.shape, dtype=np.float32)


def _expected(path: Path, image: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    model = filled_model(read_model(path)).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {"input": image})[0]
    return result


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_onnx_runtime(name: str, models_dir: Path) -> None:
    path = models_dir / f"{name}.onnx"
    module = graft.compile(path, target=["host"], strict=True, threads=2)
    assert set(module.placement.nodes) == {"host"}
    image = _image(module)
    (scores,) = module.run(None, {"input": image})
    np.testing.assert_allclose(scores, _expected(path, image), rtol=1e-3, atol=1e-4)


_RUN = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        rooms = ("ir", "ops", "rewrite", "passes", "frontends", "backends", "loop", "llvm")
        if name.startswith("onnx") or name.startswith(tuple(f"graft.{room}" for room in rooms)):
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Refuse())
import numpy as np
import graft

module = graft.load(sys.argv[1], threads=2)
(argument,) = module.get_inputs()
image = np.random.default_rng(0).random(argument.shape, dtype=np.float32)
np.save(sys.argv[2], module.run(None, {argument.name: image})[0])
"""


def test_saved_model_runs_without_the_compiler(tmp_path: Path, models_dir: Path) -> None:
    module = graft.compile(models_dir / "mobilenet_v2.onnx", target=["host"], threads=2)
    (expected,) = module.run(None, {"input": _image(module)})
    module.save(tmp_path / "model.graft")
    command = [sys.executable, "-c", _RUN, str(tmp_path / "model.graft"), str(tmp_path / "y.npy")]
    subprocess.run(command, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)
