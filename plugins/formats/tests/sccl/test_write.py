"""Algorithms written as steps of sends come back equal in contents, or are refused."""

from __future__ import annotations

import json

import pytest
from collhub_sccl.algorithms import read, samples, write

import hub_core
from hub_core import Algorithm, InputError
from hub_core.plugin_api import NoOptions, Source
from hub_core.testing import all_samples


def _written(algorithm: Algorithm) -> Source:
    result = write(algorithm, NoOptions())
    return Source.of_bytes("written.json", result.artifacts[0].content())


@pytest.mark.parametrize(
    "name",
    [
        "ring --collective all-gather --topology ring:5",
        "ring --collective all-reduce --topology ring:5",
        "halving-doubling --collective all-reduce --topology hypercube:3",
        "direct --collective all-to-all --topology switch:6",
        "binomial --collective broadcast --topology mesh:2x3",
        "pairwise --collective all-to-all --topology ring:4",
    ],
)
@pytest.mark.needs_plugins
def test_synthesized_algorithms_come_back(name):
    words = name.split()
    stated = dict(zip(words[1::2], words[2::2], strict=True))
    topology = hub_core.parse_topology(stated["--topology"])
    collective = hub_core.CollectiveKind(stated["--collective"])
    root = 0 if collective.traits.is_rooted else None
    units = collective.traits.parts(topology.num_npus)
    wanted = hub_core.Collective(collective, topology.num_npus, units, root=root)
    made = hub_core.synthesize(wanted, topology, 8192, name=words[0]).algorithm
    back = read(_written(made), NoOptions())
    assert back.collective.kind is collective
    assert back.collective.unit_count == made.collective.unit_count
    assert hub_core.verify(back).ok


@pytest.mark.parametrize("source", samples(), ids=lambda source: source.name)
def test_what_was_read_is_written_with_the_same_sends(source):
    algorithm = read(source, NoOptions())
    back = read(_written(algorithm), NoOptions())
    assert not back.steps.differences(algorithm.steps)
    stated, again = (json.loads(one.content()) for one in (source, _written(algorithm)))
    for step, other in zip(stated["steps"], again["steps"], strict=True):
        sends = [sorted(send[:3] for send in one["sends"]) for one in (step, other)]
        assert sends[0] == sends[1]


REFUSED = "cannot be written as steps of sends: a rank sends other values"


def _of_fields() -> list[Algorithm]:
    return [one for one in all_samples().values() if one.collective.kind.value != "custom"]


def test_samples_of_the_kit_come_back_but_for_one():
    # It receives into places of their own, and adds there: at an address of SCCL that is no sum.
    apart = []
    for sample in _of_fields():
        try:
            assert hub_core.verify(read(_written(sample), NoOptions())).ok
        except InputError:
            apart.append(sample)
    with pytest.raises(InputError, match=REFUSED):
        _written(*apart)


def test_a_custom_collective_is_refused():
    custom = [one for one in all_samples().values() if one.collective.kind.value == "custom"]
    with pytest.raises(InputError, match="SCCL has no such collective"):
        write(custom[0], NoOptions())
