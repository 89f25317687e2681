"""Format the comparison of a job with a machine as lines and as a JSON object."""

from __future__ import annotations

from collhub_pytorch.machine_comparison import ComparedCalls, MachineComparison, MachineSaving
from hub_core.model import JsonValue, format_bandwidth, format_bytes, format_time

_MEASURED = ("measured",)


def comparison_lines(comparison: MachineComparison) -> list[str]:
    """Format one line per size class, then the saving and the calls that it does not include."""
    name = comparison.machine.name
    calls = comparison.calls
    lines = [f"{_scope(one)}: {_format_result(one, name)}" for one in calls]
    if not calls:
        return [f"there are no collectives to compare with {name}"]
    total = sum(one.calls for one in calls)
    unpredicted = sum(one.calls for one in calls if one.reason)
    if comparison.saving is not None:
        lines.append(_saving_line(comparison.saving, name))
    if unpredicted:
        lines.append(f"{unpredicted} of {total} calls are not predicted and keep their times")
    per_node = comparison.ranks_per_node
    if per_node is not None:
        lines.append(f"assumed: {per_node} consecutive ranks on each node (--ranks-per-node)")
    return lines


def comparison_object(comparison: MachineComparison) -> dict[str, JsonValue]:
    """Return the field `machine_comparison` of the report."""
    machine, saving = comparison.machine, comparison.saving
    collectives: list[JsonValue] = [_calls_object(one) for one in comparison.calls]
    return {
        "machine": {
            "name": machine.name,
            "library": machine.library,
            "held_out_error": machine.held_out_error,
        },
        "ranks_per_node": comparison.ranks_per_node,
        "collectives": collectives,
        "saving": None if saving is None else {
            "replayed_ns": saving.replayed_ns,
            "job_ns": saving.job_ns,
            "saved_ns": saving.saved_ns,
            "min_saved_ns": saving.min_saved_ns,
            "max_saved_ns": saving.max_saved_ns,
        },
    }  # fmt: skip


def _calls_object(calls: ComparedCalls) -> dict[str, JsonValue]:
    is_sized = calls.min_bytes >= 0
    return {
        "kind": calls.kind,
        "min_bytes": calls.min_bytes if is_sized else None,
        "max_bytes": calls.max_bytes if is_sized else None,
        "rank_count": calls.rank_count,
        "node_count": calls.node_count,
        "calls": calls.calls,
        "transferring_ns": round(calls.transferring_ns),
        "includes_waiting": calls.includes_waiting,
        "bus_bandwidth_bytes_per_s": calls.bus_bandwidth,
        "machine_bus_bandwidth_bytes_per_s": calls.machine_bus_bandwidth,
        "reached_percent": calls.reached_percent,
        "methods": list(calls.methods),
        "held_out_error": calls.held_out_error,
        "not_predicted": calls.reason or None,
    }


def _scope(calls: ComparedCalls) -> str:
    """Format size, kind and ranks: `64 MiB all-reduce, 8 ranks on 1 node`."""
    size = "unknown size" if calls.min_bytes < 0 else format_bytes(calls.max_bytes)
    if 0 <= calls.min_bytes < calls.max_bytes:
        size = f"{format_bytes(calls.min_bytes)} to {size}"
    ranks = f"{calls.rank_count} ranks"
    if calls.node_count is not None:
        ranks += " on 1 node" if calls.node_count == 1 else f" on {calls.node_count} nodes"
    return f"{size} {calls.kind}, {ranks}"


def _format_result(calls: ComparedCalls, machine: str) -> str:
    if calls.reason:
        return f"not predicted: {calls.reason}"
    percent, reached = calls.reached_percent, calls.bus_bandwidth
    if percent is None or reached is None or calls.machine_bus_bandwidth is None:
        return "no transfer time is recorded"
    if calls.methods == _MEASURED:
        error = "measured at this size"
    elif calls.held_out_error is None:
        error = "error not measured"
    else:
        error = f"held-out error {100 * calls.held_out_error:.0f} %"
    figures = f"{format_bandwidth(reached)} of {format_bandwidth(calls.machine_bus_bandwidth)}"
    waiting = ", with waiting times" if calls.includes_waiting else ""
    return f"{percent:.0f} % of the bandwidth that {machine} reaches ({error}), {figures}{waiting}"


def _saving_line(saving: MachineSaving, machine: str) -> str:
    """Format the saving with its band: `saves 10 us (8 us to 12 us by the held-out error)`."""
    if saving.min_saved_ns is None or saving.max_saved_ns is None:
        band = "error not measured"
    else:
        limits = (format_time(saving.min_saved_ns), format_time(saving.max_saved_ns))
        band = f"{limits[0]} to {limits[1]} by the held-out error"
    percent = 100 * saving.saved_ns / saving.replayed_ns if saving.replayed_ns else 0.0
    return (
        f"if slower collectives reached the bandwidth of {machine} the job takes "
        f"{format_time(saving.job_ns)} instead of {format_time(saving.replayed_ns)}: "
        f"saves {format_time(saving.saved_ns)} ({band}), {percent:.1f} %"
    )
