"""Layers as programs: sums of products in, instructions that load, compute and store out.

A result is cut into tiles of rows that the accumulators hold, by blocks of 16 channels. Each
product of a tile goes through as many blocks of input channels at a time as half of each scratchpad
holds, while the next ones are loaded into the other half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from graft.backends.fpga import isa
from graft.backends.fpga.isa import Instruction, Op, Unit
from graft.backends.fpga.runtime import LANES
from graft.base.errors import UnsupportedError

_HALF_ACT, _HALF_WGT = isa.ACT_WORDS // 2, isa.WGT_WORDS // 2
_SLOTS = isa.PAR_WORDS // LANES  # of parameters
_TO_WGT, _TO_PAR = 1 << 14, 2 << 14

Pair = tuple[int, int]  # vertical and horizontal, or first and count


@dataclass(frozen=True, slots=True)
class Tensor:
    """Images in memory, as [images, blocks, height, width, 16 channels]; addresses are of words."""

    address: int
    images: int
    channels: int
    height: int
    width: int
    signed: bool

    @property
    def blocks(self) -> int:
        return -(-self.channels // LANES)

    @property
    def words(self) -> int:
        return self.images * self.blocks * self.height * self.width


@dataclass(frozen=True, slots=True)
class Product:
    """A convolution of a tensor, times `scale`. For each block of the result `tiles` has the
    address of its weights, and the blocks of the tensor that they multiply: first and count."""

    data: Tensor
    zero: int
    tiles: tuple[tuple[int, Pair], ...]
    scale: int = 1
    kernel: Pair = (1, 1)
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)  # above, on the left

    @property
    def tile_words(self) -> int:
        """Words of weights for a block of the tensor."""
        return math.prod(self.kernel) * LANES

    @property
    def reach(self) -> int:
        """Rows of the tensor that a row of the result needs."""
        return (self.kernel[0] - 1) * self.dilation[0] + 1

    def rows(self, first: int, count: int) -> Pair:
        """The rows of the tensor that rows of the result need, at least one: from, to."""
        start = first * self.strides[0] - self.padding[0]
        begin = min(max(start, 0), self.data.height - 1)
        end = start + (count - 1) * self.strides[0] + self.reach
        return begin, max(begin + 1, min(end, self.data.height))


@dataclass(frozen=True, slots=True)
class Layer:
    """A sum of products, requantised: `form` is zero point, lowest and highest byte."""

    products: tuple[Product, ...]
    parameters: int  # address; 16 words for each block of the result
    result: Tensor
    form: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the compute unit."""

    layer: Layer
    product: Product
    image: int
    rows: Pair  # of the result: first, count
    block: int  # of the result
    blocks: Pair  # of the tensor: first, count
    tiles: int  # address of its weights
    begins: bool
    ends: bool


def generate(layers: Sequence[Layer]) -> list[Instruction]:
    """The program of layers, one after the other."""
    return _Emitter().run([step for layer in layers for step in _best_steps(_flat(layer))])


def _flat(layer: Layer) -> Layer:
    """Pixels in one column, which can be cut anywhere, where all products are pointwise."""

    def flat(tensor: Tensor) -> Tensor:
        return replace(tensor, height=tensor.height * tensor.width, width=1)

    if any((*p.kernel, *p.strides, *p.padding) != (1, 1, 1, 1, 0, 0) for p in layer.products):
        return layer
    products = tuple(replace(product, data=flat(product.data)) for product in layer.products)
    return replace(layer, products=products, result=flat(layer.result))


def _best_steps(layer: Layer) -> list[Step]:
    """Tiles as high as accumulators allow, or as low as it takes for all input channels to be in
    the scratchpad at once: whatever takes fewer cycles."""
    widest = max(count for product in layer.products for _, (_, count) in product.tiles)
    heights = {min(_height(layer, blocks), layer.result.height) for blocks in (1, widest)} - {0}
    if not heights:
        needs = ", ".join(_smallest_tile(layer))
        raise UnsupportedError(f"its smallest tile does not fit on the chip: it needs {needs}")
    plans = [list(_steps(layer, height)) for height in heights]
    return min(plans, key=lambda plan: isa.cycles(_Emitter().run(plan)))


def _height(layer: Layer, blocks: int) -> int:
    """Rows of a tile with which accumulators and so many blocks of data fit; 0: none do."""
    most = isa.ACC_WORDS // layer.result.width
    for product in layer.products:
        available = _HALF_ACT // (product.data.width * blocks)  # rows of the tensor
        if available < min(product.reach, product.data.height) or product.tile_words > _HALF_WGT:
            return 0
        if available < product.data.height:
            most = min(most, (available - product.reach) // product.strides[0] + 1)
    return most


def _smallest_tile(layer: Layer) -> Iterator[str]:
    yield f"{layer.result.width} of {isa.ACC_WORDS} accumulators"
    for product in layer.products:
        data = min(product.reach, product.data.height) * product.data.width
        yield f"{data} of {_HALF_ACT} words of activations"
        yield f"{product.tile_words} of {_HALF_WGT} words of weights"


def _steps(layer: Layer, height: int) -> Iterator[Step]:
    result = layer.result
    height = _even(result.height, height)
    for image in range(result.images):
        for first in range(0, result.height, height):
            rows = (first, min(height, result.height - first))
            for block in range(result.blocks):
                parts = list(_parts(layer, rows, block))
                for number, part in enumerate(parts):
                    ends = number == len(parts) - 1
                    yield Step(layer, part[0], image, rows, block, *part[1:], number == 0, ends)


def _parts(layer: Layer, rows: Pair, block: int) -> Iterator[tuple[Product, Pair, int]]:
    """The products of a tile, as many blocks of channels at a time as there is room for."""
    for product in layer.products:
        begin, end = product.rows(*rows)
        plane = (end - begin) * product.data.width
        address, (first, count) = product.tiles[block]
        most = _even(count, min(_HALF_ACT // plane, _HALF_WGT // product.tile_words))
        for done in range(0, count, most):
            blocks = (first + done, min(most, count - done))
            yield product, blocks, address + done * product.tile_words


def _even(count: int, most: int) -> int:
    """Parts of about one size, and not larger than `most`: loads then hide behind products."""
    return -(-count // -(-count // most))


class _Emitter(isa.Program):
    """Writes steps as instructions: while one computes, the next one's operands are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: object = None  # what the half of the scratchpad in use holds
        self._act = self._wgt = self._bank = self._slot = 0  # in use, or loaded for the next step
        self._parameters = 0  # slot of the step that computes

    def run(self, steps: Sequence[Step]) -> list[Instruction]:
        for step, following in zip((None, *steps), (*steps, None), strict=True):
            # A layer reads what the one before it stores.
            depends = following and not (step and step.layer is following.layer)
            if step:
                self._compute(step)
            if following:
                self._load_constants(following)
            if following and not depends:
                self._load_activations(following)
            self.wait(Unit.LOAD | Unit.CONV)
            if step and step.ends:
                self._store(step)
            if following and depends:
                self.wait(Unit.STORE)
                self._load_activations(following)
                self.wait(Unit.LOAD)
        self.stop()
        return self.instructions

    def _load_constants(self, step: Step) -> None:
        """Weights, and with the last product of a tile the parameters of its result."""
        self._wgt ^= _HALF_WGT
        self._load(step.tiles, _TO_WGT | self._wgt, step.blocks[1] * step.product.tile_words)
        if step.ends:
            self._slot = (self._slot + 1) % _SLOTS
            source = step.layer.parameters + LANES * step.block
            self._load(source, _TO_PAR | LANES * self._slot, isa.PARAMETER_WORDS)

    def _load_activations(self, step: Step) -> None:
        data, (begin, end) = step.product.data, step.product.rows(*step.rows)
        wanted = (data, step.image, begin, end, step.blocks)
        if wanted == self._loaded:
            return
        self._loaded, self._act = wanted, self._act ^ _HALF_ACT
        plane = data.height * data.width
        first = (step.image * data.blocks + step.blocks[0]) * plane + begin * data.width
        words = (end - begin) * data.width
        self._load(data.address + first, self._act, words, step.blocks[1], plane, not data.signed)

    def _load(
        self, source: int, to: int, run: int, runs: int = 1, stride: int = 0, flip: bool = False
    ) -> None:
        registers = {"LOAD_FROM": source, "LOAD_TO": to, "LOAD_RUN": run, "LOAD_RUNS": runs}
        self.start(Op.LOAD, **registers, LOAD_STRIDE=stride, LOAD_FLIP=int(flip))

    def _compute(self, step: Step) -> None:
        product, (first, count), (begin, end) = (
            step.product,
            step.rows,
            step.product.rows(*step.rows),
        )
        width, out_width = product.data.width, step.layer.result.width
        y, x = first * product.strides[0] - product.padding[0] - begin, -product.padding[1]
        self._parameters = self._slot
        self._bank ^= isa.ACC_WORDS if step.begins else 0
        self.start(
            Op.CONV,
            ACT=(self._act + y * width + x) % isa.ACT_WORDS,
            WGT=self._wgt,
            ACC=self._bank,
            IN_SIZE=(end - begin, width),
            OUT_SIZE=(count, out_width),
            PIXELS=count * out_width,
            KERNEL=product.kernel,
            BLOCKS=step.blocks[1],
            ORIGIN=(y, x),
            STRIDES=product.strides,
            DILATION=product.dilation,
            STRIDE_STEP=product.strides[0] * width,
            TAP_STEP=product.dilation[0] * width,
            PLANE=(end - begin) * width,
            SCALE=product.scale,
            MODE=(product.zero & 0xFF) << 8 | (not step.begins),
        )

    def _store(self, step: Step) -> None:
        result, (first, count) = step.layer.result, step.rows
        plane = result.height * result.width
        address = result.address + (step.image * result.blocks + step.block) * plane
        zero, lowest, highest = (code & 0xFF for code in step.layer.form)
        self.start(
            Op.STORE,
            STORE_FROM=self._bank,
            STORE_TO=address + first * result.width,
            STORE_COUNT=count * result.width,
            STORE_PAR=LANES * self._parameters,
            STORE_FORM=(not result.signed) << 24 | highest << 16 | lowest << 8 | zero,
        )
