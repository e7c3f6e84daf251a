"""Which sizes are asked for: all combinations, and what the model knows nothing of is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from graft.base.dims import symbol
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.passes.variant_sizes import MOST_VARIANTS, variant_sizes


def graph(*shape: Any) -> Graph:
    build = Builder()
    return build.build(build("exp", build.input("x", tensor("float32", *shape))))


BOTH = graph(symbol("batch"), symbol("length"), 2 * symbol("half"))


def test_all_combinations_in_the_order_of_the_names() -> None:
    found = variant_sizes(BOTH, {"length": [128, 7], "batch": [1, 8]})
    assert found.symbols == ("length", "batch")
    assert found.sizes == ((128, 1), (128, 8), (7, 1), (7, 8))


def test_equal_sizes_count_once_and_numpy_numbers_are_numbers() -> None:
    found = variant_sizes(BOTH, {"batch": [8, np.int64(8), 1, 8]})
    assert found.sizes == ((8,), (1,))
    assert all(type(size) is int for (size,) in found.sizes)


def test_nothing_asked() -> None:
    assert variant_sizes(BOTH, {}).symbols == ()
    assert variant_sizes(graph(3), {}).symbols == ()


@pytest.mark.parametrize(
    ("shapes", "message", "hint"),
    [
        ({"bacth": [1]}, "'bacth', which is no symbolic dim", "there are 'batch', 'length'"),
        # it occurs, but no input tells its number
        ({"half": [1]}, "'half', which is no symbolic dim", "there are 'batch', 'length'"),
        ({"batch": [1, 0]}, "positive whole numbers for 'batch', not 0", ""),
        ({"batch": [-3]}, "positive whole numbers for 'batch', not -3", ""),
        ({"batch": [2.0]}, "positive whole numbers for 'batch', not 2.0", ""),
        ({"batch": [True]}, "positive whole numbers for 'batch', not True", ""),
        ({"batch": []}, "a list of sizes for 'batch', not []", 'shapes={"batch": [1, 8]}'),
        ({"batch": 8}, "a list of sizes for 'batch', not 8", 'shapes={"batch": [1, 8]}'),
        ({"batch": "18"}, "a list of sizes for 'batch', not '18'", 'shapes={"batch": [1, 8]}'),
        (
            {"batch": range(1, 10), "length": range(1, 9)},
            f"9 x 8 = 72 variants, and there may be {MOST_VARIANTS}",
            "all others are run, too",
        ),
    ],
)
def test_refused(shapes: Mapping[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        variant_sizes(BOTH, shapes)
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_single_name_and_none_at_all() -> None:
    with pytest.raises(UserError, match="'m', which is no") as error:
        variant_sizes(graph(symbol("n"), 3), {"m": [1]})
    assert error.value.hint == "there is 'n'"
    with pytest.raises(UserError, match="'n', and no input of the model has a symbolic dim"):
        variant_sizes(graph(4, 3), {"n": [1]})
