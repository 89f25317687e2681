"""`collhub verify`: verify matching, deadlock, races and contents of algorithms; check workloads.

Exit 1 with the first causes if an input is incorrect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import (
    from_option,
    json_flag,
    number_option,
    option_pairs,
)
from hub_core.cli.assignments import Assignments, assign, topology_option
from hub_core.cli.command_context import Session
from hub_core.cli.commands.runtime_check import (
    RuntimeVerdict,
    TunerVerdict,
    check_all_runtimes,
    check_file,
    check_tuner_file,
    find_tuner_format,
)
from hub_core.cli.jobs.workloads import WorkloadVerdict, judge_workload
from hub_core.cli.output import progress
from hub_core.cli.parameter_types import FILE
from hub_core.cli.reports.report_files import open_report_files, report_file_options
from hub_core.cli.reports.report_objects import AlgorithmVerdict, judge, with_path
from hub_core.model import HubError, InputError, PluginError, UsageError
from hub_core.plugin_api import Subject

if TYPE_CHECKING:
    from hub_core.cli.reports.report_files import ReportFiles
    from hub_core.model import Algorithm
    from hub_core.plugin_api import CheckReport


_ALL = "all"
"""Value of --runtime for every known runtime and version."""


@dataclass(frozen=True, slots=True)
class _VerifyOptions:
    """Options that apply to every input, as parsed from the command line."""

    source_format: str | None
    assignments: Assignments
    expect: str | None
    fifo_capacity: int | None
    fifo_units: int | None
    is_certified: bool
    check_names: tuple[str, ...]
    topology_text: str | None


def _complete_checks(
    subject: Subject,
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function for shell completion of the names of checks of a subject.

    The function returns the names of all installed checks of the subject that begin with the text
    typed so far, in the order of `checks_of`.
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from hub_core.pipeline.checks import checks_of

        names = [check.name for check in checks_of(subject, context.obj.registry())]
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _complete_runtimes(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Complete the names of runtimes in a shell or, after `@`, their versions.

    Returns the candidates that begin with `incomplete`; case matters. Without `@` in
    `incomplete`, the candidates are the names of all runtimes, then `all`. With `@`, they
    are:

    1. `NAME@VERSION` for each row of every runtime's table of versions. VERSION is the last
       version of the row, or its first one if the row has no last version.
    2. `NAME@newest` for each runtime with such a table.
    """
    from hub_core.pipeline.checks import NEWEST, checks_of

    offers = [check.offer for check in checks_of(Subject.RUNTIME, context.obj.registry())]
    texts = [*(offer.name for offer in offers), _ALL]
    if "@" in incomplete:
        versions = [
            (offer.name, row.last or row.first) for offer in offers for row in offer.versions
        ]
        newest = [(offer.name, NEWEST[0]) for offer in offers if offer.versions]
        texts = [f"{name}@{version}" for name, version in (*versions, *newest)]
    return [text for text in texts if text.startswith(incomplete)]


def _store_arguments(
    context: click.Context, parameter: click.Parameter, arguments: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the inputs of the command line; store the arguments of a program in the session.

    Arguments before `--` are inputs. Those after it become `session.source_arguments`; but if
    there is none before `--`, the first one after it is an input. If several inputs are the ranks
    of one job (`Session.join_ranks`), only the first input is returned. If they cannot be read
    (`InputError`), all are returned, because each input gets its own verdict later.
    """
    session: Session = context.obj
    separated = min(session.separated_arguments, max(len(arguments) - 1, 0))
    inputs = len(arguments) - separated
    session.source_arguments = arguments[inputs:]
    sources = arguments[:inputs]
    try:
        is_one = inputs > 1 and session.join_ranks(sources)
    except InputError:
        # Each input gets a verdict, also one that cannot be read.
        is_one = False
    return sources[:1] if is_one else sources


@click.command()
@click.argument(
    "sources",
    metavar="IN... [-- ARGUMENT...]",
    nargs=-1,
    required=True,
    type=FILE,
    callback=_store_arguments,
)
@from_option
@option_pairs
@click.option(
    "--expect",
    metavar="TEXT",
    help="What a custom collective must do, e.g. 'broadcast root 0', 'o[r]=i[r+1]'.",
)
@number_option(
    "--root", "R", "Root rank: of --expect where given, else for the reader (-O root=R).", least=0
)
@number_option("--fifo-capacity", "N", "Also find deadlocks with N slots a connection.")
@number_option("--fifo-units", "K", "Units that one slot holds (default: one message).")
@click.option(
    "--certificate",
    "is_certified",
    is_flag=True,
    help="Also recompute the certificate of optimality that IN carries.",
)
@click.option(
    "--check",
    "check_names",
    metavar="NAME",
    multiple=True,
    shell_complete=_complete_checks(Subject.ALGORITHM),
    help="Also run this check of algorithms (repeatable; `collhub formats` lists them).",
)
@topology_option("Network of the certificate (default: the links in the certificate).")
@click.option(
    "--runtime",
    metavar="NAME[@VERSION]|all",
    shell_complete=_complete_runtimes,
    help="Only check whether this runtime uses the file, and for which calls; @newest: whether its "
    "newest version does; all: which runtimes and versions do.",
)
@report_file_options
@json_flag
@click.pass_obj
def verify(
    session: Session,
    /,
    sources: tuple[str, ...],
    source_format: str | None,
    assignments: Assignments,
    expect: str | None,
    root: int | None,
    fifo_capacity: int | None,
    fifo_units: int | None,
    is_certified: bool,
    check_names: tuple[str, ...],
    topology_text: str | None,
    runtime: str | None,
    as_json: bool,
    **report_files: str | None,
) -> int:
    """Verify the algorithms, workloads and tuner files in IN...

    Algorithms: matching, deadlock, races and contents, in place and out of place. Workloads:
    dependencies, messages, and that all ranks of a group issue the same collectives. Tuner
    files: lines that the runtime ignores or that others precede.

    Exit 0 if every mode that an algorithm claims is correct and every --check passes, else 1.
    With several inputs, or with report files, each gets a verdict, also one that cannot be
    read. With --runtime: 0 if the runtime, whose rules a plugin knows, uses the file for some
    call. With --certificate: 1 also if the certificate is wrong. With --baseline: 0 if all
    errors are accepted. Options that do not fit together, such as --topology without
    --certificate, are errors.

    If an input is a program, its arguments follow after --, as in `program.py -- 8 2`.
    """
    files = open_report_files(sources, session.registry(), session.reported, **report_files)
    if runtime is not None:
        options: dict[str, object] = {
            "--from": source_format,
            "--expect": expect,
            "--root": root,
            "--fifo-capacity": fifo_capacity,
            "--fifo-units": fifo_units,
        }
        options |= {"--certificate": is_certified or None, "--topology": topology_text}
        _refuse_options({**options, "--check": check_names or None})
        return _judge_by_runtime(session, sources, runtime, assignments, as_json, files)
    if fifo_units is not None and fifo_capacity is None:
        raise UsageError("--fifo-units has no meaning without --fifo-capacity", cure="give both")
    if topology_text is not None and not is_certified:
        raise UsageError("--topology has no meaning without --certificate", cure="give both")
    if root is not None and expect is None:
        assignments = {**assignments, "root": str(root)}
    elif root is not None and expect is not None:
        expect = f"{expect} root {root}"
    questions = _VerifyOptions(
        source_format,
        assignments,
        expect,
        fifo_capacity,
        fifo_units,
        is_certified,
        check_names,
        topology_text,
    )
    if check_names:
        from hub_core.pipeline.checks import find_check

        # An unknown name is refused before any input is opened.
        for name in check_names:
            find_check(name, Subject.ALGORITHM, session.registry())
    # Imported here: the help of the command needs no numpy.
    from hub_core.cli.reports.algorithm_records import VerdictsReport

    return judge(
        sources,
        lambda source: _verify_source(session, source, questions),
        VerdictsReport,
        as_json=as_json,
        files=files,
    )


def _judge_by_runtime(
    session: Session,
    sources: tuple[str, ...],
    runtime: str,
    options: Assignments,
    as_json: bool,
    files: ReportFiles | None,
) -> int:
    from hub_core.cli.reports.algorithm_records import AllRuntimesReport, RuntimeVerdictsReport
    from hub_core.pipeline.checks import find_runtime

    if runtime == _ALL:
        if options:
            raise UsageError("-O has no meaning with --runtime all", cure="name one runtime")
        return judge(
            sources,
            lambda source: check_all_runtimes(session, source),
            AllRuntimesReport,
            as_json=as_json,
            files=files,
        )
    # An unknown name or version is one error, whatever the number of inputs.
    find_runtime(runtime, session.registry())

    def judged(source: str) -> RuntimeVerdict:
        """The verdict of the runtime on one source."""
        return check_file(session, source, runtime, options)

    return judge(sources, judged, RuntimeVerdictsReport, as_json=as_json, files=files)


def _verify_source(
    session: Session, source: str, questions: _VerifyOptions
) -> AlgorithmVerdict | WorkloadVerdict | TunerVerdict:
    # Imported here: the help of the command needs no numpy.
    from hub_core import verification
    from hub_core.model import Workload
    from hub_core.pipeline.checks import find_check, run_check
    from hub_core.plugin_api import CheckRequest

    try:
        opened = session.open_input(source, questions.source_format)
    except HubError:
        tuner_format = find_tuner_format(session, source, questions.source_format)
        if tuner_format is None:
            raise
        return check_tuner_file(session, source, tuner_format)
    options = assign(questions.assignments, {"reader": opened.options})
    model = session.read_model(opened, options["reader"])
    if isinstance(model, Workload):
        return judge_workload(session, model, opened.name)
    algorithm = model
    expected = None
    if questions.expect is not None:
        expected = verification.parse_expectation(questions.expect, algorithm.collective)
    with progress("verifying"):
        report = verification.verify(
            algorithm,
            expected=expected,
            fifo_capacity=questions.fifo_capacity,
            fifo_units=questions.fifo_units,
        )
    findings = with_path(report.diagnostics, algorithm, opened.name)
    checked = {}
    for name in questions.check_names:
        provided = find_check(name, Subject.ALGORITHM, session.registry())
        with progress(f"checking {name}"):
            checked[name] = run_check(provided, CheckRequest(algorithm=algorithm))
    if questions.is_certified:
        certified = _check_certificate(session, algorithm, opened.name, questions.topology_text)
        checked["certificate"] = certified
    report = replace(report, diagnostics=tuple(findings))
    return AlgorithmVerdict(opened.name, algorithm, report, checked)


def _refuse_options(options: Mapping[str, object]) -> None:
    """Raise `UsageError` for the first option that is given but has no meaning with --runtime.

    `options`: values by name of the option; None means that it is not given. Other values, also
    empty ones and false, count as given.
    """
    for name, value in options.items():
        if value is not None:
            raise UsageError(
                f"{name} has no meaning with --runtime, which looks at the file as the runtime does"
            )


def _check_certificate(
    session: Session, algorithm: Algorithm, source: str, topology_text: str | None
) -> CheckReport:
    """Return the report of the check that knows the kind of certificate of an algorithm.

    All installed checks of certificates run; the first one, in the order of `checks_of`, whose
    report is applicable is returned. `topology_text`: topology to compare the certificate with;
    None for the links in the certificate. `source`: name of the input in messages. Raises
    `PluginError` (`not-available`) if no installed plugin checks certificates, and `InputError`
    (`no-certificate`) if no report is applicable.
    """
    from hub_core.pipeline.checks import checks_of, run_check
    from hub_core.plugin_api import CheckRequest

    checks = checks_of(Subject.CERTIFICATE, session.registry())
    if not checks:
        raise PluginError(
            "no installed plugin checks certificates",
            cure="install one that does; see 'collhub plugins list'",
            code="not-available",
        )
    topology = None if topology_text is None else session.read_topology(topology_text)
    request = CheckRequest(algorithm=algorithm, topology=topology, name=source)
    reports = [run_check(check, request) for check in checks]
    # Each check knows some kinds of certificates and ignores all others.
    judged = [report for report in reports if report.is_applicable]
    if not judged:
        cure = "synthesize it with a synthesizer that proves its rate"
        raise InputError(f"{source} carries no certificate", cure=cure, code="no-certificate")
    return judged[0]
