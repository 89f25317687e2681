"""What plugins do in a fresh process: what loading imports, and what their writers write.

`python -m hub_core.testing.probe imports NAME` prints the names of the imported modules,
`python -m hub_core.testing.probe digests NAME` a SHA-256 of every artifact; both as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

# The model, the registry and the samples are imported by the functions that need them: what loading
# a plugin imports must be the plugin's doing, not this module's.
if TYPE_CHECKING:
    from hub_core.plugin_api.writer import FormatWriter
    from hub_core.registry.plugins import Registry

_TIME_LIMIT_S = 300


def imported_modules(plugin: str) -> set[str]:
    """Modules that a fresh process has imported when it has loaded the plugin, and no other."""
    return set(_probe("imports", plugin, hash_seed="0"))


def digests(plugin: str, hash_seed: str) -> dict[str, str]:
    """SHA-256 of what the plugin's writers make of the samples, under this hash seed."""
    return dict(_probe("digests", plugin, hash_seed))


def _probe(what: str, plugin: str, hash_seed: str) -> dict[str, str]:
    """The answer of a fresh process. Raises `RuntimeError` where it fails."""
    # -P: the current folder stays off the path unless it is on ours.
    command = [sys.executable, "-P", "-m", __name__, what, plugin]
    done = subprocess.run(
        command,
        env=_environment(hash_seed),
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise _failure(done.returncode, done.stderr)
    # Whatever a plugin prints while it is loaded stands before the answer.
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _environment(hash_seed: str) -> dict[str, str]:
    """Our own environment with our own path: what is importable here is importable there."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}


def _failure(status: int, errors: str) -> RuntimeError:
    lines = errors.strip().splitlines() or ["no message"]
    return RuntimeError(f"a fresh process ended with status {status}: {lines[-1]}")


def _load(plugin: str) -> Registry:
    """Load one plugin alone, since another might import what this one needs."""
    from hub_core.registry.discovery import discover

    nothing = discover(use_plugins=False)
    others = {p.name for p in nothing.plugins} - {plugin, nothing.plugins[0].name}
    return discover(disabled=others)


def _imports(plugin: str) -> dict[str, str]:
    _load(plugin)
    return dict.fromkeys(sorted(sys.modules), "")


def _digests(plugin: str) -> dict[str, str]:
    """Those of the plugin's own writers: the core's are there as well."""
    from hub_core.plugin_api.writer import FormatWriter

    found: dict[str, str] = {}
    for provided in _load(plugin).all(FormatWriter):
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


_ANSWERS = {"imports": _imports, "digests": _digests}

if __name__ == "__main__":
    _, asked, of_plugin = sys.argv
    print(json.dumps(_ANSWERS[asked](of_plugin)))
