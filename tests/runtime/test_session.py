"""Feeds and outputs: what is taken as it lies, what is copied, what is refused."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.kernels import chain, chain_meaning, float32, native, program_of

from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.program.instructions import KernelCall, RegionCall
from graft.program.program import Value
from graft.runtime.evaluated import SuppliedFunctions
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.session import Argument, Session

X = np.array([3, -1, 4, 1, -5], np.float32)
Y = chain_meaning(X)


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(chain(5), threads=2)


class ByDlpack:
    """A tensor of another library: DLPack and nothing else."""

    def __init__(self, data: Array, device: tuple[int, int] = (1, 0)) -> None:
        self._data, self._device = data, device

    def __dlpack__(self, **options: Any) -> Any:
        if self._device[0] != 1:
            raise BufferError("the tensor lies on another device")
        return self._data.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class ByInterface:
    """An array of another library: NumPy's array interface and nothing else."""

    def __init__(self, data: Array) -> None:
        self.data = data
        self.__array_interface__ = data.__array_interface__


def spaced() -> Array:
    wide = np.zeros(10, np.float32)
    wide[::2] = X
    return wide[::2]


def odd_address() -> Array:
    memory = aligned_empty((21,), np.dtype(np.uint8))
    shifted = memory[1:].view(np.float32)
    shifted[:] = X
    return shifted


def read_only() -> Array:
    copy = X.copy()
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize(
    "data",
    [
        X,
        X[::-1][::-1],
        spaced(),
        odd_address(),
        read_only(),
        X.astype(">f4"),
        array("f", X),
        X.data,
        ByDlpack(X.copy()),
        ByInterface(X),
        np.ma.masked_array(X),
    ],
    ids=lambda data: type(data).__name__,
)
def test_inputs_come_in_many_forms(session: Session, data: Any) -> None:
    assert np.array_equal(session.run(None, {"x": data})[0], Y)


def peeking(value: Value) -> tuple[Session, list[int]]:
    """A session whose only step tells at which address the input lies."""
    seen: list[int] = []

    def look(arguments: Any, _homes: Any) -> list[Array]:
        seen.append(address_of(arguments[0]))
        return [arguments[0]]

    step = RegionCall("look", (0,), (1,))
    program = program_of((value,), (replace(value, name="y"),), (step,))
    return Session(program, threads=1, supplied=SuppliedFunctions({"look": look})), seen


def test_inputs_are_used_where_they_lie() -> None:
    session, seen = peeking(float32("x", 5))
    by_dlpack = X.copy()
    for data in (X, np.arange(9, dtype=np.float32)[3:8], read_only()):
        session.run(None, {"x": data})
        assert seen.pop() == address_of(data)
    session.run(None, {"x": ByDlpack(by_dlpack)})
    assert seen.pop() == address_of(by_dlpack)
    session.run(None, {"x": ByInterface(by_dlpack)})
    assert seen.pop() == address_of(by_dlpack)
    for data in (spaced(), odd_address()):
        assert np.array_equal(session.run(None, {"x": data})[0], X)
        assert seen.pop() != address_of(data)


def test_a_program_may_ask_for_aligned_inputs() -> None:
    session, seen = peeking(float32("x", 5, alignment=128))
    aligned = aligned_empty((5,), np.dtype(np.float32), 128)
    aligned[:] = X
    for data, copied in [(aligned, False), (odd_address(), True)]:
        (y,) = session.run(None, {"x": data})
        assert np.array_equal(y, X)
        assert address_of(y) % 128 == 0
        address = seen.pop()
        assert address % 128 == 0
        assert (address != address_of(data)) == copied


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (DType.BOOL, True),
        (DType.INT8, -3),
        (DType.FLOAT16, np.nan),
        (DType.BFLOAT16, ml_dtypes.bfloat16(1.5)),
        (DType.INT4, ml_dtypes.int4(-8)),
        (DType.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn(0.5)),
        (DType.COMPLEX64, 1 - 2j),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 3)])
def test_every_dtype_and_shape_passes_through(
    dtype: DType, value: Any, shape: tuple[int, ...]
) -> None:
    session, _ = peeking(Value("x", dtype, shape))
    x = np.full(shape, value, dtype.numpy)
    (y,) = session.run(None, {"x": x})
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("feeds", "message", "hint"),
    [
        ({}, "the input 'x' is missing", "inputs: 'x'"),
        ({"x": X, "z": X}, "there is no input 'z'", "inputs: 'x'"),
        (
            {"x": X.astype(np.float64)},
            r"the input 'x' wants float32\[5\], not float64\[5\]",
            "convert it with .astype('float32')",
        ),
        ({"x": X[:4]}, r"the input 'x' wants float32\[5\], not float32\[4\]", ""),
        ({"x": X[None]}, r"wants float32\[5\], not float32\[1, 5\]", ""),
        ({"x": np.float32(1)}, r"wants float32\[5\], not float32\[\]", ""),
        ({"x": [1.0] * 5}, r"wants float32\[5\], not float64\[5\]", "convert it with"),
        ({"x": "text"}, r"wants float32\[5\], not string\[\]", "convert it with"),
        ({"x": None}, r"wants float32\[5\], not string\[\]", "convert it with"),
        ({"x": [[1.0], [1.0, 2.0]]}, "the input 'x' cannot be read", "memory of the host"),
        ({"x": ByDlpack(X, (2, 0))}, "the tensor lies on another device", "memory of the host"),
    ],
)
def test_bad_feeds_are_refused(
    session: Session, feeds: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        session.run(None, feeds)
    assert hint in error.value.hint


def test_outputs_are_chosen_by_name(session: Session) -> None:
    assert session.run([], {"x": X}) == []
    first, second = session.run(["y", "y"], {"x": X})
    assert first is second
    assert np.array_equal(first, Y)
    with pytest.raises(UserError, match="there is no output 'z'") as error:
        session.run(["z"], {"x": X})
    assert error.value.hint == "outputs: 'y'"


def test_results_are_fresh_and_the_users_own(session: Session) -> None:
    (first,) = session.run(None, {"x": X})
    (second,) = session.run(None, {"x": X + 1})
    assert np.array_equal(first, Y)
    assert not np.shares_memory(first, second)
    first[:] = 0
    assert np.array_equal(second, chain_meaning(X + 1))
    assert address_of(second) % 16 == 0


def test_large_results_lie_at_cache_lines() -> None:
    (y,) = Session(chain(5000), threads=1).run(None, {"x": np.zeros(5000, np.float32)})
    assert address_of(y) % 64 == 0


def test_results_go_where_the_user_wants_them(session: Session) -> None:
    for home in (np.zeros(5, np.float32), np.zeros(10, np.float32)[::2], odd_address()):
        (y,) = session.run(None, {"x": X}, {"y": home})
        assert y is home
        assert np.array_equal(home, Y)


def test_results_may_replace_inputs(session: Session) -> None:
    data = X.copy()
    session.run(None, {"x": data}, {"y": data})
    assert np.array_equal(data, Y)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"z": X}, "there is no output 'z'"),
        ({"y": read_only()}, "the array for the output 'y' is read-only"),
        ({"y": np.zeros(5)}, r"the output 'y' wants float32\[5\], not float64\[5\]"),
        ({"y": X[:3].copy()}, r"the output 'y' wants float32\[5\], not float32\[3\]"),
        ({"y": [0.0] * 5}, "the array for the output 'y' is a list"),
    ],
)
def test_bad_homes_are_refused(session: Session, outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        session.run(None, {"x": X}, outputs)


def test_two_outputs_cannot_share_memory() -> None:
    calls = [KernelCall("add", (0, 0, number), (5,)) for number in (1, 2)]
    outputs = (float32("y", 5), float32("z", 5))
    session = Session(native((float32("x", 5),), outputs, calls), threads=1)
    home = np.zeros(5, np.float32)
    with pytest.raises(UserError, match="the output 'z' overlaps another output's"):
        session.run(None, {"x": X}, {"y": home, "z": home})
    y, z = session.run(None, {"x": X}, {"z": home})
    assert z is home
    assert np.array_equal(y, X + X)
    assert np.array_equal(z, X + X)


def test_arguments_are_described_as_by_onnx_runtime() -> None:
    outputs = float32("y", 5), Value("n", DType.INT64, (0, 2))
    step = RegionCall("f", (), (1, 2))
    program = program_of((float32("x", 5),), outputs, (step,))
    session = Session(program, supplied=SuppliedFunctions({"f": lambda arguments, homes: [X]}))
    assert session.get_inputs() == [Argument("x", [5], "tensor(float)")]
    assert session.get_outputs()[1] == Argument("n", [0, 2], "tensor(int64)")
