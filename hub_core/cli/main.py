"""The `collhub` program: commands imported only when they run, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import click

from hub_core.cli.output import one_line, print_diagnostic, print_error
from hub_core.cli.session import Session
from hub_core.model.diagnostics import ExitCode, HubError, UsageError
from hub_core.version import __version__

INTERRUPTED = 130
CLOSED_PIPE = 141


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a command lives and its line in the help, so that the help imports no command."""

    reference: str
    summary: str


COMMANDS = {
    "demo": _Entry(
        "hub_core.cli.demo:demo", "Verify, convert and simulate three shipped algorithms."
    ),
    "formats": _Entry(
        "hub_core.cli.formats:formats", "List the formats, synthesizers, simulators and executors."
    ),
    "inspect": _Entry(
        "hub_core.cli.inspect:inspect",
        "Say what a file is: collective, steps, links, critical path.",
    ),
    "verify": _Entry("hub_core.cli.verify:verify", "Check matching, deadlock, races and contents."),
    "convert": _Entry(
        "hub_core.cli.convert:convert", "Read one format, write another, list what is lost."
    ),
    "compose": _Entry(
        "hub_core.cli.compose:compose", "Join algorithms: in sequence, replicated, on other ranks."
    ),
    "synthesize": _Entry(
        "hub_core.cli.synthesize:synthesize", "Make an algorithm for a collective on a topology."
    ),
    "simulate": _Entry(
        "hub_core.cli.simulate:simulate", "Time an algorithm on a topology for a size."
    ),
    "run": _Entry("hub_core.cli.run:run", "Run an algorithm on real data and check the result."),
    "topology": _Entry(
        "hub_core.cli.topology:topology", "Show, check, draw and convert a network."
    ),
    "plugins": _Entry(
        "hub_core.cli.plugins:plugins", "List, show, check, make and install plugins."
    ),
    "doctor": _Entry("hub_core.cli.doctor:doctor", "Report on the installation and its plugins."),
}


class _LazyGroup(click.Group):
    """A group whose commands are named in a table; one is imported when it runs or shows its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.reference.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, 1, 0.5)
            cure = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(COMMANDS)}"
            raise UsageError(f"there is no command {args[0]!r}", cure=cure, code="unknown-command")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="collhub", message="%(prog)s %(version)s")
@click.option("--no-plugins", is_flag=True, help="Load no plugin; the core's own formats stay.")
@click.option(
    "--disable-plugin",
    "disabled",
    metavar="NAME",
    multiple=True,
    help="Do not load this plugin (repeatable).",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def collhub(session: Session, no_plugins: bool, disabled: tuple[str, ...], debug: bool) -> None:
    """Read, verify, simulate and write collective-communication algorithms.

    Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 input invalid or
    verification failed, 2 usage, 3 plugin missing or broken, 4 refused because lossy under --strict, 70 a bug.
    """
    session.use_plugins = not no_plugins
    session.disabled_plugins = disabled
    session.is_debug = session.is_debug or debug


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on `arguments` (default: the command line) and return its exit code."""
    # No command multiplies matrices, and the idle threads of numpy's OpenBLAS cost more CPU than a small conversion.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    given = list(sys.argv[1:] if arguments is None else arguments)
    session = Session(
        is_debug=os.environ.get("COLLHUB_TRACEBACK", "") not in ("", "0"),
        has_separator="--" in given,
    )
    try:
        return _run(given, session)
    except BrokenPipeError:
        _discard_stdout()
        return CLOSED_PIPE


def _run(given: list[str], session: Session) -> int:
    """Run one command and turn whatever it raises, a closed pipe excepted, into lines and an exit code."""
    try:
        with collhub.make_context("collhub", given or ["--help"], obj=session) as context:
            code = collhub.invoke(context)
        sys.stdout.flush()
        return int(code or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if session.is_debug:
            traceback.print_exception(error)
        return _report(error)


def _report(error: Exception) -> int:
    """Print the lines of an error and return its exit code."""
    if isinstance(error, HubError):
        for diagnostic in error.diagnostics:
            print_diagnostic(diagnostic)
        return int(error.exit_code)
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    if isinstance(error, OSError):
        _discard_stdout_where_it_fails()
        place = f"{error.filename}: " if error.filename else ""
        print_error(f"{place}{error.strerror or error}")
        return int(ExitCode.INVALID)
    if isinstance(error, MemoryError):
        print_error("not enough memory for this input")
        return int(ExitCode.INVALID)
    print_error(
        f"internal error: {type(error).__name__}: {error}; this is a bug of collhub {__version__}, please report it"
        " with the output of the same command under --debug"
    )
    return int(ExitCode.BUG)


def _report_usage(error: click.ClickException) -> int:
    context = error.ctx if isinstance(error, click.UsageError) else None
    # A group called without a command "fails" with its help as the message (click 8.2 and later).
    if context is not None and isinstance(
        error, getattr(click.exceptions, "NoArgsIsHelpError", ())
    ):
        print(context.get_help())
        return int(ExitCode.DONE)
    hint = f"; see '{context.command_path} --help'" if context is not None else ""
    print_error(one_line(error.format_message()).rstrip(".") + hint)
    return int(ExitCode.USAGE)


def _discard_stdout_where_it_fails() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    """Keep the interpreter from complaining about a closed pipe or a full disk when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
