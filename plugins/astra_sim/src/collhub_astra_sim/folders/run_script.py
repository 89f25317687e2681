"""The command line of ASTRA-sim, and the script `run.sh` that runs it on a folder.

The script's exit status reports failed runs, unlike the simulator's.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def arguments(*, has_groups: bool) -> tuple[str, ...]:
    """Return the options of the simulator, with paths relative to the folder."""
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
    what: Sequence[str],
    *,
    is_congestion_aware: bool,
    has_groups: bool,
) -> str:
    """Return the POSIX shell script; `what`: lines that describe the simulated algorithms.

    It exits with 0 only if all ranks finished; the simulator exits with 0 even if ranks hang.
    """
    values = {
        "@WHAT@": "".join(f"# {line}.\n" for line in what),
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
