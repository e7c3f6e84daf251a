"""What the verifier finds, one mistake each."""

from __future__ import annotations

import pytest

from graft.base.dtypes import DType
from graft.loop.errors import LoopError
from graft.loop.ir import Buffer, Const, For, Function, Load, Scope, Store, Var
from graft.loop.parse import from_text
from graft.loop.verify import verify


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in 0 +: 2 { } for i in 0 +: 3 { }", "'i' is declared twice"),
        ("for n in 0 +: 2 { }", "'n' is declared twice"),
        ("y[0] = x[0] + 1", "'x[0] + 1' has operands of different types"),
        ("y[0] = broadcast(x[0], 4) + x[0]", "has operands of different types"),
        ("y[0] = 1", "'y[0] = 1' stores int64x1"),
        ("y[ramp(0, 1, 4)] = 0.0", "stores float32x1"),
        ("y[0, 0] = 0.0", "'y[0, 0]': wrong number of indices"),
        ("y[0:int32] = 0.0", "indices have to be int64"),
        ("y[8] = 0.0", "'y[8]' is out of bounds"),
        ("y[ramp(6, 1, 4)] = 0.0:float32x4", "is out of bounds"),
        ("for i in 0 +: 4 { y[i - 9] = 0.0 }", "'y[i - 9]' is out of bounds"),
        ("y[0] = x[n]", "'x[n]' is out of bounds"),
        ("y[0] = x[0] // 2.0", "no such operation on float32"),
        ("k[0] = 1 / 2", "no such operation on int64"),
        ("y[0] = pow(x[0])", "wrong number of arguments"),
        ("y[0] = nonsense(x[0])", "no intrinsic is called 'nonsense'"),
        ("k[0] = exp(1)", "'exp(1)' needs floats"),
        ("y[0] = isnan(x[0])", "gives bool, not float32"),
        ("if 1 { }", "the condition '1' is no truth value"),
        ("while ramp(0, 1, 4) < 3:int64x4 { }", "is no truth value"),
        ("y[0] = select(1 < 2, 1.0, 2)", "types do not fit"),
        ("let a: int32 = 1 { }", "let 'a': the value has another type"),
        ("y[0] = 0.0 where 1", "has a condition of another type"),
        ("allocate a: float32[n] in register { }", "register buffer 'a' has to have constant"),
        ("for i in 0 +: 1.0 { }", "loop 'i': odd extent"),
    ],
)
def test_mistakes(body: str, message: str) -> None:
    header = "kernel f(x: float32[n], y: float32[8], i: int64[8], n: int64)"
    function = from_text(
        f"{header.replace('i: int64[8]', 'k: int64[8]')} {{ {body.replace('i[0]', 'k[0]')} }}"
    )
    with pytest.raises(LoopError) as failure:
        verify(function)
    assert message in failure.value.message
    assert failure.value.message.startswith("f: ")


def test_names_end_with_their_scope() -> None:
    y = Buffer("y", DType.FLOAT32, (Const(4),))
    i = Var("i")
    loop = For(i, Const(0), Const(4), Store(y, (i,), Const(0.0, DType.FLOAT32)))
    assert verify(Function("f", (y,), loop))
    with pytest.raises(LoopError, match="'i' is not in scope"):
        verify(Function("f", (y,), Store(y, (i,), Const(0.0, DType.FLOAT32))))
    other = Buffer("other", DType.FLOAT32, (Const(4),), Scope.HEAP)
    with pytest.raises(LoopError, match="no buffer 'other' in scope"):
        verify(Function("f", (y,), Store(y, (Const(0),), Load(other, (Const(0),)))))
    with pytest.raises(LoopError, match="buffer 'other' cannot be declared here"):
        verify(Function("f", (other,), loop))


def test_what_may_be_inside_is_not_refused() -> None:
    text = """kernel f(x: float32[n], y: float32[8], n: int64) {
      for i in 0 +: n { if i < 8 { y[i] = x[n - 1 - i] } }
      y[0] = select(n > 9, x[9], 0.0)
    }"""
    assert verify(from_text(text))
