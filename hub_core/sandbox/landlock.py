"""Restrict this process by Landlock, Linux's access control that needs no privileges.

Source: the kernel's documentation, Documentation/userspace-api/landlock.rst, and its stable user
interface in include/uapi/linux/landlock.h. The packages on PyPI that wrap it are young and change
their interface, so the three system calls are made directly.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

# Equal numbers on all architectures, because the calls are newer than the unified tables.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_SET_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
# Rights that a rule for a single file may contain.
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_READ_RIGHTS = _EXECUTE | _READ_FILE | _READ_DIR
# Number of file rights by version of the interface; later versions have no others.
_FILE_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_RIGHTS_OF_LATER_VERSIONS = 16
_TCP_RIGHTS = 0b11
_TCP_SINCE, _SCOPES_SINCE = 4, 6
# No abstract Unix sockets and no signals beyond the restricted processes.
_SCOPES = 0b11


def landlock_version() -> int:
    """Return the version of Landlock of the running kernel, from 1 on.

    0 if it has none or has it disabled, and on other systems than Linux.
    """
    if sys.platform != "linux":
        return 0
    version = _call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    return max(0, version)


def landlock_features(version: int) -> dict[str, bool]:
    """Return by name which accesses a version of Landlock can restrict."""
    return {
        "files": version >= 1,
        "TCP connections": version >= _TCP_SINCE,
        "signals to other processes": version >= _SCOPES_SINCE,
    }


def restrict_this_process(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Restrict this process and its later children to these files, without TCP and signals.

    `readable`: files and folders, with their content, that may be read and executed. `writable`:
    files that may also be written. Paths that do not exist are ignored. Open files remain usable.
    Restrictions that the version lacks are omitted. Returns False, without any restriction, if the
    kernel has no Landlock.
    """
    version = landlock_version()
    if version == 0:
        return False
    count = _FILE_RIGHTS_BY_VERSION.get(version, _FILE_RIGHTS_OF_LATER_VERSIONS)
    handled = (1 << count) - 1
    attributes = [handled]
    if version >= _TCP_SINCE:
        attributes.append(_TCP_RIGHTS)
    if version >= _SCOPES_SINCE:
        attributes.append(_SCOPES)
    content = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = _call(_CREATE_RULESET, content, len(content), 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow(ruleset, path, _READ_RIGHTS & handled)
        for path in writable:
            _allow(ruleset, path, (_READ_RIGHTS | _WRITE_FILE | _TRUNCATE) & handled)
        ctypes.CDLL(None).prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return _call(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= _FILE_RIGHTS
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, file), 0)
        finally:
            os.close(file)


def _call(number: int, *arguments: object) -> int:
    """Make the system call `number` and return its result; -1 for an error, with `errno` set.

    Integers are passed as C longs, all other arguments as they are.
    """
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words))


def check_sandbox(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Report the accesses that Landlock restricts on this kernel, as one line `sandbox`.

    The check always passes. The line lists the accesses that this version restricts and, if there
    are any, those that only later versions do. Without Landlock, it says that programs run with the
    user's rights.
    """
    # Imported here: the process of a program imports this module and has no use for these names,
    # whose import takes 0.1 s.
    from hub_core.plugin_api import CheckLine, CheckReport

    del request, options
    version = landlock_version()
    if version == 0:
        details = "the kernel has no Landlock: programs run with the rights of the user"
        return CheckReport(ok=True, lines=(CheckLine("sandbox", True, details),))
    features = landlock_features(version)
    restricted = ", ".join(name for name, is_supported in features.items() if is_supported)
    missing = ", ".join(name for name, is_supported in features.items() if not is_supported)
    details = f"Landlock {version} restricts {restricted}"
    if missing:
        details = f"{details}; not {missing}"
    return CheckReport(ok=True, lines=(CheckLine("sandbox", True, details),))
