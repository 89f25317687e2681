"""Evaluate the entries of a catalogue for one collective on one machine.

Every algorithm is created, verified, timed on nominal links and on the measured machine, and
compared with the best proven bound. Files for runtimes are written and checked by the rules of
their versions. A defective entry does not affect the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from collhub_machine_profiles import find_profile

import hub_core
from collhub_zoo.catalogue import AlgorithmSource, Catalogue, Entry, open_catalogue
from collhub_zoo.zoo_records import (
    BestItem,
    BoundItem,
    CollectiveSummary,
    LibraryTimeItem,
    PointItem,
    ResultItem,
    RuntimeItem,
    SkippedItem,
    SlowerItem,
)
from hub_core import (
    Algorithm,
    Collective,
    CollectiveKind,
    HubError,
    InputError,
    ProvenBound,
    Registry,
    StepKind,
    TimingSource,
    Topology,
    UsageError,
)
from hub_core.plugin_api import (
    Check,
    CheckReport,
    CheckRequest,
    Source,
    Subject,
    resolve,
)

# Runtimes refuse larger programs; writing them would only take time.
MAX_FILE_STEPS = 4_000
# NCCL, and the runtimes derived from it, buffer 8 transfers per connection (NCCL_STEPS).
_FIFO_CAPACITY = 8


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A collective on a machine. `source`: of the catalogue; `names`: entries to evaluate.

    `downloads`: contents of downloaded files by entry. It is sent to worker processes.
    """

    source: str | None
    topology: str
    collective: str
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    downloads: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class GroupOutcome:
    """Results of a group. `files`: written files by path in the output."""

    group: CollectiveSummary | None = None
    results: list[ResultItem] = field(default_factory=list)
    skipped: list[SkippedItem] = field(default_factory=list)
    failures: list[SkippedItem] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """What all entries of a group share."""

    request: GroupRequest
    kind: CollectiveKind
    topology: Topology
    timing: TimingSource
    bounds: tuple[ProvenBound | None, ...]
    registry: Registry


def evaluate_group(request: GroupRequest, registry: Registry) -> GroupOutcome:
    """Evaluate the entries of a request for its collective and topology, and rank them.

    The entries are evaluated in the order of `request.names`, at each size of the request. Every
    NPU is a rank; the root of a rooted collective is rank 0. Each entry adds a result, a skipped
    entry or failures to the outcome (`_evaluate_entry`). A `HubError` of one entry does not stop
    the others. `group` ranks the correct results at every size; it exists even without results.
    Written files are only in memory.

    Raises `ValueError` for an unknown collective, and `HubError` for a custom or uneven one, if the
    catalogue or the topology cannot be read, if timing or bounds cannot be computed, and if the
    catalogue has no entry of a name; the results of earlier entries are lost then.
    """
    catalogue = open_catalogue(request.source)
    outcome = GroupOutcome()
    topology = hub_core.read_topology(request.topology, registry=registry)
    kind = CollectiveKind(request.collective)
    ranks = topology.num_npus
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, kind.traits.parts(ranks), root, True, True)
    place = _Place(
        request,
        kind,
        topology,
        choose_machine_timing(topology, registry),
        hub_core.best_bounds(collective, topology, request.sizes, registry=registry),
        registry,
    )
    downloads = dict(request.downloads)
    for name in request.names:
        entry = catalogue.find(name)
        _evaluate_entry(entry, downloads.get(name), place, outcome)
    outcome.group = _create_group(place, outcome.results)
    return outcome


def choose_machine_timing(topology: Topology, registry: Registry) -> TimingSource:
    """Return the timing on the known machine of a network; without one, that of nominal links."""
    return hub_core.choose_timing(
        None, "analytical", topology, registry, uses_known=True, tries_instances=True
    )


def list_requests(
    catalogue: Catalogue,
    source: str | None,
    machines: Sequence[str],
    sizes: tuple[int, ...],
    names: Sequence[str],
    downloads: tuple[tuple[str, bytes], ...],
) -> list[GroupRequest]:
    """Return one request for every machine and collective that some of the named entries support.

    The order is that of `machines`, then that of `CollectiveKind`. An entry is in a request if its
    name is in `names`, its card lists the collective, and the machine is one of its topologies
    (`topologies_of`). Entries are listed in the order of the catalogue. Combinations without an
    entry are left out, and so are names that the catalogue lacks. `sizes`: bytes. Every request has
    the same `source`, `sizes` and `downloads`, also downloads of entries that are not in it.
    """
    requests = []
    for machine in machines:
        for kind in CollectiveKind:
            entries = tuple(
                entry.card.name
                for entry in catalogue.entries
                if entry.card.name in names
                and kind.value in entry.card.collectives
                and machine in catalogue.topologies_of(entry.card)
            )
            if entries:
                requests.append(
                    GroupRequest(source, machine, kind.value, sizes, entries, downloads)
                )
    return requests


def _evaluate_entry(
    entry: Entry, download: bytes | None, place: _Place, outcome: GroupOutcome
) -> None:
    """Add the result of an entry, or the reason why it has none, to the lists of `outcome`.

    The first case that applies:

    1. The card excludes the collective or the number of ranks, or there is no file and no
       synthesizer: `skipped`.
    2. Creating, verifying or timing raises `InputError` or `UsageError`: `skipped` if a synthesizer
       creates the algorithm, otherwise `failures`. An unknown synthesizer and a download with
       another SHA-256 are `failures` too.
    3. Any other `HubError`: `failures`. Other exceptions are raised.
    4. Otherwise the result is added to `results` and its files to `files`. If the algorithm is not
       correct, an entry in `failures` is added as well.

    Reasons are on one line. `download`: content of the entry's downloaded file, or None.
    """
    name, request = entry.card.name, place.request

    def describe(reason: str) -> SkippedItem:
        return SkippedItem(
            entry=name,
            machine=request.topology,
            collective=request.collective,
            reason=" ".join(reason.split()),
        )

    is_synthesized = False
    try:
        source = AlgorithmSource(entry, place.registry, download)
        is_synthesized = source.depends_on_size
        reason = source.refusal(place.kind, place.topology)
        if reason or not source.is_available:
            outcome.skipped.append(describe(reason or "no file: figures, or not downloaded"))
            return
        result, files = _create_result(entry, source, place)
    except (InputError, UsageError) as error:
        # A synthesizer refuses collectives, networks and numbers of ranks that it does not support.
        (outcome.skipped if is_synthesized else outcome.failures).append(describe(str(error)))
        return
    except HubError as error:
        outcome.failures.append(describe(str(error)))
        return
    outcome.results.append(result)
    outcome.files.update(files)
    if not result.ok:
        outcome.failures.append(describe("the algorithm is not correct as claimed"))


def _create_result(
    entry: Entry, source: AlgorithmSource, place: _Place
) -> tuple[ResultItem, dict[str, bytes]]:
    """Create, verify and time an algorithm at all sizes; return its result, and files by path.

    Sizes are in the order of the request, at least one. The algorithm is verified at the first
    size, and at sizes where its steps differ from the last verified ones. `ok` is True if all
    verifications succeed. An incorrect algorithm is timed and written too.

    Connections hold 8 transfers in a verification. If that gives a deadlock, `fifo` is "deadlock
    with 8 transfers", otherwise "ok". If the deadlock is the only error, the verification is
    repeated without this limit, and only the repetition decides on `ok` and the verdicts.

    Verdicts and `fifo` are those of the last verification, and the latency is the time for one byte
    after it. Steps, channels, runtimes, files and certificate are those of the last size. All
    `HubError`s are raised.
    """
    points = []
    verified: Algorithm | None = None
    latency_ns: int | None = None
    is_correct, verdicts, fifo = True, {}, "ok"
    for size, bound in zip(place.request.sizes, place.bounds, strict=True):
        algorithm = source.create(place.kind, place.topology, size)
        # Equal steps need not be verified again for another size.
        if verified is None or algorithm.steps.differences(verified.steps):
            report = hub_core.verify(algorithm, fifo_capacity=_FIFO_CAPACITY)
            errors = {finding.code for finding in report.diagnostics if finding.severity == "error"}
            has_fifo_deadlock = "fifo-deadlock" in errors
            fifo = f"deadlock with {_FIFO_CAPACITY} transfers" if has_fifo_deadlock else "ok"
            if errors == {"fifo-deadlock"}:
                report = hub_core.verify(algorithm)
            is_correct = is_correct and report.ok
            verdicts = {n: mode.verdict for n, mode in report.modes.items() if mode.is_claimed}
            verified = algorithm
            # A message has at least one byte.
            latency_ns = hub_core.simulate(
                algorithm, place.topology, 1, registry=place.registry
            ).time_ns
        else:
            # Simulators keep what does not depend on the size by the identity of the steps.
            algorithm = verified if algorithm.collective == verified.collective else algorithm
        points.append(_time_algorithm(algorithm, size, bound, latency_ns, place))
    runtimes, files, thread_blocks = _check_runtimes(entry, algorithm, place)
    steps = algorithm.steps
    result = ResultItem(
        entry=entry.card.name,
        machine=place.request.topology,
        collective=place.request.collective,
        ok=is_correct,
        verdicts=dict(sorted(verdicts.items())),
        fifo=fifo,
        certificate=_check_certificate(algorithm, place.registry),
        steps=len(steps),
        channels=len(np.unique(steps.channel[steps.kind == StepKind.SEND])),
        thread_blocks=thread_blocks,
        runtimes=runtimes,
        points=points,
    )
    return result, files


def _time_algorithm(
    algorithm: Algorithm,
    size: int,
    bound: ProvenBound | None,
    latency_ns: int | None,
    place: _Place,
) -> PointItem:
    """Return the simulated times of an algorithm at one size in bytes, in ns.

    - `time_ns`: on nominal links; None if a rank never finishes.
    - `link_ns`: the time for which the busiest link is occupied in this simulation, 0 without
      links.
    - `calibrated_ns`: on the measured machine `place.timing.machine`; None without one.
    - `latency_ns`: the argument, i.e. the time with messages of one byte.
    - `ratio_to_bound`: exact time in ps / bound, at least 1, rounded to 4 decimals. None if the
      bound is None or 0, or the time is None or 0. None also if time + its rounding error is below
      the bound.

    Raises the `HubError`s of the simulators.
    """
    topology, registry = place.topology, place.registry
    simulated = hub_core.simulate(algorithm, topology, size, registry=registry)
    time_ns = simulated.time_ns
    calibrated_ns = None
    if place.timing.machine is not None:
        timing = place.timing
        calibrated_ns = hub_core.simulate(
            algorithm,
            topology,
            size,
            backend=timing.backend,
            options=timing.options,
            registry=registry,
        ).time_ns
    ratio = None
    if bound is not None:
        exact = hub_core.exact_time(
            algorithm, topology, size, time_ns, near_ps=bound.time_ps, registry=registry
        )
        ratio = bound.ratio(exact.time_ps, exact.slack_ps)
    return PointItem(
        size=size,
        time_ns=time_ns,
        latency_ns=latency_ns,
        link_ns=max((load.busy_ns for load in simulated.link_loads), default=0),
        calibrated_ns=calibrated_ns,
        ratio_to_bound=None if ratio is None else round(ratio, 4),
    )


def _check_certificate(algorithm: Algorithm, registry: Registry) -> str:
    """Return the verdict `ok` or `wrong` of the first certificate check that applies.

    It is `none` if no check applies to the algorithm.
    """
    for check in registry.all(Check):
        if check.offer.subject is Subject.CERTIFICATE:
            request = CheckRequest(algorithm=algorithm)
            report = _run_check(check.offer, request)
            if report.is_applicable:
                return "ok" if report.ok else "wrong"
    return "none"


def _check_runtimes(
    entry: Entry, algorithm: Algorithm, place: _Place
) -> tuple[list[RuntimeItem], dict[str, bytes], int | None]:
    """Write a file for each runtime, and check it by the rules of the runtime's versions.

    Runtimes are tried in the order of the registered checks. A runtime is skipped without verdicts
    if its writer refuses the algorithm. The writer gets the options of the runtime and a temporary
    folder, which is removed. Returns three values:

    - One verdict per runtime and range of versions. `ok` is true if the file passes the check and
      these versions load files. Only then `file` is its path, otherwise None.
    - The contents of the files with at least one true verdict, by path.
    - The maximum number of thread blocks of a rank in the file for MSCCL's executor, whether or not
      it passes; None if there is no such file.

    Above `MAX_FILE_STEPS` (4000) steps, the result is [], {} and None.
    """
    if len(algorithm.steps) > MAX_FILE_STEPS:
        return [], {}, None
    registry, request = place.registry, place.request
    checks = [one.offer for one in registry.all(Check) if one.offer.subject is Subject.RUNTIME]
    runtimes = {one.runtime.name: one for one in hub_core.list_runtimes(registry)}
    files, items = {}, []
    blocks: int | None = None
    for check in checks:
        # A check has the name of its runtime.
        chosen = runtimes.get(check.name)
        if chosen is None:
            continue
        # Only the last part of suffixes such as `.plan.json`.
        suffix = Path(f"file{chosen.writer.offer.format.suffixes[0]}").suffix
        options = chosen.runtime.writer_options
        content = _write_file(algorithm, chosen.writer.name, suffix, options, registry)
        if content is None:
            continue
        if check.name == "executor":
            blocks = max(part.count(b"<tb ") for part in content.split(b"<gpu "))
        machine = request.topology.replace(":", "-")
        name = f"{request.collective}-{check.name}{suffix}"
        path = f"files/{entry.card.name}/{machine}/{name}"
        source = Source.of_bytes(path, content)
        report = _run_check(check, CheckRequest(source=source))
        for row in check.versions:
            is_used = report.ok and row.uses_files
            items.append(
                RuntimeItem(
                    runtime=check.name,
                    versions=f"{check.versioned_by} {row.first} to {row.last or ''}".strip(),
                    ok=is_used,
                    file=path if is_used else None,
                )
            )
            if is_used:
                files[path] = content
    return items, files, blocks


def _run_check(check: Check, request: CheckRequest) -> CheckReport:
    """Execute a check with its default options and return its report.

    Raises the `HubError` of the check.
    """
    report = resolve(check.run)(request, check.options())
    assert isinstance(report, CheckReport)
    return report


def _write_file(
    algorithm: Algorithm,
    format_name: str,
    suffix: str,
    options: Mapping[str, str],
    registry: Registry,
) -> bytes | None:
    """Return the bytes of an algorithm's file in a format; None if the writer raises `InputError`
    or `UsageError`. Other errors pass. `suffix`: file name suffix with the dot.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"algorithm{suffix}"
        try:
            hub_core.write(algorithm, path, format=format_name, options=options, registry=registry)
        except (InputError, UsageError):
            return None
        return path.read_bytes()


def _create_group(place: _Place, results: Sequence[ResultItem]) -> CollectiveSummary:
    """Rank the correct results at every size, and add the bounds and the measured times.

    - `best`: one item per size, in the order of the request, with the fastest result, its time and
      its ratio to the bound. `slower` has all other results, also those with an equal time. The
      order is by simulated time on nominal links, then by entry name. Results that are incorrect or
      have no time or 0 ns are left out. A size without results is not in `best`. `ratio` of a
      slower result is its time / the fastest time (4 decimals), `reason` that of
      `explain_difference`.
    - `bounds`: one item per size, in ns; an unknown bound has the time None and the method "".
    - `measured`: times of libraries on the machine (`_list_measured`), for the sizes of its tables.
    - `machine`, `collective`: the topology and the collective of the request.
    """
    best = []
    for position, size in enumerate(place.request.sizes):
        ranking = sorted(
            (result.points[position].time_ns or 0, result.entry, result)
            for result in results
            if result.ok and result.points[position].time_ns
        )
        if ranking:
            time_ns, name, fastest = ranking[0]
            best.append(
                BestItem(
                    size=size,
                    entry=name,
                    time_ns=time_ns,
                    ratio_to_bound=fastest.points[position].ratio_to_bound,
                    slower=[
                        SlowerItem(
                            entry=other,
                            ratio=round(other_ns / time_ns, 4),
                            reason=explain_difference(
                                result.points[position], fastest.points[position]
                            ),
                        )
                        for other_ns, other, result in ranking[1:]
                    ],
                )
            )
    return CollectiveSummary(
        machine=place.request.topology,
        collective=place.request.collective,
        bounds=[
            BoundItem(
                size=size,
                time_ns=None if bound is None else bound.time_ns,
                method="" if bound is None else bound.method,
            )
            for size, bound in zip(place.request.sizes, place.bounds, strict=True)
        ],
        measured=_list_measured(place),
        best=best,
    )


def explain_difference(slower: PointItem, best: PointItem) -> str:
    """Return the name of the part of the simulated time by which one algorithm is slower the most.

    The parts add up to the time. `latency`: time with messages of one byte. `link`: time for
    which the busiest link is occupied. `waits`: the rest, in which links wait for data; it is
    negative if messages overlap with latencies. Unknown times (None) count as 0. Of equal
    differences, the first of these parts counts. `equal` if the times are equal.
    """
    if slower.time_ns == best.time_ns:
        return "equal"
    parts = {
        "latency": (slower.latency_ns or 0) - (best.latency_ns or 0),
        "link": (slower.link_ns or 0) - (best.link_ns or 0),
    }
    parts["waits"] = (slower.time_ns or 0) - (best.time_ns or 0) - sum(parts.values())
    return max(parts, key=lambda name: parts[name])


def _list_measured(place: _Place) -> list[LibraryTimeItem]:
    """Return the measured times (ns) of libraries in the shipped profile of the machine.

    These are the times in the tables of this collective on all ranks of the topology,
    except tables of sums of 8-bit integers (data type `int8`). They are in the order of the
    tables, then by size. The list is empty without a profile or such a table.
    """
    profile = find_profile(place.topology)
    if profile is None:
        return []
    ranks = place.topology.num_npus
    return [
        LibraryTimeItem(size=int(size), time_ns=round(1e3 * time_us), library=str(table.library))
        for table in profile.tables
        if (table.collective, table.ranks, table.dtype) == (place.request.collective, ranks, "")
        for size, time_us in zip(table.sizes, table.times_us, strict=True)
    ]
