#!/usr/bin/env python3
"""Runs ONNX's backend cases and writes docs/conformance.md: every operator, with what works.

    python tools/conformance.py

One row per ONNX operator: whether Graft imports it (by a lowering of its own or through the body
that ONNX defines it by), since which opsets it exists, and the cases passed of those that use it.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile
import warnings
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.conformance.cases import (  # noqa: E402
    TRAINING,
    Case,
    all_cases,
    listed,
    passing_by_chance,
)

from graft.frontends.onnx import lower  # noqa: E402, F401  (registers the lowerings)
from graft.frontends.onnx.registry import LOWERINGS, key  # noqa: E402

DOCUMENT = ROOT / "docs" / "conformance.md"
Operator = tuple[str, str]


def passes(case: Case) -> bool:
    """Whether a case passes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case.run()
        except Exception:  # noqa: BLE001  (whatever it raises, it did not pass)
            return False
    return True


def results() -> dict[str, bool]:
    """Every case's outcome by name."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["ONNX_HOME"] = home
        found = {}
        for number, case in enumerate(all_cases()):
            found[case.name] = passes(case)
            if sys.stderr.isatty() and number % 50 == 0:
                print(f"\r{number} cases", end="", file=sys.stderr)
    return found


def opsets() -> dict[Operator, list[int]]:
    """The opset versions in which each operator appeared or changed."""
    found: dict[Operator, list[int]] = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain != TRAINING:
            found[schema.domain, schema.name].append(schema.since_version)
    return found


def how_imported(operator: Operator, version: int) -> str:
    """In a word, how the operator comes in."""
    domain, name = operator
    if key(domain, name) in LOWERINGS:
        return "yes"
    schema = onnx.defs.get_schema(name, version, domain)
    by_body = schema.has_function or schema.has_context_dependent_function
    return "through its body" if by_body else "no"


def table(outcome: dict[str, bool]) -> list[str]:
    """The rows of the table."""
    using: dict[Operator, list[str]] = collections.defaultdict(list)
    for case in all_cases():
        for operator in case.operators:
            using[operator].append(case.name)
    head = "| operator | imported | on the reference | opsets | cases passed |"
    lines = [head, "|---|---|---|---|---:|"]
    for operator, versions in sorted(opsets().items()):
        names = using.get(operator, [])
        passed = sum(outcome[name] for name in names)
        label = f"{operator[0]}.{operator[1]}" if operator[0] else operator[1]
        shown = ", ".join(str(version) for version in sorted(versions))
        cases = f"{passed} / {len(names)}" if names else "no case"
        tell = [name for name in names if name not in passing_by_chance()]
        runs = "yes" if passed else "no" if tell else "own tests"
        imported = how_imported(operator, max(versions))
        lines.append(f"| {label} | {imported} | {runs} | {shown} | {cases} |")
    return lines


def main() -> int:
    outcome = results()
    passed = sum(outcome.values())
    text = [
        "# Conformance",
        "",
        "ONNX's own backend tests (`onnx.backend.test`: node, simple, pytorch-converted,",
        f"pytorch-operator and the light models) of onnx {onnx.__version__}, through",
        "`graft.onnx_backend` on the reference backend. Made by `python tools/conformance.py`.",
        "",
        f"**{passed} of {len(outcome)} cases pass ({passed / len(outcome):.2%}).**",
        "Left out: only those of `ai.onnx.preview.training`. Not passed, with the reason:",
        "",
        *(
            f"- `{name}`: {listed().get(name, 'not listed')}"
            for name, ok in outcome.items()
            if not ok
        ),
        "",
        "An operator's cases are all those whose model uses it, so a case counts for several.",
        "`own tests`: no case uses the operator, or none but those that expect certain random",
        "numbers; that it runs on the reference is what Graft's own tests show.",
        "",
        *table(outcome),
        "",
    ]
    DOCUMENT.write_text("\n".join(text), encoding="utf-8")
    chance = passing_by_chance()
    unlisted = [n for n, ok in outcome.items() if n not in chance and ok == (n in listed())]
    print(f"{passed} passed, {len(listed())} listed, {len(unlisted)} failed")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
