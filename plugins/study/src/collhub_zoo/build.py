"""Build a zoo: evaluate all entries, compare with a previous index, and create the output files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from dataclasses import dataclass

import hub_core
from collhub_zoo.cards import CARD_FILE, MACHINES_FILE
from collhub_zoo.catalogue import COPY_FOLDER, INDEX_FILE, AlgorithmSource, Catalogue
from collhub_zoo.evaluate import (
    MAX_FILE_STEPS,
    GroupOutcome,
    GroupRequest,
    choose_machine_timing,
    evaluate_group,
    list_requests,
)
from collhub_zoo.zoo_records import (
    IndexEntry,
    ResultItem,
    SkippedItem,
    ViewItem,
    WorseCurve,
    ZooBuildReport,
    ZooMachine,
)
from hub_core import CollectiveKind, HubError, Registry
from hub_core.plugin_api import EngineRequest, InteractivePage, RunTimeline
from hub_core.reports import to_json

FULL_SIZES = tuple(1 << power for power in (10, 14, 18, 22, 26, 30))
"""Sizes of a build in bytes, 1 KiB to 1 GiB."""
SMALL_SIZES = (1 << 16, 1 << 24)
"""Sizes of a small build in bytes, 64 KiB and 16 MiB."""
# Relative increase of a time above which a curve became worse.
_TOLERANCE = 1e-3
_ENGINE = "processes"
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Catalogue of a build, its source as given by the user, and the selected entries.

    `machines`: topologies; `sizes` in bytes, ascending; `jobs`: groups at once.
    """

    catalogue: Catalogue
    source: str | None
    names: tuple[str, ...]
    machines: tuple[str, ...]
    sizes: tuple[int, ...]
    jobs: int = 1
    downloads: tuple[tuple[str, bytes], ...] = ()


def choose_machines(catalogue: Catalogue, *, is_small: bool) -> tuple[str, ...]:
    """Return the topology texts of the machines on which a catalogue is evaluated, each once.

    These are the standard machines, then the topologies that cards name. With `is_small`, they are
    only the standard machines that are marked as small.
    """
    standard = [one.topology for one in catalogue.machines if one.small or not is_small]
    named = [] if is_small else [t for entry in catalogue.entries for t in entry.card.topologies]
    return tuple(dict.fromkeys([*standard, *named]))


def build_index(
    request: BuildRequest,
    previous: Mapping[str, object] | None,
    registry: Registry,
    progress: Progress,
) -> tuple[ZooBuildReport, dict[str, bytes]]:
    """Return the index of all requested entries, and the files for runtimes and pages by path.

    A group is a machine and a collective; `request.jobs` processes evaluate all groups. Results,
    groups, skipped entries and failures of groups are in the order of `request.machines`, then of
    collectives. Entries are in the order of the catalogue.

    Failures of entries and of processes are listed in `failures`, followed by errors of the
    catalogue (with empty texts as entry, machine and collective). `worse` lists curves that became
    worse since `previous`, an earlier index as JSON (`compare_indexes`); it is empty for None.

    `progress` is called after each group, in the order in which groups finish, with the finished
    fraction (0 to 1) and `MACHINE COLLECTIVE`. Raises `HubError` for an unreadable machine, an
    entry that the catalogue lacks, and if processes cannot be started.
    """
    catalogue = request.catalogue
    groups = list_requests(
        catalogue,
        request.source,
        request.machines,
        request.sizes,
        request.names,
        request.downloads,
    )
    outcomes: list[GroupOutcome] = [GroupOutcome() for _ in groups]
    for count, (position, outcome) in enumerate(_run_groups(groups, request.jobs, registry), 1):
        outcomes[position] = outcome
        label = f"{groups[position].topology} {groups[position].collective}"
        progress(count / len(groups), label)
    results = [result for outcome in outcomes for result in outcome.results]
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    failures += [
        SkippedItem(entry="", machine="", collective="", reason=" ".join(str(error).split()))
        for error in catalogue.errors
    ]
    titles = {machine.topology: machine.title for machine in catalogue.machines}
    views, view_files = draw_views(request, results, registry)
    report = ZooBuildReport(
        sizes=request.sizes,
        machines=[
            _describe_machine(text, titles.get(text, text), registry) for text in request.machines
        ],
        entries=[
            IndexEntry(card=entry.card, files=entry.hash_files(), view=views.get(entry.card.name))
            for entry in catalogue.entries
            if entry.card.name in request.names
        ],
        results=results,
        groups=[outcome.group for outcome in outcomes if outcome.group is not None],
        skipped=[item for outcome in outcomes for item in outcome.skipped],
        failures=failures,
        worse=[],
    )
    if previous is not None:
        worse = list(compare_indexes(previous, to_json(report)))
        report = ZooBuildReport(
            **{name: getattr(report, name) for name in report.__struct_fields__ if name != "worse"},
            worse=worse,
        )
    files = {path: content for outcome in outcomes for path, content in outcome.files.items()}
    return report, files | view_files


def draw_views(
    request: BuildRequest, results: Sequence[ResultItem], registry: Registry
) -> tuple[dict[str, ViewItem], dict[str, bytes]]:
    """Return one interactive page per entry: descriptions by entry name, and contents by path.

    The page shows one result of the entry, correct or not, with at most `MAX_FILE_STEPS` (4000)
    steps. It is chosen by these criteria, in this order: the collective that the card lists first,
    the fewest steps, the first in `results`.

    The algorithm is created again and simulated on the machine of the result with nominal links, at
    the last size of the request (the largest). The path is `views/NAME.html`.

    An entry without such a result has no page. It also has none if the creation, the simulation or
    the drawing raises `HubError`, for example without a plugin for pages. Raises `HubError` for an
    entry that the catalogue lacks and for a machine that cannot be read.
    """
    views: dict[str, ViewItem] = {}
    files: dict[str, bytes] = {}
    downloads = dict(request.downloads)
    for name in request.names:
        entry = request.catalogue.find(name)
        kinds = entry.card.collectives
        drawn = [
            result for result in results if result.entry == name and result.steps <= MAX_FILE_STEPS
        ]
        if not drawn:
            continue
        run = min(drawn, key=lambda one: (kinds.index(one.collective), one.steps))
        topology = hub_core.read_topology(run.machine, registry=registry)
        source = AlgorithmSource(entry, registry, downloads.get(name))
        size = request.sizes[-1]
        try:
            algorithm = source.create(CollectiveKind(run.collective), topology, size)
            simulated = hub_core.simulate(
                algorithm, topology, size, registry=registry, wants_transfers=True
            )
            title = f"{entry.card.title}: {run.collective} on {run.machine}"
            timeline = RunTimeline(
                title,
                algorithm,
                size,
                simulated.step_start_ns,
                simulated.step_end_ns,
                topology,
                simulated,
                timing=f"simulated on {topology.name}, nominal links",
            )
            page = hub_core.render_report(InteractivePage(title, (timeline,)), registry=registry)
        except HubError:
            continue
        views[name] = ViewItem(
            file=f"views/{name}.html", machine=run.machine, collective=run.collective, size=size
        )
        files[views[name].file] = page
    return views, files


def create_output(
    report: ZooBuildReport, request: BuildRequest, files: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return all files of the output: contents by relative path.

    - `index.json`: the report as JSON.
    - `files`: those of `build_index`, for runtimes and pages of entries, with their paths.
    - The Markdown pages of `create_pages`, which replace files of equal path.
    - `zoo/NAME/`: copies of the card and the files of each requested entry of the catalogue.
    - `zoo/machines.yaml`: the list of machines as JSON, only if the catalogue has machines.

    Nothing is written to disk. Raises the errors of entries whose files cannot be read.
    """
    from collhub_zoo.pages import create_pages

    output = {INDEX_FILE: (json.dumps(to_json(report), indent=1) + "\n").encode(), **files}
    output |= {path: text.encode() for path, text in create_pages(report).items()}
    for entry in request.catalogue.entries:
        if entry.card.name in request.names:
            for name in (CARD_FILE, *entry.files):
                output[f"{COPY_FOLDER}/{entry.card.name}/{name}"] = entry.read(name)
    if request.catalogue.machines:
        machines = {
            "schema": "collhub/zoo-machines-1",
            "machines": [to_json(machine) for machine in request.catalogue.machines],
        }
        # JSON is YAML.
        output[f"{COPY_FOLDER}/{MACHINES_FILE}"] = json.dumps(machines, indent=1).encode()
    return output


def compare_indexes(
    previous: Mapping[str, object], current: Mapping[str, object]
) -> Iterator[WorseCurve]:
    """Yield the curves that became worse since `previous`, sorted by entry, machine, collective.

    The arguments are indexes as parsed JSON. Each result of `previous` is compared with the result
    of `current` of the same entry, machine and collective. It is skipped if `current` does not
    list the entry or the machine. Missing or malformed lists count as empty. Cases:

    - The current result is missing: one curve `result`, reason `missing`.
    - `ok` was true and is not true any more: one curve `result`, reason `no longer correct`.
    - Otherwise a curve `nominal` if some `time_ns` increased by more than 0.1 %, then a curve
      `calibrated` if some `calibrated_ns` did. The reason lists all slower sizes, such as
      `1024 B: 100 to 120 ns`, separated by commas.

    Times are compared only at sizes for which both results have an integer.
    """
    before, after = _index_results(previous), _index_results(current)
    machines = {_get(machine, "topology") for machine in _list(current.get("machines"))}
    names = {_get(_get(entry, "card"), "name") for entry in _list(current.get("entries"))}
    for key, old in sorted(before.items()):
        entry, machine, collective = key
        if machine not in machines or entry not in names:
            continue
        new = after.get(key)
        if new is None or (old.get("ok") is True and new.get("ok") is not True):
            reason = "missing" if new is None else "no longer correct"
            yield WorseCurve(
                entry=entry, machine=machine, collective=collective, curve="result", reason=reason
            )
            continue
        for curve, member in (("nominal", "time_ns"), ("calibrated", "calibrated_ns")):
            slower = list(_list_slower(old, new, member))
            if slower:
                reason = ", ".join(slower)
                yield WorseCurve(
                    entry=entry, machine=machine, collective=collective, curve=curve, reason=reason
                )


def _run_groups(
    groups: Sequence[GroupRequest], jobs: int, registry: Registry
) -> Iterator[tuple[int, GroupOutcome]]:
    """Yield the position in `groups` and the outcome of each group when it is finished.

    With `jobs` of at most 1, or at most one group, this process evaluates them in order. Otherwise
    `jobs` worker processes do, and the order is that in which groups finish. Without groups nothing
    is yielded.

    A `HubError` of a group gives an outcome with one failure per entry of the group, and no
    results. In workers a crash of the process and a lack of memory do the same. Other exceptions of
    a group are raised. Raises `HubError` if the workers cannot be started.
    """
    if jobs <= 1 or len(groups) <= 1:
        for position, group in enumerate(groups):
            try:
                yield position, evaluate_group(group, registry)
            except HubError as error:
                yield position, _create_failure(group, str(error))
        return
    with hub_core.start_engine(_ENGINE, EngineRequest(jobs), registry=registry) as executor:
        tasks = {
            executor.submit(evaluate_group, group, registry): position
            for position, group in enumerate(groups)
        }
        for task in as_completed(tasks):
            position = tasks[task]
            try:
                yield position, task.result()
            except (HubError, BrokenExecutor, MemoryError) as error:
                reason = str(error) or type(error).__name__
                yield position, _create_failure(groups[position], reason)


def _create_failure(group: GroupRequest, reason: str) -> GroupOutcome:
    """Return an outcome with one failure for every entry of the group, in the order of its names.

    Each failure has the entry, the topology of the group as machine, the collective and the
    reason. Every run of white space in the reason becomes one space, also line breaks; white
    space at its ends is removed. All other fields of the outcome are empty.
    """
    failures = [
        SkippedItem(
            entry=name,
            machine=group.topology,
            collective=group.collective,
            reason=" ".join(reason.split()),
        )
        for name in group.names
    ]
    return GroupOutcome(failures=failures)


def _describe_machine(text: str, title: str, registry: Registry) -> ZooMachine:
    topology = hub_core.read_topology(text, registry=registry)
    timing = choose_machine_timing(topology, registry)
    note = "" if timing.machine is None else timing.note
    return ZooMachine(topology=text, title=title, ranks=topology.num_npus, timing=note)


def _index_results(
    index: Mapping[str, object],
) -> dict[tuple[str, str, str], Mapping[str, object]]:
    return {
        (str(_get(one, "entry")), str(_get(one, "machine")), str(_get(one, "collective"))): one
        for one in _list(index.get("results"))
    }


def _list_slower(
    old: Mapping[str, object], new: Mapping[str, object], member: str
) -> Iterator[str]:
    """Yield `SIZE B: OLD to NEW ns` for every size whose time increased by more than 0.1 %.

    `old`, `new`: results with a list `points` of objects with `size` (bytes) and a time in ns.
    `member`: key of the time in the points. A missing list, and elements that are not objects,
    count as absent.

    The order is that of the points in `old`. A point of `old` is skipped if `new` has no point of
    its size, or if one of the two times is no integer. If `new` has several points of one size, the
    last one counts.
    """
    times = {_get(point, "size"): _get(point, member) for point in _list(new.get("points"))}
    for point in _list(old.get("points")):
        size, before = _get(point, "size"), _get(point, member)
        after = times.get(size)
        if not (isinstance(before, int) and isinstance(after, int)):
            continue
        if after > before * (1 + _TOLERANCE):
            yield f"{size} B: {before} to {after} ns"


def _list(value: object) -> list[Mapping[str, object]]:
    """Return the objects (dicts) of an untrusted list or tuple; other elements are dropped.

    Empty for other values.
    """
    return (
        [one for one in value if isinstance(one, dict)] if isinstance(value, list | tuple) else []
    )


def _get(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None
