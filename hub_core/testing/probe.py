"""What plugins do in a fresh process: whether they survive loading, what they import and write.

`python -m hub_core.testing.probe WHAT NAME OTHER...` loads the plugin NAME behind those OTHER
plugins that come before it, no more, and prints an answer as one line of JSON. `imports`: the names
of the imported modules; `replaced`: what loading replaced in modules of others; `seconds`: how long
the import took; `digests`: a SHA-256 of every artifact.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

# The model, the registry and the samples are imported by the functions that need them: what loading
# a plugin imports must be the plugin's doing, not this module's.
if TYPE_CHECKING:
    from hub_core.plugin_api.writer import FormatWriter
    from hub_core.registry.plugins import Plugin, Registry

TRIAL_LIMIT_S = 10.0
_TIME_LIMIT_S = 300.0
_LONGEST_MESSAGE = 200
# Taken before any plugin can replace it.
_EXIT = os._exit


@dataclass(frozen=True, slots=True)
class Trial:
    """Whether a process survived the import of a plugin: the reason why not, else the seconds."""

    reason: str | None = None
    import_s: float = 0.0


class _ProbeError(RuntimeError):
    """A fresh process gave no answer."""


def trial(plugin: str, others: Sequence[str] = (), limit_s: float = TRIAL_LIMIT_S) -> Trial:
    """Import a plugin in a process of its own, behind `others`, as a start of the program does."""
    try:
        # It may hang, or end the process.
        answer = _probe("seconds", plugin, others, limit_s)
    except _ProbeError as error:
        return Trial(f"a process that imports it {error}")
    return Trial(None, float(answer.get(plugin, 0.0)))


def imported_modules(plugin: str) -> set[str]:
    """Modules that a fresh process has imported when it has loaded the plugin, and no other."""
    return set(_probe("imports", plugin))


def replaced_names(plugin: str) -> list[str]:
    """`module.name` of what loading the plugin replaced in modules that were there before."""
    return sorted(_probe("replaced", plugin))


def digests(plugin: str, hash_seed: str) -> dict[str, str]:
    """SHA-256 of what the plugin's writers make of the samples, under this hash seed."""
    # The seed of a process cannot be changed from within.
    return dict(_probe("digests", plugin, hash_seed=hash_seed))


def _probe(
    what: str,
    plugin: str,
    others: Sequence[str] = (),
    limit_s: float = _TIME_LIMIT_S,
    hash_seed: str = "0",
) -> dict[str, str]:
    """The answer of a fresh process. Raises `_ProbeError` where there is none."""
    # -P: the current folder stays off the path unless it is on ours.
    command = [sys.executable, "-P", "-m", __name__, what, plugin, *others]
    # Files, not pipes: a process that the plugin leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        status = _status_of(command, _environment(hash_seed), out, errors, limit_s)
        # Whatever a plugin prints while it is loaded stands before the answer.
        last = _last_line(out)
        if status != 0 or not last.startswith("{"):
            raise _ProbeError(_failure(status, limit_s, _last_line(errors)))
    answer: dict[str, str] = json.loads(last)
    return answer


def _status_of(
    command: list[str],
    environment: dict[str, str],
    out: IO[bytes],
    errors: IO[bytes],
    limit_s: float,
) -> int | None:
    """The exit status of a process group that does not outlive this call; None: out of time."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=errors,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Most often nobody of the group is left.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _environment(hash_seed: str) -> dict[str, str]:
    """Our own environment with our own path: what is importable here is importable there."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}


def _failure(status: int | None, limit_s: float, message: str) -> str:
    """What became of a process without an answer, as the end of a sentence."""
    said = f": {message[:_LONGEST_MESSAGE]}" if message else ""
    # It was killed for its time.
    if status is None:
        return f"was not done after {limit_s:g} s"
    if status < 0:
        return f"was killed by {_signal_name(-status)}"
    return f"ended with status {status}{said}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- in the fresh process ---


class _Loading:
    """One plugin loaded, behind those that it shall find loaded.

    Others might import what this one needs, or hide what it breaks.
    """

    def __init__(self, plugin: str, others: Sequence[str]) -> None:
        from hub_core.registry.discovery import discover

        self._plugin = plugin
        self._start: float | None = None
        self._before: dict[str, dict[str, int]] = {}
        nothing = discover(use_plugins=False)
        unwanted = {found.name for found in nothing.plugins[1:]} - {plugin, *others}
        self.registry: Registry = discover(disabled=unwanted, admission=self._admission)
        end = time.perf_counter()
        self.seconds = 0.0 if self._start is None else end - self._start

    def replaced(self) -> Iterator[str]:
        """Names that are bound to something else than before the import."""
        for module, names in self._before.items():
            now = vars(sys.modules[module])
            for name, identity in names.items():
                if name not in now or id(now[name]) != identity:
                    yield f"{module}.{name}"

    def _admission(self, plugin: Plugin) -> None:
        if plugin.name == self._plugin:
            self._before = _functions_by_module()
            self._start = time.perf_counter()


def _functions_by_module() -> dict[str, dict[str, int]]:
    """Identities of functions and classes of the loaded modules of Python and of the core."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        top = name.partition(".")[0]
        if name == "__main__" or not (top in sys.stdlib_module_names or top == "hub_core"):
            continue
        own = dict(vars(module))
        found[name] = {key: id(value) for key, value in own.items() if callable(value)}
    return found


def _imports(loading: _Loading, plugin: str) -> dict[str, str]:
    return dict.fromkeys(sorted(sys.modules), "")


def _replaced(loading: _Loading, plugin: str) -> dict[str, str]:
    return dict.fromkeys(loading.replaced(), "")


def _seconds(loading: _Loading, plugin: str) -> dict[str, str]:
    return {plugin: f"{loading.seconds:.6f}"}


def _digests(loading: _Loading, plugin: str) -> dict[str, str]:
    """Those of the plugin's own writers: the core's are there as well."""
    from hub_core.plugin_api.writer import FormatWriter

    found: dict[str, str] = {}
    for provided in loading.registry.all(FormatWriter):
        if provided.plugin.name == plugin:
            found.update(_digests_of(provided.offer))
    return found


def _digests_of(writer: FormatWriter) -> Iterator[tuple[str, str]]:
    """(WRITER SAMPLE ARTIFACT, SHA-256) of everything that a writer makes of the samples."""
    from hub_core.testing.checked_plugin import renderings

    for sample, rendering in renderings(writer).items():
        for artifact, content in rendering.artifacts.items():
            name = f"{writer.name} {sample} {artifact}"
            yield name, hashlib.sha256(content).hexdigest()


_ANSWERS = {
    "imports": _imports,
    "replaced": _replaced,
    "seconds": _seconds,
    "digests": _digests,
}


def _answer(asked: str, plugin: str, others: Sequence[str]) -> None:
    """Print the answer to one question of `_ANSWERS` as a line of JSON, and exit with status 0."""
    # Kept, as a plugin may replace what this module reaches by name.
    write, encode = os.write, json.dumps
    loading = _Loading(plugin, others)
    answer = encode(_ANSWERS[asked](loading, plugin))
    write(1, f"\n{answer}\n".encode())
    # Threads that the plugin left behind are not waited for.
    _EXIT(0)


if __name__ == "__main__":
    _answer(sys.argv[1], sys.argv[2], sys.argv[3:])
