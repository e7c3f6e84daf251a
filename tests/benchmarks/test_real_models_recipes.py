"""What known models are fed with, and that what they keep goes back into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.real_models.contents import files, frames, lines, page, picture, sound, word
from benchmarks.real_models.recipes import RECIPES, Recipe, Series, series_for
from benchmarks.real_models.run import calls, outcome_of

# A voice's state is mixed with what is heard, otherwise at each rate: forgetting it shows.
VOICES = """
<ir_version: 8, opset_import: ["" : 17]>
voices (float[n,m] input, float[2,n,128] state, int64 sr)
    => (float[n,1] output, float[two,n,k] stateN) {
  fast = Constant<value = int64 {16000}>()
  is_fast = Equal(sr, fast)
  loud = If(is_fast) <
    then_branch = quick () => (quickly) { quickly = ReduceMax<axes = [1]>(input) },
    else_branch = slow () => (slowly) { slowly = ReduceMin<axes = [1]>(input) }
  >
  stateN = Add(state, loud)
  kept = ReduceSum<keepdims = 0>(stateN)
  output = Add(loud, kept)
}
"""


@dataclass(frozen=True)
class Argument:
    name: str
    shape: tuple[Any, ...] = (None,)
    type: str = "tensor(float)"


def arguments(recipe: Recipe) -> list[Argument]:
    return [Argument(name) for name in recipe.inputs]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.names[0])
def test_recipes_are_whole(recipe: Recipe) -> None:
    name = recipe.names[0].replace("*", "4")
    found = series_for(name, onnx.ModelProto(), arguments(recipe))
    shapes = set()
    for series in found:
        assert set(series.carried.values()) < recipe.inputs
        assert (len(series.steps) > 1) == bool(series.carried)
        for step in series.steps:
            assert step.keys() == recipe.inputs
            assert {array.shape for array in step.values()} == {
                array.shape for array in series.steps[0].values()
            }
            assert all(np.isfinite(array).all() for array in step.values())
            assert not any(step[into].any() for into in series.carried.values())
        shapes.add(tuple(sorted((key, a.shape) for key, a in series.steps[0].items())))
    assert len(shapes) == len(found)
    assert len(found) >= (1 if "openvino" in name else 3)


def test_a_name_alone_makes_no_recipe() -> None:
    argument = Argument("pixels", (1, 3, 8, 8))
    (series,) = series_for("model.onnx", onnx.ModelProto(), [argument])
    assert series.steps[0]["pixels"].shape == (1, 3, 8, 8)
    assert not series.carried


def test_what_is_carried_comes_from_the_models_own_last_call() -> None:
    zero = np.zeros(2)
    series = Series(tuple({"x": zero + n, "state": zero} for n in range(3)), {"next": "state"})

    def run(given: Mapping[str, Any]) -> list[Any]:
        return [given["state"], given["x"] + 2 * given["state"] + 1]

    made = calls(series, ["seen", "next"], run)
    assert [call.outputs[0][0] for call in made] == [0, 1, 4]
    assert [call.given["x"][0] for call in made] == [0, 1, 2]
    assert all(call.seconds > 0 for call in made)
    assert not any(step["state"].any() for step in series.steps)


def test_a_model_with_a_state_and_two_rates(tmp_path: Path) -> None:
    path = tmp_path / "silero_vad.onnx"
    onnx.save(onnx.parser.parse_model(VOICES), path)
    outcome = outcome_of(path)
    assert (outcome.verdict, outcome.sizes) == ("same", 4)
    assert outcome.error < 1e-5


def test_words_are_legible() -> None:
    assert ["".join(".#"[int(dot)] for dot in row) for row in word(1)] == [
        ".###..####...###..#####.#####",
        "#...#.#...#.#...#.#.......#..",
        "#.....#...#.#...#.#.......#..",
        "#.###.####..#####.####....#..",
        "#...#.#.#...#...#.#.......#..",
        "#...#.#..#..#...#.#.......#..",
        ".###..#...#.#...#.#.......#..",
    ]
    assert word(3).shape == (21, 87)


def test_pages_and_lines_are_light_with_dark_letters() -> None:
    for image in (page(320, 480), page(480, 320), lines(3, 320)):
        assert image.dtype == np.float32
        assert -1 <= image.min() < -0.7
        assert 0.7 < np.median(image) < image.max() <= 1
        assert 0.02 < np.mean(image < 0) < 0.4
    assert page(320, 480).shape == (1, 3, 320, 480)
    assert lines(2, 133).shape == (2, 3, 48, 133)
    upright, turned = lines(2, 320)[:, 0] < 0
    assert np.array_equal(upright[::-1, ::-1], turned)


def test_pictures_are_in_range() -> None:
    shown = picture(256, 448)
    assert shown.shape == (1, 3, 256, 448)
    assert 0 <= shown.min() < 0.3 < 0.7 < shown.max() <= 1


def test_frames_overlap_and_go_on() -> None:
    found = frames(4, 512, 64, 16000)
    assert found.shape == (4, 576)
    assert not found[0, :64].any()
    assert np.array_equal(found[1:, :64], found[:-1, -64:])
    assert np.array_equal(found[:, 64:].ravel(), sound(2048, 16000))
    assert 0.1 < np.abs(found).max() < 1


def test_files_have_two_ends() -> None:
    found = files(3)
    assert found.shape == (3, 2048)
    assert found.dtype == np.int32
    text, short, binary = found
    assert bytes(text[:10].astype(np.uint8)) == b'[{"name": '
    assert bytes(text[-2:].astype(np.uint8)) == b"}]"
    assert text.max() < 256
    assert np.all(short[200:-200] == 256)
    assert bytes(short[:9].astype(np.uint8)) == b"key,value"
    assert short[-1] != 256
    assert bytes(binary[:4].astype(np.uint8)) == b"\x7fELF"
