"""The option on how strictly models are read that commands share."""

from __future__ import annotations

import argparse


def add_strict_import_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--strict-import",
        action="store_true",
        help="refuse models that break ONNX's rules, also where ONNX Runtime only warns",
    )
