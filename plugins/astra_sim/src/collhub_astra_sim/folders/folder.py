"""The files of a folder that ASTRA-sim runs: traces, workloads, configurations and `run.sh`.

What the files must hold, ASTRA-sim's custom collectives lay down (its pull request 198 and the
example of its issue 322); what it aborts on or waits for ever was found by running it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from collhub_astra_sim.folders.placement import WorldPlacement
from collhub_astra_sim.folders.run_script import (
    GROUPS,
    MEMORY,
    NETWORK,
    SCRIPT,
    SYSTEM,
    WORKLOAD,
    script,
)
from collhub_astra_sim.folders.workload_traces import (
    COLLECTIVE_KEYS,
    GROUP,
    collective_workload,
    idle_workload,
)
from collhub_astra_sim.networks.expressible import AstraNetwork
from collhub_astra_sim.networks.network_yaml import network_text
from hub_core.model import CollectiveKind, Loss
from hub_core.plugin_api import Artifact, WriteResult


@dataclass(frozen=True, slots=True)
class AstraFolder:
    """Contents of a folder.

    `collective_bytes`: the size that the traces are written for. `run_as`: the collective under
    which ASTRA-sim knows the algorithm. `comm_size`: bytes in its workload node. `traces`: of the
    algorithm. `losses`: of traces and folder together.
    """

    name: str
    collective_bytes: int
    run_as: CollectiveKind
    comm_size: int
    placement: WorldPlacement
    network: AstraNetwork
    is_congestion_aware: bool
    traces: WriteResult
    losses: tuple[Loss, ...]

    def artifacts(self) -> Iterator[Artifact]:
        """All files, in a fixed order; the algorithm's traces one by one."""
        for trace in self.traces.artifacts:
            yield Artifact(f"{self._trace_prefix}{trace.name}", trace.content)
        yield from self._workloads()
        for name, text in self._texts().items():
            content = _constant(text.encode("ascii"))
            yield Artifact(name, content, executable=name == SCRIPT)

    def _workloads(self) -> Iterator[Artifact]:
        """A trace for every NPU: the collective for members, idle work for others."""
        member = collective_workload(
            self.run_as,
            self.comm_size,
            in_group=self.placement.is_part,
        )
        idle = idle_workload()
        members = frozenset(self.placement.members)
        for npu in range(self.placement.npus):
            content = member if npu in members else idle
            yield Artifact(f"{WORKLOAD}.{npu}.et", _constant(content))

    def _texts(self) -> dict[str, str]:
        """The configurations and the script, by file name."""
        texts = {
            SYSTEM: _json(self._system()),
            NETWORK: network_text(self.network.dimensions),
            MEMORY: _json({"memory-type": "NO_MEMORY_EXPANSION"}),
        }
        if self.placement.is_part:
            texts[GROUPS] = _json({GROUP: list(self.placement.members)})
        texts[SCRIPT] = self._script()
        return texts

    def _system(self) -> dict[str, object]:
        """The system configuration, which names the algorithm for its collective."""
        return {
            # Where it is absent, the simulator reads a variable that nobody has set.
            "scheduling-policy": "FIFO",
            # With any other number no rank ever finishes a custom algorithm.
            "preferred-dataset-splits": 1,
            # A list of exactly one prefix: on anything else the simulator aborts.
            COLLECTIVE_KEYS[self.run_as]: [self._trace_prefix],
        }

    def _script(self) -> str:
        ranks = len(self.placement.members)
        what = f"{self.name}: {self.run_as} of {self.collective_bytes} bytes on {ranks} ranks"
        return script(
            self.placement.npus,
            self._trace_prefix,
            ranks,
            what,
            is_congestion_aware=self.is_congestion_aware,
            has_groups=self.placement.is_part,
        )

    @property
    def _trace_prefix(self) -> str:
        return f"traces/{self.name}"


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _constant(content: bytes) -> Callable[[], bytes]:
    return lambda: content
