"""Layers as programs: sums of products in, instructions that load, compute and store out.

A result is cut into tiles of rows that the accumulators hold, by blocks of 16 channels. Each
product of a tile goes through as many blocks of input channels at a time as half of each scratchpad
holds, while the next ones are loaded into the other half.
"""

from __future__ import annotations

import itertools
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

    def at(self, image: int, block: int, row: int) -> int:
        """The address of a row."""
        return self.address + ((image * self.blocks + block) * self.height + row) * self.width


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

    @property
    def fewest_rows(self) -> int:
        """Rows of the tensor that are on the chip at once."""
        return min(self.reach, self.data.height)

    def rows(self, first: int, count: int) -> Pair:
        """The rows of the tensor that rows of the result need, at least one: first, count."""
        start = first * self.strides[0] - self.padding[0]
        begin = min(max(start, 0), self.data.height - 1)
        end = start + (count - 1) * self.strides[0] + self.reach
        return begin, max(min(end, self.data.height) - begin, 1)


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
    source: Pair  # rows of the tensor: first, count
    block: int  # of the result
    blocks: Pair  # of the tensor: first, count
    weights: int  # address
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
    heights = {_height(layer, blocks) for blocks in (1, widest)} - {0}
    if not heights:
        needs = ", ".join(_smallest_tile(layer))
        raise UnsupportedError(f"its smallest tile does not fit on the chip: it needs {needs}")
    plans = [list(_steps(layer, height)) for height in heights]
    return min(plans, key=lambda plan: isa.cycles(_Emitter().run(plan)))


def _height(layer: Layer, blocks: int) -> int:
    """Rows of a tile with which accumulators and so many blocks of data fit; 0: none do."""
    most = min(isa.ACC_WORDS // layer.result.width, layer.result.height)
    for product in layer.products:
        available = _HALF_ACT // (product.data.width * blocks)  # rows of the tensor
        if available < product.fewest_rows or product.tile_words > _HALF_WGT:
            return 0
        if available < product.data.height:
            most = min(most, (available - product.reach) // product.strides[0] + 1)
    return most


def _smallest_tile(layer: Layer) -> Iterator[str]:
    yield f"{layer.result.width} of {isa.ACC_WORDS} accumulators"
    for product in layer.products:
        words = product.fewest_rows * product.data.width
        yield f"{words} of {_HALF_ACT} words of activations"
        yield f"{product.tile_words} of {_HALF_WGT} words of weights"


def _steps(layer: Layer, height: int) -> Iterator[Step]:
    """Tiles of so many rows, of each as many blocks of input channels at a time as fit."""
    result, height = layer.result, _even(layer.result.height, height)
    images, firsts = range(result.images), range(0, result.height, height)
    for image, first, block in itertools.product(images, firsts, range(result.blocks)):
        rows = (first, min(height, result.height - first))
        parts = [
            (product, *part) for product in layer.products for part in _parts(product, rows, block)
        ]
        for number, (product, source, blocks, weights) in enumerate(parts):
            begins, ends = number == 0, number == len(parts) - 1
            yield Step(layer, product, image, rows, source, block, blocks, weights, begins, ends)


def _parts(product: Product, rows: Pair, block: int) -> Iterator[tuple[Pair, Pair, int]]:
    """Rows and blocks of the tensor that a tile needs, and the address of their weights."""
    source = product.rows(*rows)
    address, (first, count) = product.tiles[block]
    room = _HALF_ACT // (source[1] * product.data.width), _HALF_WGT // product.tile_words
    most = _even(count, min(room))
    for done in range(0, count, most):
        blocks = (first + done, min(most, count - done))
        yield source, blocks, address + done * product.tile_words


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
        self._load(step.weights, _TO_WGT | self._wgt, step.blocks[1] * step.product.tile_words)
        if step.ends:
            self._slot = (self._slot + 1) % _SLOTS
            source = step.layer.parameters + LANES * step.block
            self._load(source, _TO_PAR | LANES * self._slot, isa.PARAMETER_WORDS)

    def _load_activations(self, step: Step) -> None:
        data, (begin, rows), (first, runs) = step.product.data, step.source, step.blocks
        operand = (data, step.image, step.source, step.blocks)
        if operand == self._loaded:
            return
        self._loaded, self._act = operand, self._act ^ _HALF_ACT
        source, plane = data.at(step.image, first, begin), data.height * data.width
        self._load(source, self._act, rows * data.width, runs, plane, not data.signed)

    def _load(
        self, source: int, to: int, run: int, runs: int = 1, stride: int = 0, flip: bool = False
    ) -> None:
        self.set(LOAD_FROM=source, LOAD_TO=to, LOAD_RUN=run, LOAD_RUNS=runs)
        self.start(Op.LOAD, LOAD_STRIDE=stride, LOAD_FLIP=int(flip))

    def _compute(self, step: Step) -> None:
        product, (begin, rows), (first, count) = step.product, step.source, step.rows
        width, out_width = product.data.width, step.layer.result.width
        y, x = first * product.strides[0] - product.padding[0] - begin, -product.padding[1]
        self._parameters = self._slot
        self._bank ^= isa.ACC_WORDS if step.begins else 0
        self.set(ACT=(self._act + y * width + x) % isa.ACT_WORDS, WGT=self._wgt, ACC=self._bank)
        self.set(IN_SIZE=(rows, width), OUT_SIZE=(count, out_width), PIXELS=count * out_width)
        self.set(KERNEL=product.kernel, BLOCKS=step.blocks[1], ORIGIN=(y, x))
        self.set(STRIDES=product.strides, DILATION=product.dilation)
        self.set(STRIDE_STEP=product.strides[0] * width, TAP_STEP=product.dilation[0] * width)
        self.set(PLANE=rows * width, SCALE=product.scale)
        self.start(Op.CONV, MODE=(product.zero & 0xFF) << 8 | (not step.begins))

    def _store(self, step: Step) -> None:
        result, (first, count) = step.layer.result, step.rows
        zero, lowest, highest = (code & 0xFF for code in step.layer.form)
        form = (not result.signed) << 24 | highest << 16 | lowest << 8 | zero
        self.set(STORE_FROM=self._bank, STORE_TO=result.at(step.image, step.block, first))
        self.set(STORE_COUNT=count * result.width, STORE_PAR=LANES * self._parameters)
        self.start(Op.STORE, STORE_FORM=form)
