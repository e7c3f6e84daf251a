"""Regions as ONNX models, at run time: a model in, a session of ONNX Runtime that runs it out.

A session is on one execution provider and nothing else. Left to itself, ONNX Runtime runs on the
CPU whatever a provider does not take, and everything where the provider's device cannot be made,
with a line in a log at most. Both are errors here.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from graft.base.errors import UnsupportedError
from graft.base.names import printable
from graft.runtime.loaders import lacking
from graft.runtime.spaces import Runner

PACKAGE = "onnxruntime"
_CPU = "CPUExecutionProvider"


def missing(provider: str) -> str:
    """What to install or to name, or nothing."""
    lacks = lacking(PACKAGE, PACKAGE)
    if lacks or provider in providers():
        return lacks
    reason = f"ONNX Runtime has no '{provider}' here" if provider else "name a provider"
    return f"{reason}: there are {', '.join(f'ort:{name}' for name in providers())}"


@cache
def providers() -> tuple[str, ...]:
    """The providers built into ONNX Runtime, and those of installed plug-ins, which it registers.

    A plug-in is a package `onnxruntime_<name>` with the two functions that ONNX Runtime's guide to
    packaging asks for: https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/."""
    import onnxruntime

    known = {device.ep_name for device in onnxruntime.get_ep_devices()}  # whoever registered them
    for module in pkgutil.iter_modules():
        if module.name.startswith("onnxruntime_"):
            try:
                plug_in = importlib.import_module(module.name)
                if hasattr(plug_in, "get_ep_names"):
                    name, library = plug_in.get_ep_names()[0], plug_in.get_library_path()
                    if name not in known:
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

    if provider not in providers():
        raise UnsupportedError(missing(provider))
    own = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    return sorted(own, key=lambda device: device.device.type.name != "NPU")


def session_options(
    provider: str, threads: int | None = None, options: Mapping[str, str] | None = None
) -> Any:
    """Options of sessions on one provider, which has `options` of its own, and on nothing else."""
    import onnxruntime

    plugged_in = devices(provider)
    result = onnxruntime.SessionOptions()
    result.intra_op_num_threads = threads or 0
    result.log_severity_level = 4  # failures are raised
    if provider != _CPU:
        result.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with refusals(f"{provider} does not take its options"):
        if plugged_in:
            result.add_provider_for_devices(plugged_in[:1], dict(options or {}))
        else:
            result.add_provider(provider, dict(options or {}))
    return result


def session_runner(provider: str, model: bytes, options: Any) -> Runner:
    """What runs a model on a provider; an error where that would take only a part of it."""
    import onnxruntime

    with refusals(f"{provider} does not take it"):
        session = onnxruntime.InferenceSession(model, options, enable_fallback=0)
    if session.get_providers()[0] != provider:
        raise UnsupportedError(f"ONNX Runtime made a session on {session.get_providers()}")
    names = [value.name for value in session.get_inputs()]
    return lambda inputs, _outputs: session.run(None, dict(zip(names, inputs, strict=True)))


def compiled(provider: str, model: bytes, options: Any) -> bytes:
    """A model in the provider's own compiled form, which `session_runner` runs as it would the
    model: https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html."""
    import onnxruntime

    with refusals(f"{provider} does not take it"):
        compiler = onnxruntime.ModelCompiler(options, model, embed_compiled_data_into_model=True)
        return bytes(compiler.compile_to_bytes())


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise what ONNX Runtime raises within as an `UnsupportedError`, which is a reason to refuse a
    match; the classes of its errors have no base of their own."""
    try:
        yield
    except Exception as error:
        raise UnsupportedError(f"{what}: {error}") from error
