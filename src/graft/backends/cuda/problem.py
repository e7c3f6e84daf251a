"""Matrix products as one problem, and schedules of it: what `product.py` makes kernels of.

Convolutions, dense layers and batches of matrix products are products of a matrix A, whose rows are
gathered from pixels of an image, and a matrix B, whose rows hold K next to each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.loop.ir import Buffer, Stmt

ROW = 128  # bytes of K in a stage
CHUNK = 16  # bytes that a thread copies at once
PANEL = 32  # rows of a constant B that lie side by side, a stage of each behind the one before
WARPGROUP = 4  # warps that `wgmma` works with
PARTIAL_PAD = 8  # floats between rows of partial sums, so that their writes meet no bank twice


@dataclass(frozen=True, slots=True)
class Window:
    """Pixels of an image that make a row of A: a window per output pixel, channels innermost.

    `pixel` is the distance of neighbouring pixels in elements; `channels` is how many are read."""

    images: int
    height: int
    width: int
    channels: int
    pixel: int
    out_height: int
    out_width: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def is_plain(self) -> bool:
        """Whether row m of A is just pixel m."""
        same = (self.height, self.width) == (self.out_height, self.out_width)
        return same and self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.padding)


@dataclass(frozen=True, slots=True)
class Product:
    """A batch of products: A from a window, B as `columns` rows of `depth` elements each.

    `lead` is the distance of rows of B, `steps` those of members of the batch in A and B, all in
    elements. Results of the batch follow one another by rows, or by columns (grouped convolution).
    A constant B lies in panels instead (`in_panels`), so that what a block reads at once is in one
    piece: memory delivers that faster than 128 bytes from here and there.
    """

    window: Window
    columns: int
    dtype: DType
    lead: int
    batch: int = 1
    steps: tuple[int, int] = (0, 0)
    is_constant: bool = True  # B is known, so it may be read before the kernels ahead are done
    by_columns: bool = False
    is_rounded: bool = False  # A's float32 are TF32 already

    @property
    def needs_rounding(self) -> bool:
        """Whether fragments of A have to be rounded before they are multiplied."""
        return self.dtype is DType.FLOAT32 and not self.is_rounded

    @property
    def rows(self) -> int:
        return self.window.images * self.window.out_height * self.window.out_width

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.dtype.numpy.itemsize

    @property
    def depth(self) -> int:
        return self.window.kernel[0] * self.window.kernel[1] * self.window.channels

    @property
    def b_step(self) -> int:
        """Elements from one member of the batch to the next in B."""
        if not self.is_constant:
            return self.steps[1]
        return math.ceil(self.columns / PANEL) * self.k_steps * PANEL * ROW // self.size

    @property
    def b_elements(self) -> int:
        """Elements of B."""
        each = self.b_step if self.is_constant else self.columns * self.lead
        return each * self.batch

    @property
    def k_steps(self) -> int:
        """Stages that K fills."""
        return math.ceil(self.depth * self.size / ROW)


def in_panels(matrix: Array, product: Product) -> Array:
    """A constant B as its kernels read it: rows of all members of the batch in, panels out, each of
    which holds stage after stage of its rows; what is missing to whole ones is zeros."""
    elements = ROW // product.size
    rows = matrix.reshape(product.batch, product.columns, product.depth)
    missing = -product.columns % PANEL, product.k_steps * elements - product.depth
    padded = np.pad(rows, [(0, 0), *((0, count) for count in missing)])
    panels = padded.reshape(product.batch, -1, PANEL, product.k_steps, elements)
    return np.ascontiguousarray(panels.swapaxes(2, 3))


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """How a product is computed: the tile of a block, the warps along its rows, columns and K, the
    stages of the ring, and the blocks of a cluster that split K among them.

    `by_warpgroup`: four warps multiply 64 rows together (`wgmma`), which read B, and A where it
    need not be rounded, from shared memory. Twice the rate of `mma.sync`, for large tiles."""

    rows: int = 64
    columns: int = 64
    warps: tuple[int, int, int] = (2, 2, 1)
    stages: int = 4
    split: int = 1
    by_warpgroup: bool = False

    @property
    def threads(self) -> int:
        return 32 * math.prod(self.warps)

    @property
    def warp_tile(self) -> tuple[int, int]:
        return self.rows // self.warps[0], self.columns // self.warps[1]

    @property
    def shared_bytes(self) -> int:
        """Of the ring, or of the partial sums that take its place."""
        ring = self.stages * (self.rows + self.columns) * ROW
        return max(ring, self.warps[2] * self.rows * (self.columns + PARTIAL_PAD) * 4)

    @property
    def is_valid(self) -> bool:
        tall, wide = self.warp_tile
        sums = tall * wide // 32  # registers of a thread that hold sums
        fits = not tall % 16 and not wide % 16 and sums <= 128
        if self.by_warpgroup:
            grouped = tall == 16 and not self.warps[0] % WARPGROUP and wide <= 256
            fits = fits and grouped and self.stages > 2 and self.threads * (sums + 64) <= 1 << 16
        return fits and self.threads <= 512 and self.shared_bytes <= 227 * 1024

    def lanes(self, product: Product) -> int:
        """Columns that a thread stores at once: as many as leave work for all threads, a power of
        two."""
        share = self.rows * self.columns // (self.threads * self.split)
        most = min(8, max(2, share))
        return math.gcd(product.columns, 1 << (most.bit_length() - 1))

    def grid(self, product: Product) -> tuple[int, int, int]:
        tiles = math.ceil(product.rows / self.rows) * math.ceil(product.columns / self.columns)
        return tiles * self.split, product.batch, 1


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of sums: a statement that stores the results of `lanes` columns.

    It reads the sums from the register buffer `sums`, and is given the number of the row within the
    matrix of all results, and that of the vector of `lanes` columns, as variables `m` and `n`: so
    accesses are known to be aligned. `buffers` are what it reads and, last, what it writes."""

    body: Stmt
    sums: Buffer
    lanes: int
    buffers: tuple[Buffer, ...]
