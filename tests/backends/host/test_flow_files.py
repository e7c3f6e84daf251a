"""Flows as files: what comes back computes the same without the compiler, bad ones are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from tests.backends.host.test_flow import CHOICE, HEAD, LOOP, PERCEPTRON, SCAN, both, numbers

import graft
from graft.base.cores import available_cores
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, UserError
from graft.module import Module
from graft.runtime.artifact import load as load_artifact
from graft.runtime.container import ArtifactError, Section, read, write
from graft.runtime.memory import address_of

Feeds = Mapping[str, Array]

COMPRESS = """
    net (float[n] x) => (float[m] y, int64[1] count) {
        zero = Constant <value = float[1] {0.0}> ()
        test = Greater (x, zero)
        kept = Compress <axis = 0> (x, test)
        y = Sqrt (kept)
        count = Shape (y)
    }
"""

WEIGHTS = {"w": numbers(12, 40), "b": numbers(40), "v": numbers(40, 7)}
CASES: dict[str, tuple[str, list[Feeds]]] = {
    "batch": (PERCEPTRON, [{"x": numbers(n, 12, seed=n), **WEIGHTS} for n in (3, 1, 0, 65)]),
    "if": (CHOICE, [{"x": numbers(n, 4), "c": np.array(n > 2)} for n in (1, 5, 0)]),
    "loop": (
        LOOP,
        [
            {"turns": np.array(n), "go": np.array(go), "x": np.abs(numbers(6)) + np.float32(0.1)}
            for n in (0, 1, 5)
            for go in (True, False)
        ],
    ),
    "scan": (SCAN, [{"start": numbers(3), "steps": numbers(n, 3)} for n in (4, 1, 0)]),
    "sizes from data": (COMPRESS, [{"x": numbers(n, seed=n)} for n in (77, 1, 0)]),
}

RUN = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        rooms = ("ir", "ops", "rewrite", "passes", "frontends", "backends", "loop", "llvm", "byoc")
        refused = ("onnx", "llvmlite", *(f"graft.{room}" for room in rooms))
        if any(name == one or name.startswith(one + ".") for one in refused):
            raise ImportError(f"{name} must not be needed")

sys.meta_path.insert(0, Refuse())
import numpy as np
import graft

session = graft.load(sys.argv[1], threads=2)
with np.load(sys.argv[2]) as stored:
    given = dict(stored)
runs = 1 + max(int(name.split("/")[0]) for name in given)
found = {}
for run in range(runs):
    feeds = {n.split("/")[1]: a for n, a in given.items() if int(n.split("/")[0]) == run}
    for position, result in enumerate(session.run(None, feeds)):
        found[f"{run}/{position}"] = result
np.savez(sys.argv[3], **found)
"""


def elsewhere(module: Module, runs: list[Feeds], folder: Path) -> None:
    """A fresh process without the compiler gives the very same results."""
    path, feeds, results = folder / "m.graft", folder / "x.npz", folder / "y.npz"
    module.save(path)
    given = {f"{n}/{name}": data for n, run in enumerate(runs) for name, data in run.items()}
    np.savez(feeds, **given)
    subprocess.run([sys.executable, "-c", RUN, str(path), str(feeds), str(results)], check=True)
    with np.load(results) as found:
        for number, run in enumerate(runs):
            for position, wanted in enumerate(module.run(None, run)):
                mine = found[f"{number}/{position}"]
                assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape)
                assert mine.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_files_run_without_the_compiler(name: str, tmp_path: Path) -> None:
    text, runs = CASES[name]
    module = graft.compile(onnx.parser.parse_model(HEAD + text), threads=2)
    elsewhere(module, runs, tmp_path)


DETECTORS = ("ssd512_mobilenet1.0", "ssd300_resnet34", "faster_rcnn_resnet50")


@pytest.mark.full
@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_run_without_the_compiler(name: str, models_dir: Path, tmp_path: Path) -> None:
    module = graft.compile(models_dir / f"{name}.onnx", strict=True, threads=2)
    (argument,) = module.get_inputs()
    image = np.random.default_rng(0).random(argument.shape, dtype=np.float32)
    elsewhere(module, [{argument.name: image}], tmp_path)


def saved(text: str, path: Path, threads: int | None = None) -> Path:
    graft.compile(onnx.parser.parse_model(HEAD + text), threads=threads).save(path)
    return path


def test_sessions_know_their_arguments(tmp_path: Path) -> None:
    session = graft.load(saved(COMPRESS, tmp_path / "m.graft", threads=1))
    (x,) = session.get_inputs()
    assert (x.name, x.shape, x.type) == ("x", ["n"], "tensor(float)")
    assert [one.name for one in session.get_outputs()] == ["y", "count"]
    assert session.get_outputs()[1].shape == [1]
    assert session.threads == min(1, available_cores())
    assert graft.load(tmp_path / "m.graft", threads=3).threads == 3


def test_feeds_and_homes_are_checked(tmp_path: Path) -> None:
    session = graft.load(saved(COMPRESS, tmp_path / "m.graft"))
    for feeds, message in [
        ({}, "the input 'x' is missing"),
        ({"x": numbers(2), "z": numbers(2)}, "there is no input 'z'"),
        ({"x": numbers(2, 2)}, r"the input 'x' wants float32\[n\], not float32\[2, 2\]"),
        ({"x": np.zeros(2)}, r"the input 'x' wants float32\[n\], not float64\[2\]"),
    ]:
        with pytest.raises(UserError, match=message):
            session.run(None, feeds)
    with pytest.raises(UserError, match="there is no output 'w'"):
        session.run(["w"], {"x": numbers(2)})
    x = np.array([4, -1, 9], np.float32)
    home = np.empty(2, np.float32)
    (count, y) = session.run(["count", "y"], {"x": x}, {"y": home})
    assert y is home
    assert list(home) == [2, 3]
    assert list(count) == [2]
    with pytest.raises(
        UserError, match=r"the output 'y' came out as \[2\], and its array is \[5\]"
    ):
        session.run(None, {"x": x}, {"y": np.empty(5, np.float32)})


@pytest.mark.parametrize(
    ("node", "one", "other", "message"),
    [
        (
            "[mix] z = MatMul (x, y)",
            (3, 4),
            (5, 6),
            r"extents to sum over differ: b and c .*\(with b = 4, c = 5\)",
        ),
        ("[mix] z = Concat <axis = 0> (x, y)", (3, 4), (3, 5), "extents of axis 1 differ: b and d"),
        (
            "[mix] z = Add (x, y)",
            (3, 4),
            (2, 4),
            r"extents a and c do not broadcast .*a = 3, c = 2",
        ),
    ],
)
def test_one_check_for_compiled_and_loaded(
    node: str, one: tuple[int, int], other: tuple[int, int], message: str, tmp_path: Path
) -> None:
    text = f"net (float[a, b] x, float[c, d] y) => (float[e, f] z) {{ {node} }}"
    module = graft.compile(onnx.parser.parse_model(HEAD + text))
    module.save(tmp_path / "m.graft")
    session = graft.load(tmp_path / "m.graft")
    said = []
    for runs in (module, session):
        with pytest.raises(EvaluationError, match=message) as error:
            runs.run(None, {"x": numbers(*one), "y": numbers(*other)})
        assert error.value.location is not None
        assert error.value.location.node == "mix"
        said.append(str(error.value))
        runs.run(None, {"x": numbers(4, 4), "y": numbers(4, 4)})
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("text", "good", "bad", "message"),
    [
        (
            "net (float[1, c, h, h] x) => (float[a, b, p, q] z)"
            " { [space] z = SpaceToDepth <blocksize = 2> (x) }",
            (1, 3, 4, 4),
            (1, 3, 5, 5),
            "is not a multiple of 2",
        ),
        (
            "net (float[1, 2, h, w] x) => (float[a, b, p, q] z)"
            " { [space] z = MaxPool <kernel_shape = [3, 3]> (x) }",
            (1, 2, 3, 5),
            (1, 2, 1, 5),
            "does not fit into h",
        ),
        (
            "net (float[n, 4] x) => (float[m, 8] z)"
            " { s = Constant <value = int64[2] {-1, 8}> () [space] z = Reshape (x, s) }",
            (4, 4),
            (3, 4),
            "elements do not fill",
        ),
    ],
)
def test_what_rules_say_of_numbers_is_kept(
    text: str, good: tuple[int, ...], bad: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    host, reference = both(text)
    assert host.placement.reasons == {}
    host.save(tmp_path / "m.graft")
    session = graft.load(tmp_path / "m.graft")
    x = numbers(*good)
    for mine, wanted in zip(
        session.run(None, {"x": x}), reference.run(None, {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(mine, wanted)
    for runs in (host, session):
        with pytest.raises(EvaluationError, match=message) as error:
            runs.run(None, {"x": numbers(*bad)})
        assert error.value.location is not None
        assert error.value.location.node == "space"


def test_constants_are_mapped_and_shared(tmp_path: Path) -> None:
    """The same weight on both sides of a cut lies in the file once."""
    values = ", ".join(str(0.5 * n) for n in range(400))
    text = f"""
        net (float[n, 20] x) => (float[m, 20] z) {{
            w = Constant <value = float[20, 20] {{ {values} }}> ()
            a = MatMul (x, w)
            zero = Constant <value = float {{0.0}}> ()
            axis = Constant <value = int64[1] {{1}}> ()
            rows = ReduceSum <keepdims = 0> (a, axis)
            test = Greater (rows, zero)
            kept = Compress <axis = 0> (a, test)
            z = MatMul (kept, w)
        }}
    """
    path = saved(text, tmp_path / "m.graft")
    program = load_artifact(path).program
    weights = [c for _, c in program.constants if c.size >= 400]
    assert len(weights) > 1
    assert len({address_of(c) for c in weights}) == len({c.tobytes() for c in weights})
    assert all(not c.flags.writeable and address_of(c) % 64 == 0 for c in weights)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("flow") / "m.graft"
    return saved(LOOP, path, threads=1).read_bytes()


def test_every_damage_is_noticed(image: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.graft"
    for position in {*range(0, 160, 3), *range(0, len(image), 997), len(image) - 1}:
        damaged = bytearray(image)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError):
            load_artifact(path)
    for length in range(0, len(image), 4999):
        path.write_bytes(image[:length])
        with pytest.raises(ArtifactError):
            load_artifact(path)


def rewritten(path: Path, image: bytes, change: dict[str, object]) -> None:
    """The file with parts of its header replaced, by dotted names, with right checksums."""
    path.write_bytes(image)
    container = read(path)
    header = json.loads(json.dumps(container.header))
    for name, value in change.items():
        *way, last = name.split(".")
        place = header
        for key in way:
            place = place[int(key) if isinstance(place, list) else key]
        place[int(last) if isinstance(place, list) else last] = value
    sections = [Section(name, [data]) for name, data in container.sections.items()]
    write(path.with_name("changed.graft"), header, sections)


@pytest.mark.parametrize(
    "change",
    [
        {"body.1.0.do": "leap"},
        {"body.1.0.limit": 99},
        {"body.1.0.limit": "one"},
        {"body.1.0.carried": []},
        {"body.1.0.body": None},
        {"body.1.0.body.1.0.calls": 7},
        {"body.1.0.body.1.0.inputs": [99]},
        {"body.1.0.body.1.0.inputs": [None, None]},
        {"body.1.0.body.1.0.outputs": []},
        {"body.1.0.body.1.0.calls.0.1": [[99, 0, 4]]},
        {"body.1.0.body.1.0.calls.0.1": [12345]},
        {"body.1.0.body.1.0.calls.0.2": ["nobody"]},
        {"body.1.0.body.1.0.checks": [[["n", "m"], ["", "", ""]]]},
        {"body.2": [0]},
        {"body.2": [1000, 1001]},
        {"values.0": ["x", "float33", []]},
        {"values.0.2": ["1 +"]},
        {"body.0": [0, 0, 0]},
        {"constant_values": [[-1, 0]]},
        {"constant_values": [[0, 12345]]},
        {"output_names": ["y", "y"]},
        {"output_names": ["y"]},
        {"threads": 0},
        {"body": None},
    ],
)
def test_contradictions_are_refused(
    image: bytes, change: dict[str, object], tmp_path: Path
) -> None:
    rewritten(tmp_path / "m.graft", image, change)
    with pytest.raises(ArtifactError, match="this file contradicts itself"):
        load_artifact(tmp_path / "changed.graft")


def test_saving_twice_gives_the_same_bytes(image: bytes, tmp_path: Path) -> None:
    assert saved(LOOP, tmp_path / "again.graft", threads=1).read_bytes() == image
