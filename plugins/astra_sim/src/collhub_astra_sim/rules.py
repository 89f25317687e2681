"""Rules of folders and networks of ASTRA-sim, ns-3 and htsim."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules, declare_similar_rules

_FOLDERS = (
    (
        "astra-sim-folder",
        "The files of the folder contradict each other, or one is missing.",
        "A file is missing, or two files could be the same input.",
        "Name the complete folder, or the file by an option; the message names the file.",
        "a script that names traces which are not in the folder",
    ),
    (
        "congestion-unaware",
        "The folder is for ASTRA-sim's congestion-unaware backend.",
        "Its script starts this backend.",
        "Simulate with `-O network=congestion-unaware`.",
        "a script with AstraSim_Analytical_Congestion_Unaware",
    ),
    (
        "invalid-system",
        "The system configuration has a value that ASTRA-sim does not accept.",
        "A key is missing or misspelled.",
        "Correct the key that the message names.",
        '`"all-reduce-implementation": ["rings"]`',
    ),
    (
        "topology-too-small",
        "The network has fewer NPUs than the traces have ranks.",
        "The files belong to different runs.",
        "Give a network with enough NPUs.",
        "8 traces and a network of 4 NPUs",
    ),
)
_NETWORKS = (
    (
        "invalid-network-yaml",
        "The file is no network of the analytical backend.",
        "A key is missing, a list has another length, or a value is out of range.",
        "Correct the key that the message names.",
        "`topology: [ Rings ]`",
    ),
    (
        "invalid-network-json",
        "The file is no network of ASTRA-sim 1.",
        "A key is missing, a list has another length, or a value is out of range.",
        "Correct the value that the message names.",
        "`units-count` with three entries, and `link-latency` with two",
    ),
    (
        "links-count",
        "The links of an NPU do not divide evenly among its neighbours.",
        "ASTRA-sim 1 leaves out the rest, and so does the hub.",
        "Write a multiple of the number of neighbours.",
        "7 links in a ring",
    ),
    (
        "ring-bandwidth",
        "A message in a ring has half of the bandwidth that ASTRA-sim 1 gives it.",
        "ASTRA-sim 1 sends every message over all links of an NPU, in both directions of the ring.",
        "No action is needed; algorithms that use both directions have the same bandwidth.",
        "a ring with `links-count` of 2",
    ),
    (
        "nic-latency",
        "The NIC latency counts once per link of a ring.",
        "A topology has latencies of links only; ASTRA-sim 1 adds NIC latencies once per message.",
        "No action is needed if messages go to neighbours.",
        "a ring of 8 NPUs with a NIC latency of 100 ns",
    ),
    (
        "memory",
        "Memory that limits the time of messages is left out.",
        "A topology has no memory; in ASTRA-sim 1 a message takes at least its time.",
        "No action is needed if the network is slower than the memory.",
        "`hbm-scale` of 1",
    ),
    (
        "unknown-keys",
        "The file has keys that ASTRA-sim 1 does not have.",
        "They are misspelt, or belong to a fork.",
        "Correct or remove them.",
        "`link-failure`",
    ),
    (
        "invalid-ns3-topology",
        "The file is no topology of ns-3.",
        "A number, rate or delay is missing or out of range.",
        "Correct the line that the message names.",
        "`0 1 400 500ns 0`",
    ),
    (
        "link-count",
        "The header announces another number of links than the file has.",
        "Links were added by hand.",
        "Correct the header; the links of the file are read.",
        "a header with 3 links, and 4 lines",
    ),
    (
        "invalid-htsim-topology",
        "The file is no fat tree of htsim.",
        "A key is missing, occurs twice, or numbers are inconsistent.",
        "Correct the key that the message names.",
        "`Nodes 0`",
    ),
    (
        "inexpressible-topology",
        "The network cannot be written in the format.",
        "ASTRA-sim, htsim and ns-3 know fewer networks.",
        "Use the format that the message proposes.",
        "a torus as htsim file",
    ),
    (
        "too-few-npus",
        "ASTRA-sim needs at least two NPUs.",
        "The network has one NPU.",
        "Name a larger topology.",
        "`ring:1`",
    ),
    (
        "uneven-servers",
        "Servers have different numbers of NPUs, which ns-3 does not represent.",
        "NPUs are joined in groups of different sizes.",
        "Write it for another simulator.",
        "groups of 4 and 8 NPUs",
    ),
)
_HAZARDS = (
    (
        "h1",
        "ASTRA-sim aborts in its statistics if the last node of a rank to finish is a message.",
        "The rank also has computations of the host, transfers of memory or markers.",
        "Let a COMPUTE node come last.",
        "a computation of the host before the last send",
    ),
    (
        "h2",
        "ASTRA-sim aborts on METADATA nodes.",
        "The trace states its process groups in such nodes.",
        "Leave the node out, and state the groups in groups.json.",
        "a node of type METADATA",
    ),
    (
        "h3",
        "ASTRA-sim starts the children of a node without duration only when another node finishes.",
        "A computation has no bytes for the roofline, or the node is a marker.",
        "State a tensor size, or leave the node out.",
        "`tensor_size` 0 with `roofline-enabled` 1",
    ),
    (
        "h6",
        "ASTRA-sim never finishes the collective.",
        "It has no native algorithm of this kind, or the collective runs on the host.",
        "Choose another kind on the device, or replace it by messages: `collhub expand`.",
        "a native REDUCE",
    ),
    (
        "h7",
        "ASTRA-sim never stops on an all-gather of fewer bytes than splits.",
        "The size of a split becomes 0.",
        "Use fewer `preferred-dataset-splits`.",
        "3 bytes and 4 splits",
    ),
    (
        "h8",
        "ASTRA-sim may crash at its end.",
        "A rank uses several groups that lack some ranks for one type of collective.",
        "Accept a run in which every rank has finished.",
        "all-reduces in the groups 1 and 2 of a rank",
    ),
    (
        "h9",
        "The tags of messages wrap around in groups with a number above 499.",
        "The groups were numbered by another tool.",
        "Number the groups from 1.",
        'the group "500"',
    ),
    (
        "host-message",
        "ASTRA-sim aborts on a message of the host.",
        "`is_cpu_op` of a SEND or RECV node is true.",
        "Set it to false.",
        "a SEND node with `is_cpu_op` true",
    ),
    (
        "no-size",
        "ASTRA-sim aborts on a collective or transfer without a size.",
        "`comm_size` or `tensor_size` is missing.",
        "State the bytes.",
        "an all-reduce without `comm_size`",
    ),
    (
        "no-tag",
        "ASTRA-sim aborts on a message without a tag.",
        "`comm_tag` is missing.",
        "State a tag, equal on both sides.",
        "a SEND node without `comm_tag`",
    ),
    (
        "foreign-end",
        "ASTRA-sim aborts on a message whose local end is another rank.",
        "`comm_src` of a SEND, or `comm_dst` of a RECV, is not the rank of the file.",
        "Correct it, or leave it out.",
        "`comm_src` 2 in the file of rank 0",
    ),
    (
        "empty-message",
        "ASTRA-sim aborts on a message without bytes.",
        "`comm_size` is 0 or missing.",
        "State at least one byte, or leave the message out.",
        "a SEND node with `comm_size` 0",
    ),
    (
        "no-memory",
        "ASTRA-sim stops at a transfer to a remote memory that the folder does not describe.",
        "The job has LOAD or STORE nodes, and memory.json has no memory.",
        "Describe the memory in memory.json.",
        "a LOAD node with `NO_MEMORY_EXPANSION`",
    ),
    (
        "no-operations",
        "ASTRA-sim aborts on a computation without operations or bytes under the roofline.",
        "The trace states a duration, which the roofline ignores.",
        "State both, or set `roofline-enabled` to 0.",
        "a COMP node without `num_ops` and `roofline-enabled` 1",
    ),
    (
        "unfinished-node",
        "A node starts and never finishes, nor does its rank.",
        "It waits for another rank, which waits for this one or never starts its part.",
        "Start collectives and messages in the same order on all ranks.",
        "two ranks that start the collectives of two groups in opposite orders",
    ),
    (
        "slot-occupied",
        "A node never starts, because an unfinished node occupies the slot of its kind.",
        "A rank runs one communication and one computation at a time.",
        "Correct the unfinished node.",
        "an all-reduce after one that never finishes",
    ),
    (
        "never-issued",
        "A node never starts, because its parent takes no time and no other node finishes later.",
        "ASTRA-sim issues the children of such a node when another node finishes.",
        "Give the parent a time, or leave it out.",
        "a chain that begins with a computation of 0 bytes",
    ),
)
_SIMULATION = (
    (
        "astra-sim-aborts",
        "A message at the start takes less than 1 ns, on which ASTRA-sim aborts.",
        "The messages are small, and the simulator of the hub continues.",
        "Use larger messages to compare with ASTRA-sim.",
        "a first message of 53 bytes at 50 GiB/s",
    ),
    (
        "never-finishes",
        "A rank never finishes.",
        "It waits for a message that is not sent, or steps wait for each other.",
        "Correct the step that the message names; `collhub verify` finds deadlocks.",
        "a receive without a send",
    ),
    (
        "unfinished",
        "Ranks wait for messages, or with the rendezvous protocol for receivers.",
        "Messages are sent in an order that needs buffers.",
        "Order sends and receives, or leave out `-O rendezvous`.",
        "two ranks that both send first",
    ),
    (
        "omitted-transfers",
        "The list of transfers on links is cut.",
        "The job has more transfers than are listed.",
        "No action is needed for times; simulate a part of the job to see all transfers.",
        "a job of a million messages",
    ),
    (
        "loss",
        "The folder for ASTRA-sim expresses a part of the algorithm differently.",
        "ASTRA-sim has no such feature.",
        "No action is needed; the message states the consequence.",
        "a step of 1.5 microseconds",
    ),
    (
        "lost-event",
        "ASTRA-sim lost an event after an exception.",
        "The trace breaks its input contract.",
        "Report the algorithm; simulate with the simulator analytical.",
        "`a callable is removed before call` in the output",
    ),
)
_REQUESTS = (
    (
        "no-binary",
        "No binary of ASTRA-sim is named, or it is another program.",
        "`-O binary=ls`",
    ),
    ("astra-sim-failed", "ASTRA-sim stopped with an error.", "a run that an assertion aborts"),
    ("file-handles", "ASTRA-sim would open too many files.", "4096 ranks, and a limit of 1024"),
    (
        "fixed-size",
        "The trace has messages of fixed sizes, and is simulated at another size.",
        "`--size 2MiB` for a trace of 1 MiB",
    ),
    ("no-algorithm", "No algorithm is given for a collective.", "a broadcast of a job"),
    (
        "no-implementation",
        "ASTRA-sim has no implementation of the collective for these ranks.",
        "halving-doubling of 6 ranks",
    ),
    (
        "group",
        "The ranks of a process group do not fit its collective or its custom algorithm.",
        "a group whose ranks are listed in descending order",
    ),
    (
        "too-long",
        "The simulated time may exceed 146 years.",
        "a bandwidth of 1 byte per second",
    ),
    ("one-rank", "One rank has no message to send.", "`ring:1`"),
    ("size-too-small", "The size cannot be divided into the parts.", "2 bytes for 8 ranks"),
    (
        "topology-size",
        "The network has another number of NPUs than the job has ranks.",
        "`ring:4` for 8 ranks",
    ),
    (
        "queues",
        "The number of queues per dimension is too small, or not possible here.",
        "`-O queues=0`",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("jobs for ASTRA-sim, by `collhub verify`", _HAZARDS),
        *declare_rules("simulations with ASTRA-sim's model, and runs of its binary", _SIMULATION),
        *declare_similar_rules(
            "requests: simulation and synthesis with ASTRA-sim's model",
            _REQUESTS,
            cause="Size, network and options do not fit ASTRA-sim, or its binary cannot run.",
            cure="Change the one that the message names, or use the simulator analytical.",
        ),
        *declare_rules("folders of ASTRA-sim, when they are read", _FOLDERS),
        *declare_rules("network files of ASTRA-sim, ns-3 and htsim", _NETWORKS),
    ]
