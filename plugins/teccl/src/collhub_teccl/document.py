"""The JSON document of a schedule: what it claims, and the paths of its demands as columns."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_columns import Float64Array, Int64Array

from hub_core.model import InputError, JsonValue, Location

_CLAIMS = {
    "1-Epoch_Duration": "epoch_duration_s",
    "2-Expected_Epoch_Duration": "expected_epoch_duration_s",
    "3-Epochs_Required": "epochs",
    "4-Collective_Finish_Time": "finish_time_s",
    "5-Algo_Bandwidth": "algorithm_bandwidth_gb_per_s",
    "Solver_Time": "solver_time_s",
}
# The old variant writes a small c.
_PATHS = ("8-Chunk paths", "7-chunk paths")
_FLOWS = ("7-Flows", "6-Flows")
_NUMBER = r"([0-9]{1,9})"
_DEMAND = re.compile(
    rf"Demand at {_NUMBER} for chunk {_NUMBER} from {_NUMBER} met by epoch -?[0-9]+"
)
_HOP = re.compile(
    rf"{_NUMBER}->{_NUMBER}(?: with volume ([0-9.eE+-]{{1,32}}))? in epoch {_NUMBER}"
    r"(?: via switches ([0-9]{1,9}(?: ?-> ?[0-9]{1,9})*))?"
)
_FLOW = re.compile(rf"Chunk {_NUMBER} from {_NUMBER} traveled over (.*)")
_INPUT_KEYS = ("TopologyParams", "GurobiParams", "InstanceParams")
# Volumes that add up to a chunk differ from it by no more, as solvers round.
TOLERANCE = 1e-3


_Flow = tuple[tuple[int, int, int, int, int], float]


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Paths of a schedule, by hops and by demands; int64 columns unless stated.

    Of every hop: its `path`, `source` and `destination` nodes, `epoch`. Of every path: its `demand`
    and `volume`, float64. Of every demand: `at`, `chunk`, `origin` as in the file, and `name`, its
    key. `switches`: nodes that stand after `via switches`.
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
    """A schedule: `claims` of the solver, its paths, and its list of flows.

    `lost_flows`: hops of which the list has less volume than the paths, since it is a set of lines
    in which equal ones are merged.
    """

    claims: Mapping[str, JsonValue]
    paths: Paths
    num_flows: int
    lost_flows: int

    @classmethod
    def parse(cls, content: bytes, file: str) -> ScheduleDocument:
        """Parse a file. Raises `InputError` with the JSON path of what is wrong."""
        return _Parser(file).document(content)


class _Parser:
    """Collects hops demand by demand."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._hops: list[tuple[int, int, int, int]] = []
        self._of_paths: list[tuple[int, float]] = []
        self._demands: list[tuple[int, int, int]] = []
        self._switches: set[int] = set()

    def document(self, content: bytes) -> ScheduleDocument:
        found = self._object(content)
        stated = [key for key in _PATHS if key in found]
        if not stated:
            raise self._error(
                "$", f"expected the member {_PATHS[0]!r}", "write it with the LP or MILP solver"
            )
        by_demand = found[stated[0]]
        place = f"$[{stated[0]!r}]"
        if not isinstance(by_demand, dict) or not by_demand:
            raise self._error(place, "expected an object with the paths of every demand")
        has_volumes = False
        for number, (key, value) in enumerate(by_demand.items()):
            has_volumes |= self._add(number, key, value, f"{place}[{key!r}]")
        paths = self._paths(list(by_demand), has_volumes)
        flows = self._flows(found)
        lost = _lost(flows, paths) if has_volumes and flows else 0
        return ScheduleDocument(self._claims(found), paths, len(flows), lost)

    def _flows(self, found: Mapping[str, object]) -> list[_Flow]:
        """The list of flows, where there is one."""
        stated = [key for key in _FLOWS if key in found]
        lines = found[stated[0]] if stated else []
        place = f"$[{stated[0]!r}]" if stated else "$"
        if not isinstance(lines, list):
            raise self._error(place, "expected a list of flows")
        return [self._flow(line, f"{place}[{number}]") for number, line in enumerate(lines)]

    def _flow(self, line: object, place: str) -> _Flow:
        match = _FLOW.fullmatch(line) if isinstance(line, str) else None
        if match is None:
            wanted = "Chunk C from S traveled over I->J with volume V in epoch K"
            raise self._error(place, f"expected a flow as {wanted!r}")
        chunk, origin, hop = match.groups()
        source, destination, volume, epoch = self._hop(hop, place)
        return (int(chunk), int(origin), source, destination, epoch), volume

    def _object(self, content: bytes) -> dict[str, object]:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._error("$", f"expected JSON: {error}") from None
        if not isinstance(found, dict):
            raise self._error("$", "expected an object")
        # Inputs lie beside schedules in its repository, under names as telling.
        if any(key in found for key in _INPUT_KEYS):
            message = "this is an input of TE-CCL's solver, not a schedule"
            raise self._error("$", message, "run the solver, and read what it writes")
        return found

    def _claims(self, found: Mapping[str, object]) -> dict[str, JsonValue]:
        claims: dict[str, JsonValue] = {}
        for key, name in _CLAIMS.items():
            value = found.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                claims[name] = value
        met = _latest(found.get("6-Demand_Met"))
        return claims | ({} if met is None else {"demand_met_s": met})

    def _add(self, number: int, key: str, value: object, place: str) -> bool:
        """Add a demand; whether it states volumes."""
        match = _DEMAND.fullmatch(key)
        if match is None:
            wanted = "Demand at D for chunk C from S met by epoch E"
            raise self._error(place, f"expected a key as {wanted!r}")
        at, chunk, origin = (int(group) for group in match.groups())
        self._demands.append((at, chunk, origin))
        if not isinstance(value, list) or not value:
            raise self._error(
                place, "expected a list of hops, or of paths", "name one hop at least"
            )
        if isinstance(value[0], str):
            self._add_path(
                number, at, origin, [(hop, f"{place}[{i}]") for i, hop in enumerate(value)]
            )
            return False
        for path, hops in enumerate(value):
            self._add_path(number, at, origin, list(self._of_multipath(hops, f"{place}[{path}]")))
        return True

    def _of_multipath(self, hops: object, place: str) -> Iterator[tuple[object, str]]:
        """Hops of one of several paths, and their places."""
        if not isinstance(hops, list) or not hops:
            raise self._error(place, "expected a list of [epoch, hop]")
        for number, hop in enumerate(hops):
            if not isinstance(hop, list) or len(hop) != 2:
                raise self._error(f"{place}[{number}]", "expected [epoch, hop]")
            yield hop[1], f"{place}[{number}][1]"

    def _add_path(self, demand: int, at: int, origin: int, hops: list[tuple[object, str]]) -> None:
        """Add a path, which must lead from the origin to where it is demanded, in time."""
        here, last_epoch, volumes = origin, -1, []
        place = hops[-1][1]
        for text, place in hops:
            source, destination, volume, epoch = self._hop(text, place)
            if source != here:
                raise self._error(place, f"expected a hop from {here}, where the path has come to")
            # Epochs are those in which hops start: the next one starts later, always.
            if epoch <= last_epoch:
                message = f"expected an epoch after {last_epoch}, that of the hop before"
                raise self._error(place, message)
            self._hops.append((len(self._of_paths), source, destination, epoch))
            here, last_epoch = destination, epoch
            volumes.append(volume)
        if here != at:
            raise self._error(place, f"the path ends at {here}, expected {at}")
        # What a path carries, all of its hops carry.
        if max(volumes) - min(volumes) > TOLERANCE:
            raise self._error(place, f"expected the volume {volumes[0]} of the hop before")
        self._of_paths.append((demand, volumes[0]))

    def _hop(self, text: object, place: str) -> tuple[int, int, float, int]:
        """Source, destination, volume and epoch of a hop."""
        match = _HOP.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            wanted = "I->J with volume V in epoch K via switches W"
            raise self._error(place, f"expected a hop as {wanted!r}")
        source, destination, volume, epoch, switches = match.groups()
        if switches is not None:
            self._switches.update(int(switch) for switch in switches.split("->"))
        return int(source), int(destination), self._volume(volume, place), int(epoch)

    def _volume(self, text: str | None, place: str) -> float:
        if text is None:
            return 1.0
        try:
            volume = float(text)
        except ValueError:
            volume = -1.0
        if not 0 < volume <= 1 + TOLERANCE:
            raise self._error(place, f"the volume is {text}, expected more than 0 and at most 1")
        return volume

    def _paths(self, names: list[str], has_volumes: bool) -> Paths:
        path, source, destination, epoch = np.asarray(self._hops, np.int64).T
        demand = np.asarray([demand for demand, _ in self._of_paths], np.int64)
        volume = np.asarray([volume for _, volume in self._of_paths], np.float64)
        at, chunk, origin = np.asarray(self._demands, np.int64).T
        switches = frozenset(self._switches)
        return Paths(
            path, source, destination, epoch, demand, volume, at, chunk, origin, names, switches,
            has_volumes,
        )  # fmt: skip

    def _error(self, place: str, message: str, cure: str = "") -> InputError:
        return InputError(
            f"{place}: {message}", location=Location(self._file), cure=cure, code="teccl-schema"
        )


def _lost(flows: Sequence[_Flow], paths: Paths) -> int:
    """Hops of which the list of flows has less volume than the paths."""
    listed: dict[tuple[int, ...], float] = defaultdict(float)
    for hop, listed_volume in flows:
        listed[hop] += listed_volume
    demand = paths.demand[paths.path]
    columns = (paths.chunk[demand], paths.origin[demand], paths.source, paths.destination)
    # Several paths may share a hop: in the list its volumes are one.
    hops = np.stack([*columns, paths.epoch], axis=1)
    distinct_hops, number = np.unique(hops, axis=0, return_inverse=True)
    volume = np.bincount(number.ravel(), paths.volume[paths.path])
    found = np.asarray([listed[tuple(hop)] for hop in distinct_hops.tolist()])
    return int(np.sum(found < volume - TOLERANCE))


def _latest(demand_met: object) -> float | None:
    """Seconds at which the last demand is met, as the solver claims; None where it does not."""
    times = list(_numbers(demand_met))
    return max(times, default=None)


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
