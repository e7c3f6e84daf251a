"""The command line: arguments in, an exit code out.

It finds the command, whose module declares the options, and turns errors into messages without
tracebacks. Commands are imported on demand: `graft --version` needs none of them, and an interrupt
during a slow import ends as quietly as one later.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Protocol, TextIO, cast

from graft import __version__
from graft.base.errors import GraftError, GraftWarning, InternalError
from graft.base.names import LONGEST_LINE, printable
from graft.cli.options import UsageError
from graft.cli.terminal import mark, print_note

# One line each; the command is the module of that name in this package, with `_` for `-`, or the
# module `command` of a folder of that name.
COMMANDS = {
    "inspect": "summarise a model or compiled file, and whether Graft can import it",
    "compile": "compile a model into a file, or print a stage of the compiler",
    "quantize": "quantise a model to 8 bits where that pays off, within an error budget",
    "run": "run a model, or a compiled file, on given or generated inputs",
    "check": "compare a model's results with ONNX Runtime's",
    "explain": "explain which backend runs each part of a model, and why",
    "backends": "list the available backends, or describe this machine",
    "new-backend": "generate a package with a backend of your own",
    "bench": "time a model in Graft and in other runtimes, side by side",
    "cache": "show or clear the cache of compiled kernels",
    "demo": "walk through the whole compiler on ResNet-18",
}

_FOLDERS = ("bench", "check")

OK, FAILED, USAGE, INTERNAL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141

_DESCRIPTION = "Graft compiles and runs ONNX models, on the host CPU and on pluggable backends."
_EPILOG = """\
examples:
  graft demo                                    a walk through the compiler
  graft inspect model.onnx                      what is in it, and will it import?
  graft run model.onnx --dim batch=4            run it on generated inputs
  graft check model.onnx                        compare with ONNX Runtime
  graft bench model.onnx                        time it beside other runtimes
  graft backends                                available backends
  graft explain model.onnx --target simnpu,host   placement, with reasons
  graft new-backend mynpu                       write a backend of your own
  graft compile model.onnx -o model.graft       compile it into a file
  graft quantize model.onnx --data images/      8 bits where that pays off
  graft run model.graft --profile               run the file and time each kernel
  graft compile model.onnx --emit optimized     the graph after the passes

`graft COMMAND --help` explains a command and has more examples.
exit codes: 0 success, 1 failure or a negative answer, 2 wrong usage, 3 a bug in Graft,
130 interrupted (Ctrl-C), 141 the reader of a pipe has gone
"""


class Command(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""

    def execute(self, options: argparse.Namespace) -> int:
        """Run the command; gives the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (by default the process's) and give its exit code."""
    _write_any_text()
    debug = bool(os.environ.get("GRAFT_DEBUG"))
    try:
        name, rest, wants_debug = _parsed(arguments)
        debug |= wants_debug or "--debug" in rest
        code = _execute(name, rest)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse has printed its help or its complaint
        return stop.code if isinstance(stop.code, int) else OK
    except KeyboardInterrupt:
        print("graft: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except (GraftError, OSError, MemoryError) as error:
        if isinstance(error, OSError) and not _takes_text(sys.stdout):
            _silence_stdout()
        if debug:
            traceback.print_exc()
        print(_message(error), file=sys.stderr)
        return _code(error)


def _parsed(arguments: Sequence[str] | None) -> tuple[str, list[str], bool]:
    """The command's name, its arguments, and whether to show tracebacks."""
    parser = argparse.ArgumentParser(
        "graft",
        usage="graft [--version] [--debug] COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    listing = "\n".join(f"  {name:<11} {summary}" for name, summary in COMMANDS.items())
    parser.description = f"{_DESCRIPTION}\n\ncommands:\n{listing}"
    parser.add_argument("--version", action="version", version=f"graft {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(USAGE)
    options = parser.parse_args(words)
    return options.command, options.rest, options.debug


def _parser(name: str, command: Command) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        f"graft {name}",
        description=command.DESCRIPTION,
        epilog=f"examples:\n{command.EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser


def _execute(name: str, arguments: list[str]) -> int:
    try:
        command = cast(Command, importlib.import_module(f"graft.cli.{_module(name)}"))
        with warnings.catch_warnings():
            warnings.simplefilter("always", GraftWarning)
            warnings.showwarning = _show_warning
            return command.execute(_parser(name, command).parse_args(arguments))
    except (GraftError, OSError, MemoryError):
        raise
    except Exception as error:
        # Nothing else is raised on purpose.
        raise InternalError(f"{type(error).__name__}: {error}") from error


def _module(name: str) -> str:
    return f"{name}.command" if name in _FOLDERS else name.replace("-", "_")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print Graft's warnings like other messages, without a line of code."""
    if issubclass(category, GraftWarning):
        print_note("warning", message)
        return
    text = warnings.formatwarning(message, category, filename, lineno, line)
    print(text, end="", file=file or sys.stderr)


def _code(error: Exception) -> int:
    if isinstance(error, InternalError):
        return INTERNAL
    return USAGE if isinstance(error, UsageError) else FAILED


def _message(error: GraftError | OSError | MemoryError) -> str:
    if isinstance(error, InternalError):
        advice = "this is a bug in Graft: please report it, with the output of the same command"
        return f"{mark('internal error')} {error!s}\n  {advice} and --debug"
    if isinstance(error, GraftError):
        return f"{mark('error')} {error!s}"
    if isinstance(error, MemoryError):
        return "graft: error: out of memory\n  hint: try smaller inputs, or a larger machine"
    where = f": '{error.filename}'" if error.filename else ""
    return f"{mark('error')} {printable(f'{error.strerror or error}{where}', LONGEST_LINE)}"


def _write_any_text() -> None:
    """Escape characters that the terminal's encoding lacks.

    Streams that were closed before the process began are None; they are replaced by the null
    device."""
    if sys.stdout is None or sys.stderr is None:
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _takes_text(stream: TextIO) -> bool:
    """Whether buffered text can still be written: a disk may be full."""
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _silence_stdout() -> None:
    """Discard what is still buffered, as the reader has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
