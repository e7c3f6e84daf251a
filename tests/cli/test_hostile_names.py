"""Whatever a model calls its things, no command and no generated code takes it for anything else.

`hostile.py` makes models of names that end comments, lines, strings and tags, climb out of folders,
drive terminals, or are very long. They go through every command and everything that writes code;
what comes out is looked at for what must not be there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cli.hostile import (
    MARK,
    MARK_FILE,
    NAMES,
    broken_models,
    dynamic_model,
    static_model,
)

import graft
from graft.backends.csource.backend import CSource
from graft.backends.cuda.backend import Cuda
from graft.backends.cuda.plan import plan_region
from graft.base.names import LONGEST_LINE, comment, file_stem, identifier, printable, quoted
from graft.byoc.contract import Backend, Match, PatternTable
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.formats.c_source import compiler
from graft.byoc.formats.json_graph import json_blob
from graft.byoc.formats.onnx_model import to_onnx
from graft.byoc.plan import parse_plan
from graft.byoc.region import for_backend
from graft.cli.compile import PLACEMENT_STAGES, STAGES
from graft.cli.main import main
from graft.frontends.onnx.importer import import_model
from graft.ir.equal import difference
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.passes.pipeline import optimize
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal
from graft.runtime.spaces import Runner

_BROKEN_LINE = re.compile(rf"^(  )?{MARK}", re.MULTILINE)
_PLACED = ("--target", "csource,host", "--pin", "*=csource")
needs_c = pytest.mark.skipif(compiler() is None, reason="there is no C compiler here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where everything happens: three levels down, so that what climbs out is seen."""
    outermost = tmp_path_factory.mktemp("hostile")
    inner = outermost / "a" / "b" / "c"
    inner.mkdir(parents=True)
    static_model(inner / "static.onnx")
    dynamic_model(inner / "dynamic.onnx")
    before = Path.cwd()
    os.chdir(inner)
    yield inner
    os.chdir(before)
    outside = [
        path for path in outermost.rglob("*") if path.is_file() and inner not in path.parents
    ]
    assert not outside
    assert not list(outermost.rglob(f"*{MARK_FILE}"))


@pytest.fixture(autouse=True)
def nothing_ran(folder: Path) -> Iterator[None]:
    """After every test: no name was executed."""
    yield
    assert not (folder / MARK_FILE).exists()


def said(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Run a command, look at all it writes, and return what it writes to standard output."""
    assert main([str(one) for one in arguments]) == code
    output, errors = capfd.readouterr()
    for text in (output, errors):
        look_at(text)
    if "--emit" not in arguments and "--text" not in arguments and "--json" not in arguments:
        assert max(map(len, (output + errors).split("\n"))) <= 3 * LONGEST_LINE
    return output


def look_at(text: str) -> None:
    """Nothing drives the terminal, and no name begins a line."""
    odd = [line for line in text.split("\n") if not line.replace("\t", "").isprintable()]
    assert not odd, repr(odd[0][:300])
    assert not _BROKEN_LINE.search(text)


@pytest.mark.parametrize("model", ["static.onnx", "dynamic.onnx"])
def test_inspect(model: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said(capfd, "inspect", model)
    facts = json.loads(said(capfd, "inspect", model, "--json"))
    assert facts["inputs"][0]["name"] in NAMES.values()  # programs get the name as it is
    text = said(capfd, "inspect", model, "--text")
    assert difference(from_text(text, _constants(model)), import_model(Path(model))) is None


def _constants(model: str) -> dict[str, np.ndarray]:
    graph = import_model(Path(model))
    found = [node for node in graph.nodes if node.op.name == "constant"]
    return {node.output.name: node.attrs.value.array for node in found}


@pytest.mark.parametrize("stage", [one for one in STAGES if one not in PLACEMENT_STAGES])
@pytest.mark.parametrize("model", ["static.onnx", "dynamic.onnx"])
def test_stages(model: str, stage: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = said(capfd, "compile", model, "--emit", stage)
    if stage in ("llvm", "asm"):  # where a name can only be in a comment
        mark = {"llvm": ";", "asm": "#"}[stage]
        assert not re.search(rf"^[^{mark}\n]*(touch|{MARK})", text, re.MULTILINE)


@pytest.mark.parametrize("model", ["static", "dynamic"])
def test_run_check_and_save(model: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said(capfd, "compile", f"{model}.onnx", "-o", f"{model}.graft", "-v")
    said(capfd, "run", f"{model}.onnx", "--target", "reference")
    said(capfd, "run", f"{model}.graft", "--output-dir", f"{model}-out")
    written = [path.name for path in (folder / f"{model}-out").iterdir()]
    assert len(written) == len(import_model(folder / f"{model}.onnx").outputs)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}", name) for name in written)
    said(capfd, "run", f"{model}.graft", "--profile", "--trace", f"{model}.json")
    trace = (folder / f"{model}.json").read_text("utf-8")
    look_at(trace)
    assert max(len(event["name"]) for event in json.loads(trace)["traceEvents"]) < LONGEST_LINE
    said(capfd, "check", f"{model}.onnx", "--nodes")
    for command in ("inspect", "explain", "check"):
        said(capfd, command, f"{model}.graft")
        said(capfd, command, f"{model}.graft", "--json")
    said(capfd, "check", f"{model}.graft", "--against", f"{model}.onnx")


def test_dims_by_name(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = NAMES["comment"]
    said(capfd, "run", "dynamic.onnx", "--dim", f"{name}=3", "--shapes", f"{name}=1,3")
    for wrong in [name for name in NAMES.values() if "=" not in name]:
        said(capfd, "run", "static.onnx", "--dim", f"{wrong}=2", code=1)
        said(capfd, "run", "static.onnx", "--input", f"{wrong}x=nowhere.npy", code=1)


def test_quantize(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for file in ("quantized.onnx", "quantized.graft"):
        said(
            capfd, "quantize", "static.onnx", "--data", "random", "--precision", "int8", "-o", file
        )
        said(capfd, "run", file)
    said(capfd, "inspect", "quantized.onnx")


def test_dump_and_reduce(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said(capfd, "run", "static.onnx", "--dump", "all", "--dump-to", "dumped")
    written = [path.name for path in (folder / "dumped").iterdir()]
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}", name) for name in written)
    wrong = ("--rtol", "0", "--atol", "0", "--reduce", "reduced.onnx")
    said(capfd, "check", "static.onnx", *wrong, code=1)
    assert (folder / "reduced.onnx").exists()


@needs_c
def test_placement(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saving = ("-o", "placed.graft", "--save-plan", "static.plan")
    said(capfd, "compile", "static.onnx", *_PLACED, *saving)
    plan = (folder / "static.plan").read_text("utf-8")
    look_at(plan)
    parsed = parse_plan(plan)
    assert parsed.to_text() == plan
    assert {name for region in parsed.regions for name in region.nodes} & set(NAMES.values())
    replayed = ("--target", "csource,host", "--plan", "static.plan")
    said(capfd, "run", "static.onnx", *replayed)
    said(capfd, "compile", "static.onnx", "--emit", "partitioned", *replayed)
    said(capfd, "run", "placed.graft", "--profile", "--trace", "placed.json")
    said(capfd, "explain", "placed.graft")
    look_at((folder / "placed.json").read_text("utf-8"))


@needs_c
def test_explain(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said(capfd, "explain", "static.onnx", *_PLACED, "--html", "page.html")
    page = (folder / "page.html").read_text("utf-8")
    assert not re.search(rf"<(script>{MARK}|img)", page)
    assert page.count("</script>") == 2
    look_at(page)
    said(capfd, "explain", "static.onnx", *_PLACED, "--node", NAMES["newline"])


def test_bench(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quick = ("--peers", "onnxruntime", "--rounds", 1, "--seconds", 0.1, "--threads", 1)
    text = said(capfd, "bench", "static.onnx", *quick, "--markdown")
    assert "ONNX Runtime" in text


def test_refusals(tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in broken_models(tmp_path):
        said(capfd, "inspect", path, code=1)
        said(capfd, "run", path, code=1)


class Careless(Backend):
    """Writes all names that it sees into its code, its refusals and its errors."""

    name = "careless"

    def __init__(self) -> None:
        self.codes: list[str] = []

    def patterns(self) -> PatternTable:
        return [(name, is_op(name)) for name in ("add", "nn.relu", "tanh", "exp", "multiply")]

    def supports(self, match: Match) -> Refusal | None:
        node = match.nodes[0]
        return Refusal(f"%{node.output.name}") if node.op.name == "exp" else None

    def compile(self, region: Graph) -> bytes:
        names = [value.name for node in region.walk() for value in (*node.args, *node.outputs)]
        places = [str(node.location) for node in region.nodes]
        types = [str(value.type) for value in region.inputs]
        self.codes += [region.name, *names, *places, *types]
        raise ValueError("no code for " + NAMES["newline"] + NAMES["ansi"])

    def load(self, blob: bytes) -> Runner:
        raise NotImplementedError


@pytest.mark.parametrize("model", ["static.onnx", "dynamic.onnx"])
def test_a_backend_that_believes_in_names(
    model: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backend = Careless()
    register_backend(backend)
    try:
        said(capfd, "run", model, "--target", "careless,host")
        said(capfd, "explain", model, "--target", "careless,host")
    finally:
        unregister_backend(backend.name)
    region = for_backend(optimize(import_model(folder / model)))
    with pytest.raises(ValueError, match="no code"):
        backend.compile(region)
    assert all(comment(code[:100]) == code[:100] for code in backend.codes)
    names = {value.name for node in region.walk() for value in (*node.args, *node.outputs)}
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in names)
    assert max(map(len, names)) <= 80


@needs_c
def test_code_of_regions(folder: Path) -> None:
    """Formats, given the model's names as they are: nobody has to go through `for_backend`."""
    graph = optimize(import_model(folder / "static.onnx"))
    rows = np.ones((3, 7), np.float32)
    expected = graft.compile(folder / "static.onnx").run(
        None, {value.name: rows for value in graph.inputs}
    )
    runner = CSource().load(CSource().compile(graph))
    outputs = [np.empty(value.shape, np.float32) for value in graph.outputs]
    runner([rows, rows], outputs)
    for output, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, right, rtol=1e-5)
    json_blob(graph).decode("ascii", "ignore")
    kernels = plan_region(graph, Cuda().plan_options).code
    assert kernels
    texts = (kernel.ptx for kernel in kernels.values())
    assert not any(re.search(rf"touch|{MARK}|[^\x20-\x7e\n\t]", text) for text in texts)
    assert to_onnx(for_backend(graph)).graph.input[0].name.isidentifier()


def test_names_of_the_interface_stay_what_they_are(folder: Path) -> None:
    module = graft.compile(folder / "static.onnx")
    module.save(folder / "interface.graft")
    for one in (module, graft.load(folder / "interface.graft")):
        names = [argument.name for argument in one.get_inputs()]
        assert set(names) <= set(NAMES.values())
        one.run(None, dict.fromkeys(names, np.ones((3, 7), np.float32)))
        with pytest.raises(graft.GraftError) as caught:
            one.run(None, {name: np.ones((2, 2), np.float32) for name in names})
        look_at(str(caught.value))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_escapes(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", identifier(name))
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", file_stem(name, "output"))
    assert printable(name).isprintable()
    assert len(printable(name, 100)) <= 6 * 100
    assert json.loads(quoted(name)) == json.loads(quoted(name, ascii_only=False)) == name
    assert quoted(name).isprintable()
    safe = comment(name)
    assert re.fullmatch(r"[ -~]*", safe)
    assert not any(one in safe for one in ("*/", "/*", "\\", "??"))


def test_plain_names_stay_what_they_are() -> None:
    for name in ("layer4/conv:0", "größe", "x.1", "日本"):
        assert printable(name) == name
    assert comment("layer4/conv:0") == "layer4/conv:0"
    assert [identifier(name) for name in ("1x", "", "a b")] == ["_1x", "_", "a_b"]
    assert [file_stem(name, "output") for name in ("..", "-a/b.")] == ["output", "a_b"]
