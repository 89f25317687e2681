"""Formats of `collhub profile`, recognised by the first bytes of the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collhub_pytorch import execution_trace
from collhub_pytorch.formats import (
    DEEPSPEED_FORMAT,
    EXECUTION_TRACE_FORMAT,
    INSPECTOR_FORMAT,
    KINETO_FORMAT,
    NCCL_CALLS_FORMAT,
    NSYS_FORMAT,
    PROFILER_FORMAT,
    UNEXPORTED_NSYS,
    ProfileOptions,
)
from collhub_pytorch.kineto import read as kineto
from collhub_pytorch.nccl import read as nccl
from collhub_pytorch.nsys import read as nsys
from collhub_pytorch.profile_reading import notes
from collhub_pytorch.trace_files import TraceFile, open_decompressed
from hub_core.model import InputError, Location, Provenance, Workload
from hub_core.plugin_api import Format

_HEAD_BYTES = 4096
FilesReader = Callable[[Sequence[TraceFile], ProfileOptions, Provenance], Workload]


@dataclass(frozen=True, slots=True)
class ProfileFormat:
    """A format, and the reader of all files of a job. `has_steps`: it marks iterations."""

    format: Format
    description: str
    read: FilesReader
    has_steps: bool = False

    @property
    def name(self) -> str:
        """Name of the format."""
        return self.format.name


# Kineto is the last one: it reports the defects of files that no format recognises.
_FORMATS = (
    ProfileFormat(NSYS_FORMAT, "exports of Nsight Systems", nsys.workload_of),
    ProfileFormat(INSPECTOR_FORMAT, "records of NCCL's Inspector", nccl.workload_of),
    ProfileFormat(PROFILER_FORMAT, "events of NCCL's profiler plugin", nccl.workload_of),
    ProfileFormat(DEEPSPEED_FORMAT, "logs of DeepSpeed", nccl.workload_of),
    ProfileFormat(NCCL_CALLS_FORMAT, "logs of NCCL", nccl.workload_of),
    ProfileFormat(EXECUTION_TRACE_FORMAT, "execution traces", execution_trace.workload_of),
    ProfileFormat(KINETO_FORMAT, "Kineto profiles", kineto.workload_of, has_steps=True),
)


def detect_format(files: Sequence[TraceFile]) -> ProfileFormat:
    """Return the format of the files, which must all have the same one.

    The format of a file is the first one in `_FORMATS` whose signature occurs in the first
    `_HEAD_BYTES` (4096) bytes of its decompressed content. A file without a known signature, such
    as an empty file, has the last format, Kineto.

    Raises `InputError` (`mixed-formats`) for the first file whose format differs from that of the
    first file, after the beginnings of all files were read. Raises `InputError` (`not-exported`)
    for a file without a known signature that is a report or a summary of Nsight Systems, and
    (`not-json`) for a file that cannot be opened or decompressed. Raises `IndexError` if `files` is
    empty.
    """
    formats = [_find_signed(file) or _default_format(file) for file in files]
    for file, form in zip(files, formats, strict=True):
        if form is not formats[0]:
            message = f"these are {form.description}, but {files[0].name} has"
            message = f"{message} {formats[0].description}"
            raise InputError(
                message,
                location=Location(file.name),
                cure="name files of one format",
                code="mixed-formats",
            )
    return formats[0]


def read_files(
    form: ProfileFormat, files: Sequence[TraceFile], options: ProfileOptions
) -> tuple[Workload, list[str]]:
    """Read all files of a job; return the workload, and notes on assumptions and losses.

    `files` must not be empty, and have the format `form`; the first one names the source. Raises
    the `InputError` of the format's reader.
    """
    workload = form.read(files, options, Provenance(form.name, "", files[0].name))
    return workload, notes(workload)


def has_profile_signature(file: TraceFile) -> bool:
    """Whether the first bytes of a file show one of these formats."""
    return _find_signed(file) is not None


def _find_signed(file: TraceFile) -> ProfileFormat | None:
    head = _read_head(file)
    return next((form for form in _FORMATS if re.search(form.format.signature, head)), None)


def _read_head(file: TraceFile) -> bytes:
    with open_decompressed(file) as content:
        return content.read(_HEAD_BYTES)


def _default_format(file: TraceFile) -> ProfileFormat:
    """Return Kineto for a file without a signature; refuse files of Nsight Systems by `InputError`.

    These are reports (`.nsys-rep`, `.qdrep`), which only Nsight Systems can read, and tables of
    `nsys stats`, which lack the single operations.
    """
    head = _read_head(file)
    for files in UNEXPORTED_NSYS:
        if error := files.find_error(file.name, head):
            raise error
    return _FORMATS[-1]
