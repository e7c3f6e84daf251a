"""Types of values: text, questions, compatibility, joins."""

from __future__ import annotations

import pytest

from graft.base.dims import UNKNOWN, AnyDim, bare_symbol, symbol
from graft.base.dtypes import DType
from graft.ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    bound_symbols,
    compatible,
    dims_of,
    join,
    map_dims,
    symbols_in,
    tensor,
)

N, M = symbol("n"), symbol("m")
UNRANKED = TensorType(DType.FLOAT32, None)
F = tensor("float32", 2, N)

TEXTS: list[tuple[Type, str]] = [
    (tensor("float32"), "float32[]"),
    (tensor("int4", 1, 0), "int4[1, 0]"),
    (tensor("bool", N, 2 * N + 1), "bool[n, 2*n + 1]"),
    (tensor("string", UNKNOWN), "string[?]"),
    (UNRANKED, "float32[*]"),
    (SequenceType(F), "sequence<float32[2, n]>"),
    (OptionalType(SequenceType(UNRANKED)), "optional<sequence<float32[*]>>"),
    (MapType(DType.STRING, tensor("int64")), "map<string, int64[]>"),
]


@pytest.mark.parametrize(("type_", "text"), TEXTS)
def test_text(type_: Type, text: str) -> None:
    assert str(type_) == text


# rank, whether it is static, size
SIZES: list[tuple[TensorType, int | None, bool, AnyDim]] = [
    (tensor("float32"), 0, True, 1),
    (tensor("float32", 2, 0, 5), 3, True, 0),
    (tensor("float32", 3, N), 2, False, 3 * N),
    (tensor("float32", N, 0), 2, False, 0),
    (tensor("float32", UNKNOWN, 2), 2, False, UNKNOWN),
    (UNRANKED, None, False, UNKNOWN),
]


@pytest.mark.parametrize(("type_", "rank", "static", "size"), SIZES)
def test_size(type_: TensorType, rank: int | None, static: bool, size: AnyDim) -> None:
    assert (type_.rank, type_.is_static) == (rank, static)
    assert type_.size is size if size is UNKNOWN else type_.size == size


def test_types_are_values() -> None:
    assert tensor("float32", 2, N) == F
    assert hash(tensor("float32", 2, N)) == hash(F)
    assert tensor("float32", 2, M) != F
    assert tensor(DType.FLOAT32, 2) == tensor("float32", 2)
    with pytest.raises(ValueError, match="float31"):
        tensor("float31")


def test_dims_and_symbols() -> None:
    nested = OptionalType(SequenceType(tensor("float32", N, M + 1, UNKNOWN)))
    assert list(dims_of(nested)) == [N, M + 1, UNKNOWN]
    assert symbols_in(nested) == {"n", "m"}
    assert symbols_in(MapType(DType.INT64, tensor("float32", N))) == {"n"}
    assert list(dims_of(UNRANKED)) == []


BARE: list[tuple[AnyDim, str | None]] = [
    (N, "n"),
    (symbol("batch size"), "batch size"),
    (symbol('q"uote'), 'q"uote'),
    (symbol("back\\slash"), "back\\slash"),
    (symbol("min"), "min"),
    (symbol(""), ""),
    (N + 1, None),
    (2 * N, None),
    (N * M, None),
    (N // 2, None),
    (3, None),
    (UNKNOWN, None),
]


@pytest.mark.parametrize(("dim", "name"), BARE)
def test_bare_symbol(dim: AnyDim, name: str | None) -> None:
    assert bare_symbol(dim) == name


def test_only_tensors_bind_symbols() -> None:
    assert bound_symbols(tensor("float32", N, M + 1, 2)) == {"n"}
    assert bound_symbols(SequenceType(tensor("float32", N))) == frozenset()
    assert bound_symbols(UNRANKED) == frozenset()


COMPATIBLE: list[tuple[Type, Type, bool]] = [
    (F, F, True),
    (tensor("float32", 2), tensor("float64", 2), False),
    (tensor("float32", 2), tensor("float32", 3), False),
    (tensor("float32", 2), tensor("float32", 2, 1), False),
    (tensor("float32", N), tensor("float32", 3), True),
    (tensor("float32", N), tensor("float32", M), True),
    (tensor("float32", N), tensor("float32", N + 1), False),
    (tensor("float32", N + 4), tensor("float32", 3), False),
    (tensor("float32", 2 * N), tensor("float32", 3), True),
    (tensor("float32", UNKNOWN), tensor("float32", 3), True),
    (UNRANKED, F, True),
    (UNRANKED, tensor("int8"), False),
    (SequenceType(F), SequenceType(UNRANKED), True),
    (SequenceType(F), SequenceType(tensor("int8")), False),
    (OptionalType(F), OptionalType(F), True),
    (OptionalType(F), F, False),
    (SequenceType(F), OptionalType(F), False),
    (MapType(DType.INT64, F), MapType(DType.INT64, F), True),
    (MapType(DType.INT64, F), MapType(DType.STRING, F), False),
]


@pytest.mark.parametrize(("first", "second", "expected"), COMPATIBLE)
def test_compatible(first: Type, second: Type, expected: bool) -> None:
    assert compatible(first, second) is expected
    assert compatible(second, first) is expected


JOINS: list[tuple[Type, Type, Type | None]] = [
    (F, F, F),
    (tensor("float32", 2, N), tensor("float32", 3, N), tensor("float32", UNKNOWN, N)),
    (tensor("float32", N), tensor("float32", M), tensor("float32", UNKNOWN)),
    (tensor("float32", 2), tensor("float32", 2, 2), UNRANKED),
    (UNRANKED, F, UNRANKED),
    (tensor("float32", 2), tensor("int8", 2), None),
    (F, SequenceType(F), None),
    (
        SequenceType(tensor("float32", 2)),
        SequenceType(tensor("float32", 3)),
        SequenceType(tensor("float32", UNKNOWN)),
    ),
    (OptionalType(F), OptionalType(tensor("int8")), None),
    (MapType(DType.INT64, F), MapType(DType.INT64, F), MapType(DType.INT64, F)),
]


@pytest.mark.parametrize(("first", "second", "expected"), JOINS)
def test_join(first: Type, second: Type, expected: Type | None) -> None:
    assert join(first, second) == expected
    assert join(second, first) == expected


def test_map_dims() -> None:
    nested = SequenceType(tensor("float32", N, 3))
    assert map_dims(nested, lambda dim: dim * 2) == SequenceType(tensor("float32", 2 * N, 6))
    assert map_dims(UNRANKED, lambda dim: 1) is UNRANKED
    keyed = MapType(DType.INT64, OptionalType(tensor("int8", UNKNOWN)))
    assert map_dims(keyed, lambda dim: 7) == MapType(DType.INT64, OptionalType(tensor("int8", 7)))
