"""Select the profile of a machine: for a simulation, its description, and times of its library.

A profile is a shipped one, a document, or that of the topology. Times of the measured library, for
calls of a job, are predicted only within the sizes, ranks and nodes that the profile covers.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
from collhub_machine_profiles import find_profile, profile_of_text, shipped_names
from collhub_machine_profiles.calls import PlannedCall, format_ranks
from collhub_machine_profiles.machine_profile import MachineProfile
from collhub_machine_profiles.prediction import MAX_FITTED_BYTES, Method, predict_time

from collhub_machine_timing.constants import check_model, has_model, nominal_gigabytes_per_s
from hub_core.model import PluginError, UsageError, closest, format_bytes
from hub_core.network import Topology, group_of_nodes
from hub_core.plugin_api import (
    LibraryCall,
    LibraryTime,
    LibraryTimes,
    LibraryTimesRequest,
    MachineDescription,
)

# Ratio of bandwidths up to which a topology describes the machine of a profile: some formats state
# the 82 % of the nominal rate that NCCL assumes.
_MAX_RATIO = 1.25
# Measured numbers of ranks and nodes that a reason lists.
_MAX_LISTED_CONFIGURATIONS = 6


def select_profile(text: str | None, topology: Topology) -> MachineProfile:
    """Return the profile with a name or in a JSON text, by default that of the topology.

    `text`: name of a shipped profile, or JSON that begins with `{`; None for the default.
    Raise `UsageError` for an unknown name (`unknown-profile`), for a profile without
    constants of thread blocks (`no-model`), and for a profile of another machine than the
    topology (`other-machine`). Raise `PluginError` (`no-profile`) if `text` is None and no
    shipped profile describes the topology, and `InputError` for an invalid profile.
    """
    profile = find_profile(topology) if text is None else parse_machine(text)
    if profile is None:
        names = ", ".join(shipped_names())
        raise PluginError(
            f"no shipped profile describes {topology.name}",
            cure=f"name one of {names}, or a file of 'collhub calibrate'",
            code="no-profile",
        )
    check_model(profile)
    if reason := _mismatch(profile, topology):
        raise UsageError(
            f"the profile {profile.name} is of another machine than {topology.name}: {reason}",
            cure="name the machine of the topology, or use --machine none",
            code="other-machine",
        )
    return profile


def parse_machine(text: str) -> MachineProfile:
    """Return the profile in a JSON text, or the shipped profile with this exact name.

    A text whose first character other than blanks is `{` is JSON. Raises `UsageError`
    (`unknown-profile`) if no shipped profile has the name; the cure lists all names, the
    closest first. Raises `InputError` for invalid JSON and for an invalid profile.
    """
    profile = profile_of_text(text)
    if profile is not None:
        return profile
    names = shipped_names()
    known = f"known: {', '.join(names)}; or a file of 'collhub calibrate'"
    raise UsageError(
        f"there is no profile {text!r}, and no such file",
        cure=" ".join(filter(None, (closest(text, names), known))),
        code="unknown-profile",
    )


def describe_machine(machine: str | None, topology: Topology) -> MachineDescription | None:
    """Return name, library and held-out error of the profile that a simulation uses.

    - `machine` is a text: the profile is that of `select_profile`, a name or JSON text. Its
      errors are raised, for example for a profile without a model or of another machine.
    - `machine` is None: the profile is that of the topology. The result is None if there is no
      such profile, if it has no model, or if it does not describe the topology.

    The held-out error is a fraction, or None if it was not measured.
    """
    if machine is None:
        profile = find_profile(topology)
        if profile is None or not has_model(profile) or _mismatch(profile, topology):
            return None
    else:
        profile = select_profile(machine, topology)
    return describe_profile(profile)


def describe_profile(profile: MachineProfile) -> MachineDescription:
    """Return name, library and held-out error (a fraction) of the model of a profile.

    The error is that on measurements to which the model was not fitted: the median of the medians
    of all error entries of the predictor `model`, each weighted by its number of points. It is None
    if there is no such entry.
    """
    entries = [one for one in profile.errors if one.predictor == "model" and one.points]
    medians = np.repeat([one.median for one in entries], [one.points for one in entries])
    held_out_error = float(np.median(medians)) if len(medians) else None
    return MachineDescription(profile.name, str(profile.library), held_out_error)


@lru_cache(maxsize=4)
def node_rate(topology: Topology) -> float:
    """Return the rate of a GPU's links within its node in bytes/s: the median over all GPUs.

    The rate of a GPU is the sum over its outgoing links to GPUs and switches of its node (group;
    `group_of_nodes`). Links slower than half of this GPU's fastest such link, such as those to the
    host, do not count. Without groups in the topology, all links are within one node. A GPU without
    such links has 0. The last four results are cached, because every run needs that of the same
    network.
    """
    group = group_of_nodes(topology)
    source, destination = group[topology.source], group[topology.destination]
    is_inside = (source == destination) & ((source >= 0) | (not topology.groups))
    is_inside &= topology.source < topology.num_npus
    npu, rate = topology.source[is_inside], topology.bandwidth_bytes_per_s[is_inside]
    fastest = np.zeros(topology.num_npus)
    np.maximum.at(fastest, npu, rate)
    is_fast = rate >= fastest[npu] / 2
    rates = np.bincount(npu[is_fast], rate[is_fast], minlength=topology.num_npus)
    return float(np.median(rates))


def predict_library_times(request: LibraryTimesRequest) -> LibraryTimes:
    """Predict the time of each call of the request by a profile, in the order of the calls.

    Rank r is on node r // `ranks_per_node`, which is that of the request, or else the number
    of GPUs per node of the profile. A call has a reason instead of a time if this number is
    unknown, its nodes have unequal numbers of ranks, the profile has no table or model for
    its ranks and nodes, or its size is outside the measured sizes (for the model of a node:
    above `MAX_FITTED_BYTES`). Raise `HubError` for an unknown or invalid profile.
    """
    profile = parse_machine(request.machine)
    gpu = profile.known_gpu
    ranks_per_node = request.ranks_per_node or (None if gpu is None else gpu.gpus_per_node)
    times = tuple(_predict(profile, call, ranks_per_node) for call in request.calls)
    return LibraryTimes(describe_profile(profile), ranks_per_node, times)


def _mismatch(profile: MachineProfile, topology: Topology) -> str:
    """Return how a topology differs from the machine of a profile; "" if it does not.

    The first of these differences is returned:

    1. The largest group (without groups: all NPUs) has more GPUs than a node of the
       machine.
    2. It has more than one GPU, and the rate of a GPU's links (`node_rate`) is more than
       1.25 (`_MAX_RATIO`) times the nominal rate of the profile's GPU, or less than the
       nominal rate / 1.25.

    Raises `AssertionError` if the profile names no known GPU.
    """
    gpu = profile.known_gpu
    assert gpu is not None, "profiles with constants name a known GPU"
    largest = max((len(members) for members in topology.groups.values()), default=None)
    gpus = topology.num_npus if largest is None else largest
    if gpus > gpu.gpus_per_node:
        return f"{gpus} GPUs a node instead of {gpu.gpus_per_node}"
    rate = node_rate(topology)
    nominal = nominal_gigabytes_per_s(profile) * 1e9
    if gpus > 1 and not nominal / _MAX_RATIO <= rate <= nominal * _MAX_RATIO:
        return f"{rate / 1e9:g} GB/s a GPU instead of {nominal / 1e9:g}"
    return ""


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
        table = profile.table_for(planned)
        if table is None:
            return LibraryTime(nodes, reason=_explain_missing_configuration(profile, planned))
        first, last = (format_bytes(int(table.sizes[index])) for index in (0, -1))
        reason = f"{profile.name} was measured from {first} to {last} (full buffer)"
        return LibraryTime(nodes, reason=reason)
    is_fitted = profile.modelled_gpu(planned) is not None
    if prediction.method == Method.MODEL and is_fitted and call.size_bytes > MAX_FITTED_BYTES:
        limit = format_bytes(MAX_FITTED_BYTES)
        reason = f"the model of {profile.name} was fitted to sizes up to {limit}"
        return LibraryTime(nodes, reason=reason)
    return LibraryTime(
        nodes, prediction.time_us * 1e3, str(prediction.method), prediction.median_error
    )


def _explain_missing_configuration(profile: MachineProfile, call: PlannedCall) -> str:
    """Return why a profile has no time for a call, as a sentence for users.

    Either no table has the collective, of any library, or none has it for these ranks and
    nodes. In the second case, the distinct measured pairs of nodes and ranks are listed
    in ascending order, at most six and then the word `others`.
    """
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
