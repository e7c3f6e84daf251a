"""ONNX's own backend cases, run by ONNX's own runner through `graft.onnx_backend`."""

from __future__ import annotations

import functools
import tomllib
import unittest
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from graft.onnx_backend import GraftBackend, GraftRep

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
TRAINING = "ai.onnx.preview.training"
LISTED = Path(__file__).with_name("not_passed.toml")


class OnReference(GraftBackend):
    """The reference backend behind ONNX's interface."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> GraftRep:
        return super().prepare(model, device, **{"target": ["reference"], **options})


class OnHost(GraftBackend):
    """The host behind ONNX's interface, with native code for everything or not at all."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> GraftRep:
        return super().prepare(model, device, **{"strict": True, **options})


@dataclass(frozen=True)
class Case:
    """One case: its name, the operators of its model, and how to run it."""

    name: str
    operators: frozenset[tuple[str, str]]
    run: Callable[[], None]


@functools.cache
def described(kind: str) -> list[Any]:
    """ONNX's description of its cases of a kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: list[Any] = load_model_tests(kind=kind)
    return found


@functools.cache
def operators_by_case() -> dict[str, frozenset[tuple[str, str]]]:
    """The operators of each case's model, for which all models have to be read."""
    return {test.name: _operators(_model(test)) for kind in KINDS for test in described(kind)}


@functools.cache
def all_cases(backend: type[GraftBackend] = OnReference) -> tuple[Case, ...]:
    """Every case for the CPU, those of the training preview left out, run by a backend."""
    operators = operators_by_case()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        items = BackendTest(backend, __name__)._test_items
    found = {
        name.removesuffix("_cpu"): item.func
        for category in items.values()
        for name, item in category.items()
        if name.endswith("_cpu")
    }
    return tuple(
        Case(name, operators[name], functools.partial(function, unittest.TestCase()))
        for name, function in found.items()
        if not any(domain == TRAINING for domain, _ in operators[name])
    )


def _model(test: Any) -> onnx.ModelProto:
    if test.model is not None:
        return test.model
    if test.model_dir is None:
        return onnx.load(Path(onnx.__file__).parent.parent / test.url)
    return onnx.load(Path(test.model_dir) / "model.onnx")


def _operators(model: onnx.ModelProto) -> frozenset[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    graphs: list[Any] = [model.graph, *model.functions]
    while graphs:
        for node in graphs.pop().node:
            found.add((node.domain, node.op_type))
            for attribute in node.attribute:
                graphs.extend([attribute.g, *attribute.graphs])
    return frozenset(found)


@functools.cache
def listed() -> dict[str, str]:
    """The cases that are known not to pass, with the reason for each."""
    return {name: group["reason"] for group in _groups() for name in group["cases"]}


@functools.cache
def passing_by_chance() -> frozenset[str]:
    """Listed cases that may pass: they compare random numbers with others, or rounded sums."""
    return frozenset(n for group in _groups() if group.get("by_chance") for n in group["cases"])


def _groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = tomllib.loads(LISTED.read_text(encoding="utf-8"))["group"]
    return groups
