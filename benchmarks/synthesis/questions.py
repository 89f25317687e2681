"""Ask `auto` 81 questions about 60 new networks, and compare it with every member run separately.

    python benchmarks/synthesis/questions.py [--seed 1] [--first I] [--count N] [--members] [--json]

Prints one row per question: time, ratio to the largest bound that holds for messages of any size,
CPU seconds of `auto`, and with `--members` the fastest single synthesizer with the ratio of the
time of `auto` to its time. Then geometric means and the bars: 1.02 on direct networks, 1.05 with
switches, both for sizes from 64 MiB on; at most 10 CPU s per question; no member faster by more
than 1 %, within which `auto` prefers the algorithm with the fewest messages. Exit 1 if a bar is
missed. The networks are those of `graphs.draw_networks`; kernels that were not
compiled before count for the first question that needs them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from graphs import draw_networks

import hub_core
from hub_core import HubError, Topology
from hub_core.model import (
    STANDARD_KINDS,
    Collective,
    CollectiveKind,
    format_bytes,
    format_time,
    parse_size,
)
from hub_core.plugin_api import TIE, Synthesizer

_QUESTIONS = 81
_SIZES = tuple(map(parse_size, ("1MiB", "64MiB", "1GiB", "64MiB")))
_LARGE = parse_size("64MiB")
_BARS = {"direct": 1.02, "switched": 1.05}
_MAX_CPU_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of `auto` to one question.

    `ratio_to_bound`: None without a bound. `best_member`: the fastest synthesizer run separately,
    "" if none was run; `ratio_to_member`: time of `auto` divided by its time.
    """

    network: str
    has_switches: bool
    collective: str
    collective_bytes: int
    winner: str
    time_ns: int
    ratio_to_bound: float | None
    cpu_s: float
    best_member: str
    ratio_to_member: float | None


def main() -> int:
    """Print the answers as they come, then the means and the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="first question, from 0")
    parser.add_argument("--count", type=int, default=_QUESTIONS, help="number of questions")
    parser.add_argument("--members", action="store_true", help="also run every member separately")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    questions = list(list_questions(given.seed))[given.first : given.first + given.count]
    answers = []
    if not given.json:
        print("| network | collective | size | time | by bound | CPU s | winner | member | ratio |")
        print("|---|---|---|---|---|---|---|---|---|")
    for topology, kind, size in questions:
        answers.append(ask(topology, kind, size, runs_members=given.members))
        if not given.json:
            print(_format_row(answers[-1]), flush=True)
    misses = list(_list_misses(answers))
    if given.json:
        means = {name: _compute_mean(answers, name) for name in _BARS}
        rows = [asdict(answer) for answer in answers]
        print(json.dumps({"seed": given.seed, "means": means, "misses": misses, "answers": rows}))
    else:
        for name, bar in _BARS.items():
            mean = _compute_mean(answers, name)
            text = "no answer" if mean is None else f"{mean:.4f}"
            print(f"{name}, 64 MiB and more: geometric mean of time / bound {text} (bar {bar})")
        print("\n".join(misses) or "all bars are met")
    return 1 if misses else 0


def list_questions(seed: int) -> Iterator[tuple[Topology, CollectiveKind, int]]:
    """Yield the questions: one per network, then a second one for the first networks."""
    networks = [topology for _, topology in draw_networks(seed)]
    for index in range(_QUESTIONS):
        kind = STANDARD_KINDS[(index * 3 + index // len(networks)) % len(STANDARD_KINDS)]
        yield networks[index % len(networks)], kind, _SIZES[index % len(_SIZES)]


def ask(topology: Topology, kind: CollectiveKind, size: int, *, runs_members: bool) -> Answer:
    """Run `auto` on a question, and every other synthesizer if `runs_members`."""
    ranks = topology.num_npus
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, kind.traits.parts(ranks), root, in_place=True)
    start = time.process_time()
    result = hub_core.synthesize(collective, topology, size, name="auto")
    cpu_s = time.process_time() - start
    members: dict[str, int] = {}
    if runs_members:
        for provided in hub_core.discover().all(Synthesizer):
            if provided.name == "auto" or provided.offer.only_by_name:
                continue
            try:
                single = hub_core.synthesize(collective, topology, size, name=provided.name)
            except HubError:
                continue
            members[provided.name] = single.time_ns
    best = min(members, key=lambda name: members[name], default="")
    return Answer(
        topology.name,
        topology.num_nodes > topology.num_npus,
        str(kind),
        size,
        str(result.statistics["winner"]),
        result.time_ns,
        result.ratio_to_bound,
        cpu_s,
        best,
        result.time_ns / members[best] if best else None,
    )


def _compute_mean(answers: Sequence[Answer], name: str) -> float | None:
    """Compute the geometric mean of the ratios to the bound of large sizes; None without any."""
    ratios = [
        answer.ratio_to_bound
        for answer in answers
        if answer.has_switches == (name == "switched")
        and answer.collective_bytes >= _LARGE
        and answer.ratio_to_bound is not None
    ]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _list_misses(answers: Sequence[Answer]) -> Iterator[str]:
    for name, bar in _BARS.items():
        mean = _compute_mean(answers, name)
        if mean is not None and mean > bar:
            yield f"missed: mean of {name} networks {mean:.4f}, bar {bar}"
    for answer in answers:
        question = (
            f"{answer.collective} of {format_bytes(answer.collective_bytes)} on {answer.network}"
        )
        if answer.cpu_s > _MAX_CPU_S:
            yield f"missed: {answer.cpu_s:.1f} CPU s for {question}"
        if answer.ratio_to_member is not None and answer.ratio_to_member > 1 + TIE:
            percent = 100 * (answer.ratio_to_member - 1)
            yield f"missed: {percent:.1f} % slower than {answer.best_member}: {question}"


def _format_row(answer: Answer) -> str:
    ratio, member = answer.ratio_to_bound, answer.ratio_to_member
    cells = (
        answer.network,
        answer.collective,
        format_bytes(answer.collective_bytes),
        format_time(answer.time_ns),
        "-" if ratio is None else f"{ratio:.3f}",
        f"{answer.cpu_s:.1f}",
        answer.winner,
        answer.best_member or "-",
        "-" if member is None else f"{member:.3f}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
