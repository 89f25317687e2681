"""Rules of the core's readers: Chakra traces, JSON documents, and models of any format."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api.options import Rule, declare_rules

_TRACES = (
    (
        "empty-file",
        "The file of a rank is empty.",
        "A download failed, or the disk was full.",
        "Get or write the file again.",
        "a file `ring.0.et` of 0 bytes",
    ),
    (
        "gzip",
        "The file is compressed, but its format is read uncompressed only.",
        "It was downloaded or archived as a gzip file.",
        "Decompress it with `gunzip`; simulators do not read compressed traces either.",
        "a file `ring.0.et` that begins with the bytes 1f 8b",
    ),
    (
        "not-a-trace",
        "The file is text (XML or JSON), not a trace.",
        "Its name ends like that of a trace.",
        "Rename the file, or name its format with `--from`.",
        "an MSCCL program named `ring.0.et`",
    ),
    (
        "json-form",
        "The JSON form of a trace is incomplete, no JSON, or has nodes that are not in the schema.",
        "The file is cut off or was changed by hand.",
        "Write it again with chakra_jsonizer, or read the binary trace.",
        '`{"version": "0.0.4"} {"id": "x"}`',
    ),
    (
        "truncated",
        "The file ends within a record.",
        "It was copied incompletely.",
        "Get the complete file.",
        "a trace without its last byte",
    ),
    (
        "malformed-record",
        "A record is no protobuf message of the schema.",
        "The file is damaged, or is no trace.",
        "Write the file again with the tool that created it.",
        "a record with a field of number 0",
    ),
    (
        "empty-record",
        "A node has a record of length 0.",
        "The file is damaged or padded with zeros.",
        "Remove the zeros, or write the file again.",
        "a trace followed by bytes of value 0",
    ),
    (
        "no-nodes",
        "The file has metadata, but no node.",
        "The rank has no work, and its writer left the nodes out.",
        "Write one COMP_NODE for an idle rank: simulators do not end without it.",
        "a trace whose only record is GlobalMetadata",
    ),
    (
        "missing-metadata",
        "The first record is a node, or the metadata lack an attribute.",
        "The trace was written without GlobalMetadata, or for another profile.",
        "Write the record, or the attribute that the error names.",
        "metadata of the profile without `unit_count`",
    ),
    (
        "malformed-metadata",
        "The first record is no GlobalMetadata.",
        "The file is damaged, or is no trace.",
        "Write the file again with the tool that created it.",
        "an attribute of the metadata whose value is no message",
    ),
    (
        "invalid-metadata",
        "An attribute of the metadata has a value that the profile does not allow.",
        "It is misspelt, out of range, or does not fit the other attributes.",
        "Write a value that the error names.",
        "`collective` is `all-sum`",
    ),
    (
        "unknown-profile",
        "The metadata name another profile than this version reads.",
        "The file was written by another version, or for another purpose.",
        "Write it for the profile that the error names, or upgrade.",
        "`profile` is `collective-algorithm/2`",
    ),
    (
        "old-schema",
        "The trace has a schema of 2023, which is not supported.",
        "It was written by a tool of that time.",
        "Write the trace again with a tool that uses the current schema.",
        "nodes with a name of the field 11",
    ),
    (
        "legacy-eg",
        "The file is an execution graph of before June 2023.",
        "It was written by a tool of that time.",
        "Convert it with such a tool, or record the trace again.",
        "a file `ring.0.eg`",
    ),
    (
        "duplicate-attribute",
        "An attribute occurs twice, so that readers may take either value.",
        "Two tools added it.",
        "Remove one of them.",
        "two attributes `comm_size` of one node",
    ),
    (
        "missing-attribute",
        "A node lacks an attribute that its type requires.",
        "It was written by another tool, or for another purpose.",
        "Add the attribute that the error names.",
        "a COMM_SEND_NODE without a size",
    ),
    (
        "attribute-kind",
        "An attribute has another kind than the profile states.",
        "Numbers were written as text, or a list has another length.",
        "Write the kind that the error names.",
        '`unit_count` as the string `"8"`',
    ),
    (
        "attribute-range",
        "The value of an attribute is outside of its range.",
        "It is negative, too large, or names no rank.",
        "Write a value in the range that the error names.",
        "`comm_dst` is 8 with 8 ranks",
    ),
    (
        "duplicate-id",
        "Two nodes of a rank have one id.",
        "Traces were joined without new ids.",
        "Give every node of a rank another id.",
        "two nodes with the id 3",
    ),
    (
        "dangling-dependency",
        "A node depends on a node that does not exist.",
        "Nodes were removed, or the rank has no steps but dependencies.",
        "Remove the dependency, or add the node.",
        "a dependency on node 99 of 8 nodes",
    ),
    (
        "node-type",
        "A node has a type that algorithms do not have.",
        "The trace is that of a job, or its type is not in the schema.",
        "Give a trace of COMM_SEND_NODE, COMM_RECV_NODE and COMP_NODE.",
        "a node of type 99",
    ),
    (
        "workload-trace",
        "The trace is that of a job, not of an algorithm.",
        "It has collectives or memory nodes, or messages without peer and tag.",
        "Read it as a workload: `collhub inspect` shows its contents.",
        "a COMM_COLL_NODE",
    ),
    (
        "size-mismatch",
        "Sizes of a trace contradict each other.",
        "A count was changed without the sizes that follow from it.",
        "Write sizes that follow from `unit_count`, the size of the collective and the regions.",
        "a region of 2 units that is sent to a region of 1 unit",
    ),
    (
        "rank-files",
        "Files of ranks do not form one set.",
        "A file is missing, comes from another algorithm, or has another rank in its name.",
        "Give the files of all ranks of one algorithm, named PREFIX.RANK.et.",
        "files of ranks 0 and 2",
    ),
    (
        "receive-reduce",
        "The two nodes of a receive-reduce do not belong together.",
        "Nodes were inserted between them, or have other dependencies.",
        "Let the COMP_NODE follow its receive and depend only on it.",
        "a receive with `is_rrc` and no COMP_NODE after it",
    ),
    (
        "step-count",
        "A file has another number of steps than its metadata state.",
        "It is cut off at the end of a record, or was changed.",
        "Get the complete file.",
        "`step_count` is 9 in a file of 8 steps",
    ),
    (
        "tag-mismatch",
        "Tags pair messages differently than channels and their order do.",
        "Tags were assigned without regard to channels.",
        "Give both ends of a message one tag that no other message of the two ranks has.",
        "one tag for two messages of different channels",
    ),
    (
        "invalid-extension",
        "The extension with the nodes of a trace does not fit the steps of the algorithm.",
        "Steps were changed after the trace was read.",
        "Remove the extension `chakra`.",
        "an extension with 8 nodes of an algorithm with 9 steps",
    ),
)
_DOCUMENTS = (
    (
        "invalid-json",
        "A JSON document is no JSON, or contradicts its schema.",
        "It was changed by hand, or written for another version.",
        "Correct the value at the path that the error names.",
        '`{"schema": "collhub/algorithm-1", "steps": 3}`',
    ),
)
_NETWORKS = (
    (
        "invalid-topology",
        "A topology document contradicts its schema or itself.",
        "A node, link, bandwidth or latency is missing, unknown or out of range.",
        "Correct the value at the path that the error names.",
        "a link from node 3 to itself",
    ),
    (
        "invalid-topology-text",
        "A network in a command is no known topology or file.",
        "The name is misspelled, or an argument is missing.",
        "Write one of the forms that the message lists, such as `ring:8`.",
        "`--topology rings:8`",
    ),
)
_MEASUREMENTS = (
    (
        "unknown-measurements",
        "No reader of measured times recognizes the file.",
        "It lacks the header of the program, or is another output.",
        "Keep the entire output of the program, or name the format with `--from`.",
        "a table of numbers without a header",
    ),
)
_MODELS = (
    (
        "invalid-input",
        "The input contradicts itself in a way that has no rule of its own.",
        "It was changed by hand, or its writer has a defect.",
        "See the message of the finding.",
        "columns of different lengths",
    ),
    (
        "cyclic-dependencies",
        "Steps of a rank wait for each other.",
        "Dependencies form a cycle.",
        "Remove one dependency of the cycle.",
        "step 1 depends on step 2, and step 2 on step 1",
    ),
    (
        "crossing-dependency",
        "A step or node depends on one of another rank.",
        "Dependencies between ranks were written in place of messages.",
        "Send a message: only messages order steps of different ranks.",
        "a step of rank 0 that depends on a step of rank 1",
    ),
    (
        "dangling",
        "A dependency names a step or node that does not exist.",
        "Steps were removed, or are numbered from 1.",
        "Remove the dependency, or add the step.",
        "a dependency on step 99 of 8 steps",
    ),
    (
        "rank-range",
        "A step or node has a rank that does not exist.",
        "The file states a smaller number of ranks.",
        "Use ranks from 0 to the number of ranks minus 1.",
        "a step of rank 8 of 8 ranks",
    ),
    (
        "rank-count",
        "Parts of an algorithm have different numbers of ranks.",
        "Steps of one algorithm were combined with the collective of another.",
        "Build all parts for one number of ranks.",
        "a collective of 4 ranks with steps of 8 ranks",
    ),
    (
        "invalid-collective",
        "The collective cannot have these properties.",
        "Root, counts, modes or the number of units do not fit its kind.",
        "Correct the property that the error names.",
        "a broadcast without a root",
    ),
    (
        "invalid-counts",
        "The table of counts does not fit the collective.",
        "It has another shape, a negative number, or another sum.",
        "Write one count per rank, or one per pair of ranks, as the error says.",
        "3 counts for 4 ranks",
    ),
    (
        "uneven-parts",
        "The operation needs equal parts, but the collective is uneven.",
        "The target has no collective with a table of counts.",
        "Use the even collective, or a format that lists the uneven one.",
        "an all-to-all-v that is written as MSCCL XML",
    ),
    (
        "size-range",
        "The messages have more bytes in total than can be counted (2^63).",
        "The size is wrong by a factor.",
        "Choose a smaller size.",
        "`--size 4EiB`",
    ),
    (
        "invalid-placement",
        "The extension with the NPUs of the ranks is no list of different NPUs.",
        "Ranks were added or removed after the placement.",
        "State the NPU of every rank, such as [0, 2, 4].",
        "a placement of 3 NPUs for 4 ranks",
    ),
)


def list_reader_rules() -> Sequence[Rule]:
    """Return the rules of the core's readers and of the models that they build."""
    return [
        *declare_rules("Chakra traces, when they are read or written", _TRACES),
        *declare_rules("JSON documents of algorithms and workloads", _DOCUMENTS),
        *declare_rules("networks: JSON documents and texts of commands", _NETWORKS),
        *declare_rules("measured times of any format", _MEASUREMENTS),
        *declare_rules("algorithms and workloads of any format", _MODELS),
    ]
