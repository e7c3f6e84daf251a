"""Runs ONNX's backend cases: every operator, with what works.

One row per ONNX operator: whether Graft imports it (by a lowering of its own or through the body
that ONNX defines it by), since which opsets it exists, and the cases passed of those that use it:
on the reference backend, and on the host with native code alone (`strict=True`).
"""

from __future__ import annotations

import argparse
import collections
import functools
import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
from tests.conformance.cases import (
    TRAINING,
    Case,
    OnHost,
    OnReference,
    all_cases,
    listed,
    passing_by_chance,
)

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import text_table
from graft.base.cores import available_cores
from graft.base.errors import UnsupportedError
from graft.frontends.onnx import lower  # noqa: F401  (registers the lowerings)
from graft.frontends.onnx.registry import LOWERINGS, key

PAGE = Path("docs/conformance.md")
HEADER = ("operator", "imported", "on the reference", "opsets", "cases passed", "host, strict")
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
    result = {}
    for number, case in enumerate(all_cases(OnReference)):
        result[case.name] = why_not(case)
        if sys.stderr.isatty() and number % 50 == 0:
            print(f"\r{number} cases", end="", file=sys.stderr)
    return result


def opsets() -> dict[Operator, list[int]]:
    """The opset versions in which each operator appeared or changed."""
    result: dict[Operator, list[int]] = collections.defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain != TRAINING:
            result[schema.domain, schema.name].append(schema.since_version)
    return result


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


def operator_rows(outcome: Outcome, native: Outcome) -> list[list[str]]:
    """What is told of each operator."""
    using: dict[Operator, list[str]] = collections.defaultdict(list)
    for case in all_cases():
        for operator in case.operators:
            using[operator].append(case.name)
    rows = []
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
        rows.append([_label(operator), imported, runs, shown, cases, strict])
    return rows


def _users(operators: frozenset[Operator]) -> str:
    """The operator that a case is about, or that there are several."""
    labels = sorted(map(_label, operators))
    return labels[0] if len(labels) == 1 else "models of several operators"


def measure(_options: argparse.Namespace) -> Json:
    """What a page tells: cases that do not pass on the reference or natively, and operators."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["ONNX_HOME"] = home
        outcome = results()
        passed = [name for name, reason in outcome.items() if not reason and name not in listed()]
        native = host_results(passed)
    operators = {case.name: case.operators for case in all_cases()}
    return {
        "onnx": onnx.__version__,
        "cases": len(outcome),
        "passed": len(passed),
        "reference": {
            name: listed().get(name, "not listed") for name, reason in outcome.items() if reason
        },
        "native": {
            name: {"operator": _users(operators[name]), "reason": reason}
            for name, reason in native.items()
            if reason
        },
        "operators": operator_rows(outcome, native),
    }


def sections(record: Record) -> Iterator[Section]:
    yield Section(PAGE, "", document(record.data))


def document(data: Json) -> list[str]:
    """The lines of the page."""
    cases, passed = data["cases"], data["passed"]
    strict = passed - len(data["native"])
    return [
        "# Conformance",
        "",
        "How much of ONNX Graft supports, measured by ONNX's own backend tests",
        "(`onnx.backend.test`: node, simple, pytorch-converted,",
        f"pytorch-operator and the light models) of onnx {data['onnx']}, through",
        "`graft.onnx_backend`, on the reference backend and on the host with `strict=True`, which",
        "rejects nodes that would run on the evaluator (Python looks strings up in tables).",
        "Generated by `python -m benchmarks conformance --write`.",
        "",
        f"**{passed} of {cases} cases pass on the reference ({passed / cases:.2%}).**",
        "Only the cases of `ai.onnx.preview.training` are excluded. Failures, with the reason:",
        "",
        *(f"- `{name}`: {reason}" for name, reason in data["reference"].items()),
        "",
        f"**{strict} of these {passed} pass on the host with native code alone"
        f" ({strict / passed:.2%}).**",
        "The others need the evaluator for some nodes. By operator, with the reason:",
        "",
        *short_of_native(data["native"]),
        "",
        "A case counts for every operator that its model uses.",
        "`own tests`: no case uses the operator, or only cases that expect certain random",
        "numbers; Graft's own tests run it on the reference.",
        "",
        *text_table(HEADER, data["operators"]),
    ]


def short_of_native(native: Json) -> list[str]:
    """By operator and reason, the cases that have no native code."""
    names: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for name, why in native.items():
        names[why["operator"], why["reason"]].append(f"`{name}`")
    return [
        f"- {operator}: {reason} ({', '.join(each)})"
        for (operator, reason), each in sorted(names.items())
    ]


def problems(data: Json) -> list[str]:
    """Cases that fail and are not listed, and listed ones that pass."""
    failed = set(data["reference"])
    cases = [case.name for case in all_cases() if case.name not in passing_by_chance()]
    return [
        *(f"{name} fails, and is not listed" for name in cases if name in failed - set(listed())),
        *(f"{name} is listed, but passes" for name in cases if name in set(listed()) - failed),
    ]


BENCHMARKS = (Benchmark("conformance", measure, sections, problems=problems),)
