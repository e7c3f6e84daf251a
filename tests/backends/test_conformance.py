"""The backends that come with Graft do what they say, as far as the author's kit can tell."""

from __future__ import annotations

import pytest

from graft.backends.ethosu import runtime as ethosu
from graft.backends.host.backend import HostBackend
from graft.backends.host.patterns import host_patterns
from graft.byoc.contract import Backend
from graft.byoc.discover import backend_named, find_backends
from graft.byoc.kit import conformance
from graft.runtime.loaders import family_of

BACKENDS = ["csource", "onednn", "openvino", "ort:CPUExecutionProvider", "simnpu"]
BACKENDS += ["ethosu:u55-128", "ethosu:u65-512", "ethosu:u85-256"]
# For full runs: the operators of U65 are those of U55, and models like those that the provider is
# given are tried by tests/byoc/formats/test_onnx.py.
ALIKE = ("ethosu:u65-512", "ort:CPUExecutionProvider")
# Of the host's many patterns, some of each kind of kernel.
FEW = {"nn.conv2d and more", "nn.dense and more", "add", "argmax", "concatenate", "nn.softmax"}


def backend(name: str) -> Backend:
    found = find_backends()
    if family_of(name) not in found.backends:
        pytest.skip(f"{name} is newer than the installed package: pip install -e . again")
    if family_of(name) == "ethosu" and ethosu.missing():
        pytest.skip(ethosu.missing())
    return backend_named(name, found)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name not in ALIKE])
def test_a_few_examples(name: str) -> None:
    conformance(backend(name), 1, seed=11).assert_ok()


def test_a_few_patterns_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [entry for entry in host_patterns() if entry[0] in FEW]
    assert len(few) == len(FEW)
    monkeypatch.setattr(HostBackend, "patterns", lambda _: few)
    conformance(backend("host"), 2, seed=11).assert_ok()


@pytest.mark.full
@pytest.mark.parametrize("name", [*BACKENDS, "host"])
def test_as_many_examples_as_by_default(name: str) -> None:
    conformance(backend(name)).assert_ok()
