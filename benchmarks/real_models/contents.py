"""What models look at and listen to: sizes in, made pictures, sounds and files out.

Networks answer noise with nothing at all, and two that answer nothing always agree. So pages show
letters, pictures show bodies before a ground, sounds have pitches, and files have a beginning and
an end.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_WORD = "GRAFT"
# Letters of seven rows by five columns; a one is ink.
_LETTERS = {
    "G": (0b01110, 0b10001, 0b10000, 0b10111, 0b10001, 0b10001, 0b01110),
    "R": (0b11110, 0b10001, 0b10001, 0b11110, 0b10100, 0b10010, 0b10001),
    "A": (0b01110, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001),
    "F": (0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b10000),
    "T": (0b11111, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100),
}
_ROWS, _COLUMNS = 7, 5
_PAPER, _INK = 235.0, 25.0  # of 255
_GRAIN = 4.0  # how much the grey of paper and ink varies
_LINE_HEIGHT = 48
_LINE_SCALE = 5  # pixels to a dot of a letter
_PAGE_SCALE = 3

_PITCHES = (220.0, 277.18, 329.63)  # in hertz
_LOUDNESS = 0.2  # of each pitch
_HISS = 0.02

_PADDING = 256  # a token that is no byte
_END = 1024  # bytes from either end of a file


def word(scale: int) -> Array:
    """Where there is ink in a word: rows and columns of booleans."""
    dots = np.zeros((_ROWS, len(_WORD) * (_COLUMNS + 1) - 1), np.bool_)
    for position, letter in enumerate(_WORD):
        for row, bits in enumerate(_LETTERS[letter]):
            for column in range(_COLUMNS):
                is_ink = bits >> (_COLUMNS - 1 - column) & 1
                dots[row, position * (_COLUMNS + 1) + column] = bool(is_ink)
    return np.kron(dots, np.ones((scale, scale), np.bool_))


def page(height: int, width: int) -> Array:
    """Words in rows on light paper, as one image of three channels in -1..1."""
    ink = np.zeros((height, width), np.bool_)
    letters = word(_PAGE_SCALE)
    margin = letters.shape[0]
    for number, top in enumerate(range(margin, height - 2 * margin, 3 * margin)):
        indent = margin * (1 + number % 2)
        for left in range(indent, width - margin - letters.shape[1], letters.shape[1] + margin):
            ink[top : top + letters.shape[0], left : left + letters.shape[1]] = letters
    return _printed(ink, height + width)[np.newaxis]


def lines(batch: int, width: int) -> Array:
    """Images of one line each in -1..1; the odd ones stand on their heads.

    A word that is too long for the line is cut off.
    """
    ink = np.zeros((_LINE_HEIGHT, width), np.bool_)
    letters = word(_LINE_SCALE)[:, : width - 2 * _LINE_SCALE]
    top = (_LINE_HEIGHT - letters.shape[0]) // 2
    ink[top : top + letters.shape[0], _LINE_SCALE : _LINE_SCALE + letters.shape[1]] = letters
    return np.stack([_printed(ink[::-1, ::-1] if n % 2 else ink, width + n) for n in range(batch)])


def _printed(ink: Array, seed: int) -> Array:
    grain = np.random.default_rng(seed).normal(0.0, _GRAIN, ink.shape)
    grey = np.clip(np.where(ink, _INK, _PAPER) + grain, 0.0, 255.0)
    return np.repeat(((grey / 255.0 - 0.5) / 0.5)[np.newaxis], 3, axis=0).astype(np.float32)


def picture(height: int, width: int) -> Array:
    """A head and a trunk before a sky that darkens downwards, in 0..1."""
    y = np.linspace(0.0, 1.0, height)[:, np.newaxis]
    x = np.linspace(0.0, 1.0, width)[np.newaxis, :]
    sky = np.stack([0.5 - 0.3 * y + 0.0 * x, 0.7 - 0.4 * y + 0.0 * x, 0.9 - 0.3 * y + 0.0 * x])
    head = ((x - 0.5) / 0.12) ** 2 + ((y - 0.25) / 0.15) ** 2 < 1.0
    trunk = ((x - 0.5) / 0.22) ** 2 + ((y - 0.75) / 0.35) ** 2 < 1.0
    skin = np.array([0.85, 0.65, 0.5])[:, np.newaxis, np.newaxis] * (1.0 - 0.3 * np.abs(x - 0.5))
    cloth = np.array([0.2, 0.3, 0.6])[:, np.newaxis, np.newaxis] * (1.0 - 0.2 * y)
    shown = np.where(head, skin, np.where(trunk, cloth, sky))
    grain = np.random.default_rng(height + width).normal(0.0, 0.02, shown.shape)
    return np.clip(shown + grain, 0.0, 1.0).astype(np.float32)[np.newaxis]


def sound(samples: int, rate: int, seed: int = 0) -> Array:
    """Three pitches that swell and fade, and a little noise, in -1..1."""
    seconds = np.arange(samples) / rate
    pitches = sum(np.sin(2 * np.pi * pitch * (1 + seed / 8) * seconds) for pitch in _PITCHES)
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 4.0 * seconds)
    hiss = np.random.default_rng(seed).normal(0.0, _HISS, samples)
    return (_LOUDNESS * swell * pitches + hiss).astype(np.float32)


def frames(count: int, size: int, overlap: int, rate: int, seed: int = 0) -> Array:
    """A sound in frames, each after the end of the one before; silence is before the first."""
    heard = np.concatenate([np.zeros(overlap, np.float32), sound(count * size, rate, seed)])
    return np.stack([heard[n * size : (n + 1) * size + overlap] for n in range(count)])


def files(count: int) -> Array:
    """The first and the last bytes of files, filled up in the middle where a file is short."""
    return np.stack([_ends(_file(number)) for number in range(count)])


def _file(number: int) -> bytes:
    """Texts that mean something, binary data, and files too short to fill a model's window."""
    random = np.random.default_rng(number)
    numbers = random.integers(0, 1000, (300, 2)).tolist()
    kinds = (
        json.dumps([{"name": f"item {key}", "value": value} for key, value in numbers]).encode(),
        b"key,value\n" + b"\n".join(b"%d,%d" % tuple(pair) for pair in numbers[:9]),
        b"\x7fELF\x02\x01\x01" + random.integers(0, 256, 5000).astype(np.uint8).tobytes(),
    )
    return kinds[number % len(kinds)]


def _ends(contents: bytes) -> Array:
    tokens = np.full(2 * _END, _PADDING, np.int32)
    first, last = contents.lstrip()[:_END], contents.rstrip()[-_END:]
    tokens[: len(first)] = np.frombuffer(first, np.uint8)
    tokens[2 * _END - len(last) :] = np.frombuffer(last, np.uint8)
    return tokens
