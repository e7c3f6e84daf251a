"""The Python functions that a program names, whoever supplies them: the compiler, or whoever loads
a file."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from graft.base.errors import UserError
from graft.runtime.evaluated import Evaluator
from graft.runtime.spaces import Runner


@dataclass(frozen=True, eq=False)
class Supplied:
    """The Python functions that a program names: of regions, of nodes on the evaluator, and of type
    rules that tell sizes."""

    functions: Mapping[str, Runner] = field(default_factory=dict)
    evaluators: Mapping[str, Evaluator] = field(default_factory=dict)
    rules: Mapping[str, Evaluator] = field(default_factory=dict)

    def rule(self, text: str) -> Evaluator:
        """What tells sizes; a program out of a file brings texts instead of functions."""
        known = self.rules.get(text)
        return stored_rule(text) if known is None else known


def stored_rule(text: str) -> Evaluator:
    """A rule for sizes by its text: the only thing for which a file asks the compiler's rooms, of
    which those that know the operators need neither LLVM nor `onnx`."""
    try:
        rules = importlib.import_module("graft.ops.size_rules")
    except ImportError as error:
        raise UserError(
            "this model asks the operators' rules for sizes, which are not installed here",
            hint="install all of graft-compiler",
        ) from error
    rule: Evaluator = rules.rule_from(text)
    return rule
