"""Predict the times of a machine's library for calls of a job; refuse calls beyond the profile."""

from __future__ import annotations

from collections import Counter

from collhub_machine_profiles.calls import PlannedCall, format_ranks
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_profiles.prediction import MAX_FITTED_BYTES, Method, predict_time

from collhub_machine_timing.profiles import describe_profile, parse_machine
from hub_core.model import format_bytes
from hub_core.plugin_api import LibraryCall, LibraryTime, LibraryTimes, LibraryTimesRequest

_MAX_LISTED_CONFIGURATIONS = 6


def predict_library_times(request: LibraryTimesRequest) -> LibraryTimes:
    """Predict the time of each call; none where the profile would extrapolate.

    Sizes outside of the measured ones, and numbers of ranks and nodes without a table or a model,
    have a reason instead of a time. Raises `HubError` for an unknown or invalid profile.
    """
    profile = parse_machine(request.machine)
    gpu = profile.known_gpu
    ranks_per_node = request.ranks_per_node or (None if gpu is None else gpu.gpus_per_node)
    times = tuple(_predict(profile, call, ranks_per_node) for call in request.calls)
    return LibraryTimes(describe_profile(profile), ranks_per_node, times)


def _predict(profile: MachineProfile, call: LibraryCall, ranks_per_node: int | None) -> LibraryTime:
    if ranks_per_node is None:
        reason = f"{profile.name} does not state its GPUs per node: give --ranks-per-node"
        return LibraryTime(None, reason=reason)
    ranks_of_node = Counter(rank // ranks_per_node for rank in call.ranks)
    nodes = len(ranks_of_node)
    if len(set(ranks_of_node.values())) > 1:
        return LibraryTime(nodes, reason="its nodes have unequal numbers of ranks")
    planned = PlannedCall(call.collective, len(call.ranks), nodes, call.size_bytes)
    prediction = predict_time(profile, planned)
    if prediction is None:
        return LibraryTime(nodes, reason=_explain_missing_configuration(profile, planned))
    if prediction.method == Method.EXTRAPOLATED:
        return LibraryTime(nodes, reason=_explain_extrapolation(profile, planned))
    is_fitted = profile.modelled_gpu(planned) is not None
    if prediction.method == Method.MODEL and is_fitted and call.size_bytes > MAX_FITTED_BYTES:
        limit = format_bytes(MAX_FITTED_BYTES)
        reason = f"the model of {profile.name} was fitted to sizes up to {limit}"
        return LibraryTime(nodes, reason=reason)
    return LibraryTime(
        nodes, prediction.time_us * 1e3, str(prediction.method), prediction.median_error
    )


def _explain_missing_configuration(profile: MachineProfile, call: PlannedCall) -> str:
    """State that a collective, or its number of ranks and nodes, was not measured."""
    configurations = sorted(
        {(one.nodes, one.ranks) for one in profile.tables if one.collective == call.collective}
    )
    if not configurations:
        return f"{profile.name} has no times of this collective"
    listed = configurations[:_MAX_LISTED_CONFIGURATIONS]
    names = [format_ranks(ranks, nodes) for nodes, ranks in listed]
    if len(configurations) > _MAX_LISTED_CONFIGURATIONS:
        names.append("others")
    configuration = format_ranks(call.ranks, call.nodes)
    return f"{profile.name} has no times of {configuration}, only of {', '.join(names)}"


def _explain_extrapolation(profile: MachineProfile, call: PlannedCall) -> str:
    """State which measured sizes or nodes the call exceeds."""
    table = profile.table_for(call)
    if table is None:
        return _explain_missing_configuration(profile, call)
    first, last = (format_bytes(int(table.sizes[index])) for index in (0, -1))
    return f"{profile.name} was measured from {first} to {last} (full buffer)"
