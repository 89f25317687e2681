"""Options of passes in `collhub transform`, the moves of `--list`, and the workers of a search."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from hub_core.cli.assignments import Assignments
from hub_core.plugin_api import AlgorithmPass, Engine, EngineRequest, PassMove, Subject, resolve

if TYPE_CHECKING:
    from hub_core.cli.command_context import Session
    from hub_core.model import Algorithm, Workload
    from hub_core.plugin_api import Option

_PASS, _OPTION = "--pass", "-O"

_STEPS = "steps"

DEFAULT_ENGINE = "processes"


@dataclass(frozen=True, slots=True)
class PassStep:
    """One `--pass` of the command line with the `-O` options that follow it.

    Options that the pass does not declare belong to the components that declare them.
    """

    name: str
    pairs: dict[str, str] = field(default_factory=dict)

    @property
    def side(self) -> str:
        """Name of the pass in `-O`: with `_` instead of `-`, as in all keys."""
        return self.name.replace("-", "_")

    def own(self, declared: Sequence[Option]) -> dict[str, str]:
        """Select the options given after this pass that the pass declares; keys are as given.

        `declared`: options of the pass. An option is selected if its key, with `_` for `-`, is the
        name of a declared one, or `side.` and the name, where `side` is the name of this pass. The
        remaining options are omitted: they are for the reader, the writer or other passes.
        """
        names = {option.name for option in declared}
        options = {}
        for key, value in self.pairs.items():
            side, _, name = key.replace("-", "_").rpartition(".")
            if name in names and side in ("", self.side):
                options[key] = value
        return options


class PassCommand(click.Command):
    """A command that records in `context.meta` which `-O` options follow which `--pass`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Extract the `-O` options after each `--pass`, and parse the other arguments.

        The passes with their options are stored in `ctx.meta`, where `pass_steps` reads them.
        The `--pass` arguments themselves remain. Returns the unused arguments, as click's
        method does.
        """
        rest, steps = _separate_pass_options(args)
        ctx.meta[_STEPS] = steps
        return super().parse_args(ctx, rest)


def pass_steps(context: click.Context) -> list[PassStep]:
    """Return the passes of the command line in their order, each with the options after it.

    The list is empty without `--pass`. Raise `KeyError` if the command is not a
    `PassCommand`.
    """
    steps: list[PassStep] = context.meta[_STEPS]
    return steps


def shared_pairs(
    options: Assignments, steps: Sequence[PassStep], options_by_pass: Sequence[Assignments]
) -> Assignments:
    """Return the options that are not reserved for a single pass, by key as given.

    These are `options`, which were given before the first pass, and of each step in `steps` the
    options that its pass does not declare: they may be for the reader, the writer or another pass.
    `options_by_pass`: the options that each pass takes itself, parallel to `steps`. Raises
    `click.UsageError` if two options of the result have equal keys.
    """
    shared = dict(options)
    # Options after a pass that does not declare them are for readers, writers and other passes.
    for step, taken in zip(steps, options_by_pass, strict=True):
        for key, value in step.pairs.items():
            if key in taken:
                continue
            if key in shared:
                raise click.UsageError(f"{key!r} is given twice")
            shared[key] = value
    return shared


def show_moves(session: Session, model: Algorithm | Workload, source: str, as_json: bool) -> None:
    """Print the moves, i.e. possible applications, of all installed passes that can list them.

    Only passes for the kind of `model` (algorithm or workload) with a function `moves` are asked.
    Rows are in the order of the passes in the registry, then in the order of the pass's list. The
    columns are the name of the pass, one per effect, and the `-O` options. Effects are in the order
    of their first occurrence, as signed numbers; +0 if the move lacks the effect. Without moves
    only the heading is printed. `as_json` prints a report with `source` as input name instead.
    Progress is shown.

    A `HubError` of a pass is passed on. Another exception of a plugin becomes a `PluginError`,
    except `KeyboardInterrupt` and `MemoryError`; exceptions of core passes are not converted.
    Raises `PluginError` for a result that is no list or tuple.
    """
    from hub_core.pipeline.calls import blame, misfit

    subject = Subject(type(model).__name__.lower())
    moves_by_pass: list[tuple[str, PassMove]] = []
    for provided in session.registry().all(AlgorithmPass):
        offer = provided.offer
        if offer.subject is not subject or not offer.moves:
            continue
        with blame(provided), session.progress(f"listing what {offer.name} can do"):
            listed = resolve(offer.moves)(model, offer.name)
        if not isinstance(listed, list | tuple):
            raise misfit(provided, f"lists its moves as {type(listed).__name__}, not as a list")
        moves_by_pass += [(offer.name, move) for move in listed]
    if as_json:
        from hub_core.cli.reports.algorithm_records import MoveItem, MovesReport

        moves = [
            MoveItem(pass_name=name, options=move.options, effect=move.effect)
            for name, move in moves_by_pass
        ]
        session.print_report(MovesReport(source=source, moves=moves))
        return
    # Columns in the order in which the passes name them.
    effects = list(dict.fromkeys(key for _, move in moves_by_pass for key in move.effect))
    rows = [
        (
            name,
            *(f"{move.effect.get(key, 0):+d}" for key in effects),
            " ".join(f"-O {key}={value}" for key, value in move.options.items()),
        )
        for name, move in moves_by_pass
    ]
    session.print_table(("pass", *effects, "options"), rows, right=effects)


@dataclass(frozen=True, slots=True)
class SearchWorkers:
    """Engine and number of workers from the command line.

    None: the default engine, and one worker per core.
    """

    engine: str | None
    jobs: int | None

    @property
    def name(self) -> str:
        """Name of the engine."""
        return self.engine or DEFAULT_ENGINE

    def sides(self, session: Session) -> Mapping[str, tuple[Option, ...]]:
        """Return the declared options of the engine that starts the workers, by component.

        The component is the name of the engine with `_` for `-`, as in `-O`. Empty if the command
        line names no engine and the default engine is not installed. Raises `HubError` if a named
        engine is not installed.
        """
        if not self._is_installed(session):
            return {}
        declared = session.options_of(Engine, self.name)
        return {self.name.replace("-", "_"): declared}

    @contextmanager
    def started(
        self, session: Session, options: Mapping[str, Assignments]
    ) -> Iterator[Executor | None]:
        """Context manager: start the workers of a search, yield their executor, and stop them.

        Yields None, which means no workers, in two cases without a named engine: `jobs` is 1, or
        the default engine is not installed. The number of workers is `jobs`; None and 0 mean the
        number of processors.

        `options`: options by component, as `sides` names them. If workers are started, the name of
        the engine with `_` for `-` must be a key (else `KeyError`). After the body, the executor is
        shut down when its tasks are done. If the body raises, also `KeyboardInterrupt`, the tasks
        that have not started are cancelled, and the error is raised again. Raises `HubError` if a
        named engine is not installed.
        """
        jobs = self.jobs or os.cpu_count() or 1
        is_alone = self.engine is None and jobs == 1
        if is_alone or not self._is_installed(session):
            yield None
            return
        # Imported here: the help of the command needs no numpy.
        from hub_core.pipeline.calls import start_engine

        engine_options = options[self.name.replace("-", "_")]
        registry = session.registry()
        workers = start_engine(
            self.name, EngineRequest(jobs), options=engine_options, registry=registry
        )
        try:
            yield workers
        except BaseException:
            # Also on Ctrl-C: running tasks are not waited for.
            workers.shutdown(cancel_futures=True)
            raise
        workers.shutdown()

    def _is_installed(self, session: Session) -> bool:
        """Return whether the engine that starts the workers is installed.

        True without a check if the command line names an engine: its use raises the error.
        Otherwise, whether the default engine, `processes`, is installed.
        """
        # If a named engine is not installed, its use raises the error.
        if self.engine is not None:
            return True
        names = [provided.name for provided in session.registry().all(Engine)]
        return DEFAULT_ENGINE in names


def is_search(session: Session, name: str) -> bool:
    """Return whether the pass `name` searches for the best sequence of passes, with workers.

    The result is False for an unknown pass, whose error is raised elsewhere.
    """
    # The error for an unknown pass is raised elsewhere, with the closest name.
    passes = session.registry().all(AlgorithmPass)
    return any(offered.offer.searches for offered in passes if offered.name == name)


def _separate_pass_options(args: Sequence[str]) -> tuple[list[str], list[PassStep]]:
    """Separate the options after passes from the other arguments: (other arguments, passes).

    Each `--pass NAME` or `--pass=NAME` begins a pass, and also remains in the arguments.
    Passes are in the order of the command line. An option `-O KEY=VALUE` or `-OKEY=VALUE`
    belongs to the last pass before it. It is stored there and removed from the arguments.
    For example, `-O a=1 --pass p -O b=2` gives the arguments `-O a=1 --pass p` and the pass
    p with b = 2.

    These remain in the arguments, in their order:

    - options before the first pass
    - options without `=`, with an empty key, or with a key that the pass already has
    - everything from `--` on. A `--` directly after `-O` or `--pass` is the value of this
      option and does not count.

    Names, keys and values are not checked.
    """
    remaining: list[str] = []
    steps: list[PassStep] = []
    i = 0
    # Arguments after `--` are for the program that IN may be.
    while i < len(args) and args[i] != "--":
        word, value, width = _read_flag(args, i)
        key, equals, text = value.partition("=")
        is_pair = word == _OPTION and bool(steps) and bool(equals) and bool(key)
        if is_pair and key not in steps[-1].pairs:
            steps[-1].pairs[key] = text
        else:
            remaining += args[i : i + width]
        if word == _PASS:
            steps.append(PassStep(value))
        i += width
    return [*remaining, *args[i:]], steps


def _read_flag(args: Sequence[str], i: int) -> tuple[str, str, int]:
    """Read a `--pass` or `-O` at position `i`: return (flag, value, number of arguments it takes).

    The flag is `--pass` or `-O`. Recognised are `--pass NAME`, `--pass=NAME`, `-O PAIR` and
    `-OPAIR`. Any other argument gives ("", "", 1), and so does `--pass` as the last argument; a
    last `-O` gives ("-O", "", 1).
    """
    word = args[i]
    if word in (_PASS, _OPTION) and i + 1 < len(args):
        return word, args[i + 1], 2
    if word.startswith(f"{_PASS}="):
        return _PASS, word.removeprefix(f"{_PASS}="), 1
    if word.startswith(_OPTION):
        return _OPTION, word.removeprefix(_OPTION), 1
    return "", "", 1
