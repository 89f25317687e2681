"""Count how plans of all synthesizers fare in a model of MSCCL++'s executor.

Every algorithm is written in several forms, and every plan is run in each mode that it claims:
three launches in adversarial orders, with chunks of an odd number of units. The model
(`plugins/msccl/tests/mscclpp/executor_model.py`) shares no code with the plugin's own check. The
column `unlike the check` counts plans on which both disagree; `refused` counts plans that the
writer refuses to write.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.writing.write import build_draft, plan_text, write_thread_blocks

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind, HubError

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "mscclpp" / "tests"))
from executor_model import schedules
from executor_verdicts import run_written

_SYNTHESIZERS = (
    "ring", "bidirectional-ring", "rings", "torus-rings", "binomial", "k-nomial", "bruck", "direct",
    "pairwise", "double-binary-tree", "halving-doubling", "recursive-doubling", "hierarchical",
    "neighbour-exchange", "pat", "sparbit", "swing", "tacos", "blink", "flows",
)  # fmt: skip
_TOPOLOGIES = ("fully-connected:4", "ring:5", "fully-connected:6", "mesh:3x3", "fully-connected:8")
_WAYS = {
    "Simple": PlanWriteOptions(),
    "pushed": PlanWriteOptions(pull=False),
    "slices": PlanWriteOptions(slices=32),
    "groups": PlanWriteOptions(tbg=3),
    "ports": PlanWriteOptions(nodes=2),
    "port groups": PlanWriteOptions(nodes=2, tbg=2),
    "LL": PlanWriteOptions(protocol="LL"),
    "LL groups": PlanWriteOptions(protocol="LL", tbg=2),
}
_VERDICTS = ("right", "wrong", "hang", "out of bounds", "throws", "refused", "unlike the check")
# Five units of 16 bytes do not divide evenly among two or three blocks.
_CHUNK_BYTES = 80
_SIZE = 1 << 20


def main() -> None:
    """Print a row a way of writing, and every plan that is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topologies", nargs="+", default=list(_TOPOLOGIES))
    parser.add_argument("--synthesizers", nargs="+", default=list(_SYNTHESIZERS))
    parser.add_argument("--most-operations", type=int, default=3000)
    parser.add_argument("--every", type=int, default=3, help="run one plan of this many")
    arguments = parser.parse_args()
    counts = {way: Counter[str]() for way in _WAYS}
    start = time.process_time()
    pairs = (
        (name, algorithm, way)
        for name, algorithm in _algorithms(arguments.synthesizers, arguments.topologies)
        for way, options in _WAYS.items()
        if algorithm.num_ranks % options.nodes == 0
    )
    for name, algorithm, way in islice(pairs, 0, None, arguments.every):
        counts[way].update(_verdicts(name, algorithm, way, arguments.most_operations))
    print(f"collhub {hub_core.__version__}, numpy {np.__version__}, chunks of {_CHUNK_BYTES} bytes")
    print(f"{'way':<12}{'plans':>7}{''.join(f'{one:>18}' for one in _VERDICTS)}")
    counts["all"] = sum(counts.values(), Counter())
    for way, found in counts.items():
        print(f"{way:<12}{found['plans']:>7}{''.join(f'{found[one]:>18}' for one in _VERDICTS)}")
    print(f"{time.process_time() - start:.0f} CPU s")


def _algorithms(names: list[str], topologies: list[str]) -> Iterator[tuple[str, Algorithm]]:
    """Every collective of every synthesizer on every topology, where it has one."""
    for topology in topologies:
        ranks = hub_core.parse_topology(topology).num_npus
        for name in names:
            for kind in CollectiveKind:
                if kind is CollectiveKind.CUSTOM:
                    continue
                units = 1 if kind is CollectiveKind.ALL_REDUCE else ranks
                root = 1 if kind.traits.is_rooted else None
                collective = Collective(kind, ranks, units, root=root, in_place=True)
                try:
                    result = hub_core.synthesize(collective, topology, _SIZE, name=name)
                except HubError:
                    continue
                yield f"{name} {kind} {topology}", result.algorithm


def _verdicts(name: str, algorithm: Algorithm, way: str, most_operations: int) -> Iterator[str]:
    """Verdicts of a plan, one a mode that it claims."""
    collective = algorithm.collective
    try:
        draft = build_draft(algorithm, _WAYS[way])
        content = plan_text(draft, write_thread_blocks(draft))
    except HubError:
        yield "refused"
        return
    plan = json.loads(content)
    operations = sum(len(block["ops"]) for gpu in plan["gpus"] for block in gpu["threadblocks"])
    if operations > most_operations:
        return
    yield "plans"
    is_accepted = check_plan(parse_plan(content, name)).ok
    orders = schedules(collective.num_ranks, random_orders=1)
    outcomes = run_written(content, collective, draft.work.unit, _CHUNK_BYTES, orders=orders)
    if not draft.serves_in_place():
        outcomes.pop(True, None)
    for is_in_place, outcome in outcomes.items():
        yield outcome.verdict
        if outcome.verdict != "right":
            place = "in place" if is_in_place else "out of place"
            print(f"{name}, {way}, {place}: {outcome}")
    if is_accepted != all(outcome.verdict == "right" for outcome in outcomes.values()):
        print(f"{name}, {way}: the check says {'ok' if is_accepted else 'not ok'}")
        yield "unlike the check"


if __name__ == "__main__":
    main()
