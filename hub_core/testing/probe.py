"""Run in a fresh process by the conformance kit.

What loading a plugin imports, and what its writers write.

`python -m hub_core.testing.probe imports NAME` prints the names of the imported modules,
`python -m hub_core.testing.probe digests NAME` a SHA-256 of every artifact; both as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

_TIME_LIMIT_S = 300


def imported_modules(plugin: str) -> set[str]:
    """Modules that a fresh process has imported when it has loaded the plugin, and no other."""
    return set(_probe("imports", plugin, hash_seed="0"))


def digests(plugin: str, hash_seed: str) -> dict[str, str]:
    """SHA-256 of what the plugin's writers make of the samples, under this hash seed."""
    return dict(_probe("digests", plugin, hash_seed))


def _probe(what: str, plugin: str, hash_seed: str) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONHASHSEED": hash_seed,
    }
    # -P: the current folder stays off the path unless it is on ours.
    command = [sys.executable, "-P", "-m", __name__, what, plugin]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
    )
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"a fresh process ended with status {done.returncode}: {last_line}")
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _load(plugin: str) -> object:
    from hub_core.registry.discovery import discover

    nothing = discover(use_plugins=False)
    others = {p.name for p in nothing.plugins} - {plugin, nothing.plugins[0].name}
    return discover(disabled=others)


def _imports(plugin: str) -> dict[str, str]:
    _load(plugin)
    return dict.fromkeys(sorted(sys.modules), "")


def _digests(plugin: str) -> dict[str, str]:
    from hub_core.plugin_api.writer import FormatWriter
    from hub_core.registry.plugins import Registry
    from hub_core.testing.subject import renderings

    registry = _load(plugin)
    assert isinstance(registry, Registry)
    found: dict[str, str] = {}
    for writer in registry.all(FormatWriter):
        if writer.plugin.name == plugin:
            for sample, rendering in renderings(writer.offer).items():
                for artifact, content in rendering.artifacts.items():
                    found[f"{writer.name} {sample} {artifact}"] = hashlib.sha256(
                        content
                    ).hexdigest()
    return found


if __name__ == "__main__":
    print(json.dumps({"imports": _imports, "digests": _digests}[sys.argv[1]](sys.argv[2])))
