"""The tensor-core kernel: convolutions, dense layers and batches of matrix products.

All are one problem (`Product`): rows of a matrix A that are gathered from pixels of an image (an
implicit GEMM; a plain matrix is an image of one row of pixels and a window of one), times rows of
B, which hold K next to each other. A block of threads computes a tile of the result: asynchronous
copies bring 128 bytes of K for each row of A and B into a ring of stages in shared memory,
`ldmatrix` takes fragments from there, `mma.sync` multiplies them, and float32 sums go through
shared memory to the epilogue, which is an expression of the loop IR on vectors of columns. Warps of
a block, and blocks of a cluster, can share a tile by splitting K: their sums are added when they
are read back, over distributed shared memory. At batch 1 that is what fills the machine.

Rows of shared memory are 128 bytes, whose 16-byte chunks are permuted by the row number modulo 8:
neither the copies nor `ldmatrix` ever meet a bank conflict, and `wgmma`, which large tiles are
multiplied by, reads rows of just this form.
"""

from __future__ import annotations

import math
from functools import partial

from graft.backends.cuda.code import ATOM, Int, Variable
from graft.backends.cuda.problem import (
    CHUNK,
    PANEL,
    ROW,
    WARPGROUP,
    Epilogue,
    Product,
    ProductSchedule,
)
from graft.backends.cuda.results import TileResults
from graft.llvm.gpu import Kernel
from graft.llvm.text import Value, constant
from graft.loop.ir import Buffer
from graft.loop.print import statement_text

_FAR = -(1 << 20)  # a pixel coordinate outside of every image


def product_kernel(product: Product, schedule: ProductSchedule, epilogue: Epilogue) -> Kernel:
    """The kernel: its parameters are A, B and the epilogue's buffers."""
    operands = [Buffer(label, product.dtype, ()) for label in ("operand_a", "operand_b")]
    described = product, schedule, statement_text(epilogue.body), epilogue.buffers
    return Kernel(
        (*operands, *epilogue.buffers),
        schedule.threads,
        schedule.grid(product),
        lambda writer: _Tile(writer, product, schedule, epilogue).write(),
        (product, schedule, epilogue),
        str(described),
        schedule.split,
        schedule.shared_bytes,
    )


class _Tile(TileResults):
    def write(self) -> None:
        writer, schedule = self.writer, self.schedule
        self.thread = self.special("tid")
        self.lane, warp = self.thread & 31, self.thread // 32
        tall, wide, _deep = schedule.warps
        self.warp = (warp % tall, warp // tall % wide, warp // (tall * wide))
        self._locate()
        self.base = self.shared_memory()
        writer.launch_next()
        self.sums = Variable(writer, "float", math.prod(schedule.warp_tile) // 32)
        for index in range(math.prod(schedule.warp_tile) // 32):
            self.sums.set(constant(0.0, "float"), index)
        self._prepare_rows()
        self._multiply()
        self.finish()

    def _locate(self) -> None:
        """Which tile of which member of the batch this block computes, and which part of K."""
        product, schedule = self.product, self.schedule
        block, member = (Int(self.writer, one) for one in self.writer.block())
        self.rank = block % schedule.split if schedule.split > 1 else self.number(0)
        self.peers = self.number(0)
        if self.writer.is_phase and schedule.split > 1:  # clusters may be larger there
            self.peers = self.special("cluster.ctarank") - self.rank
        tile = block // schedule.split
        across = math.ceil(product.columns / schedule.columns)
        # Neighbouring blocks share rows of A where B is larger, as it is in late layers.
        self.first_row = tile // across * schedule.rows
        self.first_column = tile % across * schedule.columns
        self.member = member if product.batch > 1 else self.number(0)
        if self.writer.is_phase and product.batch > 1 and schedule.split > 1:
            # Blocks beyond the last complete a cluster: rows that are none keep them from harm.
            exists = member.below(product.batch)
            beyond = self.number(product.rows).value
            row = self.builder.select(exists, self.first_row.value, beyond)
            self.first_row = Int(self.writer, row)
            number = self.builder.select(exists, member.value, self.number(0).value)
            self.member = Int(self.writer, number)
        share = math.ceil(product.k_steps / schedule.split)
        self.first_step = self.rank * share
        left = self.number(product.k_steps) - self.first_step
        self.steps = left
        if schedule.split > 1:
            most = self.builder.elementwise("smin", left.value, constant(share, "i32"))
            self.steps = Int(
                self.writer, self.builder.elementwise("smax", most, constant(0, "i32"))
            )

    # Copies: thread t copies chunk t % 8 of rows t // 8, t // 8 + threads / 8, ...

    def _prepare_rows(self) -> None:
        """What a thread knows of the rows it copies: addresses, and where windows begin."""
        product, window = self.product, self.product.window
        chunks = ROW // CHUNK
        self.chunk, row = self.thread % chunks, self.thread // chunks
        self.stride = self.schedule.threads // chunks
        self.slot_row = row
        a_base = self._pointer(0, product.steps[0])
        b_base = self._pointer(1, product.b_step)
        self.a_rows: list[tuple[Value, Int, Int, Value]] = []
        for number in range(math.ceil(self.schedule.rows / self.stride)):
            m = self.first_row + row + number * self.stride
            inside = m.below(product.rows)
            if window.is_plain:
                y = x = self.number(0)
                offset = m * window.pixel
            else:
                image, pixel = m // (window.out_height * window.out_width), m
                if window.images > 1:
                    pixel = m % (window.out_height * window.out_width)
                y = pixel // window.out_width * window.strides[0] - window.padding[0]
                x = pixel % window.out_width * window.strides[1] - window.padding[1]
                offset = (image * window.height + y) * window.width + x
                offset = offset * window.pixel
                far = constant(_FAR, "i32")
                y = Int(self.writer, self.builder.select(inside, y.value, far))
            self.a_rows.append((self.moved(a_base, offset.value, product.size), y, x, inside))
        self.b_rows: list[tuple[Value, Value]] = []
        for number in range(math.ceil(self.schedule.columns / self.stride)):
            n = self.first_column + row + number * self.stride
            offset = n * product.lead
            if product.is_constant:
                first = n // PANEL * (product.k_steps * PANEL) + n % PANEL
                offset = first * (ROW // product.size)
            row_pointer = self.moved(b_base, offset.value, product.size)
            self.b_rows.append((row_pointer, n.below(product.columns)))

    def _pointer(self, number: int, step: int) -> Value:
        """Where an operand of this member of the batch begins."""
        pointer = self.writer.pointers[number]
        if not step:
            return pointer
        return self.moved(pointer, (self.member * step).value, self.product.size)

    def _copy(self, slot: Int, row: int, pointer: Value, inside: Value, limit: int) -> None:
        """One chunk of a row of the slot, or zeros where it is not inside."""
        at_row = self.slot_row + row
        place = (at_row * ROW) + ((self.chunk ^ (at_row & 7)) * CHUNK)
        if limit - row < self.stride:
            copy = partial(self.copy, slot + place, pointer, inside)
            self.writer.when(at_row.below(limit), copy)
        else:
            self.copy(slot + place, pointer, inside)

    def _copy_a(self, step: Int, slot: Int) -> None:
        product, window = self.product, self.product.window
        chunk = (self.first_step + step) * (ROW // CHUNK) + self.chunk
        within = chunk.below(product.depth * product.size // CHUNK)
        per_tap = window.channels * product.size // CHUNK
        tap, inner = chunk // per_tap, chunk
        moved = chunk * CHUNK
        down = right = self.number(0)
        if window.kernel != (1, 1):
            inner = chunk % per_tap
            down = tap // window.kernel[1] * window.dilation[0]
            right = tap % window.kernel[1] * window.dilation[1]
            moved = (down * window.width + right) * (window.pixel * product.size) + inner * CHUNK
        for number, (pointer, y, x, inside) in enumerate(self.a_rows):
            valid = self.builder.binary("and", within, inside)
            if not window.is_plain:
                for start, move, extent in ((y, down, window.height), (x, right, window.width)):
                    tested = (start + move).below(extent)
                    valid = self.builder.binary("and", valid, tested)
            source = self.moved(pointer, moved.value)
            self._copy(slot, number * self.stride, source, valid, self.schedule.rows)

    def _copy_b(self, step: Int, slot: Int) -> None:
        product, stage = self.product, self.first_step + step
        chunk = stage * (ROW // CHUNK) + self.chunk
        within = chunk.below(product.depth * product.size // CHUNK)
        moved = (chunk * CHUNK).value
        if product.is_constant:
            moved = (stage * (PANEL * ROW) + self.chunk * CHUNK).value
        for number, (pointer, inside) in enumerate(self.b_rows):
            valid = self.builder.binary("and", within, inside)
            source = self.moved(pointer, moved)
            self._copy(slot, number * self.stride, source, valid, self.schedule.columns)

    def _slots(self, slot: Int) -> tuple[Int, Int]:
        """Where A's and B's rows of a stage lie."""
        size = (self.schedule.rows + self.schedule.columns) * ROW
        a = self.base + slot * size
        return a, a + self.schedule.rows * ROW

    def _commit(self) -> None:
        self.writer.assembly("cp.async.commit_group;", "", ())

    def _multiply(self) -> None:
        """The ring: stages are filled ahead, one is multiplied, its slot is filled again.

        A warp group goes on while its products are computed, except where their operands are in
        registers, which are needed again: then the slot before is still read from."""
        by_warpgroup = self.schedule.by_warpgroup
        pending = int(by_warpgroup and not self.product.needs_rounding)
        ahead = self.schedule.stages - 1 - pending
        if not self.product.is_constant:
            self.writer.wait_for_inputs()
        stages = [self.number(stage) for stage in range(ahead)]
        filled = [(stage, self._slots(stage)) for stage in stages]
        for stage, (_, b) in filled:
            self.writer.when(stage.below(self.steps), partial(self._copy_b, stage, b))
        if self.product.is_constant:
            self.writer.wait_for_inputs()
        for stage, (a, _) in filled:
            self.writer.when(stage.below(self.steps), partial(self._copy_a, stage, a))
            self._commit()
        slot = Variable(self.writer, "i32")
        slot.set(constant(0, "i32"))

        def multiply(step: Value) -> None:
            self.writer.assembly(f"cp.async.wait_group {ahead - 1};", "", ())
            if by_warpgroup:  # what reads the copies is no instruction of a thread
                self.writer.assembly("fence.proxy.async.shared::cta;", "", ())
            self.writer.barrier()
            now, current = Int(self.writer, step), Int(self.writer, slot.get())
            if by_warpgroup:
                self._begin_stage(current)
                self._refill(now + ahead, current + ahead)
                self._await_products(pending)
            else:
                self._refill(now + ahead, current + ahead)
                self._multiply_stage(current)
            slot.set(self._wrapped(current + 1).value)

        self.writer.loop(constant(0, "i32"), self.steps.value, constant(1, "i32"), multiply)
        self.writer.assembly("cp.async.wait_group 0;", "", ())
        if pending:
            self._await_products(0)
        self.writer.barrier()

    def _await_products(self, pending: int) -> None:
        """Wait until no more than so many stages of this warp group are being multiplied."""
        self.writer.assembly(f"wgmma.wait_group.sync.aligned {pending};", "", ())

    def _wrapped(self, slot: Int) -> Int:
        stages = self.schedule.stages
        lower = (slot - stages).value
        fits = slot.below(stages)
        return Int(self.writer, self.builder.select(fits, slot.value, lower))

    def _refill(self, step: Int, slot: Int) -> None:
        def copy() -> None:
            a, b = self._slots(self._wrapped(slot))
            self._copy_b(step, b)
            self._copy_a(step, a)

        self.writer.when(step.below(self.steps), copy)
        self._commit()

    # Products: fragments from shared memory, and matrix instructions on them.

    def _shifts(self) -> list[Int]:
        """Where in the rows of a stage the parts of K begin that this warp multiplies."""
        deep = self.schedule.warps[2]
        first = self.warp[2] * ATOM if deep > 1 else self.number(0)
        return [first + iteration * deep * ATOM for iteration in range(ROW // ATOM // deep)]

    def _a_place(self) -> Int:
        """Where in a stage this lane's row of a fragment of A begins."""
        row = self.warp[0] * self.schedule.warp_tile[0] + (self.lane & 15)
        return row * ROW + (((self.lane // 16) ^ (self.lane & 7)) * CHUNK)

    def _begin_stage(self, slot: Int) -> None:
        """Products by the warp group, which go on until they are waited for."""
        a_slot, b_slot = self._slots(slot)
        rows = a_slot + self.warp[0] // WARPGROUP * (WARPGROUP * 16 * ROW)
        columns = b_slot + self.warp[1] * (self.schedule.warp_tile[1] * ROW)
        place, shifts = self._a_place(), self._shifts()
        if self.product.needs_rounding:
            a_parts = [self.rounded(self.fragment(a_slot + (place ^ shift))) for shift in shifts]
        else:
            a_parts = [[self.descriptor(rows + shift)] for shift in shifts]
        b_parts = [self.descriptor(columns + shift) for shift in shifts]
        count = math.prod(self.schedule.warp_tile) // 32
        sums = [self.sums.get(index) for index in range(count)]
        self.writer.assembly("wgmma.fence.sync.aligned;", "", ())
        for a, b in zip(a_parts, b_parts, strict=True):
            sums = self.warpgroup_multiply(a, b, sums)
        self.writer.assembly("wgmma.commit_group.sync.aligned;", "", ())
        for index, value in enumerate(sums):
            self.sums.set(value, index)

    def _multiply_stage(self, slot: Int) -> None:
        a_slot, b_slot = self._slots(slot)
        tall, wide = self.schedule.warp_tile
        lane, a_place = self.lane, self._a_place()
        column = self.warp[1] * wide + (lane & 7) + (lane // 16) * 8
        b_place = column * ROW + ((((lane // 8) & 1) ^ (lane & 7)) * CHUNK)
        for shift in self._shifts():
            a_parts = [
                self.fragment(a_slot + (a_place ^ shift) + i * 16 * ROW) for i in range(tall // 16)
            ]
            b_parts = [
                self.fragment(b_slot + (b_place ^ shift) + j * 16 * ROW) for j in range(wide // 16)
            ]
            if self.product.needs_rounding:
                a_parts = [self.rounded(part) for part in a_parts]
            if not self.product.is_constant:
                b_parts = [self.rounded(part) for part in b_parts]
            for i, a in enumerate(a_parts):
                for j in range(wide // 8):
                    b = b_parts[j // 2][2 * (j % 2) : 2 * (j % 2) + 2]
                    first = (i * (wide // 8) + j) * 4
                    sums = [self.sums.get(first + index) for index in range(4)]
                    for index, value in enumerate(self.matrix_multiply(a, b, sums)):
                        self.sums.set(value, first + index)
