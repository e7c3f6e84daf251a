"""The CUDA backend: what it runs and why not; regions -> launches of generated kernels."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from graft.backends.cuda import driver, runtime
from graft.backends.cuda.operands import shape_of
from graft.backends.cuda.persistent import is_promising, persistent_plan
from graft.backends.cuda.plan import Options, RegionPlan, is_plain_attention, plan_region
from graft.backends.cuda.price import predicted_seconds
from graft.base.dtypes import Array, DType
from graft.byoc.contract import Backend, Cost, Limits, Match, PatternTable
from graft.byoc.executable import Accuracy, Settings
from graft.byoc.formats.operands import expressed_operators, inexpressible, unfit
from graft.ir.graph import Graph, Node
from graft.llvm.cache import default_cache
from graft.rewrite.pattern import Pattern, is_op, wildcard
from graft.rewrite.rule import Refusal
from graft.runtime.json_graph import pack

_PRODUCTS = ("nn.conv2d", "nn.dense", "nn.batch_matmul")
_UNARY = ("nn.relu", "nn.leaky_relu", "clip", "sigmoid", "nn.gelu", "tanh")
_CONTESTS = 3  # between the ways, each of several timed rounds
_ASSEMBLERS = 8  # threads in which the driver makes machine code
_LOG = logging.getLogger(__name__)
_DTYPES = (DType.FLOAT32, DType.INT64, DType.INT32, DType.BOOL)


_LIMITS = Limits(
    space="cuda",
    launch_seconds=10e-6,
    latency=10e-6,
    bytes_per_second=12e9,
    computes_in=(DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16),
    peak_flops=2e14,
    peak_bytes_per_second=3e12,
)


# A product, and what is computed before its results are stored.
def _fused() -> Pattern:
    product = is_op(*_PRODUCTS)(wildcard(), wildcard())
    biased = product.optional(lambda x: is_op("nn.bias_add")(x, wildcard()))
    combined = biased.optional(lambda x: is_op("add", "multiply")(x, wildcard()))
    return combined.optional(is_op(*_UNARY))


class Cuda(Backend):
    """Runs regions of tensors with static shapes on an NVIDIA GPU.

    Values between kernels are stored as `precision`; products of float32 are rounded to TF32,
    except where results have to be accurate: those are computed without tensor cores."""

    name = "cuda"
    version = runtime.VERSION
    device = "sm_90a"
    priced_by = "a model of its kernels on an H200"
    prices_regions = True

    def __init__(
        self, precision: str = "float32", is_accurate: bool = False, way: str = ""
    ) -> None:
        self.arguments = {"precision": precision, "is_accurate": is_accurate, "way": way}
        self.way = way  # to launch regions: "graph", "persistent" if possible, or the faster one
        self.plan_options = Options(DType(precision), not is_accurate)
        # TF32 has as many digits as float16.
        rounding = DType.BFLOAT16 if precision == "bfloat16" else DType.FLOAT16
        exact = is_accurate and precision == "float32"
        self.limits = replace(_LIMITS, rounding=DType.FLOAT32 if exact else rounding)

    @property
    def options(self) -> dict[str, str]:
        options = {**asdict(self.plan_options), "way": self.way or "measured"}
        return {name: str(value) for name, value in options.items()}

    def missing(self) -> str:
        return driver.missing()

    def configured(self, settings: Settings) -> Cuda:
        narrow = settings.precision is not DType.FLOAT32
        precision = settings.precision if narrow else self.plan_options.dtype
        return type(self)(precision.value, settings.accuracy is Accuracy.STRICT, self.way)

    def patterns(self) -> PatternTable:
        names = dict.fromkeys((*expressed_operators(_DTYPES), "nn.attention"))
        return [("fused", _fused), *((name, is_op(name)) for name in names)]

    def supports(self, match: Match) -> Refusal | None:
        for node in match.nodes:
            reason = unfit((*node.args, *node.outputs), _DTYPES) or _inexpressible(node)
            if reason:
                return Refusal(reason)
        return None

    def price(self, region: Graph) -> Cost | None:
        """What its kernels are predicted to take; calls of a library's have to be measured."""
        plan = self.plan(region)
        if any(launch.call is not None for launch in plan.launches):
            return None
        return Cost(predicted_seconds(plan))

    def plan(self, region: Graph) -> RegionPlan:
        """The region as separate kernels."""
        return plan_region(region, self.plan_options)

    def compile(self, region: Graph) -> bytes:
        """The way that is measured to be faster, with machine code of the GPU at hand; a graph of
        kernels where there is none, or where one kernel is not promising."""
        gpu, rounding = None if self.missing() else driver.device(), self.limits.rounding
        plans = [self.plan(region)]
        if self.way == "persistent" or (gpu and not self.way and is_promising(plans[0])):
            persistent = persistent_plan(region, self.plan_options, plans[0])
            if isinstance(persistent, RegionPlan):
                plans = [persistent] if self.way else [*plans, persistent]
        blobs = [blob_of(region, plan, rounding, gpu) for plan in plans]
        return self._fastest(region, blobs) if blobs[1:] else blobs[0]

    def _fastest(self, region: Graph, blobs: Sequence[bytes]) -> bytes:
        """The blob whose fastest run is the shortest.

        They alternate, and are compared by their minima: other processes on the GPU only add to a
        run, and must not decide (VGG-19 in TF32 once came out 1.7 times as slow)."""
        gpu = driver.device()
        shapes = [
            [(shape_of(value), value.dtype.numpy) for value in values]
            for values in (region.inputs, region.outputs)
        ]
        operands = [[gpu.allocate(*one) for one in few] for few in shapes]
        for memory, one in zip(operands[0], shapes[0], strict=True):
            gpu.upload(np.zeros(*one), memory)  # indices are to be valid
        regions, seconds = dict[bytes, runtime.Region](), dict.fromkeys(blobs, math.inf)
        for blob in [*blobs] * _CONTESTS:
            try:
                if blob not in regions:
                    regions[blob] = self.load(blob)
                seconds[blob] = min(seconds[blob], regions[blob].seconds(*operands))
            except driver.CudaError as error:
                _LOG.warning("%s: %s", region.name, error)
        return min(blobs, key=lambda blob: seconds[blob])

    def load(self, blob: bytes) -> runtime.Region:
        return runtime.load(blob)


def _inexpressible(node: Node) -> str:
    """Why there is no kernel for a node."""
    if node.op.name == "nn.attention":
        plain = is_plain_attention(node)
        return "" if plain else "the attention has a mask, a window, shared heads or the like"
    return inexpressible(node)


def machine_code(gpu: driver.Device, text: str) -> bytes:
    """PTX as machine code of a GPU, from the cache where this driver has assembled it before."""
    key = hashlib.sha256(f"{gpu.name} {driver.version(gpu)} {text}".encode()).hexdigest()
    return default_cache().remembered(key, partial(driver.assembled, gpu, text))


def blob_of(
    region: Graph, plan: RegionPlan, rounding: DType, gpu: driver.Device | None = None
) -> bytes:
    """A plan as what `runtime.load` reads, with machine code of a GPU."""
    offsets, total = plan.offsets()
    constants: dict[str, Array] = dict(plan.constants)
    nodes: list[dict[str, Any]] = []
    facts = {
        "arena_bytes": total,
        "rounding": rounding.value,
        "outputs": [(value.dtype.value, shape_of(value)) for value in region.outputs],
    }
    with ThreadPoolExecutor(_ASSEMBLERS) as pool:  # that run while the next PTX is made
        binaries = {
            name: pool.submit(machine_code, gpu, kernel.ptx) if gpu is not None else None
            for name, kernel in plan.code.items()
        }
    for name, binary in binaries.items():
        text = plan.code[name].ptx
        constants[f"{runtime.CODE}{name}"] = np.frombuffer(text.encode(), np.uint8)
        if binary is not None:
            constants[f"{runtime.BINARY}{name}"] = np.frombuffer(binary.result(), np.uint8)
    for launch in plan.launches:
        names = [f"{runtime.ARENA}+{offsets[n]}" if n in offsets else n for n in launch.buffers]
        attrs: dict[str, Any] = {"label": launch.label, **(facts if not nodes else {})}
        if launch.call is not None:
            attrs["call"] = launch.call
        else:
            one = plan.code[launch.kernel]
            attrs |= {"grid": one.grid, "threads": one.threads, "shared": one.shared_bytes}
            attrs |= {"cluster": one.cluster}
        nodes.append({"op": launch.kernel, "inputs": names, "attrs": attrs, "outputs": []})
    inputs = [
        {"name": value.name, "dtype": value.dtype.value, "shape": shape_of(value)}
        for value in region.inputs
    ]
    outputs = [value.name for value in region.outputs]
    return pack({"inputs": inputs, "nodes": nodes, "outputs": outputs}, constants)
