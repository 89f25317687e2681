"""Write a selection as dynamic rules of Open MPI's coll/tuned, as classic text or as JSON.

Open MPI counts the bytes of the full buffer, as the hub does. The classic text has one set of rules
per collective, for the communicator size 0, because the meaning of other sizes differs between
versions. A rule applies from its size on, up to the next one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from collhub_mpi.options import RulesOptions
from collhub_mpi.tuned.open_mpi_names import (
    ALGORITHMS,
    CLASSIC_FILE,
    COLLECTIVES,
    JSON_FILE,
    JSON_VERSION,
)
from hub_core.model import CollectiveKind
from hub_core.plugin_api import (
    Artifact,
    SelectedCollective,
    SelectedWindow,
    Selection,
    WriteResult,
)
from hub_core.selections import first_of_kinds, own_windows

_USE = (
    "set OMPI_MCA_coll_tuned_use_dynamic_rules=1 and OMPI_MCA_coll_tuned_dynamic_rules_filename"
    " to {}; only coll/tuned obeys, not han or ucc"
)
# A multiple of the sizes of all element types.
_SEGMENT_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class _Rule:
    """An algorithm from a size on.

    `number`, `name`: Open MPI's identifiers in rules as text and as JSON. `segment_bytes`: size of
    the segments, 0 for unsegmented messages.
    """

    window: SelectedWindow
    number: int
    name: str
    segment_bytes: int


_Rules = dict[CollectiveKind, list[_Rule]]


def write(selection: Selection, options: RulesOptions) -> WriteResult:
    """Write one file; algorithms that Open MPI lacks are replaced by the best available one, as a
    loss.
    """
    rules: _Rules = {}
    chosen, losses = first_of_kinds(selection)
    for selected in chosen:
        kind = selected.collective.kind
        windows, lost = own_windows(selected, ALGORITHMS.get(kind, {}), "Open MPI")
        losses += lost
        if windows:
            rules[kind] = [_build_rule(selected, window) for window in windows]
    ordered = dict(sorted(rules.items(), key=lambda item: COLLECTIVES[item[0]]))
    if options.format == "json":
        file, content = JSON_FILE, _format_json(ordered, selection.num_ranks)
        notes = [_USE.format(file), "JSON is read from Open MPI 6.0 on; older ones ignore it"]
    else:
        file, content = CLASSIC_FILE, _format_classic(ordered, selection)
        notes = [_USE.format(file), "the rules hold for communicators of every size"]
    if CollectiveKind.REDUCE_SCATTER in rules:
        notes.append("reduce-scatter is MPI_Reduce_scatter, not MPI_Reduce_scatter_block")
    return WriteResult([Artifact(file, content.encode("ascii", "replace"))], losses, (), notes)


def _build_rule(selected: SelectedCollective, window: SelectedWindow) -> _Rule:
    """Return the rule of a window."""
    kind = selected.collective.kind
    number, name = ALGORITHMS[kind][window.algorithm]
    return _Rule(window, number, name, _compute_segment_bytes(selected, window))


def _compute_segment_bytes(selected: SelectedCollective, window: SelectedWindow) -> int:
    """Return the bytes of a chunk of a pipelined broadcast (as segments); otherwise 0."""
    is_pipeline = selected.collective.kind is CollectiveKind.BROADCAST
    if not is_pipeline or window.algorithm != "ring":
        return 0
    size = window.sizes[len(window.sizes) // 2]
    chunks = selected.made(window.algorithm, size).collective.unit_count
    segment_bytes = -(-size // (chunks * _SEGMENT_MULTIPLE)) * _SEGMENT_MULTIPLE
    return segment_bytes if chunks > 1 else 0


def _format_classic(rules: _Rules, selection: Selection) -> str:
    """Return the rules as classic text."""
    description = f"{selection.topology}, {selection.num_ranks} ranks"
    lines = [f"# collhub tune: {' '.join(description.split())}", f"{len(rules)} # collectives"]
    for kind, kind_rules in rules.items():
        number, name = COLLECTIVES[kind]
        lines += [f"{number} # {name}", "1 # set of rules", "0 # communicators of every size"]
        lines.append(f"{len(kind_rules)} # rules: from bytes, algorithm, fan, segment")
        lines += [
            f"{rule.window.min_bytes} {rule.number} 0 {rule.segment_bytes} # {rule.name}"
            for rule in kind_rules
        ]
    return "\n".join([*lines, ""])


def _format_json(rules: _Rules, num_ranks: int) -> str:
    """Return the rules as JSON."""
    collectives = {
        COLLECTIVES[kind][1]: [_build_set(kind_rules, num_ranks)]
        for kind, kind_rules in rules.items()
    }
    document = {
        "rule_file_version": JSON_VERSION,
        "module": "tuned",
        "collectives": collectives,
    }
    return json.dumps(document, indent=1) + "\n"


def _build_set(rules: Sequence[_Rule], num_ranks: int) -> dict[str, object]:
    """Return the rules of one number of ranks as a JSON object."""
    return {
        "comm_size_min": num_ranks,
        "comm_size_max": num_ranks,
        "comm_rank_distribution": "any",
        "rules": [
            {
                "msg_size_min": rule.window.min_bytes,
                "msg_size_max": "inf" if rule.window.max_bytes is None else rule.window.max_bytes,
                "alg": rule.name,
                "faninout": 0,
                "seg_size": rule.segment_bytes,
                "reqs": 0,
            }
            for rule in rules
        ],
    }
