"""Every member of every certificate is checked, or listed as not proved: each is changed in turn."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from collhub_certificates.recheck import check_packing
from collhub_certificates.time_bounds import check_flow, check_time_cut
from collhub_reshard import parse_move, plan_reshard
from collhub_reshard.recheck import check_schedule

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

Path = tuple[str | int, ...]
Checker = Callable[[CheckRequest, NoOptions], CheckReport]
# Witnesses: another value may prove the same claim. Whatever they are, the claims are recomputed.
WITNESSES = {"prices", "since_ps", "bound.hosts", "bound.nodes", "bound.weights"}


def synthesized(name: str, kind: CollectiveKind, topology: str, **options: str) -> Algorithm:
    network = hub_core.parse_topology(topology)
    root = 0 if kind in (CollectiveKind.BROADCAST, CollectiveKind.SCATTER) else None
    collective = Collective(kind, network.num_npus, network.num_npus, root=root)
    made = hub_core.synthesize(collective, network, 1 << 20, name=name, options=options)
    return made.algorithm


def resharded(topology: str | None) -> Algorithm:
    move = parse_move("12x8:float32", "mesh(2,2)@0-3: S0 R", "mesh(2,2)@4-7: R S1")
    if topology is not None:
        return plan_reshard([move], topology=hub_core.parse_topology(topology)).lower().algorithm
    return plan_reshard([move], host_bandwidth=1e9).lower().algorithm


CASES: dict[str, tuple[Checker, str, Callable[[], Algorithm]]] = {
    "broadcast by trees": (
        check_packing,
        "certificate",
        lambda: synthesized("blink", CollectiveKind.BROADCAST, "ring:4"),
    ),
    "all-reduce by trees": (
        check_packing,
        "certificate",
        lambda: synthesized("blink", CollectiveKind.ALL_REDUCE, "ring:3"),
    ),
    "scatter by trees behind a switch": (
        check_packing,
        "certificate",
        lambda: synthesized("blink", CollectiveKind.SCATTER, "switch:3"),
    ),
    "all-to-all by a flow": (
        check_flow,
        "flow_certificate",
        lambda: synthesized("flows", CollectiveKind.ALL_TO_ALL, "ring:4"),
    ),
    "scatter by a flow": (
        check_flow,
        "flow_certificate",
        lambda: synthesized("flows", CollectiveKind.SCATTER, "ring:4"),
    ),
    "broadcast by a cut in time": (
        check_time_cut,
        "bound_certificate",
        lambda: synthesized("tacos", CollectiveKind.BROADCAST, "ring:4", chunks="1"),
    ),
    "all-gather by a cut in time": (
        check_time_cut,
        "bound_certificate",
        lambda: synthesized("tacos", CollectiveKind.ALL_GATHER, "ring:4", chunks="1"),
    ),
    "resharding by a schedule": (check_schedule, "", lambda: resharded(None)),
    "resharding by streams": (check_schedule, "", lambda: resharded("dgx-h100")),
}


def located(algorithm: Algorithm, key: str) -> tuple[str, dict[str, Any]]:
    """(name of the extension, its certificate) of an algorithm."""
    for name, extension in algorithm.extensions.items():
        if isinstance(extension, dict):
            if not key and name == "reshard":
                return name, extension
            if isinstance(extension.get(key), dict):
                return name, extension[key]  # type: ignore[return-value]
    raise AssertionError(f"the algorithm carries no {key}")


def with_certificate(algorithm: Algorithm, key: str, document: object) -> Algorithm:
    name, _ = located(algorithm, key)
    extension: Any = document if not key else {**algorithm.extensions[name], key: document}  # type: ignore[dict-item]
    return replace(algorithm, extensions={**algorithm.extensions, name: extension})


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """All members that are no objects, and lists as such too."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
        return
    yield path, value
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))


def changed(value: object) -> Iterator[object]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value * 1000 + 1000, -1 - value, value + 1)
    elif isinstance(value, str):
        if re.fullmatch(r"[0-9]+(/[0-9]+)?", value):
            yield from (str(2 * Fraction(value) + 1), str(Fraction(value) + Fraction(1, 7)))
        else:
            yield f"{value}x"
    elif isinstance(value, list):
        if value:
            yield value[:-1]
        yield [*value, *(value[:1] or [0])]


def put(document: Any, path: Path, value: object) -> None:
    for step in path[:-1]:
        document = document[step]
    document[path[-1]] = value


def field_of(path: Path) -> str:
    return ".".join(str(step) for step in path if isinstance(step, str))


@pytest.mark.once
@pytest.mark.parametrize("case", CASES)
def test_every_changed_member_is_refused_or_listed_as_not_proved(case: str) -> None:
    check, key, build = CASES[case]
    algorithm = build()
    _, document = located(algorithm, key)
    original = check(CheckRequest(algorithm=algorithm), NoOptions())
    assert original.ok, original.diagnostics
    unproved = set(original.facts.get("not_proved", ()))  # type: ignore[arg-type]
    accepted = []
    for path, value in leaves(document):
        for other in changed(value):
            mutant = copy.deepcopy(document)
            put(mutant, path, other)
            report = check(
                CheckRequest(algorithm=with_certificate(algorithm, key, mutant)), NoOptions()
            )
            if not report.ok or not report.is_applicable:
                continue
            is_witness = field_of(path) in WITNESSES and report.facts == original.facts
            if field_of(path) not in unproved and not is_witness:
                accepted.append((path, value, other))
    assert not accepted, "\n".join(map(str, accepted[:60]))
