"""Offers of this plugin to the hub: the command `diagnose`, and the rules of its findings."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Command, Rule, RuleSet, declare_rules, hookimpl

COLLHUB_PLUGIN_API = (1, 0)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [
        Command(
            "diagnose",
            "Name the ranks that make a job hang, by Flight Recorder dumps.",
            "collhub_diagnosis.command:diagnose",
        )
    ]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Describe the rules of the dumps."""
    return [
        RuleSet(
            "diagnosis",
            "findings in dumps of jobs that hang",
            "collhub_diagnosis.plugin:list_rules",
        )
    ]


_RULES = (
    (
        "invalid-dump",
        "The file is no Flight Recorder dump, or an entry has a value of another type.",
        "The dump is damaged, or was written by another tool.",
        "Give the files that TORCH_FR_DUMP_TEMP_FILE names; copy them again.",
        "`entries` that is no list",
    ),
    (
        "invalid-pickle",
        "The pickle is damaged or exceeds a limit of the reader.",
        "The file was copied incompletely.",
        "Copy it again.",
        "a pickle without STOP",
    ),
    (
        "forbidden-opcode",
        "The pickle would import or call code.",
        "It is not a Flight Recorder dump, or was manipulated; dumps contain only plain values.",
        "Do not load this file; write the dump as JSON.",
        "a pickle with the opcode GLOBAL",
    ),
    (
        "invalid-inspector",
        "No line is a record of NCCL's Inspector.",
        "The file is another log.",
        "Give the files of NCCL_INSPECTOR_DUMP_DIR.",
        "a file with the line `{}`",
    ),
    (
        "invalid-ras",
        "The output of NCCL's RAS has a value of another type.",
        "The JSON was changed, or is of an unknown version.",
        "Query it again: `ncclras -f json`.",
        '`"communicators": 3`',
    ),
    (
        "no-rank",
        "The name of a dump does not end with a rank, and its content has no `rank`.",
        "The file was renamed.",
        "Name the files like the dumps of PyTorch: a prefix and the rank, then perhaps `_iterN`.",
        "`dump.bin`",
    ),
    (
        "no-dumps",
        "The folder has no file whose name ends with a rank.",
        "The folder is another one, or the dumps were not written.",
        "Name the folder of TORCH_FR_DUMP_TEMP_FILE.",
        "an empty folder",
    ),
    (
        "duplicate-rank",
        "Two dumps are of the same rank.",
        "The folder contains dumps of several runs or iterations.",
        "Keep the dumps of one run and of one iteration.",
        "`a_0` and `b_0` in one folder",
    ),
    (
        "not-readable",
        "A file or folder cannot be read.",
        "It does not exist, or permissions are missing.",
        "Correct the path or the permissions.",
        "`collhub diagnose missing`",
    ),
    (
        "too-large",
        "A file or the number of files exceeds the limit of the reader.",
        "The folder contains other files.",
        "Name only the dumps.",
        "a file of several GiB",
    ),
)

_VERDICTS = (
    (
        "late",
        "Ranks have not issued an operation in which other ranks wait, and do not wait themselves.",
        "They wait for data, compute longer, or have stopped.",
        "Examine the stacks of these ranks.",
        "rank 3 without the third all-reduce",
    ),
    (
        "order",
        "Ranks wait for each other in operations of several groups, or in messages.",
        "They issue them in different orders.",
        "Issue operations in the same order on all ranks.",
        "rank 0 in group 1 first, rank 1 in group 2 first",
    ),
    (
        "type",
        "Ranks call different operations at the same position of a group.",
        "A branch of the program is taken on some ranks only.",
        "Correct the branch on the named ranks.",
        "an all-gather on rank 2, all-reduces on all other ranks",
    ),
    (
        "size",
        "Ranks call one operation with different sizes.",
        "Tensors have different shapes on the ranks.",
        "Correct the shape on the named ranks.",
        "an all-reduce of 8 and of 16 elements",
    ),
    (
        "dtype",
        "Ranks call one operation with different element types.",
        "A conversion is made on some ranks only.",
        "Correct the type on the named ranks.",
        "float32 on rank 1, bfloat16 on all other ranks",
    ),
    (
        "all-to-all",
        "The elements that ranks send and receive in an all-to-all differ.",
        "The sizes of segments were computed differently.",
        "Exchange the sizes before the data.",
        "rank 0 sends 4 elements to rank 1, which receives 5",
    ),
    (
        "device",
        "Operations are issued, but some ranks do not start or complete them.",
        "The device of a rank executes something else, or hangs.",
        "Examine the devices of the named ranks.",
        "an all-reduce that all ranks but 5 have started",
    ),
    (
        "network",
        "All ranks have started an operation with equal calls, and none completes it.",
        "A link or a network card has failed.",
        "Test the network, for example with nccl-tests.",
        "an all-reduce started on all ranks",
    ),
    (
        "undecided",
        "The dumps do not show why ranks wait.",
        "Dumps of ranks are missing, or a ring buffer lost entries.",
        "Give the dumps that the finding names, or enlarge the buffer.",
        "7 of 8 dumps",
    ),
    (
        "skew",
        "States of ranks differ because the dumps were taken at different times.",
        "The job still runs.",
        "No action is needed.",
        "operation 7 on rank 0, operation 9 on rank 1",
    ),
    (
        "none",
        "All operations are complete and agree.",
        "The job has no fault in these dumps.",
        "No action is needed.",
        "dumps of a finished job",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("files for `collhub diagnose`", _RULES),
        *declare_rules("jobs that hang, by `collhub diagnose`: kinds of findings", _VERDICTS),
    ]
