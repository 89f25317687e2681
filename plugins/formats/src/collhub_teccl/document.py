"""Parse the JSON document of a schedule: the claims, and the paths of its demands as columns."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hub_core import is_finite_number, parse_json_object
from hub_core.columns import Float64Array, Int64Array
from hub_core.model import CollectiveKind, InputError, JsonValue, Location

_CLAIMS = {
    "1-Epoch_Duration": "epoch_duration_s",
    "2-Expected_Epoch_Duration": "expected_epoch_duration_s",
    "3-Epochs_Required": "epochs",
    "4-Collective_Finish_Time": "finish_time_s",
    "5-Algo_Bandwidth": "algorithm_bandwidth_gb_per_s",
    "Solver_Time": "solver_time_s",
}
# The old variant has a lower-case c.
_PATHS = ("8-Chunk paths", "7-chunk paths")
_FLOWS = ("7-Flows", "6-Flows")
# Member of forks; the original states no collective.
_COLLECTIVE = "0-Collective"
_KINDS = {
    "allgather": CollectiveKind.ALL_GATHER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
}
_NUMBER = r"([0-9]{1,9})"
_DEMAND = re.compile(
    rf"Demand at {_NUMBER} for chunk {_NUMBER} from {_NUMBER} met by epoch -?[0-9]+"
)
_HOP = re.compile(
    rf"{_NUMBER}->{_NUMBER}(?: with volume ([0-9.eE+-]{{1,32}}))? in epoch {_NUMBER}"
    # Forks state the rate in GB/s, which does not change what is sent.
    r"(?: at rate [0-9.eE+-]{1,32})?"
    r"(?: via switches ([0-9]{1,9}(?: ?-> ?[0-9]{1,9})*))?"
)
_FLOW = re.compile(rf"Chunk {_NUMBER} from {_NUMBER} traveled over (.*)")
_INPUT_KEYS = ("TopologyParams", "GurobiParams", "InstanceParams")
# Maximum rounding error of volumes, in chunks.
TOLERANCE = 1e-3


_Flow = tuple[tuple[int, int, int, int, int], float]


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Paths of a schedule, by hops and by demands; int64 columns unless noted.

    Per hop: its `path`, `source` and `destination` nodes, `epoch`. Per path: its `demand`, and
    `volume` (float64, in chunks). Per demand: `at` (receiving node), `chunk` and `origin` as in the
    file, and `names`, its key. `switches`: nodes in `via switches`.
    """

    path: Int64Array
    source: Int64Array
    destination: Int64Array
    epoch: Int64Array
    demand: Int64Array
    volume: Float64Array
    at: Int64Array
    chunk: Int64Array
    origin: Int64Array
    names: Sequence[str]
    switches: frozenset[int]
    has_volumes: bool


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleDocument:
    """A schedule: `claims` of the solver, its paths, and the length of its list of flows.

    `kind`: the collective, all-gather or all-to-all. `lost_flows`: number of hops with less volume
    in the list of flows than in the paths: the list is a set of lines in which equal lines are
    merged.
    """

    claims: Mapping[str, JsonValue]
    kind: CollectiveKind
    paths: Paths
    num_flows: int
    lost_flows: int

    @classmethod
    def parse(cls, content: bytes, file: str) -> ScheduleDocument:
        """Parse a file. Raises `InputError` with the JSON path of the first defect."""
        return _DemandParser(file).parse_document(content)


class _DemandParser:
    """Collects hops, paths and switches demand by demand; one parser reads one document."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._hops: list[tuple[int, int, int, int]] = []
        self._of_paths: list[tuple[int, float]] = []
        self._demands: list[tuple[int, int, int]] = []
        self._switches: set[int] = set()

    def parse_document(self, content: bytes) -> ScheduleDocument:
        """Parse the complete document; raise `InputError` (`teccl-schema`) for the first defect.

        The message begins with the JSON path of the defect. The document is parsed in this order:

        1. It must be a JSON object (NaN is allowed, repeated keys are not), and no input of the
           solver. The collective is that of "0-Collective" (`allgather` or `alltoall`). Without
           this member it is an all-to-all if the paths have volumes, otherwise an all-gather.
        2. The paths are in the member "8-Chunk paths", otherwise "7-chunk paths". One is required,
           as an object with at least one demand. A demand is a chunk that a GPU must get. Its value
           is one path (a list of hops), or a list of paths with volumes (parts of a chunk).
           `has_volumes` is True if any demand has the second form. For the conditions of paths see
           `_add_demand` and `_add_path`.
        3. The list of flows ("7-Flows", otherwise "6-Flows") is optional; each line is checked.
           `num_flows` is its length, 0 without it. `lost_flows` counts the hops with less volume in
           the list than in the paths. It is 0 if the paths have no volumes or the list is empty.
        4. Claims of the solver are optional. A claim that is not a finite number is ignored. The
           largest finite number in `6-Demand_Met`, also in nested objects but not in lists, is the
           claim `demand_met_s`.

        Demands, paths and hops have the order of the file.
        """
        members = self._decode_object(content)
        kind = self._find_kind(members)
        path_keys = [key for key in _PATHS if key in members]
        if not path_keys:
            raise self._build_error(
                "$", f"expected the member {_PATHS[0]!r}", "write it with the LP or MILP solver"
            )
        by_demand = members[path_keys[0]]
        json_path = f"$[{path_keys[0]!r}]"
        if not isinstance(by_demand, dict) or not by_demand:
            raise self._build_error(json_path, "expected an object with the paths of every demand")
        has_volumes = False
        for number, (key, value) in enumerate(by_demand.items()):
            has_volumes |= self._add_demand(number, key, value, f"{json_path}[{key!r}]")
        paths = self._build_paths(list(by_demand), has_volumes)
        # Parse the list of flows; empty if there is none.
        flow_keys = [key for key in _FLOWS if key in members]
        lines = members[flow_keys[0]] if flow_keys else []
        json_path = f"$[{flow_keys[0]!r}]" if flow_keys else "$"
        if not isinstance(lines, list):
            raise self._build_error(json_path, "expected a list of flows")
        flows = [
            self._parse_flow(line, f"{json_path}[{number}]") for number, line in enumerate(lines)
        ]
        lost = _count_lost_flows(flows, paths) if has_volumes and flows else 0
        # The solver's claims under the names of the extension.
        claims: dict[str, JsonValue] = {}
        for key, name in _CLAIMS.items():
            value = members.get(key)
            if is_finite_number(value):
                claims[name] = value
        times = list(_iterate_numbers(members.get("6-Demand_Met")))
        met = max(times, default=None)
        if kind is None:
            kind = CollectiveKind.ALL_TO_ALL if has_volumes else CollectiveKind.ALL_GATHER
        return ScheduleDocument(
            claims | ({} if met is None else {"demand_met_s": met}), kind, paths, len(flows), lost
        )

    def _find_kind(self, members: Mapping[str, object]) -> CollectiveKind | None:
        """Return the collective that the document states, None without the member.

        Raises `InputError` for a value that is not a key of `_KINDS`, such as `gather`.
        """
        if _COLLECTIVE not in members:
            return None
        stated = members[_COLLECTIVE]
        kind = _KINDS.get(stated) if isinstance(stated, str) else None
        if kind is None:
            raise self._build_error(
                f"$[{_COLLECTIVE!r}]",
                f"expected {' or '.join(_KINDS)}, got {json.dumps(stated)[:40]}",
                "solve an all-gather or an all-to-all; schedules of others are not read",
            )
        return kind

    def _parse_flow(self, line: object, json_path: str) -> _Flow:
        """Parse a line of the list of flows; return (hop of a chunk, volume on it).

        The form is `Chunk C from S traveled over HOP`, with a hop as for `_parse_hop`. The hop
        of a chunk is (chunk C, origin S, source, destination, epoch); the volume is in chunks,
        1 if not given. Switches that the line names are added to those of the schedule. Raise
        `InputError` with `json_path` for a value of another form and for an invalid volume.
        """
        match = _FLOW.fullmatch(line) if isinstance(line, str) else None
        if match is None:
            expected = "Chunk C from S traveled over I->J with volume V in epoch K"
            raise self._build_error(json_path, f"expected a flow as {expected!r}")
        chunk, origin, hop = match.groups()
        source, destination, volume, epoch = self._parse_hop(hop, json_path)
        return (int(chunk), int(origin), source, destination, epoch), volume

    def _decode_object(self, content: bytes) -> dict[str, object]:
        """Return the JSON object in `content`; its members keep their order and are not checked.

        NaN and infinity are allowed. Raises `InputError` (`teccl-schema`) at the path `$`:

        - if `parse_json_object` refuses the content: other JSON values, invalid JSON, text that is
          not UTF-8, repeated keys, or too deep nesting
        - if the object has a key of `_INPUT_KEYS` (`TopologyParams`, `GurobiParams`,
          `InstanceParams`), because it is an input of the solver and not a schedule
        """
        try:
            # The solver's claims may be infinite or NaN; then they are ignored.
            members = parse_json_object(content, self._file, allow_nan=True)
        except InputError as error:
            (found,) = error.diagnostics
            message = f"$: expected JSON: {found.message}"
            raise InputError(replace(found, code="teccl-schema", message=message)) from None
        # Inputs are stored next to schedules in TE-CCL's repository, under similar names.
        if any(key in members for key in _INPUT_KEYS):
            message = "this is an input of TE-CCL's solver, not a schedule"
            raise self._build_error("$", message, "run the solver, and read its output")
        return members

    def _add_demand(self, number: int, key: str, value: object, json_path: str) -> bool:
        """Append a demand and its paths; return whether the paths have volumes (parts of a chunk).

        `number`: position in the file, from 0. `key`: `Demand at D for chunk C from S met by epoch
        E`; the demand is (D, C, S), and E is ignored.

        - The first element of `value` is a text: `value` is one path of hops in text form; False.
        - Otherwise each element is a path, a list of pairs [epoch, hop]; True. The epoch of the
          pair is ignored; that of the hop's text counts. A hop without a volume has 1.

        Raises `InputError` at `json_path` or below: another key; a value or path that is no list or
        empty; an element that is no pair; a path that `_add_path` refuses. Demand, hops and
        switches appended before the error remain.
        """
        match = _DEMAND.fullmatch(key)
        if match is None:
            expected = "Demand at D for chunk C from S met by epoch E"
            raise self._build_error(json_path, f"expected a key as {expected!r}")
        at, chunk, origin = (int(group) for group in match.groups())
        self._demands.append((at, chunk, origin))
        if not isinstance(value, list) or not value:
            raise self._build_error(
                json_path, "expected a list of hops, or of paths", "give at least one hop"
            )
        if isinstance(value[0], str):
            self._add_path(
                number, at, origin, [(hop, f"{json_path}[{i}]") for i, hop in enumerate(value)]
            )
            return False
        for path, hops in enumerate(value):
            self._add_path(
                number, at, origin, list(self._iterate_hops(hops, f"{json_path}[{path}]"))
            )
        return True

    def _iterate_hops(self, hops: object, json_path: str) -> Iterator[tuple[object, str]]:
        """Yield (hop, its JSON path) for each entry [epoch, hop] of a path, in order.

        The hop is a text in valid files; neither it nor the epoch is checked here. Raises
        `InputError` for no list, an empty list, and, after the entries before it, an entry that is
        no list of two values.
        """
        if not isinstance(hops, list) or not hops:
            raise self._build_error(json_path, "expected a list of [epoch, hop]")
        for number, hop in enumerate(hops):
            if not isinstance(hop, list) or len(hop) != 2:
                raise self._build_error(f"{json_path}[{number}]", "expected [epoch, hop]")
            yield hop[1], f"{json_path}[{number}][1]"

    def _add_path(self, demand: int, at: int, origin: int, hops: list[tuple[object, str]]) -> None:
        """Append a path of the demand with number `demand`, and its hops.

        `hops` has at least one pair (text, JSON path of the text). The text is `I->J [with volume
        V] in epoch K [via switches W]`; `_parse_hop` adds the switches W to those of the schedule.
        The volume of the path is that of its first hop, 1 if not given. Raises `InputError` at the
        JSON path of the first hop that violates a condition:

        - The text has this form, and the volume is above 0 and at most 1 + `TOLERANCE`.
        - The first hop begins at `origin`, and every other hop where the previous hop ends.
        - The epoch is higher than that of the previous hop.

        Then the entire path is checked, with the error at the last hop: it ends at `at`, and the
        largest and smallest volume differ by at most `TOLERANCE` (0.001 chunks).
        """
        node, last_epoch, volumes = origin, -1, []
        json_path = hops[-1][1]
        for text, json_path in hops:
            source, destination, volume, epoch = self._parse_hop(text, json_path)
            if source != node:
                raise self._build_error(
                    json_path, f"expected a hop from {node}, the end of the hop before"
                )
            # Epochs are the start times of hops: the next hop must start later.
            if epoch <= last_epoch:
                message = f"expected an epoch after {last_epoch}, that of the hop before"
                raise self._build_error(json_path, message)
            self._hops.append((len(self._of_paths), source, destination, epoch))
            node, last_epoch = destination, epoch
            volumes.append(volume)
        if node != at:
            raise self._build_error(json_path, f"the path ends at {node}, expected {at}")
        # All hops of a path carry the same volume.
        if max(volumes) - min(volumes) > TOLERANCE:
            raise self._build_error(
                json_path, f"expected the volume {volumes[0]} of the hop before"
            )
        self._of_paths.append((demand, volumes[0]))

    def _parse_hop(self, text: object, json_path: str) -> tuple[int, int, float, int]:
        """Parse a hop; return its source, destination, volume in chunks and epoch.

        A hop is a text such as `0->1 with volume 0.5 in epoch 3 via switches 8->9`. The parts
        with the volume (1 if missing) and the switches are optional. The switches are added to
        those of the schedule. Raises `InputError` for a value that is no such text, and for a
        volume that is no number above 0 and up to 1 + `TOLERANCE`.
        """
        match = _HOP.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            expected = "I->J with volume V in epoch K via switches W"
            raise self._build_error(json_path, f"expected a hop as {expected!r}")
        source, destination, volume_text, epoch, switches = match.groups()
        if switches is not None:
            self._switches.update(int(switch) for switch in switches.split("->"))
        volume = 1.0
        if volume_text is not None:
            try:
                volume = float(volume_text)
            except ValueError:
                volume = -1.0
            if not 0 < volume <= 1 + TOLERANCE:
                message = f"the volume is {volume_text}, expected more than 0 and at most 1"
                raise self._build_error(json_path, message)
        return int(source), int(destination), volume, int(epoch)

    def _build_paths(self, names: list[str], has_volumes: bool) -> Paths:
        """Return all added demands, paths and hops as columns, each in the order of addition.

        A demand is a chunk that a GPU must get. A path is a list of hops. The columns are:

        - per hop: `path`, `source`, `destination`, `epoch` (int64)
        - per path: `demand` (int64) and `volume` (float64)
        - per demand: `at` (destination), `chunk`, `origin` (int64)

        `path` and `demand` are indices from 0. `switches` has the switches of all hops. `names`
        (keys of the demands) and `has_volumes` (paths carry parts of a chunk) are stored unchanged.
        Raises `ValueError` if no hop or no demand was added.
        """
        path, source, destination, epoch = np.asarray(self._hops, np.int64).T
        demand = np.asarray([demand for demand, _ in self._of_paths], np.int64)
        volume = np.asarray([volume for _, volume in self._of_paths], np.float64)
        at, chunk, origin = np.asarray(self._demands, np.int64).T
        switches = frozenset(self._switches)
        return Paths(
            path,
            source,
            destination,
            epoch,
            demand,
            volume,
            at,
            chunk,
            origin,
            names,
            switches,
            has_volumes,
        )

    def _build_error(self, json_path: str, message: str, cure: str = "") -> InputError:
        """Error at the JSON path `place`."""
        return InputError(
            f"{json_path}: {message}", location=Location(self._file), cure=cure, code="teccl-schema"
        )


def _count_lost_flows(flows: Sequence[_Flow], paths: Paths) -> int:
    """Count the hops that have less volume in the list of flows than in the paths of demands.

    A hop is (chunk, origin, source, destination, epoch). Volumes of equal hops are added up on both
    sides. Differences up to `TOLERANCE` do not count, and hops that only the list has are ignored.
    """
    listed: dict[tuple[int, ...], float] = defaultdict(float)
    for hop, listed_volume in flows:
        listed[hop] += listed_volume
    demand = paths.demand[paths.path]
    columns = (paths.chunk[demand], paths.origin[demand], paths.source, paths.destination)
    # Paths may share a hop: the list contains its total volume.
    hops = np.stack([*columns, paths.epoch], axis=1)
    distinct_hops, number = np.unique(hops, axis=0, return_inverse=True)
    volume = np.bincount(number.ravel(), paths.volume[paths.path])
    listed_volumes = np.asarray([listed[tuple(hop)] for hop in distinct_hops.tolist()])
    return int(np.sum(listed_volumes < volume - TOLERANCE))


def find_number(value: object) -> float | None:
    """Return a JSON number as a float.

    None for all other values, NaN, infinity, and integers beyond the range of floats.
    """
    return float(value) if is_finite_number(value) else None


def _iterate_numbers(value: object) -> Iterator[float]:
    """Yield all numbers in nested dictionaries as floats, in order; a single number yields itself.

    Values for which `find_number` returns None, and lists, are skipped.
    """
    if isinstance(value, dict):
        for member in value.values():
            yield from _iterate_numbers(member)
    elif (number := find_number(value)) is not None:
        yield number
