"""The kernel templates once more, whose vectors and tiles follow the machine.

All tests that run one of them, and every template on random groups.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from tests.backends import host
from tests.backends.host import images, row_kernels, test_expression, test_relayout
from tests.backends.host.property import test_templates
from tests.backends.host.property.check import Tally, check_template
from tests.backends.host.property.sketch import Sample, samples
from tests.cross.again import repeated

from graft.target.target import Target

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("machine")]

EXAMPLES = 30


def modules() -> Iterator[ModuleType]:
    """The tests that run kernels by way of the helpers, and one that does it itself."""
    yield test_relayout
    for found in pkgutil.iter_modules(host.__path__):
        if found.name.startswith("test_"):
            module = importlib.import_module(f"{host.__name__}.{found.name}")
            if getattr(module, "check", None) in (images.check, row_kernels.check):
                yield module


globals().update(repeated(*modules()))
test_expressions = test_expression.test_machine_code_agrees_with_the_evaluator


@pytest.mark.parametrize("name", test_templates.KNOWN)
def test_random_groups(name: str, machine: Target) -> None:
    tally = Tally()

    @settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(samples(test_templates.DRAWN[name]))
    def check(sample: Sample) -> None:
        check_template(test_templates.KNOWN[name], sample, machine, tally)

    check()
    assert tally.accepted >= EXAMPLES // 2, tally
