"""Persistent kernels: they mean what the separate kernels mean, in whatever order blocks run."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.backends.cuda.cases import Case, Cases
from tests.backends.cuda.ptx_machine import Machine
from tests.backends.cuda.simulated import run_plan, run_simulated
from tests.backends.cuda.test_ptx import FEW_BYTES, spilled_bytes
from tests.conftest import Golden

from graft.backends.cuda.operands import shape_of
from graft.backends.cuda.persistent import GATES, Levels, Phase, levels_of, persistent_plan
from graft.backends.cuda.plan import Launch, Options, RegionPlan, plan_region
from graft.backends.cuda.problem import ProductSchedule
from graft.backends.cudnn.operations import CudnnProducts
from graft.base.dtypes import DType
from graft.byoc.region import for_backend
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.llvm.gpu import Kernel
from graft.passes.pipeline import optimize
from graft.rewrite.rule import Refusal

BLOCKS = 8


def tiles_of(phase: Phase, block: int, blocks: int) -> range:
    """The tiles that one of so many blocks computes."""
    return range((block - phase.first) % blocks, phase.tiles, blocks)


def planned(graph: Graph, options: Options) -> RegionPlan:
    region = for_backend(graph)
    plan = persistent_plan(region, options, plan_region(region, options))
    assert isinstance(plan, RegionPlan)
    return plan


def levels(plan: RegionPlan) -> Levels:
    (kernel,) = plan.code.values()
    found: Levels = kernel.problem
    return found


def shuffled(levels: Levels, seed: int) -> Iterator[tuple[Launch, Kernel, int]]:
    """All tiles of all blocks, those of a level in a random order."""
    order = random.Random(seed)
    for level in levels:
        work = [
            (phase.launch, phase.kernel, tile)
            for block in range(BLOCKS)
            for phase in level
            for tile in tiles_of(phase, block, BLOCKS)
        ]
        order.shuffle(work)
        yield from work


def chain(count: int, depth: int = 64) -> Graph:
    """Dense layers, one after the other, and a softmax."""
    builder, random = Builder("region"), np.random.default_rng(5)
    value = builder.input("x", TensorType(DType.FLOAT32, (8, depth)))
    for _ in range(count):
        array = random.standard_normal((64, value.shape[1])).astype(np.float32)
        value = builder("nn.relu", builder("nn.dense", value, builder.constant(array)))
    return builder.build(builder("nn.softmax", value))


def batches() -> Graph:
    """Products of batches, of a depth that is worth splitting."""
    builder = Builder("region")
    shapes = (3, 5, 2048), (3, 2048, 24)
    x, y = (
        builder.input(name, TensorType(DType.FLOAT32, shape))
        for name, shape in zip("xy", shapes, strict=True)
    )
    return builder.build(builder("nn.relu", builder("nn.batch_matmul", x, y)))


CASES = [
    ("deep", chain(2, 4096)),
    ("batches", batches()),
    *(
        case
        for case in Cases(small=True).all()
        if len(plan_region(for_backend(case[1]), Options()).launches) > 1
    ),
]


def test_some_split_products_among_clusters() -> None:
    plans = [planned(graph, Options(DType.FLOAT16)) for _, graph in CASES[:2]]
    assert all(kernel.cluster > 1 for plan in plans for kernel in plan.code.values())


def test_clusters_are_completed_by_blocks_without_a_tile() -> None:
    region, generator = for_backend(batches()), np.random.default_rng(1)
    inputs = [generator.standard_normal(shape_of(x)).astype(np.float32) for x in region.inputs]
    schedule = ProductSchedule(16, 32, (1, 2, 2), 4, split=4)
    plan = plan_region(region, Options(), lambda _: schedule)
    found = levels_of(plan, cluster=8)
    assert found[-1][0].kernel.grid == (4, 3, 1)
    assert found[-1][0].tiles == 16
    (expected,) = run_plan(region, inputs, plan, plan.launches)
    (result,) = run_plan(region, inputs, plan, shuffled(found, 3))
    assert np.array_equal(result, expected)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_they_mean_what_separate_kernels_mean(case: Case, dtype: DType) -> None:
    graph, generator = case[1], np.random.default_rng(1)
    inputs = [generator.standard_normal(shape_of(one)).astype(np.float32) for one in graph.inputs]
    plan = planned(graph, Options(dtype))
    (expected,) = run_simulated(graph, inputs, Options(dtype))
    (result,) = run_plan(for_backend(graph), inputs, plan, shuffled(levels(plan), 3))
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("blocks", [1, 7, 132])
@pytest.mark.parametrize("tiles", [1, 5, 132, 400])
def test_blocks_share_all_tiles(blocks: int, tiles: int) -> None:
    (phase, *_), *_ = levels(planned(chain(2), Options()))
    for first in (0, 3, 300):
        moved = type(phase)(phase.launch, phase.kernel, first, tiles)
        found = [tile for block in range(blocks) for tile in tiles_of(moved, block, blocks)]
        assert sorted(found) == list(range(tiles))
        assert first % blocks in [b for b in range(blocks) if 0 in tiles_of(moved, b, blocks)]


def test_branches_share_a_level_and_no_memory() -> None:
    (graph,) = (graph for name, graph in CASES if name == "branches")
    plan = planned(graph, Options())
    labels = [[phase.launch.label for phase in level] for level in levels(plan)]
    assert labels == [["copy"], ["nn.conv2d+nn.relu"] * 3, ["nn.conv2d"], ["copy"]]
    first, second, third = levels(plan)[1]
    assert first.first == 0 < second.first < third.first
    offsets, _ = plan.offsets()
    read = {offsets[phase.launch.buffers[0]] for phase in levels(plan)[1]}
    written = {offsets[phase.launch.buffers[-1]] for phase in levels(plan)[1]}
    assert not read & written


@pytest.mark.each_value
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_gates_keep_levels_apart(case: Case) -> None:
    """What the entry's instructions call: every tile once, and none before its level's turn."""
    plan = planned(case[1], Options(DType.FLOAT16))
    ((kernel,), (launch,)) = plan.code.values(), plan.launches
    machine, names = Machine(kernel.ptx), list(launch.buffers)
    for blocks, seed in ((kernel.cluster, 1), (3 * kernel.cluster, 2), (16, 3)):
        calls = iter(list(machine.launch(blocks, seed)))
        for level in levels(plan):
            expected: Counter[tuple[str, tuple[int, ...], int]] = Counter()
            for phase in level:
                places = tuple(machine.address(names.index(n)) for n in phase.launch.buffers)
                tiles = range(phase.tiles)
                if phase.kernel.is_loop:  # its code goes through the tiles of a block
                    tiles = range(min(blocks, phase.tiles))
                expected.update((phase.kernel.name, places, tile) for tile in tiles)
            operands = {phase.kernel.name: len(phase.launch.buffers) for phase in level}
            found = [next(calls) for _ in range(expected.total())]
            assert expected == Counter(
                (one.function, one.arguments[: operands[one.function]], one.tile) for one in found
            )
        assert not list(calls)
        assert not any(machine.memory.values())  # closed again, for the next launch


def test_phases_of_loops_meet_with_all_threads_of_a_block() -> None:
    """A row has fewer threads, and no whole number of warps: none may wait for just these."""
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (8, 68)))
    region = for_backend(builder.build(builder("nn.softmax", builder("nn.softmax", x))))
    (kernel,) = planned(region, Options()).code.values()
    phases = [phase.kernel for level in kernel.problem for phase in level]
    assert any(phase.threads % 32 for phase in phases)
    text = kernel.ptx
    assert "bar.sync 1" not in text.replace("\t", " ")
    assert "ld.acquire.gpu" in text


def test_equal_layers_are_one_function_and_gates_stand_between_levels() -> None:
    plan = planned(chain(4), Options(DType.FLOAT16))
    (kernel,) = plan.code.values()
    text, (launch,) = kernel.ptx, plan.launches
    kinds = {phase.kernel.name for level in levels(plan) for phase in level}
    assert launch.buffers[-1] == GATES
    assert len(re.findall(r"^\.func", text, re.MULTILINE)) == len(kinds) == 4
    assert text.count("red.release.gpu.global.add.u32") == len(levels(plan)) - 1
    assert "prefetch.global.L2" in text
    assert "griddepcontrol" not in text
    assert ".nc" not in text  # what other blocks write may not come from a read-only cache
    assert "local" not in text
    # Weights of the first tile are asked for before the gate.
    body = re.split(r"^\.func", text, flags=re.MULTILINE)
    products = [part for part in body if "cp.async.cg" in part]
    assert products
    assert all(part.index("cp.async.cg") < part.index("ld.acquire.gpu") for part in products)


def test_the_kernel_of_a_chain(golden: Golden) -> None:
    (kernel,) = planned(chain(2), Options(DType.FLOAT16)).code.values()
    text = kernel.ptx
    text = text[text.index(".visible .entry") :]
    names = list(dict.fromkeys(re.findall(r"k[0-9a-f]{16}", text)))
    golden("persistent", re.sub(r"k[0-9a-f]{16}", lambda m: f"kernel{names.index(m[0])}", text))


def test_what_cannot_be_persistent_says_why() -> None:
    region, options = for_backend(chain(2)), Options()
    by_library = plan_region(region, options, library=CudnnProducts())
    refusal = persistent_plan(region, options, by_library)
    assert isinstance(refusal, Refusal)
    assert "library" in refusal.reason
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (8, 64)))
    single = for_backend(builder.build(builder("nn.relu", x)))
    refusal = persistent_plan(single, options, plan_region(single, options))
    assert isinstance(refusal, Refusal)
    assert "one kernel" in refusal.reason


@pytest.mark.full
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_they_assemble_with_their_sums_in_registers(
    case: Case, dtype: DType, tmp_path: Path
) -> None:
    (kernel,) = planned(case[1], Options(dtype)).code.values()
    assert spilled_bytes(kernel.ptx, tmp_path) <= FEW_BYTES


@pytest.mark.full
@pytest.mark.parametrize("name", ["resnet50", "inception_v3", "mobilenet_v2", "vit_b_16"])
def test_networks_assemble_with_their_sums_in_registers(
    name: str, tmp_path: Path, models_dir: Path
) -> None:
    graph = optimize(import_model(str(models_dir / f"{name}.onnx")))
    (kernel,) = planned(graph, Options(DType.FLOAT16)).code.values()
    assert spilled_bytes(kernel.ptx, tmp_path) <= FEW_BYTES
    assert kernel.shared_bytes <= 227 * 1024
