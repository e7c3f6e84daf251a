"""The options on models that commands share: how strictly they are read, how accurate code is."""

from __future__ import annotations

import argparse

ACCURACIES = ("default", "strict")


def add_strict_import_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--strict-import",
        action="store_true",
        help="refuse models that break ONNX's rules, also where ONNX Runtime only warns",
    )


def add_accuracy_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--accuracy",
        choices=ACCURACIES,
        help="strict rules out algorithms that trade accuracy for speed",
    )
