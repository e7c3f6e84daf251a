"""The host backend's own passes, in order: what is best done to a graph when a CPU will run it.

An optimised graph and the machine enter; a graph of fusion groups leaves, of which each becomes
one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper

from graft.backends.host.kernel_memo import RowKernels
from graft.backends.host.passes.bound_arity import bound_arity
from graft.backends.host.passes.column_products import column_products
from graft.backends.host.passes.einsum_products import einsum_products
from graft.backends.host.passes.fold_depth import fold_depth
from graft.backends.host.passes.fourier_products import fourier_products
from graft.backends.host.passes.fuse_chains import fuse_chains
from graft.backends.host.passes.move_modulation import move_modulation
from graft.backends.host.passes.normalize_images import normalize_images
from graft.backends.host.passes.pixel_products import pixel_products
from graft.backends.host.passes.recognize_layouts import recognize_layouts
from graft.backends.host.passes.sink_reshapes import sink_reshapes
from graft.backends.host.passes.split_deformable import split_deformable
from graft.backends.host.passes.split_phases import split_phases
from graft.backends.host.passes.split_pool import split_pool
from graft.backends.host.passes.split_recurrent import split_recurrent
from graft.backends.host.passes.split_resize import split_resize
from graft.backends.host.passes.split_selection import split_selection
from graft.backends.host.passes.strength_reduction import strength_reduction
from graft.backends.host.passes.tile_windows import tile_windows
from graft.backends.host.passes.use_halves import use_halves
from graft.backends.host.passes.use_integers import use_integers
from graft.backends.host.passes.use_nibbles import use_nibbles
from graft.backends.host.passes.widen_convolutions import widen_convolutions
from graft.backends.host.passes.widen_halves import widen_halves
from graft.ir.attrs import symbols_in_attrs
from graft.ir.graph import Graph
from graft.ir.types import symbols_in
from graft.passes.group_fusion import group_fusion
from graft.passes.pipeline import Pass, PassReport, run_passes
from graft.target.target import Target


def host_passes(target: Target) -> tuple[Pass, ...]:
    """The passes for a machine."""
    split = update_wrapper(partial(split_recurrent, target=target), split_recurrent)
    selection = update_wrapper(partial(split_selection, target=target), split_selection)
    fourier = update_wrapper(partial(fourier_products, target=target), fourier_products)
    halves = update_wrapper(partial(use_halves, target=target), use_halves)
    nibbles = update_wrapper(partial(use_nibbles, target=target), use_nibbles)
    narrow = (nibbles, use_integers, halves)
    early = (
        einsum_products,
        split,
        split_deformable,
        widen_halves,
        *narrow,
        move_modulation,
        fourier,
        strength_reduction,
        widen_convolutions,
        split_pool,
        split_resize,
        selection,
        fold_depth,
        pixel_products,
        column_products,
        split_phases,
        tile_windows,
        normalize_images,
    )
    placed = (sink_reshapes, recognize_layouts)
    fuse = partial(group_fusion, has_kernel=RowKernels(target))
    chains = update_wrapper(partial(fuse_chains, target=target), fuse_chains)
    last = (bound_arity, update_wrapper(fuse, group_fusion), chains)
    return *early, *placed, *last


def prepare(
    graph: Graph,
    target: Target,
    report: Callable[[PassReport, Graph], None] | None = None,
) -> Graph:
    """Run the passes; `report` is called for each.

    The graph may be a part of another, whose inputs bind symbols that no input of the part has:
    their sizes come with the call."""
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    in_types = (symbols_in(value.type) for value in values)
    in_attrs = (symbols_in_attrs(node.attrs) for node in graph.nodes)
    around = frozenset[str]().union(*in_types, *in_attrs)
    return run_passes(graph, host_passes(target), report, around)
