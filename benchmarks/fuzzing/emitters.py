"""The table of emitters: functions that add an operator to a sketch, with operands that fit it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.fuzzing.sketch import Sketch

Emitter = Callable[[Sketch, str], None]

# By operator: the first opset with the form that is drawn, and what draws it.
EMITTERS: dict[str, tuple[int, Emitter]] = {}

OLDEST, NEWEST = 13, 21


def emits(*ops: str, since: int = OLDEST) -> Callable[[Emitter], Emitter]:
    """Register an emitter for some operators."""

    def register(emitter: Emitter) -> Emitter:
        for op in ops:
            if op in EMITTERS:
                raise ValueError(f"two emitters for {op}")
            EMITTERS[op] = (since, emitter)
        return emitter

    return register
