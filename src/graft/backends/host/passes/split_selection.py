"""Makes `topk` along one long row a selection in its chunks, which threads share, and one of these.

A graph enters; where there are fewer rows than cores, `topk` leaves as one on chunks of a row and
one on what they have selected, in the order of the chunks. Elements that are equal then still come
in the order of their positions, so that results are the same. Many of few elements are not split:
each chunk would have to sort as many as the row.
"""

from __future__ import annotations

import math

import numpy as np

from graft.backends.host.kernels.selection import candidate_cycles
from graft.backends.host.kernels.sort_keys import SortKeys
from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet
from graft.target.target import Target

_MOST_CHUNKS = 32
_KERNELS = 3  # more than before: of chunks, of their indices, and of what is selected among these
_GAIN, _LOSS = 0.8, 1.1  # of one selection's cycles: at most on all cores, and on one core


def split_selection(graph: Graph, target: Target) -> Graph:
    """Split selections where the machine's cores gain by it."""
    rules = RuleSet("split_selection")

    @rules.rule(is_op("topk"))
    def chunks_then_row(site: Site) -> Replacement:
        node = site.node
        dims, selected = node.args[0].tensor.shape or (), node.output.tensor.shape or ()
        shape, results = (
            tuple(dim for dim in one if isinstance(dim, int) and dim) for one in (dims, selected)
        )
        if not shape or len(shape) < len(dims) or len(results) < len(selected):
            return Refusal("the extents are known only at run time, or there is no result")
        axis = node.attrs.axis % len(shape)
        rows, extent, count = math.prod(shape[:axis]), shape[axis], results[axis]
        if math.prod(shape[axis + 1 :]) != 1:
            return Refusal("elements of a row lie apart")
        keys = SortKeys(node.args[0].dtype, node.attrs.largest)
        chunks = _chunk_count(rows, extent, count, keys, target)
        if chunks == 1:
            return Refusal("one thread takes a row as soon as several take its chunks")
        return _split(site, (rows, chunks, extent // chunks, count), results)

    return apply_rules(graph, rules)


def _chunk_count(rows: int, extent: int, count: int, keys: SortKeys, target: Target) -> int:
    """Chunks of a row of equal length with which selecting is fastest; 1 if that is without."""
    machine = target.machine
    if rows >= machine.cores:
        return 1
    whole = candidate_cycles(extent, count, keys, target)
    between = _KERNELS * machine.meeting_seconds * machine.gigahertz * 1e9
    best, least = 1, whole * _GAIN
    for chunks in range(2, min(_MOST_CHUNKS, extent // count) + 1):
        chunk = candidate_cycles(extent // chunks, count, keys, target)
        last = candidate_cycles(chunks * count, count, keys, target)
        cycles = math.ceil(rows * chunks / machine.cores) * chunk + last + between
        is_harmless = chunks * chunk + last <= whole * _LOSS
        if extent % chunks == 0 and is_harmless and cycles < least:
            best, least = chunks, cycles
    return best


def _split(site: Site, sizes: tuple[int, int, int, int], shape: tuple[int, ...]) -> Replacement:
    rows, chunks, length, count = sizes
    attrs = {"k": count, "largest": site.node.attrs.largest, "axis": -1}
    data = site.emit("reshape", site.node.args[0], shape=(rows, chunks, length))
    values, indices = site.emit_all("topk", data, **attrs)
    starts = np.arange(0, chunks * length, length, dtype=np.int64)[:, np.newaxis]
    positions = site.emit("add", indices, site.constant(starts))
    flat = (rows, chunks * count)
    values, ranks = site.emit_all("topk", site.emit("reshape", values, shape=flat), **attrs)
    positions = site.emit("gather", site.emit("reshape", positions, shape=flat), ranks, axis=-1)
    return tuple(site.emit("reshape", result, shape=shape) for result in (values, positions))
