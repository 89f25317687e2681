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
    PER_NODE,
    SCRIPT,
    SYSTEM,
    WORKLOAD,
    script,
)
from collhub_astra_sim.folders.workload_traces import (
    COLLECTIVE_KEYS,
    GROUP,
    PER_NODE_KEY,
    collective_workload,
    idle_workload,
)
from collhub_astra_sim.networks.expressible import AstraNetwork
from collhub_astra_sim.networks.network_yaml import network_text
from hub_core.model import CollectiveKind, Loss
from hub_core.plugin_api import Artifact, WriteResult


@dataclass(frozen=True, slots=True)
class FolderProgram:
    """One algorithm of a folder.

    `collective_bytes`: the size that its traces are written for. `run_as`: the collective under
    which ASTRA-sim knows it. `comm_size`: bytes in its workload node.
    """

    name: str
    collective_bytes: int
    run_as: CollectiveKind
    comm_size: int
    traces: WriteResult

    @property
    def trace_prefix(self) -> str:
        """The prefix of its traces in the folder."""
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
        """All files, in a fixed order; traces one by one.

        Those of the algorithms come first, then the workload, the configurations and the script,
        which alone is executable.
        """
        for program in self.programs:
            for trace in program.traces.artifacts:
                yield Artifact(f"{program.trace_prefix}{trace.name}", trace.content)
        yield from self._workloads()
        for name, text in self._texts().items():
            content = _constant(text.encode("ascii"))
            yield Artifact(name, content, executable=name == SCRIPT)

    def _workloads(self) -> Iterator[Artifact]:
        """A trace for every NPU: the collectives for members, idle work for others."""
        collectives = [(program.run_as, program.comm_size) for program in self.programs]
        member = collective_workload(collectives, in_group=self.placement.is_part)
        idle = idle_workload()
        members = frozenset(self.placement.members)
        for npu in range(self.placement.npus):
            content = member if npu in members else idle
            yield Artifact(f"{WORKLOAD}.{npu}.et", _constant(content))

    def _texts(self) -> dict[str, str]:
        """The configurations and the script, by file name.

        A map of nodes is among them only for several algorithms, a groups file only where some NPUs
        take no part.
        """
        texts = {
            SYSTEM: _json(self._system()),
            NETWORK: network_text(self.network.dimensions),
            MEMORY: _json({"memory-type": "NO_MEMORY_EXPANSION"}),
        }
        if self._has_several:
            nodes = enumerate(self.programs)
            texts[PER_NODE] = "".join(f"{node}: {one.trace_prefix}\n" for node, one in nodes)
        if self.placement.is_part:
            texts[GROUPS] = _json({GROUP: list(self.placement.members)})
        texts[SCRIPT] = self._script()
        return texts

    def _system(self) -> dict[str, object]:
        """The system configuration, which names the algorithm for its collective."""
        system: dict[str, object] = {
            # Where it is absent, the simulator reads a variable that nobody has set.
            "scheduling-policy": "FIFO",
            # With any other number no rank ever finishes a custom algorithm.
            "preferred-dataset-splits": 1,
        }
        for program in self.programs:
            # A list of exactly one prefix: on anything else the simulator aborts.
            system.setdefault(COLLECTIVE_KEYS[program.run_as], [program.trace_prefix])
        if self._has_several:
            system[PER_NODE_KEY] = PER_NODE
        return system

    def _script(self) -> str:
        ranks = len(self.placement.members)
        what = [
            f"{one.name}: {one.run_as} of {one.collective_bytes} bytes on {ranks} ranks"
            for one in self.programs
        ]
        return script(
            self.placement.npus,
            [program.trace_prefix for program in self.programs],
            ranks,
            what,
            is_congestion_aware=self.is_congestion_aware,
            has_groups=self.placement.is_part,
        )

    @property
    def _has_several(self) -> bool:
        return len(self.programs) > 1


def _json(value: object) -> str:
    """A value as JSON text, indented by 2 spaces, with a newline at the end."""
    return json.dumps(value, indent=2) + "\n"


def _constant(content: bytes) -> Callable[[], bytes]:
    """A function that returns `content`, as `Artifact` takes it."""
    return lambda: content
