"""Remember which plugin a start of the program was importing when it ended.

Every start that loads plugins keeps one file, locked while it lives, with the name of the plugin
that is being imported; a start that got through removes it. A file that nobody locks any more was
left by a start that did not: before its plugin is imported again, it is tried in a process of its
own, and skipped from then on where it does not survive that either. So no plugin is accused by
starts that run at the same time, or by a start that was killed from outside.

Where the folder cannot be written nothing is remembered, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from hub_core.cli.output import print_note
from hub_core.model import Diagnostic, Severity
from hub_core.registry.discovery import Admission
from hub_core.registry.plugins import Plugin

_MARK = "start-"
_SKIPPED = "skipped.json"
# A mark is written over the one before, by a single call, and all are of one length.
_LONGEST_KEY = 400
_LONGEST_FOLDER = 100
Report = Callable[[Diagnostic], None]


class StartRecord:
    """What earlier starts left in `folder`: plugins to skip, and those that are suspect.

    Plugins go by `key_of`. `skipped`: with the reason. `suspects`: with the files that name them.
    `refused`: reasons by name of plugins that this start itself has tried.
    """

    # No dataclass: making one takes longer than all that is done here at a start.
    def __init__(self, folder: Path, report: Report, refused: Mapping[str, str]) -> None:
        self.folder = folder
        self.report = report
        self.refused = refused
        self.skipped: dict[str, str] = {}
        self.suspects: dict[str, list[Path]] = {}
        self.imported: list[str] = []
        self.mark: int | None = None

    def admission(self, plugin: Plugin) -> str | None:
        """Why a plugin is skipped; else None, and it is noted that the plugin is imported now."""
        if plugin.name in self.refused:
            return self.refused[plugin.name]
        key = key_of(plugin)
        if key in self.suspects:
            self._try(plugin, key)
        reason = self.skipped.get(key)
        if reason is not None:
            cure = f"'collhub plugins enable {plugin.name}' lets it in again"
            message = f"{plugin} is skipped: {reason}"
            self.report(Diagnostic("skipped-plugin", message, Severity.WARNING, cure=cure))
            return f"skipped, since {reason}; {cure}"
        self.imported.append(plugin.name)
        self._note(key)
        return None

    def enable(self, plugin: Plugin) -> bool:
        """Forget what is held against a plugin, in any version; whether there was anything."""
        of_any_version = key_of(replace(plugin, version=""))
        known = {*self.skipped, *self.suspects}
        keys = {key for key in known if f"{key} ".startswith(f"{of_any_version} ")}
        for key in keys:
            _remove(self.suspects.pop(key, []))
            self.skipped.pop(key, None)
        if keys:
            _write_skipped(self.folder, self.skipped)
        return bool(keys)

    def _try(self, plugin: Plugin, key: str) -> None:
        """Judge a suspect by a process of its own, which first imports what this one has."""
        from hub_core.testing.probe import trial

        print_note(f"the last start ended while {plugin} was imported: trying it in a process")
        tried = trial(plugin.name, self.imported)
        if tried.reason is not None:
            self.skipped[key] = tried.reason
            # A reason that cannot be kept leaves the plugin suspect.
            if not _write_skipped(self.folder, self.skipped):
                return
        _remove(self.suspects.pop(key))

    def _note(self, key: str) -> None:
        """Keep the name on disk, where the next start finds it."""
        # Padded, so that a longer name before leaves no rest.
        if self.mark is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self.mark, key.encode().ljust(_LONGEST_KEY), 0)


def key_of(plugin: Plugin) -> str:
    """Name, distribution and version on one line: another version is another plugin."""
    words = " ".join(f"{plugin.name} {plugin.distribution} {plugin.version}".split())
    # Names come from files and folders, which hold any bytes.
    kept = words.encode("utf-8", "backslashreplace")[:_LONGEST_KEY]
    return kept.decode("utf-8", "ignore").strip()


def read_record(report: Report, refused: Mapping[str, str]) -> StartRecord:
    """What earlier starts left behind."""
    record = StartRecord(_folder(), report, refused)
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(record.folder)):
            if name == _SKIPPED:
                record.skipped = _read_skipped(record.folder / name)
            elif name.startswith(_MARK):
                _take_mark(record.folder / name, record.suspects)
    return record


@contextlib.contextmanager
def recorded_start(refused: Mapping[str, str], report: Report) -> Iterator[Admission]:
    """Yield the admission of plugins; the body imports them."""
    record = read_record(report, refused)
    path = record.folder / f"{_MARK}{os.getpid()}-{os.urandom(4).hex()}"
    record.mark = _locked_file(path)
    try:
        yield record.admission
    except KeyboardInterrupt:
        # Who was interrupted was waiting for the plugin, maybe: its mark stays.
        _close(record.mark)
        raise
    except BaseException:
        _close(record.mark, path)
        raise
    _close(record.mark, path)


@contextlib.contextmanager
def data_kept_apart() -> Iterator[None]:
    """Send what the body writes to the file of standard output to that of standard error.

    Native code and processes that a plugin starts write there past `sys.stdout`, between our data.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        # One of the two is closed: there is nothing to keep apart.
        yield
        return
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _folder() -> Path:
    """The folder of this environment's record in the user's state folder (XDG)."""
    stated = os.environ.get("XDG_STATE_HOME", "")
    home = stated if os.path.isabs(stated) else os.path.expanduser("~/.local/state")
    environment = re.sub(r"\W+", "-", sys.prefix)[-_LONGEST_FOLDER:]
    return Path(home, "collhub", f"starts{environment}")


def _locked_file(path: Path) -> int | None:
    """A new file that is locked as long as this process lives, or None where there can be none."""
    import fcntl

    try:
        mark = _new_file(path)
    except OSError:
        return None
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Without locks it could not be told from what a dead start left.
        _close(mark, path)
        return None
    return mark


def _new_file(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _take_mark(path: Path, suspects: dict[str, list[Path]]) -> None:
    """Add the plugin that a dead start names; a mark without a plugin is removed."""
    import fcntl

    with contextlib.suppress(OSError), path.open("rb") as mark:
        # Shared, so that two starts may look at one mark; refused while the mark's start lives.
        fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
        key = mark.read(_LONGEST_KEY).decode("utf-8", "replace").strip()
        if key:
            suspects.setdefault(key, []).append(path)
        else:
            path.unlink()


def _read_skipped(path: Path) -> dict[str, str]:
    # Imported here: hardly any start has a plugin to skip.
    import json

    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return (
        {str(key): str(reason) for key, reason in found.items()} if isinstance(found, dict) else {}
    )


def _write_skipped(folder: Path, skipped: dict[str, str]) -> bool:
    """Replace the list as a whole; False where it cannot be written."""
    import json

    new = folder / f".{_SKIPPED}-{os.urandom(4).hex()}"
    try:
        new.write_text(json.dumps(skipped, indent=2, sort_keys=True) + "\n", "utf-8")
        os.replace(new, folder / _SKIPPED)
    except OSError:
        return False
    return True


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _close(mark: int | None, path: Path | None = None) -> None:
    """Give up a mark, and its file where the start got through."""
    if mark is None:
        return
    if path is not None:
        _remove([path])
    with contextlib.suppress(OSError):
        os.close(mark)
