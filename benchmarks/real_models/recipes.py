"""What known models are made for: a model in, series of inputs out.

A recipe goes by the name of the file, and only for a model that has the inputs it is for: the sizes
and the scaling are those that the model's own package uses. What a model keeps between two calls
goes back into it: a series says which outputs become which inputs of its next step. A model without
a recipe gets inputs by the rules of `real_models_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx

from benchmarks.real_models.contents import Array, files, frames, lines, page, picture, sound
from benchmarks.real_models.inputs import PLANS, SIZES, Plan, feeds, is_open

_STEPS = 3  # calls in a row of a model with a state
# For speech: samples of a frame and of the end of the last one before it, by samples a second.
_FRAMES = {16000: (512, 64), 8000: (256, 32)}
_STATE = 128  # numbers that are kept for one voice
_WINDOW = 43844  # samples in which notes are found: two seconds, less one hop
_NOTES_RATE = 22050


@dataclass(frozen=True)
class Series:
    """Inputs of calls in a row; `carried` says which output becomes which input of the next."""

    steps: tuple[Mapping[str, Array], ...]
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """Series for the models whose file has one of these names and that have these inputs."""

    names: tuple[str, ...]
    inputs: frozenset[str]
    series: Callable[[], list[Series]]

    def suits(self, name: str, arguments: Sequence[Any]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names) and self.inputs == {
            argument.name for argument in arguments
        }


def series_for(
    name: str, model: onnx.ModelProto, arguments: Sequence[Any], plan: Plan = PLANS[0]
) -> list[Series]:
    """Series for a model of this file name; `arguments` are its inputs as a session gives them."""
    for recipe in RECIPES:
        if recipe.suits(name, arguments):
            return recipe.series()
    turns = SIZES if is_open(arguments) and plan.extent is None else 1
    return [Series((feeds(model, arguments, turn, plan),)) for turn in range(turns)]


def _alone(name: str, *arrays: Array) -> list[Series]:
    """One call for each array."""
    return [Series(({name: array},)) for array in arrays]


def _voices(count: int, rate: int, has_rate: bool) -> Series:
    """Frames of as many voices, each going on where it stopped."""
    size, overlap = _FRAMES[rate]
    heard = [frames(_STEPS, size, overlap, rate, seed) for seed in range(count)]
    always = {"state": np.zeros((2, count, _STATE), np.float32)}
    if has_rate:
        always["sr"] = np.array(rate, np.int64)
    steps = tuple({"input": np.stack(step), **always} for step in zip(*heard, strict=True))
    return Series(steps, {"stateN": "state"})


def _blocks(count: int) -> Series:
    """Blocks of as many frames of one voice."""
    rate = 16000
    heard = frames(_STEPS * count, *_FRAMES[rate], rate)
    zero = np.zeros((1, 1, _STATE), np.float32)
    steps = tuple({"input": part, "h": zero, "c": zero} for part in np.split(heard, _STEPS))
    return Series(steps, {"hn": "h", "cn": "c"})


def _notes(batch: int) -> Array:
    heard = [sound(_WINDOW, _NOTES_RATE, seed) for seed in range(batch)]
    return np.stack(heard)[..., np.newaxis]


RECIPES = (
    Recipe(
        ("ch_PP-OCRv*_det_infer.onnx",),
        frozenset({"x"}),
        lambda: _alone("x", page(320, 480), page(480, 320), page(736, 992)),
    ),
    Recipe(
        ("ch_ppocr_mobile_v*_cls_infer.onnx",),
        frozenset({"x"}),
        lambda: _alone("x", lines(6, 192), lines(1, 320), lines(3, 133)),
    ),
    Recipe(
        ("ch_PP-OCRv*_rec_infer.onnx",),
        frozenset({"x"}),
        lambda: _alone("x", lines(6, 320), lines(1, 480), lines(2, 133)),
    ),
    Recipe(
        ("silero_vad_16k_sequence.onnx",),
        frozenset({"input", "h", "c"}),
        lambda: [_blocks(count) for count in (1, 31, 64)],
    ),
    Recipe(
        ("silero_vad_openvino_16k.onnx",),
        frozenset({"input", "state"}),
        lambda: [_voices(1, 16000, has_rate=False)],
    ),
    Recipe(
        ("silero_vad_half.onnx",),
        frozenset({"input", "state"}),
        lambda: [_voices(count, 16000, has_rate=False) for count in (1, 2, 5)],
    ),
    Recipe(
        ("silero_vad_16k_op*.onnx",),
        frozenset({"input", "state", "sr"}),
        lambda: [_voices(count, 16000, has_rate=True) for count in (1, 2, 5)],
    ),
    Recipe(
        ("silero_vad.onnx", "silero_vad_op*.onnx"),
        frozenset({"input", "state", "sr"}),
        lambda: [
            _voices(count, rate, has_rate=True)
            for count, rate in ((1, 16000), (1, 8000), (3, 16000), (3, 8000))
        ],
    ),
    Recipe(
        ("model.onnx",),
        frozenset({"bytes"}),
        lambda: _alone("bytes", files(1), files(3), files(8)),
    ),
    Recipe(
        ("320n.onnx",),
        frozenset({"images"}),
        lambda: _alone("images", picture(320, 320), picture(640, 640), picture(256, 448)),
    ),
    Recipe(
        ("nmp.onnx",),
        frozenset({"serving_default_input_2:0"}),
        lambda: _alone("serving_default_input_2:0", _notes(1), _notes(2), _notes(3)),
    ),
)
