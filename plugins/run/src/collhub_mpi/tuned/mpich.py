"""Write a selection as a file for MPICH's algorithm selection, and determine the calls it serves.

A file replaces all defaults of MPICH, and MPICH exits at the start if a collective is missing. The
output is therefore the release's file, with the tree of a tuned collective inserted for
communicators of exactly the tuned number of ranks:

comm_size<N: as before, comm_size<=N: {conditions: {sizes}}, comm_size=any: as before

Names and tests of `maint/tuning/coll/mpir/generic.json`, MPICH 5.0.2. A test is a key; its value
applies if the test is true, otherwise the next sibling.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from collhub_mpi.plugin import MpichOptions
from collhub_mpi.tuned import read_files
from hub_core.model import CollectiveKind, Diagnostic, InputError, Location, Loss, Severity
from hub_core.plugin_api import (
    Artifact,
    SelectedCollective,
    SelectedWindow,
    Selection,
    ServedCalls,
    Source,
    SourcePart,
    WriteResult,
)
from hub_core.selections import fill_gaps, first_of_kinds, own_windows

FILE = "coll_selection.json"
VARIABLE = "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"

COLLECTIVES: Mapping[CollectiveKind, tuple[str, ...]] = {
    CollectiveKind.ALL_REDUCE: ("allreduce",),
    CollectiveKind.ALL_GATHER: ("allgather",),
    CollectiveKind.ALL_TO_ALL: ("alltoall",),
    CollectiveKind.BROADCAST: ("bcast",),
    CollectiveKind.REDUCE: ("reduce",),
    CollectiveKind.REDUCE_SCATTER: ("reduce_scatter", "reduce_scatter_block"),
}
"""Names of a collective; reduce-scatter corresponds to two functions of MPI."""

ALGORITHMS: Mapping[CollectiveKind, Mapping[str, str]] = {
    CollectiveKind.ALL_REDUCE: {
        "recursive-doubling": "recursive_doubling",
        "halving-doubling": "reduce_scatter_allgather",
        "ring": "ring",
    },
    CollectiveKind.ALL_GATHER: {
        "recursive-doubling": "recursive_doubling",
        "bruck": "brucks",
        "ring": "ring",
    },
    CollectiveKind.ALL_TO_ALL: {
        "bruck": "brucks",
        "pairwise": "pairwise",
        # All messages at once, in batches of a size that MPICH chooses.
        "direct": "scattered",
    },
    CollectiveKind.BROADCAST: {"binomial": "binomial"},
    CollectiveKind.REDUCE: {"binomial": "binomial"},
    CollectiveKind.REDUCE_SCATTER: {"halving-doubling": "recursive_halving"},
}
"""MPICH's algorithms by the equivalent classic algorithm."""

SIZE_TESTS: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "avg_msg_size",
    CollectiveKind.ALL_GATHER: "total_msg_size",
    # The bytes sent to one rank.
    CollectiveKind.ALL_TO_ALL: "avg_msg_size",
    CollectiveKind.BROADCAST: "avg_msg_size",
    CollectiveKind.REDUCE: "avg_msg_size",
    CollectiveKind.REDUCE_SCATTER: "total_msg_size",
}
"""The test of the size: that of the full buffer, except for all-to-all."""

CONDITIONS: Mapping[CollectiveKind, tuple[str, ...]] = {
    CollectiveKind.ALL_REDUCE: ("is_commutative=yes", "is_op_built_in=yes"),
    CollectiveKind.ALL_TO_ALL: ("is_sendbuf_inplace=no",),
    CollectiveKind.REDUCE_SCATTER: ("is_commutative=yes",),
}
"""Conditions under which the algorithms apply; other calls keep MPICH's choice."""

LARGEST_TEST = (1 << 31) - 1
"""MPICH reads the number of a test as a C int."""


def negate_condition(condition: str) -> str:
    """Return the negation of a condition: NAME=no for NAME=yes, else NAME=yes.

    The condition must be of this form; it is not checked.
    """
    name, _, value = condition.partition("=")
    return f"{name}={'no' if value == 'yes' else 'yes'}"


def count_message_parts(kind: CollectiveKind, num_ranks: int) -> int:
    """Return the size of the full buffer divided by the size that is tested."""
    return num_ranks if kind is CollectiveKind.ALL_TO_ALL else 1


_CURE = "name maint/tuning/coll/mpir/generic.json of the sources of your release of MPICH"
_INTRA = "comm_type=intra"
_Tree = dict[str, object]


def write(selection: Selection, options: MpichOptions) -> WriteResult:
    """Write MPICH's selection file: the file of its release with the tuned collectives inserted.

    `options.defaults` is the path of the file of the release. If it is None, the result has no
    file, and one loss per selection. Otherwise it has the artifact `coll_selection.json` and two
    notes on its use, even if no tuned window (range of sizes) could be inserted. The file is only
    for communicators of exactly `num_ranks` ranks; for others the choices of the release remain.

    Of several selections of one collective kind only the first is inserted. Windows have MPICH's
    algorithms only. Losses, in this order: the further selections of a kind; then for each inserted
    selection, the sizes at which an algorithm that MPICH lacks is faster. If no algorithm fits, the
    selection has one loss.

    Raises `InputError` (`not-a-selection`) if the file of the release cannot be read, is no JSON
    object, lacks the tree `comm_type=intra` of a function in `COLLECTIVES`, selected or not, or has
    compositions of the device CH4.
    """
    chosen, losses = first_of_kinds(selection)
    if options.defaults is None:
        cure = f"it chooses itself; {_CURE}: -O mpich.defaults=FILE"
        losses += [Loss("collective", str(selected.collective.kind), cure) for selected in chosen]
        return WriteResult([], losses)
    # Read the file of the release.
    try:
        document = json.loads(Path(options.defaults).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _make_refusal(options.defaults, str(error)) from None
    if not isinstance(document, dict):
        raise _make_refusal(options.defaults, "no JSON object")
    for collective in itertools.chain.from_iterable(COLLECTIVES.values()):
        tree = document.get(f"collective={collective}")
        if not isinstance(tree, dict) or not isinstance(tree.get(_INTRA), dict):
            raise _make_refusal(options.defaults, f"no collective={collective} with {_INTRA}")
    for _, key, _ in _iterate_trees(document):
        if key.startswith(_COMPOSITION):
            raise _make_refusal(options.defaults, _describe_composition(key))
    for selected in chosen:
        losses += _insert_tuned(document, selected, selection.num_ranks)
    content = json.dumps(document, indent=1) + "\n"
    notes = [
        f"set {VARIABLE} to {FILE}, with the release of MPICH that its defaults are from",
        "operators that are not built in, or do not commute, keep MPICH's own choice",
    ]
    return WriteResult([Artifact(FILE, content.encode("ascii"))], losses, (), notes)


def _make_refusal(name: str, reason: str) -> InputError:
    """Return the error that a file is no selection file of MPICH; it is not raised here.

    `name`: the file; `reason`: end of the message. The code is `not-a-selection`.
    """
    message = f"no selection file of MPICH: {reason}"
    return InputError(message, code="not-a-selection", location=Location(name), cure=_CURE)


def _insert_tuned(
    document: dict[str, _Tree], selected: SelectedCollective, num_ranks: int
) -> Sequence[Loss]:
    """Insert the tests of a tuned collective into MPICH's selection file; return losses.

    `document` is the content of the file and is changed in place. In the tree `comm_type=intra`
    of each MPI function of the kind (two for reduce-scatter), communicators of exactly
    `num_ranks` ranks get the new tests. Within these, calls that violate a condition of
    `CONDITIONS`, for example an operator that does not commute, keep the previous tree. All
    other numbers of ranks also keep it.

    Windows of sizes are computed only with the algorithms that MPICH has for this number of ranks:
    recursive doubling of an all-gather only for powers of two. Losses are the sizes at which an
    algorithm that MPICH lacks is faster, and the sizes that only windows of such algorithms have
    (`own_windows`). If no window remains, the document is not changed and the result is one
    loss. Raises `KeyError` if the document lacks the tree.
    """
    kind = selected.collective.kind
    # The algorithms that MPICH has for this number of ranks.
    algorithms = dict(ALGORITHMS.get(kind, {}))
    if kind is CollectiveKind.ALL_GATHER and num_ranks & (num_ranks - 1):
        # MPICH has it only for powers of two.
        algorithms.pop("recursive-doubling")
    windows, losses = own_windows(selected, algorithms, "MPICH")
    for name in COLLECTIVES.get(kind, ()) if windows else ():
        tree = document[f"collective={name}"]
        before = tree[_INTRA]
        tuned: object = _build_size_tests(kind, windows, name, num_ranks, before)
        for condition in reversed(CONDITIONS.get(kind, ())):
            tuned = {condition: tuned, negate_condition(condition): before}
        tree[_INTRA] = {
            f"comm_size<{num_ranks}": before,
            f"comm_size<={num_ranks}": tuned,
            "comm_size=any": before,
        }
    return losses


def _build_size_tests(
    kind: CollectiveKind,
    windows: Sequence[SelectedWindow],
    collective: str,
    num_ranks: int,
    default: object,
) -> _Tree:
    """Build MPICH's tests of the message size, one per window or gap, by ascending sizes.

    The keys of the result are tests `NAME<=LAST` in ascending order, then `NAME=any`; NAME is
    `SIZE_TESTS[kind]`. MPICH uses the value of the first test that is true. The value for a window
    is the key of its algorithm for `collective`, the MPI function. `reduce_scatter_allgather` is
    below a test: calls with fewer elements than the largest power of two of ranks get recursive
    doubling. The value for a gap before, between or after windows is `default`.

    LAST is the last byte of the window or gap divided by the number of message parts, rounded
    down. The number of parts is `num_ranks` for an all-to-all, else 1. If several windows or gaps
    have the same LAST, the first one counts. The first window or gap without a limit, or with a
    LAST above `LARGEST_TEST`, becomes `NAME=any`; all later ones are dropped. Without windows the
    result is `NAME=any` with `default`. `windows` must be ascending and without overlaps. Raises
    `KeyError` for an algorithm that MPICH lacks.
    """
    parts, test = count_message_parts(kind, num_ranks), SIZE_TESTS[kind]
    tree: _Tree = {}
    for _, max_bytes, window in fill_gaps(windows):
        leaf = default
        if window is not None:
            algorithm = ALGORITHMS[kind][window.algorithm]
            leaf = {_format_key(collective, algorithm): {}}
            if algorithm == "reduce_scatter_allgather":
                # It needs at least one element per rank of the largest power of two of ranks.
                fallback: _Tree = {_format_key(collective, "recursive_doubling"): {}}
                leaf = {"count<pow2": fallback, "count=any": leaf}
        last = None if max_bytes is None else max_bytes // parts
        if last is None or last > LARGEST_TEST:
            tree[f"{test}=any"] = leaf
            break
        # If several windows end at the same tested size, the first one applies.
        tree.setdefault(f"{test}<={last}", leaf)
    return tree


def _format_key(collective: str, algorithm: str) -> str:
    """Return the key of a selection tree that names an algorithm."""
    return f"algorithm=MPIR_{collective.capitalize()}_intra_{algorithm}"


_OWN_CHOICE = "MPICH's own choice"
# Leaf of the other file of MPICH's sources, maint/tuning/coll/ch4/generic.json, which another
# variable names.
_COMPOSITION = "composition="
# A test, such as `comm_size<8`, an algorithm, or a parameter of it.
_KEY = re.compile(r"\w+(?:=|<=?)\w+")
_COLLECTIVE = "collective="
_ALGORITHM = re.compile(r"algorithm=MPIR_([A-Z][a-z_]*?)_intra_(\w+)")


def read(source: Source) -> Sequence[ServedCalls]:
    """Return one row per size test, for built-in operators; none for a file with an error.

    A note `other-collective` is reported for the collectives that the hub does not model.
    """
    return read_files(source, {FILE: _read_calls})


def _read_calls(part: SourcePart, notes: list[Diagnostic]) -> list[ServedCalls]:
    """Parse a selection file of MPICH and return the calls that it serves with a tuned algorithm.

    Calls are in the order of `COLLECTIVES`; those of one collective as in `_read_collective`.
    Sizes with MPICH's default choice are omitted, so the result may be empty. Reduce-scatter has
    two MPI functions in the file; their calls are equal and are returned once. If the file has
    collectives that the hub does not model, one note `other-collective` that names them is appended
    to `notes`.

    Raises `InputError` (`not-a-selection`) in these cases:

    - The text is not JSON.
    - A tree, condition or test is missing or wrong (`_read_collective`, `_check_form`).
    - The two functions of reduce-scatter have different calls.
    """
    try:
        document = json.loads(part.load())
    except (ValueError, RecursionError):
        raise InputError("no JSON", code="not-a-selection") from None
    calls: list[ServedCalls] = []
    for kind, names in COLLECTIVES.items():
        rows = [list(_read_collective(kind, name, document)) for name in names]
        if any(name_rows != rows[0] for name_rows in rows):
            raise _make_error(f"{' and '.join(names)} choose differently")
        calls += rows[0]
    _check_form("the file", document)
    known = {f"{_COLLECTIVE}{name}" for names in COLLECTIVES.values() for name in names}
    others = [key.removeprefix(_COLLECTIVE) for key in document if key not in known]
    if others:
        text = (
            f"the hub does not model {', '.join(others)}: only the form of their trees is checked"
        )
        location = Location(part.name)
        notes.append(Diagnostic("other-collective", text, Severity.NOTE, location))
    return calls


def _check_form(where: str, tree: object) -> None:
    """Raise `InputError` unless a tree and all of its subtrees are objects with keys of MPICH.

    A key is a name, one of `=`, `<` and `<=`, and a value, as `comm_size<8`, but no composition of
    the device CH4. `where`: the key of the tree, for the message.
    """
    if not isinstance(tree, dict):
        raise _make_error(f"no tree below {where}")
    for parent, key, subtree in _iterate_trees(tree):
        if not _KEY.fullmatch(key):
            raise _make_error(f"{key!r:.60} below {parent or where:.60} is no test or algorithm")
        if key.startswith(_COMPOSITION):
            cure = f"check the file that {VARIABLE} names"
            raise InputError(_describe_composition(key), code="not-a-selection", cure=cure)
        if not isinstance(subtree, dict):
            raise _make_error(f"no tree below {key:.60}")


def _iterate_trees(tree: dict[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield (key above or "", key, value) for all keys of nested objects, in order of the file."""
    # A stack, because trees may be nested nearly as deeply as Python calls.
    remaining = [("", key, value) for key, value in reversed(tree.items())]
    while remaining:
        parent, key, subtree = remaining.pop()
        yield parent, key, subtree
        if isinstance(subtree, dict):
            remaining += [(key, below, value) for below, value in reversed(subtree.items())]


def _describe_composition(key: str) -> str:
    """Message about a file with compositions of the device CH4."""
    return f"{key:.60} is a composition of the device CH4, no algorithm"


def _read_collective(kind: CollectiveKind, name: str, document: object) -> Iterator[ServedCalls]:
    """Yield the calls of one MPI function that MPICH's selection file serves, by ascending size.

    `name`: the MPI function in the file, of the collective `kind`. Nothing is yielded unless its
    tests of ranks are `comm_size<N`, `comm_size<=N` and `comm_size=any`, in this order.
    Otherwise there is one row per size window, with a text such as `ring of N ranks`. A window
    equal to `comm_size=any`, MPICH's default, has no row. Of several tests in a window
    `count=any` counts. A window of a..b bytes gives calls with (a - 1) * p + 1 to b * p bytes of
    the full buffer, from 0 if a is 0, without limit (None) in the last window. p is N for an
    all-to-all, else 1. Rows hold in place and out of place, those of an all-to-all only out of
    place. An all-to-all ends with a row for calls of all sizes in place: MPICH's own choice.

    Raises `InputError` (`not-a-selection`) at the first fault: a missing tree or condition, a
    wrong test, a row without an algorithm of `name`, or of more than `LARGEST_TEST` bytes.
    """
    tree = _get_subtree(_get_subtree(document, f"collective={name}"), "comm_type=intra")
    keys = list(tree)
    below = re.fullmatch(r"comm_size<(\d+)", keys[0]) if keys else None
    if below is None or keys != [keys[0], f"comm_size<={below[1]}", "comm_size=any"]:
        return
    ranks = int(below[1])
    tuned = _get_subtree(tree, f"comm_size<={ranks}")
    has_mode = False
    for condition in CONDITIONS.get(kind, ()):
        has_mode |= condition == "is_sendbuf_inplace=no"
        _get_subtree(tuned, negate_condition(condition))
        tuned = _get_subtree(tuned, condition)
    parts = count_message_parts(kind, ranks)
    for first, last, leaf in _read_windows(tuned, SIZE_TESTS[kind]):
        if leaf == tree["comm_size=any"]:
            # Sizes outside of the windows keep the default of MPICH.
            continue
        min_bytes = (first - 1) * parts + 1 if first else 0
        max_bytes = None if last is None else last * parts
        # The name of the algorithm for calls of at least one element per rank.
        selected = leaf if len(leaf) == 1 else _get_subtree(leaf, "count=any")
        match = _ALGORITHM.fullmatch(next(iter(selected), ""))
        if match is None or match[1].lower() != name:
            raise _make_error(f"{next(iter(selected), '')!r:.60} is no algorithm of {name}")
        if last is not None and last > LARGEST_TEST:
            raise _make_error(f"a test of {last} bytes is above {LARGEST_TEST}, a C int")
        by = f"{match[2]} of {ranks} ranks"
        yield ServedCalls(kind, not has_mode, True, min_bytes, max_bytes, by)
    if has_mode:
        yield ServedCalls(kind, True, False, 0, None, _OWN_CHOICE)


def _read_windows(
    tree: Mapping[str, object], test: str
) -> Iterator[tuple[int, int | None, Mapping[str, object]]]:
    """Yield (first size, last size, subtree) for each size test of a tree, in key order.

    Keys are `TEST<=SIZE`, with TEST from `test`; the last key is `TEST=any`. Sizes are
    inclusive. The first window starts at 0, the next one at the previous SIZE + 1. `last size`
    is None for `TEST=any`. Example: `{"s<=9": a, "s=any": b}` gives (0, 9, a) and (10, None,
    b).

    Raises `InputError` (`not-a-selection`) at the first mistake, after the windows before it:

    - a value that is no object
    - another key, or a SIZE below the start of its window (such as the SIZE of the previous
      test)
    - keys after `TEST=any`, whose own window is yielded before the error
    - no `TEST=any` at the end, as in an empty tree
    """
    first = 0
    for key, leaf in tree.items():
        if not isinstance(leaf, dict):
            raise _make_error(f"no tree below {key!r:.60}")
        if key == f"{test}=any":
            yield first, None, leaf
            if key != list(tree)[-1]:
                raise _make_error(f"tests follow {key}")
            return
        match = re.fullmatch(rf"{test}<=(\d+)", key)
        if match is None or int(match[1]) < first:
            raise _make_error(f"{key!r:.60} is no {test}<= of ascending sizes")
        yield first, int(match[1]), leaf
        first = int(match[1]) + 1
    raise _make_error(f"{test}=any is missing")


def _get_subtree(tree: object, key: str) -> Mapping[str, object]:
    """Return the subtree of a key.

    Raises `InputError` (`not-a-selection`) if `tree` is no object, the key is missing, or
    its value is no object.
    """
    subtree = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(subtree, dict):
        raise _make_error(f"{key} is missing")
    return subtree


def _make_error(reason: str) -> InputError:
    """Return the error for a file that does not select as tuned."""
    return InputError(f"MPICH would not choose as tuned: {reason}", code="not-a-selection")
