"""The folder that ASTRA-sim runs: its world of NPUs, traces, workloads, configurations, `run.sh`.

Members of the group have collective nodes, the remaining NPUs idle work. The required content of
the files follows ASTRA-sim's custom collectives (its pull request 198 and the example of its issue
322); the inputs on which it aborts or hangs were determined by running it. The exit status of the
script reports failed runs, unlike the simulator's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collhub_astra_sim.networks.network_yaml import AstraNetwork, format_network
from collhub_astra_sim.options import AstraFolderOptions
from hub_core.chakra import NodeType
from hub_core.model import Algorithm, CollectiveKind, Loss, UsageError, parse_ranks, placement_of
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, WriteResult

WORKLOAD = "workload"
SYSTEM = "system.json"
NETWORK = "network.yml"
NETWORK_KEY = b"npus_count"
MEMORY = "memory.json"
# The simulator treats a path that contains the word "empty" as no file.
GROUPS = "groups.json"
PER_NODE = "algorithms.yml"
SCRIPT = "run.sh"
BINARY_NAMES = {
    True: "AstraSim_Analytical_Congestion_Aware",
    False: "AstraSim_Analytical_Congestion_Unaware",
}
"""Names of ASTRA-sim's binaries, by whether they are congestion-aware."""
GROUP = "1"
"""The communicator group of the algorithm; 0 means all ranks."""
ALL_RANKS_GROUPS = ("", "0")
"""Group names that workload nodes of all ranks may have."""
COMM_TYPES = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
}
"""`CollectiveCommType` of the Chakra schema; ASTRA-sim has no custom algorithms for other kinds."""
COLLECTIVE_KEYS = {kind: f"{kind}-implementation-custom" for kind in COMM_TYPES}
"""Keys of the system JSON that name the algorithm of a collective; other kinds have no key."""
PER_NODE_KEY = "per-node-custom-implementation"
"""Key of the system JSON with a YAML map of workload nodes to algorithms, which takes precedence.
"""
# Version of the Chakra schema in the metadata of a trace.
_VERSION = "0.0.4"
_MOST_NPUS = 1 << 20


def arguments(*, has_groups: bool) -> tuple[str, ...]:
    """Return the simulator's options as texts `--OPTION=PATH`, relative to the folder.

    The order is workload (prefix of its traces), system, network, memory, groups (only if
    `has_groups`), and the folder `log` for logs.
    """
    files = {
        "workload-configuration": WORKLOAD,
        "system-configuration": SYSTEM,
        "network-configuration": NETWORK,
        "remote-memory-configuration": MEMORY,
    }
    if has_groups:
        files["comm-group-configuration"] = GROUPS
    files["logging-folder"] = "log"
    return tuple(f"--{option}={file}" for option, file in files.items())


def count_file_handles(npus: int) -> int:
    """Return the number of files that the simulator keeps open: two per rank and a few more.

    From 480 ranks on, that exceeds the usual limit of 1024.
    """
    return 2 * npus + 64


def script(
    npus: int,
    trace_prefixes: Sequence[str],
    num_ranks: int,
    descriptions: Sequence[str],
    *,
    is_congestion_aware: bool,
    has_groups: bool,
) -> str:
    """Return the text of `run.sh`, a POSIX shell script that runs ASTRA-sim on its folder.

    - The environment variable ASTRA_SIM_BIN must name the simulator. `is_congestion_aware`
      decides only which binary a comment and the error for the missing variable name.
    - The script checks that the workload has `npus` traces and each of `trace_prefixes` has
      `num_ranks` traces, all not empty and not read-only. It raises the limit of open files.
    - The simulator gets the groups file with `has_groups`, then the arguments of the script.
    - The status is 0 only if the simulator exits with 0, all `npus` NPUs finish and no known
      problem is reported (ASTRA-sim exits with 0 even if ranks hang). Otherwise it is 1.

    Each of `descriptions`, texts of one line, becomes a comment with a full stop, in order.
    """
    values = {
        "@WHAT@": "".join(f"# {line}.\n" for line in descriptions),
        "@NAME@": BINARY_NAMES[is_congestion_aware],
        "@NPUS@": str(npus),
        "@CHECKS@": "\n".join(f"check {prefix} {num_ranks}" for prefix in trace_prefixes),
        "@HANDLES@": str(count_file_handles(npus)),
        "@OPTIONS@": " \\\n    ".join(arguments(has_groups=has_groups)),
    }
    text = _SCRIPT
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


# A backslash at the end of a line joins it with the next one; a double backslash becomes one.
_SCRIPT = """#!/bin/sh
@WHAT@\
# Run ASTRA-sim on this folder:  ASTRA_SIM_BIN=.../@NAME@ ./run.sh [more options]
# The exit status is 0 only if every rank finished; \
the simulator itself ends with 0 when ranks hang.
set -u

fail() {
    echo "run.sh: $1" >&2
    exit 1
}

[ -n "${ASTRA_SIM_BIN:-}" ] || fail "ASTRA_SIM_BIN is not set; it names the simulator, .../@NAME@"
case $ASTRA_SIM_BIN in
    /*) binary=$ASTRA_SIM_BIN ;;
    */*) binary=$PWD/$ASTRA_SIM_BIN ;;
    *) binary=$ASTRA_SIM_BIN ;;
esac
command -v "$binary" >/dev/null || fail "$ASTRA_SIM_BIN is not a program that can be run"
unset CDPATH
cd -- "$(dirname -- "$0")" || exit 1

# The simulator opens its traces for appending: \
it creates missing ones empty and needs writable ones.
check() {
    rank=0
    while [ "$rank" -lt "$2" ]; do
        [ -s "$1.$rank.et" ] && [ -w "$1.$rank.et" ] || \
fail "$1.$rank.et is missing, empty or read-only"
        rank=$((rank + 1))
    done
}
check workload @NPUS@
@CHECKS@

handles=$(ulimit -n)
if [ "$handles" != unlimited ] && [ "$handles" -lt @HANDLES@ ]; then
    ulimit -S -n @HANDLES@ || fail "@HANDLES@ open files are needed, the limit is $handles"
fi

status=0
"$binary" \\
    @OPTIONS@ \\
    "$@" >output.log 2>&1 || status=$?
cat output.log
[ "$status" -eq 0 ] || fail "the simulator ended with exit status $status"

awk -v npus=@NPUS@ '
match($0, /sys\\[[0-9]+\\] finished, [0-9]+ cycles/) \
{ finished[substr($0, RSTART + 4, RLENGTH - 4) + 0] = 1 }
/has unreleased nodes!!!/ { problem = "the simulator reports unreleased nodes" }
/a callable is removed before call/ \
{ problem = "the simulator lost an event (a callable is removed before call)" }
END {
    for (rank = 0; rank < npus; rank++)
        if (!(rank in finished)) missing = missing " " rank
    if (missing != "") problem = "these ranks never finished:" missing
    if (problem != "") { print "run.sh: " problem; exit 1 }
}' output.log >&2
"""


@dataclass(frozen=True, slots=True)
class FolderProgram:
    """One algorithm of a folder.

    `collective_bytes`: the size for which its traces are written. `run_as`: the collective as which
    ASTRA-sim runs it. `comm_size`: bytes in its workload node.
    """

    name: str
    collective_bytes: int
    run_as: CollectiveKind
    comm_size: int
    traces: WriteResult

    @property
    def trace_prefix(self) -> str:
        """Prefix of its traces in the folder."""
        return f"traces/{self.name}"


@dataclass(frozen=True, slots=True)
class AstraFolder:
    """Contents of a folder.

    `programs`: the algorithms, which run one after the other. `losses`: of traces and folder
    together.
    """

    programs: tuple[FolderProgram, ...]
    placement: WorldPlacement
    network: AstraNetwork
    is_congestion_aware: bool
    losses: tuple[Loss, ...]

    def artifacts(self) -> Iterator[Artifact]:
        """Yield all files of the folder, in a fixed order; texts are ASCII.

        First the traces of the algorithms, then a workload trace per NPU, then the
        configurations and the script, which is the only executable file. Members of the group have
        equal workloads, one collective per program; other NPUs have idle work. Traces of algorithms
        are encoded when they are loaded, and only as often as `FolderProgram.traces` can be
        iterated. All other contents are created during the iteration.
        """
        for program in self.programs:
            for trace in program.traces.artifacts:
                yield Artifact(f"{program.trace_prefix}{trace.name}", trace.content)
        collectives = [(program.run_as, program.comm_size) for program in self.programs]
        member = encode_collective_workload(collectives, in_group=self.placement.is_part)
        idle = encode_idle_workload()
        members = frozenset(self.placement.members)
        for npu in range(self.placement.npus):
            content = member if npu in members else idle
            yield Artifact(f"{WORKLOAD}.{npu}.et", _make_loader(content))
        for name, text in self._build_texts().items():
            yield Artifact(name, _make_loader(text.encode("ascii")), executable=name == SCRIPT)

    def _build_texts(self) -> dict[str, str]:
        """Return the texts of the configurations and of the script by file name, in this order.

        - `system.json`: for each collective kind that programs run as (`run_as`), the trace prefix
          of the first of these programs as its custom algorithm
        - `network.yml`: the dimensions of `network`; `memory.json`: no remote memory
        - `algorithms.yml`, only with two or more programs: a line such as `0: traces/ring` per
          program, in order. ASTRA-sim gives it precedence.
        - `groups.json`, only if the world has more NPUs than ranks: the NPU of every rank
        - `run.sh`: runs the workload once with the binary of the backend, after a check that all
          traces exist. Comments describe the programs. It ends with 0 only if all NPUs finish.

        Raises `KeyError` for a program whose `run_as` is not in `COLLECTIVE_KEYS`, and for a kind
        of network dimension that ASTRA-sim does not have.
        """
        placement, has_several = self.placement, len(self.programs) > 1
        system: dict[str, object] = {
            # Without this key the simulator reads an uninitialized variable.
            "scheduling-policy": "FIFO",
            # With any other number a custom algorithm never finishes.
            "preferred-dataset-splits": 1,
        }
        for program in self.programs:
            # A list of exactly one prefix: the simulator aborts on any other value.
            system.setdefault(COLLECTIVE_KEYS[program.run_as], [program.trace_prefix])
        if has_several:
            system[PER_NODE_KEY] = PER_NODE
        texts = {
            SYSTEM: format_json(system),
            NETWORK: format_network(self.network.dimensions),
            MEMORY: format_json({"memory-type": "NO_MEMORY_EXPANSION"}),
        }
        prefixes = [program.trace_prefix for program in self.programs]
        if has_several:
            lines = [f"{node}: {prefix}\n" for node, prefix in enumerate(prefixes)]
            texts[PER_NODE] = "".join(lines)
        if placement.is_part:
            texts[GROUPS] = format_json({GROUP: list(placement.members)})

        ranks = len(placement.members)
        descriptions = [
            f"{program.name}: {program.run_as} of {program.collective_bytes} bytes on {ranks} ranks"
            for program in self.programs
        ]
        texts[SCRIPT] = script(
            placement.npus,
            prefixes,
            ranks,
            descriptions,
            is_congestion_aware=self.is_congestion_aware,
            has_groups=placement.is_part,
        )
        return texts


def format_json(value: object) -> str:
    """Return a value as JSON text, indented by 2 spaces, with a final newline.

    The examples of ASTRA-sim have this form.
    """
    return json.dumps(value, indent=2) + "\n"


def _make_loader(content: bytes) -> Callable[[], bytes]:
    """Return a function that returns `content`, as `Artifact` requires."""
    return lambda: content


@dataclass(frozen=True, slots=True)
class WorldPlacement:
    """The size of the world in NPUs, and the NPU of every rank, ascending."""

    npus: int
    members: tuple[int, ...]

    @property
    def is_part(self) -> bool:
        """Whether the algorithm runs on a part of the world, a communicator group."""
        return len(self.members) < self.npus


def choose_placement(
    algorithm: Algorithm, topology: Topology | None, options: AstraFolderOptions
) -> WorldPlacement:
    """Return the NPU of every rank (`members`, ascending) and the number of NPUs of the network.

    The members are those of the option `group` (such as `0,2,4-7`), otherwise of the algorithm's
    placement, otherwise NPU r for rank r. The number `npus` is that of `topology`, otherwise the
    option `npus`, otherwise the highest NPU plus 1. Raises, in this order:

    1. `InputError` (`invalid-placement`) for a malformed placement, even if `group` replaces it
    2. `UsageError` (`invalid-ranks`) if `group` is not a list of distinct NPUs, one per rank
    3. `UsageError` for NPUs that do not ascend
    4. `UsageError` if the option `npus` is not the number of NPUs of the topology
    5. `UsageError` if `npus` is more than `_MOST_NPUS`
    6. `UsageError` (`topology-too-small`) if a rank is on an NPU of `npus` or more
    """
    default_npus = placement_of(algorithm)
    group = options.group or (
        ",".join(map(str, default_npus)) if default_npus is not None else None
    )
    members = tuple(range(algorithm.num_ranks))
    if group:
        members = parse_ranks(group, "NPU", algorithm.num_ranks)
        # ASTRA-sim has two copies of the list and sorts one of them.
        if list(members) != sorted(members):
            raise UsageError(
                "option group: the NPUs do not ascend; ASTRA-sim would confuse ranks and peers",
                cure="sort them: rank i is the i-th",
            )
    # The size of the world: of the topology, as given, or as small as the members allow.
    option_npus = options.npus
    npus = members[-1] + 1 if option_npus is None else option_npus
    if topology is not None:
        npus = topology.num_npus
        if option_npus not in (None, npus):
            message = f"option npus: {option_npus}, but topology {topology.name} has {npus} NPUs"
            raise UsageError(message)
    if npus > _MOST_NPUS:
        raise UsageError(
            f"{npus} NPUs are more than {_MOST_NPUS}",
            cure="name a smaller world",
        )
    if members[-1] >= npus:
        raise UsageError(
            f"the algorithm needs NPU {members[-1]}, the world has {npus} NPUs",
            cure="name a larger topology, or another group",
            code="topology-too-small",
        )
    return WorldPlacement(npus, members)


def encode_collective_workload(
    collectives: Sequence[tuple[CollectiveKind, int]], *, in_group: bool
) -> bytes:
    """Return the trace of a member rank: one collective node per collective, in the given order.

    `collectives`: (kind, bytes) of each. The bytes are those of `comm_size` as ASTRA-sim counts
    them. Node i has the id i, the name of its kind, and the attributes `is_cpu_op` (false),
    `comm_type` and `comm_size`. Node i depends on node i - 1 (data); node 0 depends on none.

    With `in_group` the nodes also name the group `GROUP` (`pg_name`); otherwise they are of all
    ranks. Without collectives there is only the metadata record. Raises `KeyError` for a kind that
    is not in `COMM_TYPES`.
    """
    nodes = []
    for number, (kind, comm_size) in enumerate(collectives):
        attributes: list[dict[str, object]] = [
            {"name": "is_cpu_op", "bool_val": False},
            {"name": "comm_type", "int64_val": COMM_TYPES[kind]},
            {"name": "comm_size", "int64_val": comm_size},
        ]
        # Without a group's name the node belongs to all ranks.
        if in_group:
            attributes.append({"name": "pg_name", "string_val": GROUP})
        nodes.append(
            {
                "id": number,
                "name": str(kind),
                "type": int(NodeType.COMM_COLL),
                "data_deps": [number - 1] if number else [],
                "attr": attributes,
            }
        )
    return _encode_trace(nodes)


def encode_idle_workload() -> bytes:
    """Return the trace of a rank that is outside of the group: one computation of 1 ns.

    The node has one operation on one byte. ASTRA-sim refuses a trace without nodes.
    """
    # The simulator refuses a trace without nodes.
    attributes = [
        {"name": "is_cpu_op", "bool_val": False},
        {"name": "num_ops", "int64_val": 1},
        {"name": "tensor_size", "uint64_val": 1},
    ]
    return _encode_trace([{"name": "idle", "type": int(NodeType.COMP), "attr": attributes}])


def _encode_trace(nodes: Sequence[Mapping[str, object]]) -> bytes:
    """Return the bytes of a trace: a metadata record with the version, then one per node.

    A node is a mapping with the fields of the protobuf message `Node`. Without nodes, only
    the metadata record is returned. Raise `ValueError` for an unknown field or a number
    outside the range of its field, and `TypeError` for a value of another type.
    """
    # Imported here: it imports protobuf, which only writers of folders need.
    from hub_core.chakra import encoded_record

    metadata = encoded_record("GlobalMetadata", version=_VERSION)
    return metadata + b"".join(encoded_record("Node", **node) for node in nodes)
