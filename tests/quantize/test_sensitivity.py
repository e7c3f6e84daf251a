"""What single units add to the error of the outputs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.quantize.models import samples
from tests.quantize.test_insert import case, compiled, relative_error

from graft.quantize.insert import insert_precisions
from graft.quantize.report import BRAIN, INTEGER
from graft.quantize.sensitivity import SWITCHES, Sensitivity, switched
from graft.quantize.units import Unit


@pytest.mark.parametrize("name", ["residual", "perceptron", "transformer"])
def test_each_unit_alone(name: str) -> None:
    """It is about what quantising the unit alone gives."""
    one, given = case(name), samples(case(name).graph, 4, seed=99)
    told: list[Unit] = []
    measured = Sensitivity(one.graph, one.known, compiled, given, told.append)
    errors = measured.contributions((INTEGER, BRAIN))
    assert len(errors[INTEGER]) == len(one.known.units)
    assert told[: len(one.known.units)] == [*one.known.units]
    for unit, error in (*errors[INTEGER].items(),)[::2]:
        alone = compiled(insert_precisions(one.graph, dict.fromkeys([unit], INTEGER), one.known))
        assert 0 < 0.2 * error <= relative_error(one.run, alone, given) ** 2 <= 5 * error
    for unit, error in (*errors[BRAIN].items(),)[::2]:
        alone = compiled(insert_precisions(one.graph, {unit: BRAIN}, one.known))
        assert 0 < 0.2 * error <= relative_error(one.run, alone, given) ** 2 <= 5 * error


def test_neighbours_together_where_time_is_short() -> None:
    one, given = case("residual"), samples(case("residual").graph, 4, seed=99)
    told: list[Unit] = []
    hurried = Sensitivity(one.graph, one.known, compiled, given, told.append, seconds=0.0)
    errors = hurried.contributions((INTEGER,))[INTEGER]
    assert told == [one.known.units[0]]  # one run with all units perturbed
    together = relative_error(one.run, one.run_quantized, given[:1]) ** 2
    assert 0.3 * together < sum(errors.values()) < 3 * together
    local = hurried.local_errors(INTEGER)
    assert len({round(errors[unit] / local[unit], 6) for unit in errors}) == 1


def test_without_switches_it_is_the_float_network() -> None:
    one = case("residual")
    (sample,) = samples(one.graph, 1)
    off = {**sample, SWITCHES: np.zeros(len(one.known.units), bool)}
    both = compiled(switched(one.graph, one.known))
    np.testing.assert_allclose(both(off)[0], one.run(sample)[0], rtol=1e-4, atol=1e-5)
