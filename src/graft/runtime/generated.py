"""Python functions that are generated for one program: lines of Python in, a function out.

Loops over one input and one output, and the lists that they fill, take longer than what is done in
them: what every run goes through is written out for the inputs and outputs of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from textwrap import indent
from types import CodeType
from typing import Any


def define(
    parameters: Sequence[str], lines: Sequence[str], names: Mapping[str, object]
) -> Callable[..., Any]:
    """Make a function of these lines. Whatever belongs to a model comes by `names`, never as text
    (other than numbers)."""
    scope: dict[str, Any] = dict(names)
    source = f"def run({', '.join(parameters)}):\n{indent(chr(10).join(lines), '    ')}\n"
    exec(_compiled(source), scope)
    # Not to stay there: what a function holds should go as soon as the function does.
    function: Callable[..., Any] = scope.pop("run")
    return function


@lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    """The same program at another size has the same lines."""
    return compile(source, "<graft run>", "exec")
