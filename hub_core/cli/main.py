"""The `collhub` program: import commands when they run, and convert errors to messages.

This is the only place where errors become lines on standard error and exit codes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hub_core.cli.colours import COLOUR_POLICIES, COLOUR_VARIABLES, use_colours
from hub_core.cli.command_context import Session
from hub_core.cli.completion import answer_shell, plugin_names
from hub_core.cli.output import (
    print_diagnostic,
    print_error,
    print_line,
    print_note,
    print_traceback,
)
from hub_core.model import ExitCode, HubError, UsageError
from hub_core.model.diagnostics import closest
from hub_core.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hub_core.plugin_api import Command

INTERRUPTED = 130
CLOSED_PIPE = 141
_OBJECTS_BETWEEN_COLLECTIONS = 200_000
_PATIENCE_WITH_THREADS_S = 2.0


class _OfferedCommands(click.Group):
    """A group whose commands are offers; a command is imported when it runs or shows its help.

    The core's commands are known without discovery of plugins. Only an unknown name and the list of
    all commands need it.
    """

    def invoke(self, ctx: click.Context) -> int | None:
        # Set before the command is looked up, because the lookup may discover plugins.
        session: Session = ctx.obj
        session.use_plugins = not ctx.params["no_plugins"]
        session.disabled_plugins = ctx.params["disabled"]
        session.is_debug = session.is_debug or ctx.params["debug"]
        use_colours(ctx.params["color"], os.environ)
        code: int | None = super().invoke(ctx)
        return code

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name for command in _list_commands(ctx.obj)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of a name, of the core or else of a plugin; never returns None.

        Errors, in this order:

        - `click.NoSuchOption` for a name that begins with `-`.
        - `PluginError` (`name-clash`) if several offers have the name.
        - `PluginError` (`not-available`) if a plugin that is not loaded may offer it.
        - `UsageError` (`unknown-command`) for any other unknown name; the remedy is the closest
          name of all commands or, if none is close, all names.
        - `PluginError`, which names the plugin, if the function cannot be imported or is no click
          command.
        """
        # Imported here: `collhub --version` needs no offers.
        from hub_core.registry.core_plugin import OWN_COMMANDS

        core_commands = {command.name: command.function for command in OWN_COMMANDS}
        if cmd_name in core_commands:
            return _import_command(core_commands[cmd_name])
        if cmd_name.startswith("-"):
            raise click.NoSuchOption(cmd_name)
        from hub_core.plugin_api import Command
        from hub_core.registry.bind_options import blamed_on

        try:
            provided = ctx.obj.registry().find(Command, cmd_name)
        except UsageError:
            known = [command.name for command in _list_commands(ctx.obj)]
            cure = closest(cmd_name, known) or f"use one of {', '.join(known)}"
            message = f"there is no command {cmd_name!r}"
            raise UsageError(message, cure=cure, code="unknown-command") from None
        with blamed_on(str(provided.plugin), provided.offer.function):
            return _import_command(provided.offer.function)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # Completed by their summaries, so that no command is imported; then the options of the
        # program.
        commands = [
            CompletionItem(command.name, help=command.description)
            for command in _list_commands(ctx.obj)
            if command.name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            rows = [(command.name, command.description) for command in _list_commands(ctx.obj)]
            formatter.write_dl(rows)


def _list_commands(session: Session) -> list[Command]:
    """Return the core's commands in their fixed order, then those of plugins by name.

    Plugins are discovered first. Commands of disabled plugins and of plugins that are not loaded
    are missing. Names that occur several times are listed several times; of equal names of plugins,
    the order is that of the plugins. Only the offers are returned; their functions are not
    imported.
    """
    from hub_core.plugin_api import Command
    from hub_core.registry.core_plugin import OWN_COMMANDS

    provided = session.registry().all(Command)
    return [
        *OWN_COMMANDS,
        *(
            provided_command.offer
            for provided_command in provided
            if not provided_command.plugin.is_core
        ),
    ]


def _import_command(reference: str) -> click.Command:
    from hub_core.plugin_api import resolve

    command = resolve(reference)
    if not isinstance(command, click.Command):
        raise TypeError(f"{reference} is {type(command).__name__}, expected a click command")
    return command


@click.group(cls=_OfferedCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="collhub", message="%(prog)s %(version)s")
@click.option("--no-plugins", is_flag=True, help="Load no plugin; the core's own formats stay.")
@click.option(
    "--disable-plugin",
    "disabled",
    metavar="NAME",
    multiple=True,
    shell_complete=plugin_names,
    help="Do not load this plugin (repeatable).",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--color",
    type=click.Choice(COLOUR_POLICIES),
    default=COLOUR_POLICIES[0],
    show_default=True,
    help="Colour ok, warnings and errors; auto: on a terminal, unless NO_COLOR is set.",
)
def collhub(no_plugins: bool, disabled: tuple[str, ...], debug: bool, color: str) -> None:
    """Read, verify, simulate and write collective-communication algorithms.

    Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 input
    invalid or verification failed, 2 usage, 3 plugin missing or broken, 4 refused because lossy
    under --strict, 70 a bug.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on `arguments`, print all errors, and return its exit code.

    Without any arguments, the help is printed. The exit code is that of `_run`, such as 0 for
    success and 130 for Ctrl-C. It is 141 if the reader of standard output has closed the pipe.

    None means the arguments of the command line. Only then, the process is set up for the program:
    streams, garbage collection, warnings and tracebacks of crashes. A request of a shell for
    completions is answered instead of running a command. If threads of plugins still run 2 s after
    the end of the main thread, the process is stopped.

    OPENBLAS_NUM_THREADS is set to 1 unless it is set. COLLHUB_TRACEBACK shows tracebacks unless it
    is empty or `0`. Changes to the environment variables of colours are undone at the end.
    """
    # No command multiplies matrices, and idle threads of numpy's OpenBLAS use more CPU time than a
    # small conversion.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    session = Session(
        is_debug=os.environ.get("COLLHUB_TRACEBACK", "") not in ("", "0"),
        separated_arguments=len(command_line) - command_line.index("--") - 1
        if "--" in command_line
        else 0,
    )
    # Reference counting frees the columns that a command creates. Searches for reference cycles
    # among all objects of the imported libraries would only cost time. If the function is called
    # from Python, the collector of the process is not changed.
    is_program = arguments is None
    if is_program:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        _prepare_streams()
        # If native code crashes, the Python traceback is printed. Fails if standard error is closed
        # or is not a file.
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
            faulthandler.enable()
        # numpy's warnings on overflow refer to lines of the program, which are of no use to users.
        warnings.filterwarnings("ignore", category=RuntimeWarning)
    saved_colours = {name: os.environ.get(name) for name in COLOUR_VARIABLES}
    try:
        answered = answer_shell(collhub, session) if is_program else None
        code = _run(command_line, session) if answered is None else answered
    except BrokenPipeError:
        _discard_stdout()
        code = CLOSED_PIPE
    finally:
        for name, value in saved_colours.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if is_program:
            # The process is about to end: this saves the interpreter's last search for cycles.
            gc.freeze()
    if is_program:
        # Threads of plugins must not keep the process alive after its main thread.
        threads = [thread for thread in threading.enumerate() if not thread.daemon]
        if len(threads) > 1:
            threading.Thread(target=_exit_after_delay, args=(code,), daemon=True).start()
    return code


def _exit_after_delay(code: int) -> None:
    """Wait for the main thread to end; after 2 s more, end the process if other threads still run.

    Only non-daemon threads count; without any, the function returns. Otherwise a note names them,
    standard output is flushed, and the process ends with `code` and without exit handlers.
    """
    # The caller of the program in Python may continue for long.
    threading.main_thread().join()
    time.sleep(_PATIENCE_WITH_THREADS_S)
    left = [thread for thread in threading.enumerate() if thread.is_alive()]
    names = sorted(thread.name for thread in left if not thread.daemon)
    if not names:
        return
    print_note(f"not waited for: {', '.join(names)}, which a plugin left running")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


def _prepare_streams() -> None:
    """Replace closed standard streams by /dev/null, and let stdout escape what it cannot encode.

    Stdin, stdout and stderr count as closed if the caller closed them (`>&-`). Without a
    replacement, the next opened file would get the descriptor of the stream, and output for
    the stream would be written to that file. A character that the encoding of stdout does
    not contain is printed as a backslash escape instead of raising an error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Stays open until the process ends, as the stream would.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(command_line: list[str], session: Session) -> int:
    """Run one command and return its exit code; convert exceptions to messages and a code.

    An empty command line means `--help`. A command that returns nothing or 0 gives 0. Ctrl-C and an
    aborted prompt give 130. Other exceptions are reported by `_report`, in debug mode after their
    traceback. Only `BrokenPipeError` (a closed pipe) is raised.
    """
    try:
        with collhub.make_context("collhub", command_line or ["--help"], obj=session) as context:
            code = collhub.invoke(context)
        sys.stdout.flush()
        return int(code or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort) as stop:
        # Discovery reports the plugin that was being imported.
        print_error(f"interrupted: {stop}" if str(stop) else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if session.is_debug:
            print_traceback(error)
        return _report(error)


def _report(error: Exception) -> int:
    """Print the messages of an error on stderr and return the exit code of the process.

    The exit code depends on the error:

    - `HubError`: its own code; each of its findings is one line
    - click's errors: USAGE, or DONE with the help on stdout if a group was called without a
      command
    - `OSError`: INVALID. Pending output is written to stdout before the message; it is
      discarded if that fails.
    - `MemoryError`: INVALID
    - any other exception: BUG; it is reported as an internal error
    """
    if isinstance(error, HubError):
        for diagnostic in error.diagnostics:
            print_diagnostic(diagnostic)
        return int(error.exit_code)
    if isinstance(error, click.ClickException):
        return _report_usage(error)
    if isinstance(error, OSError):
        try:
            sys.stdout.flush()
        except OSError:
            _discard_stdout()
        file = f"{error.filename}: " if error.filename else ""
        print_error(f"{file}{error.strerror or error}")
        return int(ExitCode.INVALID)
    if isinstance(error, MemoryError):
        print_error("not enough memory for this input")
        return int(ExitCode.INVALID)
    print_error(
        f"internal error: {type(error).__name__}: {error}; this is a bug of collhub {__version__},"
        " please report it with the output of the same command under --debug"
    )
    return int(ExitCode.BUG)


def _report_usage(error: click.ClickException) -> int:
    context = error.ctx if isinstance(error, click.UsageError) else None
    # click 8.2 and later raise an error with the help as message if a group is called without a
    # command.
    if context is not None and isinstance(
        error, getattr(click.exceptions, "NoArgsIsHelpError", ())
    ):
        for line in context.get_help().splitlines():
            print_line(line)
        return int(ExitCode.DONE)
    hint = f"; see '{context.command_path} --help'" if context is not None else ""
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        # Versions of click differ in their texts and in the options that they propose.
        message = f"there is no option {error.option_name!r} here"
        # With `--help`, which is no entry of `params`.
        parameters = context.command.get_params(context) if context is not None else ()
        options = [parameter for parameter in parameters if isinstance(parameter, click.Option)]
        # The secondary names are those that set a flag to False, as `--no-x`.
        known = [name for option in options for name in (*option.opts, *option.secondary_opts)]
        if cure := closest(error.option_name, known):
            message += f"; {cure}"
    print_error(message + hint)
    return int(ExitCode.USAGE)


def _discard_stdout() -> None:
    """Redirect stdout to the null device: no error at exit for a closed pipe or a full disk."""
    with contextlib.suppress(OSError, ValueError):
        # Buffered output is then written to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
