"""Layers as programs: sums of products in, instructions that load, compute and store out.

A result is cut into tiles of rows that the accumulators hold, by blocks of 16 channels. Each
product of a tile goes through as many blocks of input channels at a time as half of each scratchpad
holds, while the next ones are loaded into the other half.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graft.backends.fpga import isa
from graft.backends.fpga.isa import Instruction, Op, Reg, Unit
from graft.backends.fpga.runtime import LANES, Tensor
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError

_ACT, _WGT, _PAR = range(3)  # scratchpads, as LOAD_TO numbers them
_HALVES = (isa.ACT_WORDS // 2, isa.WGT_WORDS // 2, isa.PAR_WORDS // 2)

Pair = tuple[int, int]  # vertical and horizontal, or first and count


@dataclass(frozen=True, slots=True)
class Product:
    """A convolution of a tensor by weights [channels, inputs of a group, height, width], times
    `scale`. For each block of the result `tiles` has the address of its weights, and the blocks of
    the tensor that they multiply: first and count."""

    data: Tensor
    zero: int
    weights: Array
    scale: int = 1
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)  # above, on the left
    tiles: tuple[tuple[int, Pair], ...] = ()

    @property
    def kernel(self) -> Pair:
        return self.weights.shape[2], self.weights.shape[3]

    @property
    def tile_words(self) -> int:
        """Words of weights for a block of the tensor."""
        return math.prod(self.kernel) * LANES

    def span(self, count: int) -> int:
        """Rows that so many rows of the result reach over, padding included."""
        return (count - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilation[0] + 1

    def rows(self, first: int, count: int) -> Pair:
        """The rows of the tensor that rows of the result need, at least one: first, count."""
        start = first * self.strides[0] - self.padding[0]
        begin = min(max(start, 0), self.data.height - 1)
        return begin, max(min(start + self.span(count), self.data.height) - begin, 1)


@dataclass(frozen=True, slots=True)
class Layer:
    """A sum of products, requantised: `form` is zero point, lowest and highest byte."""

    products: tuple[Product, ...]
    parameters: int  # address; 9 words for each block of the result
    result: Tensor
    form: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the compute unit."""

    layer: Layer
    image: int
    rows: Pair  # of the result: first, count
    block: int  # of the result
    product: Product
    blocks: Pair  # of the tensor: first, count
    weights: int  # address
    begins: bool
    ends: bool


def generate(layers: Sequence[Layer]) -> list[Instruction]:
    """The program of layers, one after the other."""
    return Emitter().emit([step for layer in layers for step in _best_steps(layer)])


def _best_steps(layer: Layer) -> list[Step]:
    """Tiles as high as accumulators allow, or as low as it takes for all input channels to be in
    the scratchpad at once: whatever takes fewer cycles."""
    widest = max(count for product in layer.products for _, (_, count) in product.tiles)
    heights = {_height(layer, blocks) for blocks in (1, widest)} - {0}
    if not heights:
        needs = ", ".join(f"{n} of {most} {what}" for n, most, what in _needs(layer, 1, 1))
        raise UnsupportedError(f"its smallest tile does not fit on the chip: it needs {needs}")
    plans = [list(_steps(layer, height)) for height in heights]
    return min(plans, key=lambda plan: isa.cycles(Emitter().emit(plan)))


def _height(layer: Layer, blocks: int) -> int:
    """Rows of the highest tile that fits with so many blocks of data; 0: none does."""

    def is_too_high(height: int) -> bool:
        return any(count > most for count, most, _ in _needs(layer, height, blocks))

    return bisect(range(1, layer.result.height + 1), False, key=is_too_high)


def _needs(layer: Layer, height: int, blocks: int) -> Iterator[tuple[int, int, str]]:
    """What a tile of so many rows and blocks of data takes, and of how much."""
    yield height * layer.result.width, isa.ACC_WORDS, "accumulators"
    for product in layer.products:
        rows = min(product.span(height), product.data.height)
        yield rows * product.data.width * blocks, _HALVES[_ACT], "words of activations"
        yield product.tile_words, _HALVES[_WGT], "words of weights"


def _steps(layer: Layer, height: int) -> Iterator[Step]:
    """Tiles of so many rows, of each as many blocks of input channels at a time as fit."""
    result, height = layer.result, _even(layer.result.height, height)
    images, firsts = range(result.images), range(0, result.height, height)
    for image, first, block in itertools.product(images, firsts, range(result.blocks)):
        rows = (first, min(height, result.height - first))
        parts = [part for one in layer.products for part in _parts(one, rows, block)]
        for number, part in enumerate(parts):
            yield Step(layer, image, rows, block, *part, number == 0, part is parts[-1])


def _parts(product: Product, rows: Pair, block: int) -> Iterator[tuple[Product, Pair, int]]:
    """Blocks of the tensor that are on the chip at a time, and the address of their weights."""
    address, (first, count) = product.tiles[block]
    words = product.rows(*rows)[1] * product.data.width
    most = _even(count, min(_HALVES[_ACT] // words, _HALVES[_WGT] // product.tile_words))
    for done in range(0, count, most):
        blocks = (first + done, min(most, count - done))
        yield product, blocks, address + done * product.tile_words


def _even(count: int, most: int) -> int:
    """Parts of about one size, and not larger than `most`: loads then hide behind products."""
    return -(-count // -(-count // most))


class Emitter:
    """Writes steps as instructions: while one computes, the next one's operands are loaded.
    Registers that hold a value already are not set again."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._registers: dict[Reg, int] = {}
        self._held: list[object] = [None] * len(_HALVES)  # what was loaded last
        self._half = [0] * len(_HALVES)  # where it is
        self._bank = 0  # of accumulators

    def emit(self, steps: Sequence[Step]) -> list[Instruction]:
        for step, following in zip((None, *steps), (*steps, None), strict=True):
            # A layer reads what the one before it stores.
            depends = following and not (step and step.layer is following.layer)
            if step:
                self._compute(step)
            if following:
                words = following.blocks[1] * following.product.tile_words
                self._load(_WGT, following.weights, words, 1, 0, 0)
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

    def set(self, **registers: int | Pair) -> None:
        """Set registers of a unit."""
        for name, value in registers.items():
            unit = Unit.__members__.get(name.partition("_")[0], Unit.CONV)
            if isinstance(value, tuple):
                value = (value[0] & 0xFFFF) << 16 | (value[1] & 0xFFFF)
            register, word = Reg[name], value & 0xFFFFFFFF
            if self._registers.get(register) != word:
                self._registers[register] = word
                self.instructions.append(Instruction(Op.SET, unit, register, word))

    def start(self, unit: Unit, **registers: int | Pair) -> None:
        """Start a unit, with these registers set before."""
        self.set(**registers)
        self.instructions.append(Instruction(Op[unit.name or ""], unit))

    def wait(self, units: Unit) -> None:
        self.instructions.append(Instruction(Op.WAIT, units, 0, units))

    def stop(self) -> None:
        self.instructions.append(Instruction(Op.STOP, Unit.LOAD | Unit.CONV | Unit.STORE))

    def _load(self, to: int, *operand: int) -> None:
        """Load an operand (address, words of a run, runs, stride from one to the next, whether it
        is uint8) into the other half of a scratchpad, unless it is in this one."""
        if self._held[to] != operand:
            self._held[to], self._half[to] = operand, self._half[to] ^ _HALVES[to]
            source, run, runs, stride, flip = operand
            self.set(LOAD_FROM=source, LOAD_TO=to << 14 | self._half[to], LOAD_RUN=run)
            self.start(Unit.LOAD, LOAD_RUNS=runs, LOAD_STRIDE=stride, LOAD_FLIP=flip)

    def _load_activations(self, step: Step) -> None:
        data, (first, runs) = step.product.data, step.blocks
        begin, rows = step.product.rows(*step.rows)
        source, plane = data.at(step.image, first, begin), data.height * data.width
        self._load(_ACT, source, rows * data.width, runs, plane, int(not data.signed))

    def _compute(self, step: Step) -> None:
        """Start the array; with the last product of a tile, load the parameters of its result."""
        product, (first, count) = step.product, step.rows
        begin, rows = product.rows(first, count)
        width, out_width = product.data.width, step.layer.result.width
        y, x = first * product.strides[0] - product.padding[0] - begin, -product.padding[1]
        act = (self._half[_ACT] + y * width + x) % isa.ACT_WORDS
        self._bank ^= isa.ACC_WORDS if step.begins else 0
        self.set(ACT=act, WGT=self._half[_WGT], ACC=self._bank, BLOCKS=step.blocks[1])
        self.set(IN_SIZE=(rows, width), OUT_SIZE=(count, out_width), PIXELS=count * out_width)
        self.set(KERNEL=product.kernel, STRIDES=product.strides, DILATION=product.dilation)
        self.set(STRIDE_STEP=product.strides[0] * width, TAP_STEP=product.dilation[0] * width)
        self.set(ORIGIN=(y, x), PLANE=rows * width, SCALE=product.scale)
        self.start(Unit.CONV, MODE=(product.zero & 0xFF) << 8 | (not step.begins))
        if step.ends:
            source = step.layer.parameters + isa.PARAMETER_WORDS * step.block
            self._load(_PAR, source, isa.PARAMETER_WORDS, 1, 0, 0)

    def _store(self, step: Step) -> None:
        result, (first, count) = step.layer.result, step.rows
        zero, lowest, highest = (code & 0xFF for code in step.layer.form)
        form = (not result.signed) << 24 | highest << 16 | lowest << 8 | zero
        target = result.at(step.image, step.block, first)
        self.set(STORE_FROM=self._bank, STORE_TO=target, STORE_PAR=self._half[_PAR])
        self.start(Unit.STORE, STORE_COUNT=count * result.width, STORE_FORM=form)
