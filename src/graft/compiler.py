"""The whole pipeline, top to bottom: file -> graph -> optimised graph -> a module that runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from graft.base.callbacks import author_code
from graft.base.errors import UnsupportedError, UserError
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.choose import TIME_LIMIT
from graft.byoc.contract import HOST_BACKEND, REFERENCE, Backend
from graft.byoc.discover import backend_named, find_backends, own_backend
from graft.byoc.executable import Accuracy, Executable, Settings
from graft.byoc.isolate import Isolation, isolated
from graft.byoc.measure import DEADLINE
from graft.byoc.offload import Attachments
from graft.byoc.plan import Plan
from graft.module import Module, Placement
from graft.passes.variant_sizes import variant_sizes
from graft.precision import with_precision
from graft.program.variants import variant_name
from graft.quantize.data import Data
from graft.quantize.report import FLOAT
from graft.race import link_fastest
from graft.runtime.placement import BLOB
from graft.runtime.regions import Policy
from graft.runtime.session import count_threads
from graft.stages import (
    CompileOptions,
    Imported,
    Linked,
    Optimized,
    Source,
    import_graph,
    optimize,
    place,
)
from graft.target.target import HOST

DEFAULT_TARGET = (HOST_BACKEND,)

Model = Source | Imported | Optimized


def compile(
    model: Model,
    target: str | Sequence[str] = DEFAULT_TARGET,
    strict: bool = False,
    threads: int | None = None,
    machine: str = HOST,
    accuracy: str = Accuracy.DEFAULT.value,
    precision: str = FLOAT,
    data: Data | None = None,
    budget: float | str | None = None,
    pins: Sequence[str] = (),
    plan: Plan | str | os.PathLike[str] | None = None,
    measure: bool = False,
    check: bool = True,
    fallback: str | None = None,
    deadline: float | None = None,
    verify: str = "sample",
    isolation: Isolation = None,
    time_limit: float = TIME_LIMIT,
    shapes: Mapping[str, Sequence[int]] | None = None,
    strict_import: bool = False,
    report: Progress = quietly,
) -> Module:
    """Compile a model: a path, bytes, a `ModelProto`, a graph, or an early stage of one.

    Host code and numerics:

    - `target`: the backends to use, in any order; the host is always one of them.
    - `strict`: refuse to run any operator on the reference evaluator.
    - `threads`: threads of native code, and of backends that take a number; default one per core.
    - `machine`: the machine to generate code for; another one's can be saved, but may not run here.
    - `accuracy`: "strict" rules out Winograd's algorithm and the like, and keeps denormal results.
    - `precision`: "int8" quantises all layers that support it, "auto" those that pay off within
      `budget`; "bf16" and "fp16" compute in 16 bits what is faster so.
    - `data`: a folder or an iterable of samples to calibrate on, or "random".
    - `budget`: the relative error that outputs may have (default 0.05), or "top1=0.99".
    - `shapes`: sizes of symbolic dims to compile specialised variants for: {"batch": [1, 8]}.
    - `strict_import`: reject models with mistakes that ONNX Runtime tolerates, instead of warning.
    - `report`: called with each stage and its progress; `report=print` shows them.

    Accelerators:

    - `pins`: nodes that must run on a backend ("layer4/*=host") or must not ("conv1=!onednn").
    - `plan`: an earlier plan to repeat, instead of choosing one within `time_limit` seconds.
    - `measure`: time all plans end to end, not only the chosen one, host-only and greedy.
    - `check`: compare regions with the host; one that differs moves there (an error if pinned).
    - `fallback`: what happens if a region fails at run time: "host" re-runs it there (the default;
      if given explicitly, failing pinned regions move to the host, too), "error" raises.
    - `deadline`: seconds for a call of a region (default: 60, then 100 × its longest run, >= 10).
    - `verify`: the runs to compare with the host: "sample" (some), "always", or "off".
    - `isolation`: "process" isolates backends in processes: all, or by name ({"mynpu": "process"}).
    """
    settings = Settings(threads, machine, Accuracy.named(accuracy), report)
    placing = {"pins": pins, "plan": plan, "measure": measure, "time_limit": time_limit}
    policy, releases = Policy(fallback or "host", deadline, verify), fallback == "host"
    guarding = {"policy": policy, "check": check, "releases": releases}
    options = compile_options(target, settings, isolation, **placing, **guarding)
    optimized = _optimized(model, strict_import, report)
    optimized, options = with_precision(optimized, options, precision, data, budget)
    return _compiled(optimized, options, shapes or {}, strict)


def compile_options(
    target: str | Sequence[str] = DEFAULT_TARGET,
    settings: Settings | None = None,
    isolation: Isolation = None,
    **others: Any,
) -> CompileOptions:
    """The options for backends with these names; `others` are fields of `CompileOptions`."""
    names, settings = _names_of(target), settings or Settings()
    if settings.threads is not None and settings.machine == HOST:
        count_threads(None, settings.threads)
    if REFERENCE in names and names[0] != REFERENCE:
        raise UserError("the reference backend runs whole models", hint="target='reference'")
    host = own_backend(REFERENCE if REFERENCE in names else HOST_BACKEND).configured(settings)
    options = CompileOptions(host, settings, **others)
    rest = [name for name in dict.fromkeys(names) if name not in (HOST_BACKEND, REFERENCE)]
    if not rest or REFERENCE in names:  # looking for backends takes longer than a small model
        return options
    if settings.machine != HOST:
        raise UserError(
            f"'{rest[0]}' is for this machine, and machine='{settings.machine}' is another",
            hint="compile for the host alone",
        )
    result, deadline = find_backends(), options.policy.deadline or DEADLINE
    backends = (isolated(backend_named(name, result), isolation, deadline) for name in rest)
    return replace(options, accelerators=tuple(_configure(one, settings) for one in backends))


def _configure(backend: Backend, settings: Settings) -> Backend:
    with author_code(f"{backend.name}.configured", backend.configured):
        return backend.configured(settings)


def _names_of(target: str | Sequence[str]) -> list[str]:
    if isinstance(target, str):
        return [name.strip() for name in target.split(",")]
    if not isinstance(target, Sequence) or not all(isinstance(name, str) for name in target):
        raise UserError(f"target={target!r}: it is the name of a backend, or a list of names")
    return list(target)


def _optimized(model: Model, strict_import: bool, report: Progress) -> Optimized:
    """The optimised graph of a model."""
    if isinstance(model, Optimized):
        return model
    if not isinstance(model, Imported):
        model = import_graph(model, strict_import, report)
    return optimize(model, report)


def _compiled(
    optimized: Optimized, options: CompileOptions, shapes: Mapping[str, Sequence[int]], strict: bool
) -> Module:
    """A module of the general program and of those for the requested sizes."""
    requested = variant_sizes(optimized.graph, shapes)
    if options.plan is not None and requested.symbols:
        raise UserError("plan= is for one graph, and shapes= makes variants, each with its own")
    general = link_fastest(place(optimized, options), options)
    variants = {}
    for number, sizes in enumerate(requested.sizes if requested.symbols else ()):
        name = variant_name(requested.symbols, sizes)
        options.report(Stage("compiling variants", number + 1, len(requested.sizes), name))
        bound = optimized.bind(dict(zip(requested.symbols, sizes, strict=True)))
        variants[sizes] = link_fastest(place(bound, options), options)
    return _module(general, requested.symbols, variants, options, strict)


def _module(
    general: Linked,
    symbols: Sequence[str],
    variants: Mapping[tuple[int, ...], Linked],
    options: CompileOptions,
    strict: bool,
) -> Module:
    """A module of a program and its variants."""
    executable = general.executable
    if variants:
        own = {sizes: linked.executable for sizes, linked in variants.items()}
        executable = options.host.specialize(executable, symbols, own)
    _refuse_reference(executable, strict)
    named = {variant_name(symbols, sizes): linked for sizes, linked in variants.items()}
    placements = {name: Placement.of(linked) for name, linked in named.items()}
    compiled = {name: linked.compiled for name, linked in {"": general, **named}.items()}
    regions = {
        f"{name} {label}".strip(): region
        for name, linked in {"": general, **named}.items()
        for label, region in linked.regions.items()
    }
    for region in regions.values():  # the user's first runs are compared, not those in the race
        region.guard.start_over()
    module = executable.session
    module.placement = replace(Placement.of(general), variants=placements)
    module.regions = regions
    attached = Attachments(compiled, options.host, options.policy)
    save = executable.without_session().save
    module.writer = partial(_write, save, module.placement, attached)
    return module


def _write(
    save: Callable[..., list[str]], placement: Placement, attached: Attachments, path: Path
) -> list[str]:
    """Save a program with the blobs of its regions and its placement."""
    blobs = {**attached.blobs(), BLOB: placement.stored().to_blob()}
    return save(path, blobs, attached.versions)


def _refuse_reference(program: Executable, strict: bool) -> None:
    left = program.reference_nodes
    if strict and left:
        name, reason = next(iter(left.items()))
        nodes = "1 node needs" if len(left) == 1 else f"{len(left)} nodes need"
        raise UnsupportedError(
            f"strict=True refuses the reference evaluator, which {nodes};"
            f" the first is %{name}: {reason}"
        )
