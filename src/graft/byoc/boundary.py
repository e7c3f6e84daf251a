"""Layouts and dtypes that backends require: `layout_transform` and `cast` nodes around regions.

A backend may require images in another layout and floats in another dtype than the host. The host
converts each operand before the region, and the region begins with the inverse conversion, so that
its meaning stays the same; the backend's `process` can remove that. Results are converted in the
same way. Regions of equal form pass values to each other without conversions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from graft.base.dtypes import DType
from graft.byoc.contract import Limits
from graft.byoc.scopes import bodies_of
from graft.ir.evaluate import run_graph
from graft.ir.graph import Graph, Node, Value, make_node
from graft.ir.names import FreshNames
from graft.ir.nested import change_node
from graft.ir.types import TensorType
from graft.ops.layout import NCHW, block_of, rearrangement
from graft.passes.eliminate_dead_code import eliminate_dead_code


@dataclass(frozen=True, slots=True)
class Form:
    """The layout of a value, if it is an image, and its element type."""

    layout: str = NCHW
    dtype: DType | None = None  # None: as the graph has it


HOST_FORM = Form()


def form_of(value: Value, limits: Limits) -> Form:
    """The form in which a backend requires a value."""
    layout = limits.layout if _has_layout(value, limits.layout) else NCHW
    converted = limits.dtype is not DType.FLOAT32 and _is_float32(value)
    return Form(layout, limits.dtype if converted else None)


def is_image(value: Value) -> bool:
    """Whether a value is of rank 4, and so has a layout."""
    type_ = value.type
    return isinstance(type_, TensorType) and type_.shape is not None and len(type_.shape) == 4


def _has_layout(value: Value, layout: str) -> bool:
    """Whether a value has a form in a layout: channels have to fill its blocks."""
    if not is_image(value):
        return False
    block, channels = block_of(layout), (value.tensor.shape or ())[1]
    return not block or (isinstance(channels, int) and channels % block == 0)


def _is_float32(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.dtype is DType.FLOAT32


def with_wishes(graph: Graph, limits: Mapping[str, Limits]) -> Graph:
    """An outlined graph with conversions around regions, those in bodies too, to the forms that
    their backends require."""
    if all(limit.layout == NCHW and limit.dtype is DType.FLOAT32 for limit in limits.values()):
        return graph
    return _formed_borders(graph, limits)


def _formed_borders(graph: Graph, limits: Mapping[str, Limits]) -> Graph:
    """The graph with conversions around its regions, and around those in bodies."""
    nodes = tuple(
        change_node(node, lambda body: _formed_borders(body, limits)) if bodies_of(node) else node
        for node in graph.nodes
    )
    return _Border(replace(graph, nodes=nodes), limits).run()


def wished(region: Graph, limits: Limits) -> Graph:
    """A region whose inputs and outputs have the form that a backend requires."""
    names = FreshNames(value.name for value in region.values)
    inputs: list[Value] = []
    before: list[Node] = []
    after: list[Node] = []
    outputs: list[Value] = []
    for value in region.inputs:
        form = form_of(value, limits)
        outer = _formed(value, form, names)
        inputs.append(outer)
        before += _leave_form(outer, form, value, names)
    for value in region.outputs:
        form = form_of(value, limits)
        outer = _formed(value, form, names)
        outputs.append(outer)
        after += _enter_form(value, form, outer, names)
    nodes = (*before, *region.nodes, *after)
    return replace(region, inputs=tuple(inputs), nodes=nodes, outputs=tuple(outputs))


def in_wished_form(region: Graph, limits: Limits, ops: Collection[str]) -> Graph:
    """A region whose nodes of these operators compute in the form that a backend requires.

    Conversions between such nodes and the border are removed, and those to other nodes added. All
    operands of such a node have the form; constants are converted here. Attributes stay: `axis=1`
    means the channels wherever these are now. So the types of results no longer follow from type
    rules, and only the backend gives the nodes a meaning."""
    if limits.layout == NCHW and limits.dtype is DType.FLOAT32:
        return region
    return eliminate_dead_code(_Inside(region, limits, ops).run())


class _Border:
    """Adds conversions to a graph where values enter and leave regions."""

    def __init__(self, graph: Graph, limits: Mapping[str, Limits]) -> None:
        self.graph, self.limits = graph, limits
        self.names = FreshNames(value.name for value in graph.values)
        self.forms: dict[Value, dict[Form, Value]] = {v: {HOST_FORM: v} for v in graph.inputs}
        self.nodes: list[Node] = []

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if node.op.name == "region":
                self.region(node)
            else:
                self.append(node)
        for value in self.graph.outputs:
            self.in_host_form(value)
        return replace(self.graph, nodes=tuple(self.nodes))

    def append(self, node: Node) -> None:
        """Add a node that computes in the host's form."""
        for value in node.args:
            self.in_host_form(value)
        self.nodes.append(node)
        self.forms.update((value, {HOST_FORM: value}) for value in node.outputs)

    def region(self, node: Node) -> None:
        limits = self.limits[node.attrs.backend]
        inputs = tuple(self.in_form(value, form_of(value, limits)) for value in node.args)
        attrs = replace(node.attrs, body=wished(node.attrs.body, limits))
        outputs = self.outputs(node, limits)
        self.nodes.append(replace(node, inputs=inputs, attrs=attrs, outputs=outputs))

    def outputs(self, node: Node, limits: Limits) -> tuple[Value, ...]:
        """The results of a node in the form that a backend requires."""
        outputs = []
        for value in node.outputs:
            form = form_of(value, limits)
            outputs.append(_formed(value, form, self.names))
            self.forms[value] = {form: outputs[-1]}
        return tuple(outputs)

    def in_form(self, value: Value, form: Form) -> Value:
        """A value in a form, converted from the host's form if need be."""
        forms = self.forms[value]
        if form not in forms:
            self.in_host_form(value)
        if form not in forms:
            forms[form] = _formed(value, form, self.names)
            self.nodes += _enter_form(value, form, forms[form], self.names)
        return forms[form]

    def in_host_form(self, value: Value) -> None:
        """Convert a value back to the host's form, unless it exists in that."""
        forms = self.forms[value]
        if HOST_FORM not in forms:
            form, outer = next(iter(forms.items()))
            forms[HOST_FORM] = value
            self.nodes += _leave_form(outer, form, value, self.names)


class _Inside(_Border):
    """Adds conversions to a region around nodes of other operators than `ops`.

    The conversions at its border are removed: they tell the form of its inputs and outputs."""

    def __init__(self, region: Graph, limits: Limits, ops: Collection[str]) -> None:
        super().__init__(region, {})
        self._limits, self._ops = limits, ops
        self._literals = {n.output: n for n in region.nodes if n.op.name == "constant"}
        self._results = [self._before_conversions(value) for value in region.outputs]
        self._skipped: set[Node] = set()
        for value in region.inputs:
            original, form = self._converted(value)
            self.forms[original] = {form: value}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if node.op.name in self._ops:
                self._compute(node)
            elif node not in self._skipped:
                self.append(node)
        outputs = tuple(self.in_form(original, form) for original, form in self._results)
        return replace(self.graph, nodes=tuple(self.nodes), outputs=outputs)

    def _compute(self, node: Node) -> None:
        wished = {value: self.in_form(value, form_of(value, self._limits)) for value in node.args}
        outputs = self.outputs(node, self._limits)
        self.nodes.append(replace(node.on(wished), outputs=outputs))

    def in_form(self, value: Value, form: Form) -> Value:
        forms = self.forms[value]
        if value in self._literals and form not in forms:
            forms[form] = _formed(value, form, self.names)
            steps = (self._literals[value], *_enter_form(value, form, forms[form], self.names))
            (array,) = run_graph(Graph("constant", (), steps, (forms[form],)), ())
            self.nodes.append(make_node("constant", (), (forms[form],), value=array))
        return super().in_form(value, form)

    def _converted(self, value: Value) -> tuple[Value, Form]:
        """The value behind the conversions of an input, and the form of the input."""
        original, form = value, HOST_FORM
        while True:
            readers = self.graph.users.get(original, ())
            if len(readers) != 1 or original in self.graph.outputs or not _leaves_form(readers[0]):
                return original, form
            form = _joined(form, readers[0], readers[0].args[0])
            original = readers[0].output
            self._skipped.add(readers[0])

    def _before_conversions(self, value: Value) -> tuple[Value, Form]:
        """The value before the conversions of an output, and the form of the output."""
        original, form = value, HOST_FORM
        while True:
            node = self.graph.producers.get(original)
            if node is None or not _enters_form(node, self._limits):
                return original, form
            form, original = _joined(form, node, original), node.args[0]


def _leaves_form(node: Node) -> bool:
    """Whether a node converts a value to the host's form."""
    if node.op.name == "layout_transform":
        return bool(node.attrs.dst_layout == NCHW)
    return node.op.name == "cast" and node.output.dtype is DType.FLOAT32


def _enters_form(node: Node, limits: Limits) -> bool:
    """Whether a node converts a value to a backend's form."""
    if node.op.name == "layout_transform":
        return bool(node.attrs.src_layout == NCHW and node.attrs.dst_layout == limits.layout)
    narrowed = node.op.name == "cast" and node.args[0].dtype is DType.FLOAT32
    return narrowed and node.output.dtype is limits.dtype


def _joined(form: Form, node: Node, outer: Value) -> Form:
    """A form extended by a conversion; `outer` is the conversion's side in the backend's form."""
    if node.op.name == "cast":
        return replace(form, dtype=outer.dtype)
    layouts = {node.attrs.src_layout, node.attrs.dst_layout} - {NCHW}
    return replace(form, layout=layouts.pop() if layouts else NCHW)


def _formed(value: Value, form: Form, names: FreshNames) -> Value:
    """A value in another form: a new one, unless that is the host's."""
    if form == HOST_FORM:
        return value
    return Value(names(f"{value.name}_{form.dtype or form.layout}"), _type_in(value, form))


def _type_in(value: Value, form: Form) -> TensorType:
    type_ = value.tensor
    shape = type_.shape
    if form.layout != NCHW and shape is not None:
        shape = rearrangement(NCHW, form.layout, shape).result
    return TensorType(form.dtype or type_.dtype, shape)


def _enter_form(value: Value, form: Form, target: Value, names: FreshNames) -> Iterator[Node]:
    """Nodes that convert a value to a form; they cast first, so that less is moved."""
    if form.dtype is not None:
        last = form.layout == NCHW
        narrow = target if last else _formed(value, Form(NCHW, form.dtype), names)
        yield _node("cast", value, narrow, dtype=form.dtype)
        value = narrow
    if form.layout != NCHW:
        yield _node("layout_transform", value, target, src_layout=NCHW, dst_layout=form.layout)


def _leave_form(source: Value, form: Form, value: Value, names: FreshNames) -> Iterator[Node]:
    """Nodes that convert a value back to the host's form."""
    if form.layout != NCHW:
        last = form.dtype is None
        narrow = value if last else _formed(value, Form(NCHW, form.dtype), names)
        yield _node("layout_transform", source, narrow, src_layout=form.layout, dst_layout=NCHW)
        source = narrow
    if form.dtype is not None:
        yield _node("cast", source, value, dtype=value.dtype)


def _node(name: str, source: Value, target: Value, **attrs: str) -> Node:
    return make_node(name, (source,), (target,), None, **attrs)
