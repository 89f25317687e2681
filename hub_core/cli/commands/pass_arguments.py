"""Options of passes in `collhub transform`: `-O` after `--pass`, and the moves of `--list`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from hub_core.plugin_api import AlgorithmPass, PassMove, Subject, resolve

if TYPE_CHECKING:
    from hub_core.cli.assignments import Assignments
    from hub_core.cli.session import Session
    from hub_core.model import Algorithm, JsonValue, Workload
    from hub_core.plugin_api import Option


_PASS, _OPTION = "--pass", "-O"
_STEPS = "steps"


@dataclass(frozen=True, slots=True)
class PassStep:
    """One `--pass` of the command line, and the `-O` options that stand behind it.

    Not all of these are its own: what the pass does not declare belongs to whoever does.
    """

    name: str
    pairs: dict[str, str] = field(default_factory=dict)

    @property
    def side(self) -> str:
        """How `-O` names the options of the pass: `-` in names stands for `_`, as in all keys."""
        return self.name.replace("-", "_")

    def own(self, declared: Sequence[Option]) -> dict[str, str]:
        """The options behind the pass that it declares itself; keys as they were given."""
        names = {option.name for option in declared}
        found = {}
        for key, value in self.pairs.items():
            side, _, name = key.replace("-", "_").rpartition(".")
            if name in names and side in ("", self.side):
                found[key] = value
        return found


class PassCommand(click.Command):
    """A command that keeps which `-O` stands behind which `--pass`, as `context.meta`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the `-O` behind a `--pass` aside, and parse the rest as usual."""
        rest, steps = _taken_aside(args)
        ctx.meta[_STEPS] = steps
        return super().parse_args(ctx, rest)


def pass_steps(context: click.Context) -> list[PassStep]:
    """The passes of the command line, in their order."""
    steps: list[PassStep] = context.meta[_STEPS]
    return steps


def _taken_aside(args: Sequence[str]) -> tuple[list[str], list[PassStep]]:
    """Arguments without the options behind passes, and the passes with these.

    Malformed ones stay, so that the parser says what is wrong with them.
    """
    rest: list[str] = []
    steps: list[PassStep] = []
    place = 0
    # What stands behind `--` is for the program that IN may be.
    while place < len(args) and args[place] != "--":
        word, value, width = _split(args, place)
        key, equals, text = value.partition("=")
        is_pair = word == _OPTION and bool(steps) and bool(equals) and bool(key)
        if is_pair and key not in steps[-1].pairs:
            steps[-1].pairs[key] = text
        else:
            rest += args[place : place + width]
        if word == _PASS:
            steps.append(PassStep(value))
        place += width
    return [*rest, *args[place:]], steps


def _split(args: Sequence[str], place: int) -> tuple[str, str, int]:
    """Flag, value and number of words of `--pass NAME`, `--pass=NAME`, `-O PAIR` or `-OPAIR`."""
    word = args[place]
    if word in (_PASS, _OPTION) and place + 1 < len(args):
        return word, args[place + 1], 2
    if word.startswith(f"{_PASS}="):
        return _PASS, word.removeprefix(f"{_PASS}="), 1
    if word.startswith(_OPTION):
        return _OPTION, word.removeprefix(_OPTION), 1
    return "", "", 1


def shared_pairs(
    given: Assignments, steps: Sequence[PassStep], own: Sequence[Assignments]
) -> Assignments:
    """The options that belong to no single pass: those of the command, and what passes left.

    Raises `click.UsageError` for one that is given twice.
    """
    shared = dict(given)
    # Readers and writers get what stands behind a pass that does not know it.
    for step, taken in zip(steps, own, strict=True):
        for key, value in step.pairs.items():
            if key in taken:
                continue
            if key in shared:
                raise click.UsageError(f"{key!r} is given twice")
            shared[key] = value
    return shared


def show_moves(session: Session, model: Algorithm | Workload, source: str, as_json: bool) -> None:
    """Print the legal applications of all passes that list theirs."""
    found = _moves(session, model)
    if as_json:
        moves: list[JsonValue] = [
            {"pass": name, "options": {**move.options}, "effect": {**move.effect}}
            for name, move in found
        ]
        session.print_json({"schema": "collhub/report-moves-1", "source": source, "moves": moves})
        return
    # Columns in the order in which passes name them.
    effects = list(dict.fromkeys(key for _, move in found for key in move.effect))
    rows = [
        (name, *(f"{move.effect.get(key, 0):+d}" for key in effects), _options(move))
        for name, move in found
    ]
    session.print_table(("pass", *effects, "options"), rows, right=effects)


def _moves(session: Session, model: Algorithm | Workload) -> list[tuple[str, PassMove]]:
    """Moves with the name of their pass, by name of the pass, in its own order."""
    from hub_core.pipeline.calls import blame, misfit

    # Passes on another kind of model have nothing to say.
    subject = Subject(type(model).__name__.lower())
    found: list[tuple[str, PassMove]] = []
    for provided in session.registry().all(AlgorithmPass):
        offer = provided.offer
        if offer.subject is not subject or not offer.moves:
            continue
        with blame(provided), session.progress(f"listing what {offer.name} can do"):
            moves = resolve(offer.moves)(model, offer.name)
        if not isinstance(moves, list | tuple):
            raise misfit(provided, f"lists its moves as {type(moves).__name__}, not as a list")
        found += [(offer.name, move) for move in moves]
    return found


def _options(move: PassMove) -> str:
    """The options as they are typed."""
    return " ".join(f"-O {key}={value}" for key, value in move.options.items())
