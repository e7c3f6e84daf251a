"""Models with variants for some sizes: the right one runs, computes the same, goes to a file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from tests.backends.host.test_flow import CHOICE, HEAD, numbers
from tests.backends.host.test_flow_files import COMPRESS, elsewhere

import graft
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.module import Module
from graft.program.instructions import Segment
from graft.program.variants import variant_blocks
from graft.runtime.container import ArtifactError, Section, read, write

# A convolution, and a head whose reshape asks for the batch.
IMAGES = """
    net (float[batch, 3, height, 10] x) => (float[batch, 100] y)
    <float[16, 3, 3, 3] kernel, float[16, 100] dense, int64[1] rest = {-1}, int64[1] zero = {0}> {
        c = Conv <pads = [1, 1, 1, 1]> (x, kernel)
        r = Relu (c)
        p = GlobalAveragePool (r)
        s = Shape (x)
        n = Gather (s, zero)
        target = Concat <axis = 0> (n, rest)
        f = Reshape (p, target)
        y = MatMul (f, dense)
    }
"""
SHAPES = {"batch": [1, 8], "height": [10, 7]}
SIZES = ((1, 10), (8, 10), (1, 7), (8, 7))
OTHERS = ((2, 10), (8, 9), (3, 4), (0, 10))


def model_of(text: str) -> onnx.ModelProto:
    """The model; tensors that it only declares are weights, drawn by chance."""
    model = onnx.parser.parse_model(HEAD + text)
    for number, declared in enumerate(model.graph.value_info):
        extents = [dim.dim_value for dim in declared.type.tensor_type.shape.dim]
        array = numbers(*extents, seed=number) / np.float32(4)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, declared.name))
    return model


@pytest.fixture(scope="module")
def images() -> Module:
    return graft.compile(model_of(IMAGES), shapes=SHAPES, strict=True)


def image(batch: int, height: int) -> Array:
    return numbers(batch, 3, height, 10, seed=batch)


@pytest.mark.parametrize(("batch", "height"), [*SIZES, *OTHERS])
def test_results_are_onnx_runtimes_at_every_size(images: Module, batch: int, height: int) -> None:
    x = image(batch, height)
    (found,) = images.run(None, {"x": x})
    assert found.shape == (batch, 100)
    if batch:
        peer = onnxruntime.InferenceSession(model_of(IMAGES).SerializeToString())
        (wanted,) = peer.run(None, {"x": x})
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_sizes_choose_the_program(images: Module) -> None:
    blocks = variant_blocks(images.program)
    assert len(blocks) == 1 + len(SIZES)
    for batch, height in SIZES:
        x = image(batch, height)
        name = f"batch={batch}, height={height}"
        assert images.variant({"x": x}) == name
        (segment,) = blocks[name].instructions
        assert isinstance(segment, Segment)
        assert all(images.program.values[number].is_static for number in segment.outputs)
    for batch, height in OTHERS:
        assert images.variant({"x": image(batch, height)}) == ""


def test_each_variant_is_planned_for_its_size(images: Module) -> None:
    """Its steps are those of the model with these extents, not those for every size."""
    blocks = variant_blocks(images.program)
    model = model_of(IMAGES)
    for batch, height in SIZES:
        for dim, extent in ((0, batch), (2, height)):
            model.graph.input[0].type.tensor_type.shape.dim[dim].dim_value = extent
        (wanted,) = graft.compile(model).program.segments
        (chosen,) = blocks[f"batch={batch}, height={height}"].instructions
        assert isinstance(chosen, Segment)
        assert [call.symbol for call in chosen.calls] == [call.symbol for call in wanted.calls]
        assert chosen.pools == wanted.pools


def test_arguments_stay_symbolic_and_placement_names_the_variants(images: Module) -> None:
    (argument,) = images.get_inputs()
    assert argument.shape == ["batch", 3, "height", 10]
    names = [f"batch={b}, height={h}" for b in (1, 8) for h in (10, 7)]
    assert list(images.placement.variants) == names
    told = json.loads(images.placement.to_json())
    assert list(told["variants"]) == names
    assert told["variants"][names[0]]["nodes"] == dict(images.placement.variants[names[0]].nodes)
    # shape arithmetic is left in neither, and equal placements are told once
    own = str(images.placement.variants[names[0]])
    assert str(images.placement).endswith(f"| {' or '.join(names)}: {own}")


def test_results_go_where_they_are_wanted(images: Module) -> None:
    for batch, height in (SIZES[1], OTHERS[0]):
        x = image(batch, height)
        home = np.empty((batch, 100), np.float32)
        (found,) = images.run(["y"], {"x": x}, {"y": home})
        assert found is home
        np.testing.assert_array_equal(home, images.run(None, {"x": x})[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_mixed_from_several_threads(threads: int) -> None:
    module = graft.compile(model_of(IMAGES), shapes={"batch": [1, 4]}, threads=threads)
    assert module.threads == threads
    feeds = [{"x": image(batch, 6)} for batch in (1, 2, 3, 4)]
    wanted = [module.run(None, one)[0] for one in feeds]

    def work(start: int) -> bool:
        return all(
            np.array_equal(module.run(None, feeds[number % 4])[0], wanted[number % 4])
            for number in range(start, start + 60)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_one_array_for_equal_constants(images: Module) -> None:
    contents: dict[bytes, list[int]] = {}
    for _, array in images.program.constants:
        if array.nbytes >= 4096:
            contents.setdefault(array.tobytes(), []).append(id(array))
    assert all(len(set(owners)) == 1 for owners in contents.values())
    # Panels of dense weights depend on the number of rows, so sizes of one batch share them.
    assert max(map(len, contents.values())) >= len(SHAPES["height"])


def test_a_variant_may_be_left_with_symbols() -> None:
    module = graft.compile(model_of(IMAGES), shapes={"batch": [8]})
    x = image(8, 9)
    assert module.variant({"x": x}) == "batch=8"
    general = graft.compile(model_of(IMAGES))
    (found,), (wanted,) = module.run(None, {"x": x}), general.run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    # and the sizes that are left have to fit together still
    with pytest.raises(UserError, match="wants float32"):
        module.run(None, {"x": x[..., :9]})


FLOWS: dict[str, tuple[str, dict[str, list[int]], list[dict[str, Array]]]] = {
    "static": (IMAGES, {"batch": [1, 8], "height": [10]}, [{"x": image(*s)} for s in SIZES]),
    "if": (CHOICE, {"n": [3]}, [{"x": numbers(n, 4), "c": np.array(n > 2)} for n in (3, 1, 5)]),
    "data": (COMPRESS, {"n": [77]}, [{"x": numbers(n, seed=n)} for n in (77, 1, 0)]),
}


@pytest.mark.parametrize("name", FLOWS)
def test_files_run_without_the_compiler(name: str, tmp_path: Path) -> None:
    text, shapes, runs = FLOWS[name]
    module = graft.compile(model_of(text), shapes=shapes, threads=2)
    elsewhere(module, runs, tmp_path)
    session = graft.load(tmp_path / "m.graft")
    assert session.threads == session.program.threads == 2
    assert session.get_inputs()[0].shape == module.get_inputs()[0].shape
    for feeds in runs:
        assert session.variant(feeds) == module.variant(feeds)
        assert len(session.profile(feeds).outputs) == len(module.get_outputs())


def test_a_file_holds_equal_constants_once(tmp_path: Path) -> None:
    """Three variants and the general program have the same weights, packed alike."""
    text = """
        net (float[n, 256] x) => (float[n, 512] y) <float[256, 512] w> { y = MatMul (x, w) }
    """
    sizes = []
    for shapes in ({}, {"n": [64, 128, 256]}):
        graft.compile(model_of(text), shapes=shapes).save(tmp_path / "m.graft")
        sizes.append(len(read(tmp_path / "m.graft").sections["constants"]))
    assert sizes[0] >= 256 * 512 * 4
    assert sizes[1] < 2.1 * sizes[0]


def damaged(path: Path, change: Any) -> None:
    container = read(path)
    header = json.loads(json.dumps(container.header))
    change(header["body"][1][0])
    sections = [Section(name, [data]) for name, data in container.sections.items()]
    write(path, header, sections)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda switch: switch["cases"].append(switch["cases"][0]), "two variants are for"),
        (lambda switch: switch["symbols"].append("width"), "is for the sizes"),
        (lambda switch: switch.update(symbols=["w"]), "nothing tells the number of 'w'"),
        (lambda switch: switch["symbols"].pop(), "is for the sizes"),
        (lambda switch: switch["cases"][0].__setitem__(0, [0]), "is for the sizes"),
        (lambda switch: switch["cases"][0][1][2].pop(), "outputs of a branch"),
    ],
)
def test_files_that_contradict_themselves(change: Any, message: str, tmp_path: Path) -> None:
    text = "net (float[n, 3] x) => (float[n, 3] y, float[n, 3] z) { y = Exp (x) z = Sin (x) }"
    path = tmp_path / "m.graft"
    graft.compile(model_of(text), shapes={"n": [4]}).save(path)
    damaged(path, change)
    with pytest.raises(ArtifactError, match=f"contradicts itself: .*{message}"):
        graft.load(path)


def test_what_is_refused() -> None:
    model = model_of(IMAGES)
    with pytest.raises(UserError, match="'bacth', which is no symbolic dim") as error:
        graft.compile(model, shapes={"bacth": [1]})
    assert error.value.hint == "there are 'batch', 'height'"
    with pytest.raises(UserError, match="shapes= is for native code"):
        graft.compile(model, shapes={"batch": [1]}, target="reference")
    with pytest.raises(UserError, match="no input of the model has a symbolic dim"):
        graft.compile(model_of("net (float[2] x) => (float[2] y) { y = Exp (x) }"), shapes=SHAPES)


def test_sizes_that_the_model_cannot_have() -> None:
    text = """
        net (float[n, 4] x) => (float[m, 4] y) <float[5, 4] w> { [mix] y = Add (x, w) }
    """
    module = graft.compile(model_of(text), shapes={"n": [1, 5]})
    assert module.run(None, {"x": numbers(1, 4)})[0].shape == (5, 4)
    with pytest.raises(UserError, match=r"the model cannot have n=3: .*\n?.*") as error:
        graft.compile(model_of(text), shapes={"n": [1, 3]})
    assert error.value.location is not None
    assert error.value.location.node == "mix"


def test_inputs_that_do_not_fit_are_refused_as_ever() -> None:
    module = graft.compile(
        model_of("net (float[n] x, float[n] y) => (float[n] z) { z = Add (x, y) }"),
        shapes={"n": [3]},
    )
    good = {"x": numbers(3), "y": numbers(3)}
    with pytest.raises(UserError, match="'y' has the shape"):
        module.run(None, {"x": numbers(3), "y": numbers(4)})
    with pytest.raises(UserError, match="'y' is missing"):
        module.run(None, {"x": numbers(3)})
    with pytest.raises(UserError, match="no input 'q'"):
        module.run(None, {**good, "q": numbers(1)})
    with pytest.raises(UserError, match="x"):
        module.run(None, {"x": numbers(3, 1), "y": numbers(3)})
    with pytest.raises(UserError, match="no output 'q'"):
        module.run(["q"], good)


def test_a_model_without_variants_has_none() -> None:
    module = graft.compile(model_of(IMAGES))
    assert module.variant({"x": image(1, 10)}) == ""
    assert module.placement.variants == {}
