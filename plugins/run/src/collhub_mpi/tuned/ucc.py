"""Write and read selections as the tune string of UCC's transport UCP.

collective:from-to:[ranks-ranks]:inf:@algorithm#...

Size ranges are half-open and refer to the destination: the full buffer, but for reduce-scatter one
rank's part of it. The score inf gives a choice precedence over all other transports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from collhub_mpi.tuned import read_files
from hub_core.model import CollectiveKind, InputError, Location
from hub_core.plugin_api import (
    Artifact,
    NoOptions,
    SelectedWindow,
    Selection,
    ServedCalls,
    Source,
    SourcePart,
    WriteResult,
)
from hub_core.selections import first_of_kinds, own_windows

FILE = "ucc.conf"
_VARIABLE = "UCC_TL_UCP_TUNE"
_NAMES: Mapping[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.ALL_GATHER: "allgather",
    CollectiveKind.ALL_TO_ALL: "alltoall",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
}
_KIND_OF = {name: kind for kind, name in _NAMES.items()}
_ALGORITHMS: Mapping[CollectiveKind, Mapping[str, str]] = {
    CollectiveKind.ALL_REDUCE: {
        # Radix chosen by UCC; recursive doubling is the case of radix 2.
        "recursive-doubling": "knomial",
        "halving-doubling": "sra_knomial",
        "double-binary-tree": "dbt",
        "ring": "ring",
    },
    CollectiveKind.ALL_GATHER: {
        "recursive-doubling": "knomial",
        "ring": "ring",
        "neighbour-exchange": "neighbor",
        "bruck": "bruck",
        "sparbit": "sparbit",
        "direct": "linear",
    },
    CollectiveKind.ALL_TO_ALL: {"pairwise": "pairwise", "bruck": "bruck"},
    CollectiveKind.REDUCE_SCATTER: {"halving-doubling": "knomial", "ring": "ring"},
}
_TOKEN = re.compile(r"(\w+):(\d+)-(\d+|inf):\[(\d+)-(\d+)\]:inf:@(\w+)")


def write(selection: Selection, options: NoOptions) -> WriteResult:
    """Return the configuration file `ucc.conf` of UCC with the tune string of a selection.

    The file has a comment with the name of the topology, and the line `UCC_TL_UCP_TUNE =
    TOKENS`. The tokens are joined by `#`: one per window of sizes, collective by collective in
    the order of `selection`. The line is left out if there are no tokens. Characters that are
    not ASCII become `?`.

    The result also has losses:

    - Of several selections of one kind only the first is written; each further one is a loss.
    - Windows are computed only from algorithms that UCC has. A loss names the sizes at which
      another algorithm is faster, and measured sizes for which no window remains.
    - A collective is not written if UCC does not have it, or none of its compared algorithms.

    The notes of the result explain how UCC loads the file. `options` is not used. No file is
    written to disk.
    """
    tokens: list[str] = []
    chosen, losses = first_of_kinds(selection)
    for selected in chosen:
        kind = selected.collective.kind
        windows, lost = own_windows(selected, _ALGORITHMS.get(kind, {}), "UCC")
        losses += lost
        tokens += _format_tokens(kind, windows, selection.num_ranks)
    text = f"# collhub tune: {' '.join(selection.topology.split())}\n"
    if tokens:
        text += f"{_VARIABLE} = {'#'.join(tokens)}\n"
    notes = [
        f"set {_VARIABLE} to the value in {FILE}, or UCC_CONFIG_FILE to the file",
        "radixes are UCC's own",
    ]
    return WriteResult([Artifact(FILE, text.encode("ascii", "replace"))], losses, (), notes)


def read(source: Source) -> Sequence[ServedCalls]:
    """Return one row per choice; none for a file with a choice that UCC cannot parse."""
    return read_files(source, {FILE: _read_calls})


def _format_tokens(
    kind: CollectiveKind, windows: Sequence[SelectedWindow], num_ranks: int
) -> Iterator[str]:
    """Yield the tokens of UCC's tune string for a collective, one per window in order.

    A token is `NAME:FIRST-END:[N-N]:inf:@ALGORITHM`, where N is `num_ranks`. FIRST and END
    are bytes of the destination buffer of a rank. For a reduce-scatter this is the full
    buffer divided by N, rounded up; otherwise it is the full buffer. FIRST is the size for
    the first byte count of the window. END is the size for the first byte count after it,
    which is excluded, or `inf` for a window without a limit. A window with equal FIRST and
    END is left out.
    """
    parts = _count_parts(kind, num_ranks)
    for window in windows:
        # The smallest destination size of a full buffer in the window.
        first = -(-window.min_bytes // parts)
        end = "inf" if window.max_bytes is None else str(-(-(window.max_bytes + 1) // parts))
        # Skip a window smaller than one part, which contains no destination size.
        if str(first) != end:
            name = _ALGORITHMS[kind][window.algorithm]
            team = f"[{num_ranks}-{num_ranks}]"
            yield f"{_NAMES[kind]}:{first}-{end}:{team}:inf:@{name}"


def _read_calls(part: SourcePart) -> list[ServedCalls]:
    """Return the calls of a file with one line `UCC_TL_UCP_TUNE = ...`, one per token.

    Tokens are separated by `#`; sizes are those of the full buffer in bytes. Blank lines and lines
    that start with `#` are ignored. A file without other lines has no calls. Raises `InputError`
    (`not-a-rule`) for any other line, several lines with the variable, an invalid or empty token,
    and two tokens of one collective and equal ranks with common sizes, which UCC refuses.
    """
    lines = enumerate(part.load().decode("latin-1").splitlines(), 1)
    values = [
        (number, line.partition("="))
        for number, line in lines
        if line.strip() and not line.startswith("#")
    ]
    if not values:
        return []
    for index, (number, (name, _, _)) in enumerate(values):
        if index or name.strip() != _VARIABLE:
            message, cure = f"not one line {_VARIABLE} = ...", "remove the other lines"
            location = Location(line=number)
            raise InputError(message, location=location, code="not-a-rule", cure=cure)
    location = Location(line=values[0][0])
    calls: list[ServedCalls] = []
    for token in values[0][1][2].strip().split("#"):
        served = _parse_token(token, location)
        for earlier in calls:
            if (earlier.kind, _ranks_of(earlier)) == (served.kind, _ranks_of(served)) and (
                (earlier.max_bytes is None or served.min_bytes <= earlier.max_bytes)
                and (served.max_bytes is None or earlier.min_bytes <= served.max_bytes)
            ):
                message = f"{token!r:.60}: an earlier choice has some of its sizes"
                cure = "end the earlier sizes where the later ones begin"
                raise InputError(message, location=location, code="not-a-rule", cure=cure)
        calls.append(served)
    return calls


def _ranks_of(calls: ServedCalls) -> str:
    """Return the ranks in the description of served calls, such as `4 ranks`."""
    return calls.by.partition(" of ")[2]


def _parse_token(token: str, location: Location) -> ServedCalls:
    """Parse one token of UCC's tune string, and return the calls that it serves.

    Form: `collective:from-to:[ranks-ranks]:inf:@algorithm`; `to` is exclusive, or `inf` for no
    limit. The result serves calls in place and out of place; its `by` is such as `ring of 4 ranks`
    or `ring of 4 to 8 ranks`.

    The sizes of the token are those of one rank's part for a reduce-scatter, otherwise of the
    full buffer. The result always has sizes of the full buffer in bytes, both ends included. A
    part is the full buffer divided by the ranks, rounded up. So
    `reduce_scatter:2-5:[4-4]:inf:@ring` gives 5 to 16 bytes, and
    `allreduce:2-5:[4-4]:inf:@ring` gives 2 to 4 bytes.

    Raises `InputError` (`not-a-rule`) at `location` for another form, an unknown collective, an
    algorithm that the collective does not have, an empty range of sizes or ranks, and a
    reduce-scatter of several numbers of ranks.
    """
    match = _TOKEN.fullmatch(token)
    kind = _KIND_OF.get(match[1]) if match else None
    if match is None or kind is None or match[6] not in _ALGORITHMS[kind].values():
        expected = "collective:from-to:[ranks-ranks]:inf:@algorithm"
        cure = "write collectives and algorithms as UCC names them, and sizes as numbers of bytes"
        raise _refuse_token(token, f"is not {expected}", cure, location)
    least, largest = int(match[4]), int(match[5])
    if not 1 <= least <= largest:
        raise _refuse_token(
            token, "has no number of ranks", "write the smaller one first", location
        )
    if least < largest and kind is CollectiveKind.REDUCE_SCATTER:
        cure = "write one token for each number of ranks"
        reason = "has several numbers of ranks, by which the sizes of a reduce-scatter differ"
        raise _refuse_token(token, reason, cure, location)
    parts = _count_parts(kind, least)
    first = int(match[2])
    # Full buffers between two multiples count as the larger one.
    min_bytes = (first - 1) * parts + 1 if first else 0
    max_bytes = None if match[3] == "inf" else (int(match[3]) - 1) * parts
    if max_bytes is not None and max_bytes < min_bytes:
        cure = "write the smaller size first; the second one is excluded"
        raise _refuse_token(token, "has an empty range of sizes", cure, location)
    ranks = match[4] if least == largest else f"{least} to {largest}"
    return ServedCalls(kind, True, True, min_bytes, max_bytes, f"{match[6]} of {ranks} ranks")


def _refuse_token(token: str, reason: str, cure: str, location: Location) -> InputError:
    """Return the error about a token; it is not raised here."""
    return InputError(f"{token!r:.60} {reason}", location=location, code="not-a-rule", cure=cure)


def _count_parts(kind: CollectiveKind, num_ranks: int) -> int:
    """Return the size of the full buffer divided by that of the destination."""
    return num_ranks if kind is CollectiveKind.REDUCE_SCATTER else 1
