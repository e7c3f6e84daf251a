"""Text and back: what is printed reads back as the same graph, and mistakes are pointed at."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graft.ops  # noqa: F401  (registers the operators)
from graft.base.dims import UNKNOWN, symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import Location, ParseError
from graft.ir.builder import Builder
from graft.ir.equal import difference
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import INLINE_LIMIT, to_text
from graft.ir.types import MapType, OptionalType, SequenceType, TensorType, tensor
from graft.ir.verify import verify

ERRORS = tomllib.loads((Path(__file__).parent / "errors" / "parse.toml").read_text("utf-8"))
ODD_NAMES = (
    "",
    "a b",
    'q"q',
    "back\\slash",
    "new\nline",
    "%",
    "日本",
    "]",
    "`",
    "a,b",
    "(",
    "none",
)


def round_trip(graph: Graph) -> Graph:
    """Print, parse, compare; print again, compare the texts."""
    printed = to_text(verify(graph))
    parsed = verify(from_text(printed.text, printed.constants))
    assert difference(graph, parsed) is None
    assert to_text(parsed).text == printed.text
    return parsed


@pytest.mark.parametrize("name", ERRORS)
def test_mistake(name: str) -> None:
    case = ERRORS[name]
    with pytest.raises(ParseError) as caught:
        from_text(case["text"].removeprefix("\n"))
    first, *rest = caught.value.lines
    assert first == f"line {case['line']}, column {case['column']}: {case['message']}"
    if "hint" in case:
        assert any(line.startswith(f"  hint: {case['hint']}") for line in rest)


def test_error_shows_the_line() -> None:
    text = "graph @g(%x: float32[2]) {\n  %y: float32[2] = abz(%x)\n  return %y\n}"
    with pytest.raises(ParseError) as caught:
        from_text(text)
    assert str(caught.value).split("\n")[-1] == "  %y: float32[2] = abz(%x)"


@pytest.mark.parametrize("opening", ["sequence<", "optional<"])
def test_types_nested_too_deeply(opening: str) -> None:
    with pytest.raises(ParseError, match="nested too deeply to be read"):
        from_text(f"graph @g(%x: {opening * 100_000}")


def test_lists_nested_too_deeply() -> None:
    text = f"graph @g(%x: float32[2]) {{ %y: float32[2] = sum(%x) {{axes={'[' * 100_000}"
    with pytest.raises(ParseError, match="nested too deeply to be read"):
        from_text(text)


def test_graphs_nested_too_deeply() -> None:
    text = "graph @g() { %a: bool[] = if() {then_branch=" * 70
    with pytest.raises(ParseError, match="graphs are nested more than 64 deep"):
        from_text(text)


def test_constant_of_another_type_than_the_text_says() -> None:
    text = "graph @g() { %y: float32[2] = constant() {value=dense<float32[2] @w>} return %y }"
    message = r"line 1, column 66: the constant @w is float64\[2\], not float32\[2\]"
    with pytest.raises(ParseError, match=message):
        from_text(text, {"w": np.zeros(2)})


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_everywhere(name: str) -> None:
    g = Builder(name or "g")
    x = g.input(f"x{name}", tensor("float32", symbol(name), 2))
    g.location = Location(f"file{name}", name, f"Kind{name}")
    y = g("reshape", x, shape=[symbol(name) * 2], out=f"y{name}")
    parsed = round_trip(g.build(y, x, names=[f"out{name}", name]))
    assert parsed.name == g.name
    assert parsed.output_names == (f"out{name}", name)
    assert parsed.nodes[0].location == g.location
    assert parsed.input_symbols == {name}


def test_comments_and_layout_do_not_matter() -> None:
    text = "graph@g(%x:float32[2])// inputs\n{%y:float32[2]=abs\n(%x)return%y //done\n}// end"
    spread = "graph @g ( %x: float32[2] ) { %y: float32[2] = abs ( %x ) return %y }\n\n"
    assert difference(from_text(text), from_text(spread)) is None


def test_golden_text() -> None:
    g = Builder("example")
    x = g.input("x", tensor("float32", symbol("n"), 3))
    g.location = Location("model.onnx", "/scale", "Mul")
    y = g("multiply", x, g.constant(np.array([1, -0.0, np.inf], np.float32)), out="scaled")
    g.location = Location("other.onnx", "/sum", "")
    total = g("sum", y, axes=[1], keepdims=True)
    graph = g.build(total, x, names=["total", "x"])
    assert to_text(round_trip(graph)).text == (
        "graph @example(%x: float32[n, 3]) {\n"
        "  %const: float32[3] = constant() {value=dense<float32[3]: 1.0, -0.0, inf>}"
        ' at Mul "/scale" in "model.onnx"\n'
        '  %scaled: float32[n, 3] = multiply(%x, %const) at Mul "/scale" in "model.onnx"\n'
        "  %sum: float32[n, 1] = sum(%scaled) {axes=[1], keepdims=true}"
        ' at "/sum" in "other.onnx"\n'
        '  return %sum as "total", %x\n'
        "}\n"
    )


CONSTANTS: dict[str, Array] = {
    "scalar": np.array(1.5, np.float32),
    "empty": np.zeros((0, 3), np.int8),
    "empty strings": np.zeros((2, 0), object),
    "largest uint64": np.array([2**64 - 1, 0], np.uint64),
    "smallest int64": np.array([-(2**63), 2**63 - 1], np.int64),
    "denormal": np.array([5e-324, 1e-40, -0.0]),
    "infinities": np.array([np.inf, -np.inf], np.float16),
    "NaN": np.array([np.nan, 1.0], np.float32),
    "NaN with a payload": np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32),
    "booleans": np.array([[True], [False]]),
    "strings": np.array(["a", "", 'ü"\\\n'], object),
    "complex": np.array([1 + 2j, -0.0j], np.complex64),
    "as many as are written out": np.arange(INLINE_LIMIT),
    "one more": np.arange(INLINE_LIMIT + 1),
    "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1],
    "not native": np.arange(3, dtype=">i4").astype("=i4"),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    g = Builder()
    parsed = round_trip(g.build(g.constant(CONSTANTS[name])))
    found = parsed.nodes[0].attrs.value.array
    assert found.dtype == CONSTANTS[name].dtype
    if found.dtype == object:
        assert found.tolist() == CONSTANTS[name].tolist()
    else:
        assert found.tobytes() == CONSTANTS[name].tobytes()


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if not dtype.is_complex])
def test_constants_of_every_dtype_are_written_out(dtype: DType) -> None:
    strings = dtype is DType.STRING
    array = np.array(["1", "0"], object) if strings else np.array([1, 0]).astype(dtype.numpy)
    g = Builder()
    graph = g.build(g.constant(array))
    round_trip(graph)
    exact = dtype is DType.FLOAT8E8M0FNU  # 0 is NaN there
    assert bool(to_text(graph).constants) is exact


def test_two_large_constants_of_one_name() -> None:
    """A nested graph may call its constant as the outer graph calls another one."""
    inner = Builder("inner")
    body = inner.build(inner.constant(np.arange(20), out="c"))
    g = Builder()
    outer = g.constant(np.arange(20) * 2, out="c")
    (made,) = g.call("composite", body=body)
    round_trip(g.build(outer, made))


def test_types_of_all_kinds() -> None:
    text = (
        "graph @g(%a: sequence<optional<int8[?, 2*n + 1]>>, %b: map<string, float32[*]>) {\n"
        "  return %a, %b\n}\n"
    )
    graph = from_text(text)
    inner = tensor("int8", UNKNOWN, 2 * symbol("n") + 1)
    assert graph.inputs[0].type == SequenceType(OptionalType(inner))
    assert graph.inputs[1].type == MapType(DType.STRING, TensorType(DType.FLOAT32, None))
    assert to_text(graph).text == text


ATTRIBUTES: list[tuple[str, dict[str, Any], str]] = [
    ("nn.leaky_relu", {"alpha": 0.01}, ""),
    ("nn.leaky_relu", {"alpha": float("nan")}, " {alpha=nan}"),
    ("nn.leaky_relu", {"alpha": float("-inf")}, " {alpha=-inf}"),
    ("nn.leaky_relu", {"alpha": 1e-300}, " {alpha=1e-300}"),
    ("clip", {"a_min": 0, "a_max": -0.0}, " {a_min=0, a_max=-0.0}"),
    ("cast", {"dtype": "bfloat16"}, ' {dtype="bfloat16"}'),
    ("sum", {"axes": []}, " {axes=[]}"),
    ("reshape", {"shape": [symbol("n"), 1]}, " {shape=[`n`, 1]}"),
]


@pytest.mark.parametrize(("op", "attrs", "printed"), ATTRIBUTES)
def test_attributes(op: str, attrs: dict[str, Any], printed: str) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n")))
    graph = g.build(g(op, x, **attrs))
    assert to_text(graph).text.split("\n")[1].endswith(f"{op}(%x){printed}")
    round_trip(graph)


def test_a_zero_that_differs_from_its_default_by_its_sign_is_written() -> None:
    g = Builder()
    graph = g.build(g("random.normal", shape=[2], mean=-0.0))
    assert "mean=-0.0" in to_text(graph).text
    round_trip(graph)


def test_absent_operands_are_written() -> None:
    g = Builder()
    x, high = g.input("x", tensor("float32", 3)), g.input("high", tensor("float32"))
    graph = g.build(g("clip", x, None, high))
    assert "clip(%x, none, %high)" in to_text(graph).text
    round_trip(graph)
