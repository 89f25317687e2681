"""Write a selection as a file with which MPICH selects among its algorithms.

A file replaces all defaults of MPICH, and MPICH exits at the start if a collective is missing. The
output is therefore the release's file, with the tree of a tuned collective inserted for
communicators of exactly the tuned number of ranks:

comm_size<N: as before, comm_size<=N: {conditions: {sizes}}, comm_size=any: as before
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from collhub_mpi.options import MpichOptions
from collhub_mpi.tuned.mpich_names import (
    ALGORITHMS,
    COLLECTIVES,
    CONDITIONS,
    FILE,
    LARGEST_TEST,
    SIZE_TESTS,
    VARIABLE,
    message_parts,
    opposite,
)
from hub_core.model import CollectiveKind, InputError, Location, Loss
from hub_core.plugin_api import (
    Artifact,
    SelectedCollective,
    SelectedWindow,
    Selection,
    WriteResult,
)
from hub_core.selections import first_of_kinds, own_windows

_CURE = "name maint/tuning/coll/mpir/generic.json of the sources of your release of MPICH"
_INTRA = "comm_type=intra"
_Tree = dict[str, object]


def write(selection: Selection, options: MpichOptions) -> WriteResult:
    """Write one file; without the release's file write none and report all collectives as losses.

    Raises `InputError` if `options.defaults` is no selection file of MPICH.
    """
    chosen, losses = first_of_kinds(selection)
    if options.defaults is None:
        cure = f"it chooses itself; {_CURE}: -O mpich.defaults=FILE"
        losses += [Loss("collective", str(selected.collective.kind), cure) for selected in chosen]
        return WriteResult([], losses)
    document = _read_defaults(options.defaults)
    for selected in chosen:
        losses += _insert_tuned(document, selected, selection.num_ranks)
    content = json.dumps(document, indent=1) + "\n"
    notes = [
        f"set {VARIABLE} to {FILE}, with the release of MPICH that its defaults are from",
        "operators that are not built in, or do not commute, keep MPICH's own choice",
    ]
    return WriteResult([Artifact(FILE, content.encode("ascii"))], losses, (), notes)


def _read_defaults(name: str) -> dict[str, _Tree]:
    """Read the file of the release. Raises `InputError` if it is not a complete selection file."""
    try:
        document = json.loads(Path(name).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _make_refusal(name, str(error)) from None
    if not isinstance(document, dict):
        raise _make_refusal(name, "no JSON object")
    for collective in itertools.chain.from_iterable(COLLECTIVES.values()):
        tree = document.get(f"collective={collective}")
        if not isinstance(tree, dict) or not isinstance(tree.get(_INTRA), dict):
            raise _make_refusal(name, f"no collective={collective} with {_INTRA}")
    return document


def _make_refusal(name: str, reason: str) -> InputError:
    """Return the error for a file that is no selection of MPICH."""
    message = f"no selection file of MPICH: {reason}"
    return InputError(message, code="not-a-selection", location=Location(name), cure=_CURE)


def _insert_tuned(
    document: dict[str, _Tree], selected: SelectedCollective, num_ranks: int
) -> Sequence[Loss]:
    """Insert the tree of a collective into `document`; return the losses."""
    kind = selected.collective.kind
    windows, losses = own_windows(selected, _get_algorithms(kind, num_ranks), "MPICH")
    for name in COLLECTIVES.get(kind, ()) if windows else ():
        tree = document[f"collective={name}"]
        before = tree[_INTRA]
        tuned: object = _build_size_tests(kind, windows, name, num_ranks)
        for condition in reversed(CONDITIONS.get(kind, ())):
            tuned = {condition: tuned, opposite(condition): before}
        tree[_INTRA] = {
            f"comm_size<{num_ranks}": before,
            f"comm_size<={num_ranks}": tuned,
            "comm_size=any": before,
        }
    return losses


def _get_algorithms(kind: CollectiveKind, num_ranks: int) -> dict[str, str]:
    """Return the algorithms that MPICH has for this number of ranks."""
    algorithms = dict(ALGORITHMS.get(kind, {}))
    if kind is CollectiveKind.ALL_GATHER and num_ranks & (num_ranks - 1):
        # MPICH has it only for powers of two.
        algorithms.pop("recursive-doubling")
    return algorithms


def _build_size_tests(
    kind: CollectiveKind, windows: Sequence[SelectedWindow], collective: str, num_ranks: int
) -> _Tree:
    """Return one test per window, by ascending sizes; the last one applies to all larger sizes."""
    parts, test = message_parts(kind, num_ranks), SIZE_TESTS[kind]
    tree: _Tree = {}
    for window in windows:
        leaf = _build_leaf(collective, ALGORITHMS[kind][window.algorithm])
        last = None if window.max_bytes is None else window.max_bytes // parts
        if last is None or last > LARGEST_TEST:
            tree[f"{test}=any"] = leaf
            break
        # If several windows end at the same tested size, the first one applies.
        tree.setdefault(f"{test}<={last}", leaf)
    return tree


def _build_leaf(collective: str, algorithm: str) -> _Tree:
    """Return the algorithm, restricted to the sizes for which it is defined."""
    leaf: _Tree = {_format_key(collective, algorithm): {}}
    if algorithm != "reduce_scatter_allgather":
        return leaf
    # It needs at least one element per rank of the largest power of two of ranks.
    return {"count<pow2": {_format_key(collective, "recursive_doubling"): {}}, "count=any": leaf}


def _format_key(collective: str, algorithm: str) -> str:
    """Return the key of a selection tree that names an algorithm."""
    return f"algorithm=MPIR_{collective.capitalize()}_intra_{algorithm}"
