"""Reader and writers of GOAL for the hub, the options of the writers, and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Format,
    FormatReader,
    FormatWriter,
    LocalWorkOptions,
    OptionType,
    Rule,
    RuleSet,
    WorkloadWriter,
    choice,
    declare_rules,
    declare_similar_rules,
    hookimpl,
    optional,
)

COLLHUB_PLUGIN_API = (1, 0)


@dataclass(frozen=True, slots=True)
class GoalWriteOptions(LocalWorkOptions):
    """Contents of a schedule in addition to messages, and the duration of local work.

    `size` in bytes; bandwidths in bytes per second, for local steps without a duration.
    """

    size: int | None = optional(
        "size of the collective (default: the size of the algorithm)", OptionType.SIZE
    )
    cpu: str = choice(
        ("lane", "none"),
        "source of the cpu numbers; a cpu executes one operation at a time",
    )
    nic: str = choice(("none", "channel"), "source of the nic numbers")


# The first statement after comments. Possessive groups prevent backtracking for any text.
_SIGNATURE = rb"\A(?>\s|//[^\n]*\n|/\*(?s:.*?)\*/)*+num_ranks[ \t]+[0-9]"

_GOAL = Format(
    "goal",
    "GOAL schedules, the text format of txt2bin from LogGOPSim and ATLAHS",
    (".goal",),
    _SIGNATURE,
)

_WRITER = FormatWriter(_GOAL, "collhub_goal.write:write", GoalWriteOptions)

_JOB_WRITER = WorkloadWriter(_GOAL, "collhub_goal.write:write_job")


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Reader of schedules."""
    return [FormatReader(_GOAL, "collhub_goal.read:read", samples="collhub_goal.read:samples")]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter | WorkloadWriter]:
    """Writers of algorithms and of jobs."""
    return [_WRITER, _JOB_WRITER]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Rules of the reader and the writers."""
    return [RuleSet("goal", "findings in GOAL schedules", "collhub_goal.plugin:list_rules")]


_RULES = (
    (
        "goal-syntax",
        "A line or block is no statement of GOAL.",
        "The file is the binary form, is cut off, or a closing brace follows a statement on "
        "its line.",
        "Write one statement per line, as text: `num_ranks N`, then `rank N { }` with calc, "
        "send, recv and dependencies.",
        "`a: calc ten`",
    ),
    (
        "goal-ranks",
        "The ranks are not exactly 0 to N-1 in ascending order.",
        "A rank is missing, or the file is cut off.",
        "List every rank once in ascending order, or correct `num_ranks`.",
        "`num_ranks 2` followed by only `rank 0 { }`",
    ),
    (
        "goal-label",
        "A label occurs twice in a rank, is a keyword, or names no operation.",
        "Blocks were merged, or a dependency refers to another rank.",
        "Use each label once per rank, and refer only to labels of the same rank.",
        "`b requires c` in a rank without the label c",
    ),
    (
        "goal-dependencies",
        "More than 1000 `irequires` follow one another, or they form a cycle.",
        "Operations wait for the start of each other.",
        "Remove a dependency of the cycle, or write `requires`.",
        "`a irequires b` and `b irequires a`",
    ),
    (
        "size-range",
        "A rank sends or receives more than 2^62 bytes.",
        "The amounts are wrong, or in another unit.",
        "Write amounts in bytes.",
        "a rank with 4 sends of 2305843009213693952 bytes",
    ),
    (
        "too-large",
        "The file is larger than 4 GiB.",
        "The schedule is that of a large job.",
        "Convert a part of the job.",
        "a file of 5 GiB",
    ),
    (
        "irequires",
        "A dependency on the start of an operation is replaced by dependencies on its "
        "predecessors.",
        "The hub has no dependency on the start of an operation.",
        "No action is needed; write `requires` if the end of the operation is meant.",
        "`c irequires b`",
    ),
    (
        "nic",
        "Numbers of network interfaces are ignored.",
        "The network of the simulation decides the routes of messages.",
        "No action is needed.",
        "`send 8b to 0 tag 8 nic 0`",
    ),
    (
        "large-tag",
        "Tags above 2^31 - 1 are replaced by free numbers.",
        "The file was written by ATLAHS, whose tags consist of several numbers.",
        "No action is needed: equal tags stay equal, and different ones different.",
        "`send 8b to 0 tag 4000000700`",
    ),
    (
        "unmatched-message",
        "Sends and receives do not match, so that a simulation would not finish.",
        "A receive is missing or has another size.",
        "Correct the algorithm: `collhub verify` names the messages.",
        "a send without a receive",
    ),
)

_REQUESTS = (
    ("collective", "The job has a collective.", "a job without `collhub expand`"),
    ("duration", "A computation has no duration.", "a computation with operations only"),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("GOAL schedules, when they are read or written", _RULES),
        *declare_similar_rules(
            "requests: files for runtimes and simulators",
            _REQUESTS,
            cause="GOAL has no such node.",
            cure="Run `collhub expand`, or create the job with durations.",
        ),
    ]
