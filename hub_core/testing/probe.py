"""Load a plugin in a new process and report its imports, replaced functions, time and artifacts.

`python -m hub_core.testing.probe QUESTION NAME OTHER...` loads the plugin NAME and, before it,
those of the OTHER plugins that precede it in the order of discovery. It prints the answer as one
line of JSON. `imports`: names of the imported modules; `replaced`: functions and classes of Python
or the core that the import replaced; `seconds`: duration of the import; `digests`: a SHA-256 per
artifact.
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

# The model, the registry and the samples are imported by the functions that need them, so that
# modules imported here are not attributed to the plugin.
if TYPE_CHECKING:
    from hub_core.registry.plugins import Plugin, Registry

TRIAL_LIMIT_S = 10.0
_TIME_LIMIT_S = 300.0
_MAX_MESSAGE_LENGTH = 200
# Saved before a plugin can replace it.
_EXIT = os._exit


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a trial import. `reason`: why it failed, else None. `import_s`: duration in s."""

    reason: str | None = None
    import_s: float = 0.0


class _ProbeError(RuntimeError):
    """A new process gave no answer."""


def trial(plugin: str, other_plugins: Sequence[str] = (), limit_s: float = TRIAL_LIMIT_S) -> Trial:
    """Import a plugin in a new process, and return the seconds of the import or a failure.

    `other_plugins`: names of plugins that are loaded in the same process and precede
    `plugin` in the order of discovery. Their import does not count in `import_s`. The
    result has a `reason`, and `import_s` 0, if the process crashes, exits, or is not done
    after `limit_s` seconds; no exception is raised. An exception in the import of the
    plugin is no failure. `import_s` is also 0 if the plugin is not imported, for example
    because it is not installed.
    """
    try:
        answer = _probe("seconds", plugin, other_plugins, limit_s)
    except _ProbeError as error:
        return Trial(f"a process that imports it {error}")
    return Trial(None, float(answer.get(plugin, 0.0)))


def imported_modules(plugin: str) -> set[str]:
    """Modules that a new process has imported after loading this plugin and no other plugin."""
    return set(_probe("imports", plugin))


def replaced_names(plugin: str) -> list[str]:
    """`module.name` of the functions and classes of Python or the core that loading replaces."""
    return sorted(_probe("replaced", plugin))


def hash_artifacts(plugin: str, hash_seed: str) -> dict[str, str]:
    """SHA-256 of the artifacts of the plugin's writers, by `WRITER SAMPLE ARTIFACT`.

    The new process has the given `PYTHONHASHSEED`; a running process cannot change its seed.
    """
    return dict(_probe("digests", plugin, hash_seed=hash_seed))


def _probe(
    question: str,
    plugin: str,
    other_plugins: Sequence[str] = (),
    limit_s: float = _TIME_LIMIT_S,
    hash_seed: str = "0",
) -> dict[str, str]:
    """Run this module in a new process to answer a question about a plugin; return the answer.

    `question`: a key of `_ANSWERS`; the functions there document the answers. `plugin` and
    `other_plugins` are loaded in the order of discovery; all further plugins are disabled.
    `hash_seed`: value of PYTHONHASHSEED.

    The process has the environment, the import path and the folder of this one, and an empty
    standard input. The answer is the last line of its output that is not blank, a JSON object.
    Earlier output is ignored. When the process has ended, its process group is killed.

    Raises `_ProbeError` if the process does not end within `limit_s` seconds of elapsed time, or
    ends with a status other than 0. Also raises it if that last line does not begin with `{`. The
    text is a predicate, such as `was not done after 10 s`. For a process that ended with a status
    it has the last line of standard error.
    """
    # -P: do not add the current folder to the path.
    command = [sys.executable, "-P", "-m", __name__, question, plugin, *other_plugins]
    # Files, not pipes: a surviving child of the plugin would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            # A process group of its own, so that its children can be stopped too.
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # The answer follows any output of the plugin.
        last_line = _read_last_line(out)
        if status != 0 or not last_line.startswith("{"):
            raise _ProbeError(_describe_failure(status, limit_s, _read_last_line(errors)))
    answer: dict[str, str] = json.loads(last_line)
    return answer


def _read_last_line(file: IO[bytes]) -> str:
    """Return the last line of a file that is not blank, or "" if there is none.

    White space at the end of the line is removed. The file is read from its beginning, as
    UTF-8 with replacement of invalid bytes.
    """
    file.seek(0)
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _describe_failure(status: int | None, limit_s: float, message: str) -> str:
    """Describe why a process gave no answer, as the predicate of a sentence.

    `status`: None if the process exceeded `limit_s` seconds, -N if signal N ended it, else
    its exit status (0 if only the answer is missing). `message`: the last line of its
    standard error. Its first 200 characters follow an exit status, unless it is empty.

    Examples: "was not done after 10 s", "was killed by SIGSEGV", "ended with status 1: no
    file".
    """
    if status is None:
        return f"was not done after {limit_s:g} s"
    if status < 0:
        return f"was killed by {_get_signal_name(-status)}"
    detail = f": {message[:_MAX_MESSAGE_LENGTH]}" if message else ""
    return f"ended with status {status}{detail}"


def _get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- in the new process ---


class _Loading:
    """Loads one plugin after the given other plugins and records the effects of its import.

    Further plugins are not loaded: they might import modules that this one needs, or hide defects.
    `seconds`: duration of the import, 0 if the plugin was not imported.
    """

    def __init__(self, plugin: str, other_plugins: Sequence[str]) -> None:
        from hub_core.registry.discovery import discover

        self._plugin = plugin
        self._start: float | None = None
        self._before: dict[str, dict[str, int]] = {}
        installed = discover(use_plugins=False).plugins[1:]
        disabled = {entry.name for entry in installed} - {plugin, *other_plugins}
        self.registry: Registry = discover(disabled=disabled, admission=self._admission)
        end = time.perf_counter()
        self.seconds = 0.0 if self._start is None else end - self._start

    def find_replaced_names(self) -> Iterator[str]:
        """Yield `module.name` of functions and classes that the import removed or replaced.

        They are those of Python's library and the core that were loaded before the import of the
        plugin. A name counts as replaced if it now refers to another object. Nothing if the plugin
        was not imported.
        """
        for module, names in self._before.items():
            now = vars(sys.modules[module])
            for name, identity in names.items():
                if name not in now or id(now[name]) != identity:
                    yield f"{module}.{name}"

    def _admission(self, plugin: Plugin) -> None:
        """Record the state before the import of the plugin under examination; admit every plugin.

        The state is the time, and the identities of all callable variables by module and name, for
        the loaded modules of Python's library and of the core except `__main__`. Other plugins
        leave no record.
        """
        if plugin.name != self._plugin:
            return
        self._before = {}
        for name, module in sorted(sys.modules.items()):
            top = name.partition(".")[0]
            if name == "__main__" or not (top in sys.stdlib_module_names or top == "hub_core"):
                continue
            variables = dict(vars(module)).items()
            self._before[name] = {key: id(value) for key, value in variables if callable(value)}
        self._start = time.perf_counter()


def _list_imports(loading: _Loading, plugin: str) -> dict[str, str]:
    return dict.fromkeys(sorted(sys.modules), "")


def _list_replaced_names(loading: _Loading, plugin: str) -> dict[str, str]:
    return dict.fromkeys(loading.find_replaced_names(), "")


def _get_seconds(loading: _Loading, plugin: str) -> dict[str, str]:
    return {plugin: f"{loading.seconds:.6f}"}


def _hash_artifacts(loading: _Loading, plugin: str) -> dict[str, str]:
    """Return the hexadecimal SHA-256 of each artifact by `WRITER SAMPLE ARTIFACT`.

    Every writer of algorithms of the plugin writes all sample algorithms of the kit with
    default options; samples that it refuses are omitted. The order is that of the writers'
    names, the samples, and the artifacts as written. The result is {} if the plugin is not
    loaded or has no writer.
    """
    from hub_core.plugin_api.formats import FormatWriter
    from hub_core.testing.checked_plugin import render_samples

    digests: dict[str, str] = {}
    for entry in loading.registry.all(FormatWriter):
        if entry.plugin.name == plugin:
            for sample, rendering in render_samples(entry.offer).items():
                for artifact, content in rendering.artifacts.items():
                    name = f"{entry.name} {sample} {artifact}"
                    digests[name] = hashlib.sha256(content).hexdigest()
    return digests


_ANSWERS = {
    "imports": _list_imports,
    "replaced": _list_replaced_names,
    "seconds": _get_seconds,
    "digests": _hash_artifacts,
}


def _print_answer(question: str, plugin: str, other_plugins: Sequence[str]) -> None:
    """Load the plugin, print the answer to `question` as one line of JSON, and exit.

    The exit status is 0. `question`: a key of `_ANSWERS`. `other_plugins` are loaded too;
    the order is that of discovery. The exit does not wait for threads that the plugin
    started. A failing import of the plugin raises no exception. If the answer itself raises
    an exception, it propagates, and the status is then 1.
    """
    # Saved, because a plugin may replace these functions.
    write, encode = os.write, json.dumps
    loading = _Loading(plugin, other_plugins)
    answer = encode(_ANSWERS[question](loading, plugin))
    write(1, f"\n{answer}\n".encode())
    # Do not wait for threads that the plugin started.
    _EXIT(0)


if __name__ == "__main__":
    _print_answer(sys.argv[1], sys.argv[2], sys.argv[3:])
