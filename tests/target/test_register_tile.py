"""The cost of register tiles, against measurements of a core that is not at hand."""

from __future__ import annotations

import pytest

from graft.target.machine import MACHINES
from graft.target.register_tile import data_cycles, most_pixels, tile_cycles, weight_cycles

# GFLOP/s of 1x1 convolutions on NCHW16c images, written in C and measured on one core of an Ice
# Lake Xeon at 2.7 GHz, by register tile (pixels x vectors).
TILES = ((7, 1), (14, 1), (7, 2), (14, 2), (6, 4))
MEASURED = {
    (1024, 256, 196): (71, 81, 103, 137, 164),
    (256, 1024, 196): (80, 91, 139, 157, 170),
    (256, 64, 3136): (78, 87, 139, 149, 173),
    (512, 128, 784): (78, 83, 126, 146, 172),
    (2048, 512, 49): (76, 86, 124, 153, 150),
}
GIGAHERTZ, LANES, FLOAT = 2.7, 16, 4


@pytest.mark.parametrize("layer", MEASURED)
def test_predicted_speeds_of_an_ice_lake_core(layer: tuple[int, int, int]) -> None:
    machine, depth = MACHINES["icelake-server"], layer[0]
    for (pixels, vectors), speed in zip(TILES, MEASURED[layer], strict=True):
        step = vectors * LANES * FLOAT
        incoming = weight_cycles(machine, step, step * depth)
        incoming += data_cycles(machine, pixels * FLOAT)
        cycles = tile_cycles(machine, pixels, vectors, depth, incoming) / depth
        predicted = 2 * LANES * pixels * vectors / cycles * GIGAHERTZ
        assert predicted == pytest.approx(speed, rel=0.18), (pixels, vectors)


def test_tiles_fit_the_registers() -> None:
    assert [most_pixels(32, vectors) for vectors in (1, 2, 3, 4)] == [29, 14, 9, 6]
    assert most_pixels(16, 2) == 6
    assert most_pixels(16, 16) == 1


def test_units_of_half_the_width_do_narrower_vectors_twice_as_fast() -> None:
    zen4, ice_lake = MACHINES["znver4"], MACHINES["icelake-server"]
    assert zen4.with_vectors(256).vector_fmas == 2 * zen4.vector_fmas
    assert zen4.with_vectors(256).broadcasts == zen4.broadcasts
    assert ice_lake.with_vectors(256).vector_fmas == ice_lake.vector_fmas
    assert zen4.with_vectors(128).vector_fmas == 2 * zen4.vector_fmas
