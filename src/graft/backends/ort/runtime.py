"""ONNX Runtime regions at run time: a model and a provider in, a session on that provider out.

Left to itself, ONNX Runtime runs on the CPU whatever a provider does not take, and everything where
the provider's device cannot be made, with a line in a log at most. Both are errors here.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

from graft.base.errors import UnsupportedError
from graft.base.names import printable
from graft.runtime.loaders import installed_version, lacking, versioned
from graft.runtime.spaces import Runner

_CPU = "CPUExecutionProvider"


def version() -> str:
    """ONNX Runtime's."""
    return installed_version("onnxruntime")


def missing(provider: str) -> str:
    """What to install or to name, or nothing."""
    lacks = lacking("onnxruntime", "onnxruntime")
    if lacks or provider in providers():
        return lacks
    wanted = f"ONNX Runtime has no '{provider}' here" if provider else "name a provider"
    return f"{wanted}: there are {', '.join(f'ort:{name}' for name in providers())}"


@cache
def providers() -> tuple[str, ...]:
    """The providers built into ONNX Runtime, and those of installed plug-ins, which it registers.

    A plug-in is a package `onnxruntime_<name>` with the two functions that ONNX Runtime's guide to
    packaging asks for: https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/."""
    import onnxruntime

    for module in pkgutil.iter_modules():
        if module.name.startswith("onnxruntime_"):
            try:
                plug_in = importlib.import_module(module.name)
                if hasattr(plug_in, "get_ep_names"):
                    name, library = plug_in.get_ep_names()[0], plug_in.get_library_path()
                    onnxruntime.register_execution_provider_library(name, library)
            # One that is broken, or ends its process, leaves the others alone.
            except (Exception, SystemExit) as error:  # noqa: BLE001
                reason = printable(str(error))
                warnings.warn(f"the plug-in {module.name} does not load: {reason}", stacklevel=2)
    plugged_in = [device.ep_name for device in onnxruntime.get_ep_devices()]
    return tuple(dict.fromkeys([*onnxruntime.get_available_providers(), *plugged_in]))


def devices(provider: str) -> list[Any]:
    """What a plug-in can run on, neural processors first; of a provider built in, nothing."""
    import onnxruntime

    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    return sorted(found, key=lambda device: device.device.type.name != "NPU")


def session_options(
    provider: str, threads: int | None = None, options: Mapping[str, str] | None = None
) -> Any:
    """Options of sessions on one provider, which has `options` of its own, and on nothing else."""
    import onnxruntime

    if provider not in providers():
        raise UnsupportedError(missing(provider))
    result = onnxruntime.SessionOptions()
    result.intra_op_num_threads = threads or 0
    result.log_severity_level = 4  # failures are raised
    if provider != _CPU:
        result.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    plugged_in = devices(provider)
    try:
        if plugged_in:
            result.add_provider_for_devices(plugged_in[:1], dict(options or {}))
        else:
            result.add_provider(provider, dict(options or {}))
    except Exception as error:  # the classes of its errors have no base of their own
        raise UnsupportedError(f"{provider} does not take its options: {error}") from error
    return result


def session_runner(provider: str, model: bytes, options: Any) -> Runner:
    """What runs a model on a provider; an error where that would take only a part of it."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(model, options, enable_fallback=0)
    except Exception as error:  # the classes of its errors have no base of their own
        raise UnsupportedError(f"{provider} does not take it: {error}") from error
    if session.get_providers()[0] != provider:
        raise UnsupportedError(f"ONNX Runtime made a session on {session.get_providers()}")
    names = [value.name for value in session.get_inputs()]
    return lambda inputs, _outputs: session.run(None, dict(zip(names, inputs, strict=True)))


def pack(provider: str, model: bytes) -> bytes:
    """A model with the name of the provider that runs it."""
    return provider.encode() + b"\0" + model


@versioned(version)
def load(blob: bytes, threads: int | None = None) -> Runner:
    """What `graft.load` calls for a region of this backend."""
    name, _, model = blob.partition(b"\0")
    provider = name.decode(errors="replace")
    return session_runner(provider, model, session_options(provider, threads))
