"""The author's kit: a backend in, the answer out to whether it does what it says.

from graft.byoc.kit import conformance

conformance(MyBackend(), examples=20, seed=0).assert_ok()
"""

from __future__ import annotations

from graft.byoc.kit.conformance import conformance
from graft.byoc.kit.report import Failure, PatternReport, Report

__all__ = ["Failure", "PatternReport", "Report", "conformance"]
