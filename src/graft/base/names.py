"""Text that a model supplies, made harmless for where it goes.

ONNX lets any string be the name of a value, node, operator, domain or dim: one that ends a comment,
moves the terminal's cursor, breaks a line or holds 100 kB. Such text enters here; what leaves can
be an identifier, a file name, a comment, a string literal, or something to show to people. Nothing
else turns names into any of these. (HTML is a matter of the page, which writes text only.)
"""

from __future__ import annotations

import json
import re

LONGEST_NAME = 64  # of identifiers and file names: far below every limit of compilers and systems
LONGEST_COMMENT = 200
LONGEST_LINE = 2000  # of what people are shown of a message or a line

# What could end a comment, continue it on the next line, or is no printable ASCII: "??/" is a
# backslash to a C compiler that knows trigraphs.
_UNSAFE_IN_COMMENTS = re.compile(r"[^ -~]|\\|\*/|/\*|\?\?")


def identifier(text: str) -> str:
    """ASCII letters, digits and underscores, not beginning with a digit, at most `LONGEST_NAME`.

    Different texts may become the same identifier: who needs distinct ones numbers them."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", text[:LONGEST_NAME])
    return plain if plain and not plain[0].isdigit() else f"_{plain}"[:LONGEST_NAME]


def file_stem(text: str, otherwise: str) -> str:
    """A file name without suffix that lies in the folder it is put into, is not hidden, and is no
    option to a command; `otherwise` where nothing of the text is left."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", text[:LONGEST_NAME])
    return plain.lstrip("._-").rstrip("._") or otherwise


def comment(text: str) -> str:
    """Text inside a comment of any language that code is written in, on one line."""
    return _UNSAFE_IN_COMMENTS.sub(_escape_code, shortened(text, LONGEST_COMMENT))


def _escape_code(unsafe: re.Match[str]) -> str:
    return "".join(f"<{ord(character):x}>" for character in unsafe[0])


def printable(text: str, most: int | None = None) -> str:
    """Text to be shown as a part of one line: control, bidi and other unprintable characters are
    escaped as in JSON, and where it has more than `most` characters, some in its middle left out.
    """
    if most is not None:
        text = shortened(text, most)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def shortened(text: str, most: int) -> str:
    """Beginning and end of a text of more than `most` characters."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 1]}…{text[len(text) - end :]}"


def quoted(text: str, ascii_only: bool = True) -> str:
    """A string literal of JSON in which every character is printable."""
    return printable(json.dumps(text, ensure_ascii=ascii_only))


def _escaped(character: str) -> str:
    code = json.dumps(character)[1:-1]
    return code if code != character else f"\\u{ord(character):04x}"  # JSON leaves DEL as it is
