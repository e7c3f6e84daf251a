#!/usr/bin/env python3
"""Runs ONNX's backend cases and writes docs/conformance.md: every operator, with what works.

    python tools/conformance.py

One row per ONNX operator: whether Graft imports it (by a lowering of its own or through the body
that ONNX defines it by), since which opsets it exists, and the cases passed of those that use it:
on the reference backend, and on the host with native code alone (`strict=True`).
"""

from __future__ import annotations

import collections
import functools
import multiprocessing
import os
import re
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
    OnHost,
    OnReference,
    all_cases,
    listed,
    passing_by_chance,
)

from graft.base.errors import UnsupportedError  # noqa: E402
from graft.frontends.onnx import lower  # noqa: E402, F401  (registers the lowerings)
from graft.frontends.onnx.registry import LOWERINGS, key  # noqa: E402
from graft.runtime.cores import available_cores  # noqa: E402

DOCUMENT = ROOT / "docs" / "conformance.md"
Operator = tuple[str, str]
Outcome = dict[str, str]  # by case, why it does not pass; empty where it does
_AT_ONCE = 16  # cases that a process is given


def why_not(case: Case) -> str:
    """Why a case does not pass; empty where it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case.run()
        except UnsupportedError as error:
            return _plain(error.message)
        except Exception as error:  # noqa: BLE001  (whatever it raises, it did not pass)
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return ""


def _plain(message: str) -> str:
    """The reason in a refusal of `strict=True`: that of the template that was tried last."""
    reason = message.partition("; the first is %")[2].partition(": ")[2] or message
    last = reason.rpartition("expression: ")[2]
    return re.sub(r"%\S+ is", "a value is", last)


@functools.cache
def _on_host() -> dict[str, Case]:
    return {case.name: case for case in all_cases(OnHost)}


def _host_result(name: str) -> tuple[str, str]:
    return name, why_not(_on_host()[name])


def host_results(names: list[str]) -> Outcome:
    """The outcome of cases on the host, with native code alone."""
    # Machine code takes its time, and each process makes its own.
    with multiprocessing.get_context("spawn").Pool(available_cores()) as pool:
        return dict(pool.imap(_host_result, names, _AT_ONCE))


def results() -> Outcome:
    """Every case's outcome on the reference backend."""
    found = {}
    for number, case in enumerate(all_cases(OnReference)):
        found[case.name] = why_not(case)
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


def _label(operator: Operator) -> str:
    return f"{operator[0]}.{operator[1]}" if operator[0] else operator[1]


def table(outcome: Outcome, native: Outcome) -> list[str]:
    """The rows of the table."""
    using: dict[Operator, list[str]] = collections.defaultdict(list)
    for case in all_cases():
        for operator in case.operators:
            using[operator].append(case.name)
    head = "| operator | imported | on the reference | opsets | cases passed | host, strict |"
    lines = [head, "|---|---|---|---|---:|---:|"]
    for operator, versions in sorted(opsets().items()):
        names = using.get(operator, [])
        passed = [name for name in names if not outcome[name]]
        shown = ", ".join(str(version) for version in sorted(versions))
        cases = f"{len(passed)} / {len(names)}" if names else "no case"
        tell = [name for name in names if name not in passing_by_chance()]
        runs = "yes" if passed else "no" if tell else "own tests"
        imported = how_imported(operator, max(versions))
        counted = [name for name in passed if name in native]
        strict = f"{sum(not native[name] for name in counted)} / {len(counted)}" if counted else ""
        row = (_label(operator), imported, runs, shown, cases, strict)
        lines.append(f"| {' | '.join(row)} |")
    return lines


def short_of_native(native: Outcome) -> list[str]:
    """By operator and reason, the cases that have no native code."""
    operators = {case.name: case.operators for case in all_cases()}
    found: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for name, reason in native.items():
        if reason:
            found[_users(operators[name]), reason].append(name)
    return [
        f"- {what}: {reason} ({', '.join(f'`{name}`' for name in names)})"
        for (what, reason), names in sorted(found.items())
    ]


def _users(operators: frozenset[Operator]) -> str:
    """The operator that a case is about, or that there are several."""
    labels = sorted(map(_label, operators))
    return labels[0] if len(labels) == 1 else "models of several operators"


def document(outcome: Outcome, native: Outcome) -> list[str]:
    """The lines of the page."""
    passed, strict = len(native), sum(not reason for reason in native.values())
    return [
        "# Conformance",
        "",
        "ONNX's own backend tests (`onnx.backend.test`: node, simple, pytorch-converted,",
        f"pytorch-operator and the light models) of onnx {onnx.__version__}, through",
        "`graft.onnx_backend`, on the reference backend and on the host with `strict=True`, which",
        "refuses to run anything on the evaluator (strings are looked up in tables, in Python).",
        "Made by `python tools/conformance.py`.",
        "",
        f"**{passed} of {len(outcome)} cases pass on the reference"
        f" ({passed / len(outcome):.2%}).**",
        "Left out: only those of `ai.onnx.preview.training`. Not passed, with the reason:",
        "",
        *(
            f"- `{name}`: {listed().get(name, 'not listed')}"
            for name, reason in outcome.items()
            if reason
        ),
        "",
        f"**{strict} of these {passed} pass on the host with native code alone"
        f" ({strict / passed:.2%}).**",
        "The others run on the host with the evaluator's help. By operator, with the reason:",
        "",
        *short_of_native(native),
        "",
        "An operator's cases are all those whose model uses it, so a case counts for several.",
        "`own tests`: no case uses the operator, or none but those that expect certain random",
        "numbers; that it runs on the reference is what Graft's own tests show.",
        "",
        *table(outcome, native),
        "",
    ]


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        os.environ["ONNX_HOME"] = home
        outcome = results()
        passed = [name for name, reason in outcome.items() if not reason and name not in listed()]
        native = host_results(passed)
    DOCUMENT.write_text("\n".join(document(outcome, native)), encoding="utf-8")
    chance = passing_by_chance()
    unlisted = [n for n, why in outcome.items() if n not in chance and (not why) == (n in listed())]
    strict = sum(not reason for reason in native.values())
    print(
        f"{len(passed)} passed, {strict} natively, {len(listed())} listed, {len(unlisted)} failed"
    )
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
