"""Inputs of commands: open, read and verify algorithms and workloads, and read topologies."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from hub_core.cli import output
from hub_core.cli.session_state import SessionState
from hub_core.model import UsageError

if TYPE_CHECKING:
    from hub_core.cli.command_context import OpenedInput
    from hub_core.model import Algorithm, Workload
    from hub_core.network import Topology
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.plugin_api import (
        CheckReport,
        CheckRequest,
        Subject,
        WorkloadRequest,
        WorkloadTimes,
    )
    from hub_core.verification import VerifyReport

# Parameters of `mallopt` (malloc.h of glibc), and their largest values.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAX_TRIM_THRESHOLD = (1 << 31) - 1
_MAX_MMAP_THRESHOLD = 1 << 30


class SessionInputs(SessionState):
    """The part of a session that reads and verifies inputs."""

    __slots__ = ()

    def open_input(self, source: str, source_format: str | None = None) -> OpenedAlgorithm:
        """Open IN and find its reader; only the first bytes are read."""
        from hub_core.pipeline.inputs import open_algorithm

        keep_freed_memory()
        return open_algorithm(
            source,
            format=source_format,
            registry=self.registry(),
            report=output.print_diagnostic,
            more=self.rank_files[1:] if self.rank_files[:1] == (source,) else (),
        )

    def read_model(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm | Workload:
        """Read the algorithm or workload in an opened input, without verification."""
        all_options = self._add_program_arguments(opened, options)
        with output.progress(f"reading {opened.name}"):
            return cast("OpenedAlgorithm", opened).read_any(all_options)

    def read_verified(
        self, opened: OpenedInput, options: Mapping[str, str]
    ) -> Algorithm | Workload:
        """Read the algorithm or workload in an opened input, and verify it as `--verify` says."""
        model = self.read_model(opened, options)
        self.admit(model, opened.name)
        return model

    def read_unverified(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read an algorithm without verification. Raises `InputError` for a workload."""
        from hub_core.pipeline.inputs import require_algorithm

        return require_algorithm(self.read_model(opened, options), opened.name)

    def read_input(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read an algorithm and verify it as `--verify` says. Raises `InputError` for a workload.

        Raises `InputError` also for an incorrect algorithm, unless `--verify` says otherwise.
        """
        algorithm = self.read_unverified(opened, options)
        self.admit(algorithm, opened.name)
        return algorithm

    def read_workload(self, opened: OpenedInput, options: Mapping[str, str]) -> Workload:
        """Read a workload and check it as `--verify` says. Raises `InputError` for an algorithm."""
        from hub_core.pipeline.inputs import require_workload

        workload = require_workload(self.read_model(opened, options), opened.name)
        self.admit(workload, opened.name)
        return workload

    def admit(self, model: Algorithm | Workload, name: str) -> VerifyReport | None:
        """Verify a model that messages call `name`, as `--verify` says; see `gate.admit`."""
        from hub_core.cli.gate import VerifyPolicy, admit

        policy = VerifyPolicy(self.verify_policy)
        with output.progress(f"verifying {name}"):
            return admit(model, name, policy, output.print_diagnostic, self.registry())

    def read_topology(self, text: str, source_format: str | None = None) -> Topology:
        """Read the topology that a text such as `ring:8` or a file describes."""
        from hub_core.pipeline.topology_input import read_topology

        with output.progress(f"reading {text}"):
            return read_topology(
                text,
                format=source_format,
                registry=self.registry(),
                report=output.print_diagnostic,
            )

    def own_topology(self, opened: OpenedInput) -> Topology | None:
        """Read the network that IN contains in addition to its model; None if it has none."""
        from hub_core.pipeline.topology_input import own_topology

        with output.progress(f"reading the network of {opened.name}"):
            return own_topology(cast("OpenedAlgorithm", opened), self.registry())

    def simulate_workload(
        self, request: WorkloadRequest, backend: str, options: Mapping[str, str]
    ) -> WorkloadTimes:
        """Simulate a workload with the simulator of workloads `backend`."""
        from hub_core.pipeline.simulation import simulate_job

        with output.progress("simulating (the first run compiles the simulator)"):
            return simulate_job(replace(request, hub=self.registry()), backend, options)

    def run_checks(self, subject: Subject, request: CheckRequest) -> tuple[CheckReport, ...]:
        """Run every installed check of a subject, in the order of their names."""
        from hub_core.pipeline.checks import checks_of, run_check

        checks = checks_of(subject, self.registry())
        return tuple(run_check(check, request) for check in checks)

    def _add_program_arguments(
        self, opened: OpenedInput, options: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return the reader's options with the arguments after IN as its option `arguments`.

        Raises `UsageError` if there are arguments and the reader does not declare this option, or
        the option is given as well.
        """
        if not self.source_arguments:
            return options
        if "arguments" not in (option.name for option in opened.options):
            first = self.source_arguments[0]
            reader = f"{opened.name} is read as {opened.format_name}"
            raise UsageError(f"{reader}, which takes no arguments, but {first!r} follows it")
        if "arguments" in options:
            message = "arguments of the program are given twice: by -O arguments and behind IN"
            raise UsageError(message)
        return {**options, "arguments": shlex.join(self.source_arguments)}


def keep_freed_memory() -> None:
    """Let the process reuse freed memory instead of returning it to the system.

    By default glibc returns large blocks to the system, which then clears each page again for the
    next array. On columns of millions of rows that took half as long as the work on them. No effect
    with other C libraries.
    """
    if not sys.platform.startswith("linux"):
        return
    # Imported here: the help of a command needs no ctypes.
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, _MAX_TRIM_THRESHOLD)
