"""Finds backends: those that installed packages announce, and those registered in this process.

A package announces a backend class in the entry-point group `graft.backends`. One that does not
load is reported and skipped, so that it does not affect others.

Graft announces its own backends in the same way. `own_backend` reads the announcements of this
distribution only: reading those of all takes longer than compiling a small model.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points

from graft.base.callbacks import author_code, described
from graft.base.errors import UserError
from graft.byoc.contract import Backend, variant_of
from graft.runtime.loaders import family_of

GROUP = "graft.backends"
DISTRIBUTION = "graft-compiler"


@dataclass(frozen=True, slots=True)
class BrokenBackend:
    """A backend that could not be loaded, and why."""

    name: str
    origin: str
    reason: str


@dataclass(frozen=True)
class Discovery:
    """All backends by name, where each comes from, and those that did not load."""

    backends: Mapping[str, Backend]
    origins: Mapping[str, str]
    broken: tuple[BrokenBackend, ...] = ()


_REGISTERED: dict[str, Backend] = {}
_HERE = "this process"


def register_backend(backend_or_class: type[Backend] | Backend) -> type[Backend] | Backend:
    """Make a backend known in this process; usable as a class decorator."""
    backend = backend_or_class() if isinstance(backend_or_class, type) else backend_or_class
    if not backend.name:
        raise UserError(f"{type(backend).__name__} has no name", hint="set `name` in the class")
    if backend.name in _REGISTERED:
        raise UserError(f"a backend named '{backend.name}' is registered already")
    _REGISTERED[backend.name] = backend
    return backend_or_class


def unregister_backend(name: str) -> None:
    """Remove a backend that was registered in this process."""
    _REGISTERED.pop(name, None)


def find_backends() -> Discovery:
    """All backends that can be found now."""
    backends: dict[str, Backend] = {}
    origins: dict[str, str] = {}
    broken: list[BrokenBackend] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        loaded = _loaded(point)
        if isinstance(loaded, BrokenBackend):
            broken.append(loaded)
        else:
            _add(loaded, _origin(point), backends, origins)
    for backend in _REGISTERED.values():
        _add(backend, _HERE, backends, origins)
    return Discovery(backends, origins, tuple(broken))


@cache
def _own_points() -> Mapping[str, EntryPoint]:
    try:
        own = distribution(DISTRIBUTION).entry_points.select(group=GROUP)
    except PackageNotFoundError as error:
        raise UserError(
            f"{DISTRIBUTION} is not installed, so that none of its backends is found",
            hint="install it; from a source checkout: pip install -e .",
        ) from error
    return {point.name: point for point in own}


def own_backend(name: str) -> Backend:
    """A backend of Graft itself, whether or not it can run here."""
    backend: Backend = _own_points()[name].load()()
    return backend


def is_announced(backend: Backend) -> bool:
    """Whether an installed package announces the backend's class, so that any process finds it."""
    family = family_of(backend.name)
    points = (point for point in entry_points(group=GROUP) if point.name == family)
    kind = type(backend)
    return any(point.value == f"{kind.__module__}:{kind.__qualname__}" for point in points)


def _add(
    backend: Backend, origin: str, backends: dict[str, Backend], origins: dict[str, str]
) -> None:
    earlier = origins.get(backend.name)
    if earlier is not None:
        raise UserError(
            f"two backends are named '{backend.name}': one from {earlier}, one from {origin}",
            hint="uninstall or rename one of them",
        )
    backends[backend.name] = backend
    origins[backend.name] = origin


def _loaded(point: EntryPoint) -> Backend | BrokenBackend:
    """The backend of an entry point, or why it does not load."""
    try:
        backend = point.load()()
    except Exception as error:  # noqa: BLE001
        return BrokenBackend(point.name, _origin(point), described(error))
    if not isinstance(backend, Backend):
        reason = f"{point.value} is no subclass of graft.byoc.Backend"
        return BrokenBackend(point.name, _origin(point), reason)
    if backend.name != point.name:
        reason = f"it is announced as '{point.name}' and calls itself '{backend.name}'"
        return BrokenBackend(point.name, _origin(point), reason)
    return backend


def _origin(point: EntryPoint) -> str:
    dist = point.dist
    return f"{dist.name} {dist.version}" if dist is not None else point.value


def backend_named(name: str, discovery: Discovery) -> Backend:
    """The backend of that name, or the variant `family:variant`; an error if it cannot run here."""
    backend = discovery.backends.get(name)
    family, _, variant = name.partition(":")
    if backend is None and variant and family in discovery.backends:
        backend = variant_of(type(discovery.backends[family]), variant, family)
    if backend is None:
        for item in discovery.broken:
            if item.name == name:
                raise UserError(f"the backend '{name}' of {item.origin} fails: {item.reason}")
        close = difflib.get_close_matches(name, discovery.backends, n=1)
        hint = f"did you mean '{close[0]}'?" if close else ""
        names = ", ".join(sorted(discovery.backends))
        raise UserError(f"there is no backend '{name}'", hint=hint or f"there are {names}")
    with author_code(f"{name}.missing", backend.missing):
        missing = backend.missing()
    if missing:
        raise UserError(f"the backend '{name}' cannot run here: {missing}")
    return backend
