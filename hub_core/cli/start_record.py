"""Record on disk which plugin a start of the program was importing when it ended.

Every start that imports plugins creates one file, the mark, which is locked while the process
lives. It contains the name of the plugin that is being imported. A start that imports all plugins
removes its mark. A mark that no process locks was left by a start that died: before its plugin is
imported again, it is imported in a separate process, and skipped from then on if that process dies
as well. Hence neither concurrent starts nor a start that was killed from outside make a plugin
suspect for good.

If the folder cannot be written, nothing is recorded, and nothing else changes.
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
# A mark is overwritten by a single call; all marks have the same length.
_LONGEST_KEY = 400
_LONGEST_FOLDER = 100
Report = Callable[[Diagnostic], None]


class StartRecord:
    """State that earlier starts left in `folder`: plugins to skip, and suspect plugins.

    Keys are those of `key_of`. `skipped`: reasons by key. `suspects`: marks that name the plugin,
    by key. `refused`: reasons, by name, for plugins whose trial in this start failed.
    """

    # Not a dataclass: creating one takes longer than all other work here.
    def __init__(self, folder: Path, report: Report, refused: Mapping[str, str]) -> None:
        self.folder = folder
        self.report = report
        self.refused = refused
        self.skipped: dict[str, str] = {}
        self.suspects: dict[str, list[Path]] = {}
        self.imported: list[str] = []
        self.mark: int | None = None

    def admission(self, plugin: Plugin) -> str | None:
        """Decide whether a plugin is imported: None if it is, otherwise the reason to skip it.

        The first rule that skips the plugin applies:

        1. Its name is in `refused`: the result is that reason. Nothing is reported.
        2. Its key (name, distribution, version) is in `suspects`, because an earlier start ended
           during its import. After a note, it is imported in a separate process, like the plugins
           imported so far. If the process crashes, exits or needs more than 10 s, the reason is
           added to `skipped`, also on disk. Unless that fails, the plugin is no longer suspect.
        3. Its key is in `skipped`, for example since rule 2: `report` gets a warning
           (`skipped-plugin`), and the result has the reason and the command that enables the
           plugin.

        Any other plugin is imported by the caller: its name is appended to `imported`, and its key
        is written to the mark file of this start. Without a mark file (`mark` is None), and after
        an error of writing, the result is None too.
        """
        if plugin.name in self.refused:
            return self.refused[plugin.name]
        key = key_of(plugin)
        if key in self.suspects:
            from hub_core.testing.probe import trial

            print_note(f"the last start ended while {plugin} was imported: trying it in a process")
            tried = trial(plugin.name, self.imported)
            if tried.reason is not None:
                self.skipped[key] = tried.reason
            # If the reason cannot be written, the plugin remains suspect.
            if tried.reason is None or _write_skipped(self.folder, self.skipped):
                _remove(self.suspects.pop(key))
        reason = self.skipped.get(key)
        if reason is not None:
            cure = f"'collhub plugins enable {plugin.name}' lets it in again"
            message = f"{plugin} is skipped: {reason}"
            self.report(Diagnostic("skipped-plugin", message, Severity.WARNING, cure=cure))
            return f"skipped, since {reason}; {cure}"
        self.imported.append(plugin.name)
        if self.mark is not None:
            with contextlib.suppress(OSError):
                # Padded, so that no rest of a longer key remains.
                os.pwrite(self.mark, key.encode().ljust(_LONGEST_KEY), 0)
        return None

    def enable(self, plugin: Plugin) -> bool:
        """Forget that a plugin was skipped or suspect, in any version, in memory and on disk.

        Returns whether it was either. If so, the mark files that made it suspect are removed, and
        the list of skipped plugins is written again. Errors of writing are ignored.
        """
        of_any_version = key_of(replace(plugin, version=""))
        known = {*self.skipped, *self.suspects}
        keys = {key for key in known if f"{key} ".startswith(f"{of_any_version} ")}
        for key in keys:
            _remove(self.suspects.pop(key, []))
            self.skipped.pop(key, None)
        if keys:
            _write_skipped(self.folder, self.skipped)
        return bool(keys)


def key_of(plugin: Plugin) -> str:
    """Return name, distribution and version of a plugin on one line; each version has its own key.

    White space is reduced to single spaces, and the key to 400 bytes of UTF-8; an incomplete
    character at the end is dropped.
    """
    words = " ".join(f"{plugin.name} {plugin.distribution} {plugin.version}".split())
    # Names come from files and folders and may contain any bytes.
    key = words.encode("utf-8", "backslashreplace")[:_LONGEST_KEY]
    return key.decode("utf-8", "ignore").strip()


def read_record(report: Report, refused: Mapping[str, str]) -> StartRecord:
    """Read the plugins that earlier starts skipped, and those that made a start fail.

    The latter are suspects: plugins that are named in the mark file of a start that no longer
    runs. Mark files of running starts are ignored. Empty mark files of other starts are
    removed. Files that cannot be read are ignored. If the folder cannot be read, the result
    has no plugins.

    `report` (receives warnings) and `refused` (reasons by name of refused plugins) are only
    stored in the result.
    """
    # A folder of this Python environment in the user's state folder (XDG).
    state_home = os.environ.get("XDG_STATE_HOME", "")
    home = state_home if os.path.isabs(state_home) else os.path.expanduser("~/.local/state")
    environment = re.sub(r"\W+", "-", sys.prefix)[-_LONGEST_FOLDER:]
    folder = Path(home, "collhub", f"starts{environment}")
    record = StartRecord(folder, report, refused)
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(record.folder)):
            if name == _SKIPPED:
                record.skipped = _read_skipped(record.folder / name)
            elif name.startswith(_MARK):
                _take_mark(record.folder / name, record.suspects)
    return record


@contextlib.contextmanager
def recorded_start(refused: Mapping[str, str], report: Report) -> Iterator[Admission]:
    """Yield the function that decides which plugins are imported; the body imports them.

    The function is `StartRecord.admission`: None admits a plugin, a text is the reason to skip it.
    `refused`: such reasons by name of plugin. `report` gets the warnings on skipped plugins.

    First the record of earlier starts is read (`read_record`). Then a locked mark file is created,
    in which the function writes the plugin being imported. It is removed after the body, also after
    an error. It remains if the body ends by Ctrl-C, because the user may have interrupted an import
    that hangs. If it cannot be created, the start is not recorded.
    """
    record = read_record(report, refused)
    path = record.folder / f"{_MARK}{os.getpid()}-{os.urandom(4).hex()}"
    record.mark = _create_locked_file(path)
    try:
        yield record.admission
    except KeyboardInterrupt:
        # The plugin may be the reason for the interrupt, so the mark remains.
        _close(record.mark)
        raise
    except BaseException:
        _close(record.mark, path)
        raise
    _close(record.mark, path)


@contextlib.contextmanager
def data_kept_apart() -> Iterator[None]:
    """Redirect file descriptor 1 to standard error (descriptor 2) during the body.

    Native code and child processes of a plugin write to the descriptor without `sys.stdout`, and
    would mix their output with data. `sys.stdout`, unless None, is flushed before the body, not
    after it. So text that the body prints appears on standard error only if it is flushed within
    the body. Text that is still buffered then is written to standard output later.

    The descriptor is restored after the body, also after an error, which passes through. If one of
    the two descriptors is closed, nothing is redirected. Errors of flushing pass through.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:
        # The descriptor is closed, so that nothing can be mixed.
        yield
        return
    try:
        os.dup2(2, 1)
    except OSError:
        os.close(saved)
        yield
        return
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _create_locked_file(path: Path) -> int | None:
    """Create a new empty file with an exclusive lock; return its open descriptor, or None.

    The lock lasts until the descriptor is closed or the process ends. Missing parent folders are
    created. Only the user may read and write the file. The result is None, without an exception, in
    these cases:

    - The file exists already; it is not changed.
    - The file or a folder cannot be created.
    - The file cannot be locked; then it is removed again.
    """
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Without a lock, it could not be distinguished from the mark of a dead start.
        _close(mark, path)
        return None
    return mark


def _take_mark(path: Path, suspects: dict[str, list[Path]]) -> None:
    """Add the plugin that the mark file of an ended start names to the suspects.

    `suspects`: mark files by key of the plugin; `path` is appended to those of its key. The mark of
    a running start is locked and is ignored. An empty mark is removed. Errors of the file system
    are ignored.
    """
    import fcntl

    with contextlib.suppress(OSError), path.open("rb") as mark:
        # Shared, so that two starts may read one mark; refused while the start of the mark lives.
        fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
        key = mark.read(_LONGEST_KEY).decode("utf-8", "replace").strip()
        if key:
            suspects.setdefault(key, []).append(path)
        else:
            path.unlink()


def _read_skipped(path: Path) -> dict[str, str]:
    # Imported here: few starts have a plugin to skip.
    import json

    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return (
        {str(key): str(reason) for key, reason in document.items()}
        if isinstance(document, dict)
        else {}
    )


def _write_skipped(folder: Path, skipped: dict[str, str]) -> bool:
    """Replace the list of skipped plugins atomically; return False if it cannot be written.

    `skipped`: reasons by key of the plugin; they are written as sorted JSON to a temporary file in
    `folder`, which then replaces `skipped.json`. The former list remains after an error; the
    temporary file may remain as well.
    """
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
    """Close `mark`, the descriptor of a locked file; first delete the file `path` if given.

    Errors of both actions are ignored. If `mark` is None, neither the descriptor nor the file
    is touched.
    """
    if mark is None:
        return
    if path is not None:
        _remove([path])
    with contextlib.suppress(OSError):
        os.close(mark)
