"""Rules of the core, and the rules that the core and the plugins declare, collected.

The rules of the core concern verification, the choice of the format, versions of runtimes, files
that its readers read, and requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hub_core.pipeline.calls import blame, misfit
from hub_core.pipeline.reader_rules import list_reader_rules
from hub_core.pipeline.request_rules import list_request_rules
from hub_core.plugin_api.options import Rule, RuleSet, declare_rules, resolve
from hub_core.registry.plugins import Registry

_STEPS = (
    (
        "peer-range",
        "The peer of a message is not a rank of the collective.",
        "A rank is numbered from 1, or the file was made for more ranks.",
        "Use peers from 0 to the number of ranks minus 1.",
        "a send of rank 0 to rank 4 of 4 ranks",
    ),
    (
        "self-message",
        "A rank sends a message to itself.",
        "The neighbour was computed modulo 1, or source and destination are equal by mistake.",
        "Use a local copy.",
        "a send of rank 2 to rank 2",
    ),
    (
        "unmatched-send",
        "A send has no receive on the destination.",
        "The destination receives fewer messages from this rank on this channel.",
        "Add the receive, or remove the send.",
        "two sends of rank 0 to rank 1 on channel 0, and one receive",
    ),
    (
        "unmatched-receive",
        "A receive has no send on the source.",
        "The source sends fewer messages to this rank on this channel.",
        "Add the send, or remove the receive.",
        "two receives of rank 1 from rank 0 on channel 0, and one send",
    ),
    (
        "count-mismatch",
        "The send and the receive of a message have different numbers of units.",
        "Sends and receives of a pair of ranks on one channel are in different orders.",
        "Give both the same count, and send in the order of receiving.",
        "a send of 2 units that is received as 1 unit",
    ),
    (
        "empty-step",
        "A step has fewer than one unit.",
        "A count was divided by the number of ranks and became 0.",
        "Remove the step, or give it a count of 1 or more.",
        "a copy of 0 units",
    ),
    (
        "out-of-bounds",
        "A step accesses units outside of its buffer.",
        "An offset is computed for another number of chunks.",
        "Correct offset or count, or enlarge the scratch buffer.",
        "units 7 to 8 of a buffer of 8 units, numbered from 0",
    ),
    (
        "deadlock",
        "Steps wait for each other, so that none of them starts.",
        "Two ranks receive before they send, or dependencies form a cycle.",
        "Send before waiting for the answer to the send, or remove a dependency of the cycle.",
        "ranks 0 and 1 both receive from each other first",
    ),
    (
        "blocked",
        "A rank has steps that never run, because a step of a deadlock precedes them.",
        "It is a consequence of a deadlock or of an unmatched receive.",
        "Correct the deadlock.",
        "a copy that depends on a receive within a deadlock",
    ),
    (
        "fifo-deadlock",
        "Steps wait for each other if connections have bounded buffers.",
        "More messages are sent before the first receive than a connection holds.",
        "Receive earlier, or send fewer messages at a time.",
        "9 sends before the first receive on a connection of 8 slots",
    ),
    (
        "race",
        "Two steps access the same units, one of them writes, and they are not ordered.",
        "A dependency is missing.",
        "Add a dependency between the two steps.",
        "a send of a sum that the rank has not yet received",
    ),
    (
        "undefined-read",
        "A step reads units that no step has written.",
        "A step reads scratch or output before it is filled, or in a mode that has other buffers.",
        "Write the units first, or claim only the mode that works.",
        "a send of scratch in the first step",
    ),
    (
        "wrong-output",
        "An output lacks contributions, has some more than once, or has other ones.",
        "A chunk is not sent to every rank, is added twice, or is written to another position.",
        "Follow the named contribution from its source to this output.",
        "an all-reduce whose rank 3 never adds its chunk",
    ),
    (
        "output-too-small",
        "The expected result names units that the output does not have.",
        "`--expect` is for a larger buffer.",
        "Correct the expectation.",
        "`--expect all-gather` for an output of the size of the input",
    ),
    (
        "too-large",
        "The input is beyond a limit of the verification, so that it is not verified.",
        "The number of units, accesses or transfers is too large.",
        "Verify a smaller instance of the same algorithm.",
        "an all-to-all of 16384 ranks",
    ),
    (
        "contents-not-judged",
        "The contents of a custom collective are not compared, because it has no contract.",
        "The file does not state what the collective does.",
        "State it with `--expect`.",
        "a Chakra trace of a custom collective",
    ),
    (
        "timing-only",
        "Only messages and deadlocks are checked: the trace does not state the accessed units.",
        "The trace comes from a tool that records only sizes.",
        "Use a trace of the collective profile to verify contents.",
        "a trace of a simulator",
    ),
    (
        "checked-by-ranges",
        "The algorithm is verified completely, by ranges of units that all steps treat alike.",
        "It is too large to be verified unit by unit.",
        "None is needed.",
        "an all-reduce of 10240 ranks",
    ),
    (
        "checked-in-blocks",
        "The algorithm is verified completely, in several blocks of units.",
        "It is too large to be verified at once, and a message has units of different contents.",
        "None is needed.",
        "an all-reduce of 2048 ranks",
    ),
    (
        "not-verified",
        "A check fails, or a command refuses an input that is incorrect as claimed.",
        "The input has errors, which precede this finding.",
        "Correct the errors; `collhub verify` lists all of them.",
        "`collhub convert` of an algorithm with a race",
    ),
)
_FORMATS = (
    (
        "unreadable-input",
        "The file cannot be read, or is empty.",
        "It is missing, empty, a folder, or not readable for this user.",
        "Correct the path or the permissions, or name a file with content.",
        "`collhub verify missing.xml`",
    ),
    (
        "several-files",
        "The input consists of several files, but the format has one file.",
        "A folder or several files were named.",
        "Name one file.",
        "`collhub inspect a.hlo b.hlo`",
    ),
    (
        "unknown-format",
        "No installed reader recognizes the file.",
        "The file has another format, or a plugin is missing.",
        "Name the format with `--from`, or install the plugin.",
        "a text file",
    ),
    (
        "not-exported",
        "A tool must export the file before a reader can read it.",
        "It is a report of Nsight Systems, or a table of `nsys stats`.",
        "Export it with the command in the message.",
        "a text file",
    ),
    (
        "ambiguous-format",
        "Several readers recognize the file.",
        "Formats share a suffix and the content does not decide.",
        "Name the format with `--from`.",
        "a CSV file of tuner rules",
    ),
    (
        "undecided-format",
        "The format of an output does not follow from its name.",
        "The suffix is unknown or belongs to several formats.",
        "Name the format with `--to`.",
        "`collhub convert ring.xml -o ring.txt`",
    ),
    (
        "not-json",
        "A file named `.json` is no JSON.",
        "The file is damaged or of another format.",
        "Correct the file, or name its format with `--from`.",
        "a file `ring.json` that begins with `<algo`",
    ),
    (
        "not-available",
        "A plugin that may read the file is installed but not loaded.",
        "It is disabled, broken or incompatible.",
        "See `collhub plugins list`.",
        "`--disable-plugin msccl` and an XML program",
    ),
)
_RUNTIMES = (
    (
        "unknown-version",
        "The version of the runtime is not known.",
        "The text is no version, or the table of versions does not contain it.",
        "Name a version that the error lists, or `newest`.",
        "`--runtime rccl@1.0`",
    ),
    (
        "wrong-subject",
        "The named check examines something else.",
        "A check of algorithms is named as a runtime, or the reverse.",
        "Name a check that the error lists.",
        "`--runtime jobs`",
    ),
    (
        "not-used-by-version",
        "This version of the runtime does not use such files.",
        "The feature was added later or was removed earlier.",
        "Use the version that the cure names, or another runtime.",
        "`--runtime rccl@7.13` for an MSCCL program",
    ),
    (
        "not-applicable",
        "The runtime reads files of another format.",
        "The file is for another runtime, or is an algorithm that has to be converted first.",
        "Name a runtime that reads the format, or convert the file with `collhub convert`.",
        "`--runtime mscclpp` for an MSCCL program in XML",
    ),
    (
        "not-used-by-newest",
        "The newest version of the runtime does not use such files any more.",
        "The runtime removed the feature.",
        "Plan for another runtime; the named versions still use the file.",
        "`--runtime rccl` for an MSCCL program",
    ),
)

_PROGRAMS = (
    (
        "limit",
        "The program and the processes that it started exceeded a limit together.",
        "They take more memory or CPU time than allowed, or are more than 64 processes.",
        "Raise the limit that the finding names, or start fewer processes.",
        "8 processes with 64 MiB each and `-O memory_limit=256MiB`",
    ),
    (
        "program-answer",
        "The program printed an answer and ended, so that there is nothing to read.",
        "Its arguments ask for information.",
        "Pass arguments after `--` with which it defines a result.",
        "a program with argparse and the argument `--help`",
    ),
    (
        "syntax",
        "The program is not valid Python.",
        "It has a syntax error, or was written for another version of Python.",
        "Correct the named line.",
        "`def f(`",
    ),
    (
        "program-failed",
        "The program raised an exception, or its process ended before the program did.",
        "It has an error, or its arguments do not fit.",
        "Correct the named line, or pass the arguments after `--`.",
        "a program that divides by zero",
    ),
    (
        "time-limit",
        "The program needs more time than the limit.",
        "It has an endless loop, or builds a large algorithm.",
        "Raise it with `-O time_limit=SECONDS`, or use a smaller instance.",
        "`while True: pass`",
    ),
    (
        "memory-limit",
        "The program needs more memory than the limit.",
        "It builds a large algorithm.",
        "Raise it with `-O memory_limit=SIZE`, or use a smaller instance.",
        "a list of a billion numbers",
    ),
    (
        "program-prints",
        "The program prints text, which is not a part of the algorithm.",
        "It prints debug output or the algorithm itself.",
        "Remove the output if it is not needed.",
        "`print(1)`",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules of the core."""
    return [
        *declare_rules("algorithms, by `collhub verify`", _STEPS),
        *declare_rules("files of any format", _FORMATS),
        *declare_rules(
            "programs that are executed, such as MSCCLang and mscclpp.language", _PROGRAMS
        ),
        *declare_rules("files for runtimes, by `collhub verify --runtime`", _RUNTIMES),
        *list_reader_rules(),
        *list_request_rules(),
    ]


def collect_rules(registry: Registry) -> Mapping[str, Sequence[Rule]]:
    """Return the rules that the core and all loaded plugins declare, in the order of their names.

    The value of a name has all declarations of this rule, in the order of the rule sets. Raise
    `PluginError` for a plugin's rule set that fails, and for a rule set that does not return a
    list or tuple of `Rule`.
    """
    by_name: dict[str, list[Rule]] = {}
    for provided in registry.all(RuleSet):
        with blame(provided):
            rules = resolve(provided.offer.rules)()
        if not isinstance(rules, list | tuple) or not all(isinstance(rule, Rule) for rule in rules):
            raise misfit(provided, f"returned {type(rules).__name__}, expected a list of Rule")
        for rule in rules:
            by_name.setdefault(rule.name, []).append(rule)
    return dict(sorted(by_name.items()))
