"""The sizes that a model is specialised for, from what the user requests per symbolic dim.

Dims are named as in the model's inputs. All combinations of several dims are compiled, each on its
own, hence up to a limit.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graft.base.dims import bare_symbol
from graft.base.errors import UserError
from graft.ir.graph import Graph
from graft.ir.types import dims_of

# Each takes as long to compile as the model does.
MOST_VARIANTS = 64


@dataclass(frozen=True, slots=True)
class VariantSizes:
    """The symbols that variants bind, and the sizes of each variant."""

    symbols: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]


def variant_sizes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> VariantSizes:
    """All combinations of the requested sizes; raise an error for unknown symbols."""
    symbols = _symbols(graph)
    for name in shapes:
        if name not in symbols:
            raise _unknown(name, symbols)
    each = [_sizes(name, shapes[name]) for name in shapes]
    count = 1
    for sizes in each:
        count *= len(sizes)
    if count > MOST_VARIANTS:
        factors = " x ".join(str(len(sizes)) for sizes in each)
        raise UserError(
            f"shapes= asks for {factors} = {count} variants, and there may be {MOST_VARIANTS}",
            hint="name the sizes that matter most: all others are run, too",
        )
    return VariantSizes(tuple(shapes), tuple(itertools.product(*each)))


def _symbols(graph: Graph) -> list[str]:
    """The symbols that inputs bind, in order of appearance."""
    dims = (dim for value in graph.inputs for dim in dims_of(value.type))
    names = dict.fromkeys(bare_symbol(dim) for dim in dims)
    return [name for name in names if name is not None and name in graph.input_symbols]


def _unknown(name: str, symbols: Sequence[str]) -> UserError:
    if not symbols:
        return UserError(
            f"shapes= names '{name}', and no input of the model has a symbolic dim",
            hint="leave it out: a model with static shapes is compiled for its sizes anyway",
        )
    listed = ", ".join(f"'{symbol}'" for symbol in symbols)
    return UserError(
        f"shapes= names '{name}', which is no symbolic dim of the model's inputs",
        hint=f"there are {listed}" if len(symbols) > 1 else f"there is {listed}",
    )


def _sizes(name: str, requested: Any) -> list[int]:
    """The sizes of one symbol, each once."""
    if isinstance(requested, str) or not isinstance(requested, Sequence) or not requested:
        raise UserError(
            f"shapes= wants a list of sizes for '{name}', not {requested!r}",
            hint=f'shapes={{"{name}": [1, 8]}}',
        )
    return list(dict.fromkeys(_size(name, one) for one in requested))


def _size(name: str, requested: Any) -> int:
    try:
        size = operator.index(requested)
    except TypeError:
        size = 0
    if size < 1 or isinstance(requested, bool):
        raise UserError(f"shapes= wants positive whole numbers for '{name}', not {requested!r}")
    return size
