"""`collhub transform --list`: what every pass can do to a model, with the effect of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.plugin_api import AlgorithmPass, PassMove, Subject, resolve

if TYPE_CHECKING:
    from hub_core.cli.session import Session
    from hub_core.model import Algorithm, JsonValue, Workload


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
