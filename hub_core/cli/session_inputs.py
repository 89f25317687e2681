"""Inputs of commands: open, read and verify them; refuse incorrect ones, or warn (`--verify`)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, cast

from hub_core.cli import output
from hub_core.cli.reports.report_objects import with_path
from hub_core.cli.session_state import SessionState
from hub_core.model import Diagnostic, InputError, Location, Severity, UsageError

if TYPE_CHECKING:
    from hub_core.cli.command_context import OpenedInput
    from hub_core.model import Algorithm, Workload
    from hub_core.network import Topology
    from hub_core.pipeline.inputs import OpenedAlgorithm
    from hub_core.plugin_api import (
        CheckReport,
        CheckRequest,
        Format,
        Subject,
        WorkloadRequest,
        WorkloadTimes,
    )
    from hub_core.registry.plugins import Registry
    from hub_core.verification import VerifyReport

# Parameters of `mallopt` (malloc.h of glibc), and their largest values.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_MAX_TRIM_THRESHOLD = (1 << 31) - 1

_MAX_MMAP_THRESHOLD = 1 << 30

# Causes listed in an error; `collhub verify` lists all of them.
_MAX_CAUSES = 8

Report = Callable[[Diagnostic], None]


class SessionInputs(SessionState):
    """The part of a session that reads and verifies inputs."""

    __slots__ = ()

    def join_ranks(self, files: tuple[str, ...]) -> bool:
        """Return whether several files are the ranks of one job, by their names or their contents.

        1. Their names are those of all files of one set, such as `ring.0.et` and `ring.1.et`. If
           another kind of format shares the suffix, the first 4096 bytes of the first file must
           show the format too. Returns True; `rank_files` is unchanged, because each of the names
           finds the set.
        2. Otherwise, if the files are some of a set, or the contents of all show a format of rank
           files (`are_rank_files`): `rank_files` becomes `files`, and the result is True.
        3. Otherwise the result is False, except for files that are already `rank_files`.

        Raises `InputError` if a file whose content decides is unreadable, or in rule 2 empty.
        """
        from hub_core.pipeline.sources import are_one_set, are_rank_files

        formats = self._formats()
        if are_one_set(files, formats):
            return True
        if are_rank_files(files, formats):
            self.rank_files = files
        return self.rank_files == files

    def open_input(
        self, source: str, source_format: str | None = None, more: Sequence[str] = ()
    ) -> OpenedAlgorithm:
        """Open IN and find its reader (of algorithms or workloads); only the first bytes are read.

        `source_format`: name of the reader; None chooses it by suffix and content
        (`pipeline.detection.find_reader`). `more`: further files of the same job. If these are all
        files of the set that `source` names, their ranks are those of their names. If `more` is
        empty and `source` is the first of `rank_files` (rank files that IN names), the others are
        used.

        Findings are printed. From the first call on, the process reuses freed memory instead of
        returning it to the operating system. Raises `HubError` if the input cannot be opened, and
        if no reader or several readers fit.
        """
        from hub_core.pipeline.inputs import open_algorithm
        from hub_core.pipeline.sources import are_one_set

        keep_freed_memory()
        if not more and self.rank_files[:1] == (source,):
            more = self.rank_files[1:]
        elif more and are_one_set((source, *more), self._formats()):
            more = ()
        return open_algorithm(
            source,
            format=source_format,
            registry=self.registry(),
            report=self.report_finding,
            more=more,
        )

    def _formats(self) -> list[Format]:
        from hub_core.plugin_api import FormatReader

        return [provided.offer.format for provided in self.registry().all(FormatReader)]

    def read_model(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm | Workload:
        """Read the algorithm or workload in an opened input, without verification.

        Uses the reader that `open_input` chose. `options`: texts by name of the reader's
        option; arguments of a program on the command line (after `--`) are added as the option
        `arguments`. Progress is shown. Raises `UsageError` for such arguments if the reader
        does not declare this option or `options` has it too, and `HubError` for invalid options
        and for an input that cannot be read.
        """
        if self.source_arguments:
            if "arguments" not in (option.name for option in opened.options):
                first = self.source_arguments[0]
                reader = f"{opened.name} is read as {opened.format_name}"
                raise UsageError(f"{reader}, which takes no arguments, but {first!r} follows it")
            if "arguments" in options:
                message = "arguments of the program are given twice: by -O arguments and after IN"
                raise UsageError(message)
            # Quoted as for a shell.
            options = {**options, "arguments": shlex.join(self.source_arguments)}
        with output.progress(f"reading {opened.name}"):
            return cast("OpenedAlgorithm", opened).read_any(options)

    def read_verified(
        self, opened: OpenedInput, options: Mapping[str, str]
    ) -> Algorithm | Workload:
        """Read the algorithm or workload in an opened input, and verify it as `--verify` requires.

        An algorithm is verified in the modes (in place, out of place) that it claims. A workload
        is examined by all installed checks of workloads.

        - `refuse`: an incorrect model, or an algorithm that is too large to verify, raises
          `InputError`.
        - `warn`: the first 8 errors of an algorithm, or all findings on a workload, are printed
          as warnings.
        - `off`: the model is not verified.

        A timing-only trace has no data to verify. It is accepted, also under `refuse`; under
        `refuse` and `warn` a note is printed. Raises `HubError` if the input cannot be read.
        """
        model = self.read_model(opened, options)
        self.admit(model, opened.name)
        return model

    def read_unverified(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read an algorithm without verification.

        Raises `InputError` if the input is a workload, and `HubError` if it cannot be read.
        """
        from hub_core.pipeline.inputs import require_algorithm

        return require_algorithm(self.read_model(opened, options), opened.name)

    def read_input(self, opened: OpenedInput, options: Mapping[str, str]) -> Algorithm:
        """Read an algorithm and verify it, in the modes that it claims, as `--verify` requires.

        Under `refuse`, an algorithm that is incorrect or too large to verify raises
        `InputError`. Under `warn`, its first 8 errors are printed as warnings. Under `off`, it
        is not verified. Raises `InputError` for a workload, and `HubError` if the input cannot
        be read.
        """
        algorithm = self.read_unverified(opened, options)
        self.admit(algorithm, opened.name)
        return algorithm

    def read_workload(self, opened: OpenedInput, options: Mapping[str, str]) -> Workload:
        """Read a workload and check it as `--verify` requires.

        All installed checks of workloads run. Under `refuse`, an error that a check finds
        raises `InputError` with all findings. Under `warn`, all findings are printed as
        warnings. Under `off`, no check runs. Raises `InputError` for an algorithm, and
        `HubError` if the input cannot be read or a check fails.
        """
        workload = self.read_unverified_workload(opened, options)
        self.admit(workload, opened.name)
        return workload

    def read_unverified_workload(self, opened: OpenedInput, options: Mapping[str, str]) -> Workload:
        """Read a workload without checking it.

        Raises `InputError` if the input is an algorithm, and `HubError` if it cannot be read.
        """
        from hub_core.pipeline.inputs import require_workload

        return require_workload(self.read_model(opened, options), opened.name)

    def admit(self, model: Algorithm | Workload, name: str) -> VerifyReport | None:
        """Verify a model as `--verify` requires, and show the progress.

        `name`: the model in messages. Returns the report on an algorithm; None for a workload
        and under `off`. Under `refuse`, errors raise `InputError`. Under `warn`, the first 8
        errors of an algorithm or all findings on a workload are printed as warnings. A note is
        printed for a correct algorithm whose contents cannot be verified.
        """

        policy = VerifyPolicy(self.verify_policy)
        with output.progress(f"verifying {name}"):
            return admit(model, name, policy, output.print_diagnostic, self.registry())

    def read_topology(self, text: str, source_format: str | None = None) -> Topology:
        """Read the topology that a text such as `ring:8` or a file describes.

        Calls `pipeline.inputs.read_topology`. `source_format`: name of the reader of the file, None
        to choose it. Progress is shown and findings are printed. As a side effect, the process
        keeps freed memory. Raises `HubError` for an unknown builder, wrong arguments and an
        unreadable file.
        """
        from hub_core.pipeline.inputs import read_topology

        keep_freed_memory()
        with output.progress(f"reading {text}"):
            return read_topology(
                text,
                format=source_format,
                registry=self.registry(),
                report=output.print_diagnostic,
            )

    def own_topology(self, opened: OpenedInput) -> Topology | None:
        """Read the network that IN contains in addition to its model; None if it has none.

        Calls `pipeline.inputs.own_topology`. Progress is shown. Raises `HubError` if the network
        cannot be read.
        """
        from hub_core.pipeline.inputs import own_topology

        with output.progress(f"reading the network of {opened.name}"):
            return own_topology(cast("OpenedAlgorithm", opened), self.registry())

    def simulate_workload(
        self, request: WorkloadRequest, backend: str, options: Mapping[str, str]
    ) -> WorkloadTimes:
        """Simulate a workload with the simulator of workloads `backend`; return its times.

        `options`: texts by name of the simulator's option. `request.hub` is ignored: the
        simulator gets the plugins of this session. Uneven collectives (whose parts differ in
        size) without an algorithm get the default one, except on the host. It needs a network,
        from the request or the input. Progress is shown.

        Raises `HubError` for an unknown simulator, for invalid options, if the network is missing
        (`no-topology`) or the default algorithm cannot be created, and if the simulator refuses
        the workload, fails, or returns times for another number of ranks.
        """
        from hub_core.pipeline.job_simulation import simulate_job

        with output.progress("simulating (the first run compiles the simulator)"):
            return simulate_job(replace(request, hub=self.registry()), backend, options)

    def run_checks(self, subject: Subject, request: CheckRequest) -> tuple[CheckReport, ...]:
        """Run every installed check of a subject on a request; return the reports.

        The order is that of the names of the checks. Errors of a check are raised, so that later
        ones do not run. Empty if no check is installed.
        """
        from hub_core.pipeline.checks import checks_of, run_check

        checks = checks_of(subject, self.registry())
        return tuple(run_check(check, request) for check in checks)


def keep_freed_memory() -> None:
    """Let the process reuse freed memory instead of returning it to the system.

    By default glibc returns large blocks to the system, which then clears each page again
    for the next array. On columns of millions of rows that took half as long as the work on
    them. Sets two limits of `mallopt` for the rest of the process: blocks of less than 1
    GiB are not mapped separately, and free memory is returned only above 2 GiB. No effect
    on systems other than Linux and with C libraries without `mallopt`.
    """
    if not sys.platform.startswith("linux"):
        return
    # Imported here: the help of a command needs no ctypes.
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, _MAX_TRIM_THRESHOLD)


class VerifyPolicy(StrEnum):
    """Treatment of incorrect inputs: REFUSE raises an error, WARN prints warnings.

    OFF: inputs are not verified.
    """

    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


def admit(
    model: Algorithm | Workload,
    name: str,
    policy: VerifyPolicy,
    report: Report,
    registry: Registry,
) -> VerifyReport | None:
    """Verify a model; refuse it or warn about it, as the policy requires.

    `name`: the model in messages. OFF verifies nothing and returns None.

    An algorithm is verified in the modes that it claims; the report is returned, unless an error is
    raised. Cases:

    - It is correct: nothing is reported. If its contents cannot be verified (a timing-only trace),
      a note is reported (`contents-not-judged`).
    - It fails under WARN: its first `_MAX_CAUSES` (8) errors are reported as warnings.
    - It fails under REFUSE: `InputError` with these errors, then `not-verified`, is raised.

    A workload is examined by all installed checks of workloads; None is returned. Under WARN all
    findings are reported as warnings. Under REFUSE, if one is an error, `InputError` with all
    findings is raised; otherwise none is reported. Raises the `HubError` of a check.
    """
    if policy is VerifyPolicy.OFF:
        return None
    # Imported here, as below: the help of the program needs no numpy.
    from hub_core.model import Algorithm

    if not isinstance(model, Algorithm):
        from hub_core.pipeline.checks import find_workload_defects

        findings = find_workload_defects(model, name, registry)
        if policy is VerifyPolicy.WARN:
            _warn(findings, report)
        elif any(finding.severity is Severity.ERROR for finding in findings):
            raise InputError(findings)
        return None
    from hub_core.verification import VerificationInput, verify_input

    outcome = verify_input(VerificationInput(model), claimed_only=True)
    if outcome.ok:
        if outcome.method == "none":
            notes = [one.message for one in outcome.diagnostics if one.severity is Severity.NOTE]
            reason = f": {notes[0]}" if notes else ""
            message = f"nothing wrong found, contents not judged{reason}"
            report(Diagnostic("contents-not-judged", message, Severity.NOTE, Location(name)))
        return outcome
    errors = [finding for finding in outcome.diagnostics if finding.severity is Severity.ERROR]
    causes = with_path(errors[:_MAX_CAUSES], model, name)
    if policy is VerifyPolicy.WARN:
        _warn(causes, report)
        return outcome
    # An algorithm that is too large to check may be correct.
    is_wrong = any(cause.code != "too-large" for cause in errors)
    verdict = "not correct as claimed" if is_wrong else "not verified: too large to check"
    cure = "run 'collhub verify' for details; --verify warn or --verify off continues all the same"
    raise InputError(
        [*causes, Diagnostic("not-verified", verdict, location=Location(name), cure=cure)]
    )


def _warn(findings: Iterable[Diagnostic], report: Report) -> None:
    for finding in findings:
        report(replace(finding, severity=Severity.WARNING))
