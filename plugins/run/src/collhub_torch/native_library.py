"""The C functions of a built library, and the functions of NCCL that it uses, by ctypes."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hub_core.model import InputError, Location, PluginError

_FILE = "collhub.json"
_FORMAT, _VERSION = "collhub-nccl-library", 1
# Far above the size of valid files.
_MOST_BYTES = 1 << 16
_MOST_RANKS = 1 << 20
_FUNCTIONS = ("run", "release", "error", "level")
_CURE = "write the folder by collhub convert ALGORITHM --to nccl -o FOLDER"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of the folder's description.

    `library`: the file of the library for a kind of device; it may not be built yet. `functions`:
    the names of the C functions by role.
    """

    folder: Path
    name: str
    collective: str
    num_ranks: int
    root: int | None
    reduces: bool
    library: Mapping[str, Path]
    functions: Mapping[str, str]


def read_manifest(folder: Path) -> Manifest:
    """Read `collhub.json` in a folder of the format `nccl`, which describes a program's libraries.

    `library` has the file paths in the folder for the devices cuda and cpu; the files need not
    exist. `functions` has the names of the C functions for run, release, error and level. `root` is
    None if it is missing or null; it is not compared with the ranks. Unknown fields are ignored.
    Raises `InputError` with the file (and the field, if one is wrong) for:

    - a file that cannot be read, has more than 65536 bytes, or is not a JSON object
    - another format than `collhub-nccl-library` version 1
    - a number of ranks outside of 1 to 2^20 (`_MOST_RANKS`)
    - any other missing field except `root`, a field of a wrong type, a name or function that is no
      ASCII identifier, or a library that is no file name without a folder
    """
    path = folder / _FILE
    document = _Fields(path, _read_document(path))
    if (document.text("format"), document.number("version")) != (_FORMAT, _VERSION):
        document.refuse("format", f"{_FORMAT}, version {_VERSION}")
    ranks = document.number("num_ranks")
    if not 1 <= ranks <= _MOST_RANKS:
        document.refuse("num_ranks", f"a number of ranks in 1..{_MOST_RANKS}")
    libraries = document.fields("library")
    functions = document.fields("functions")
    return Manifest(
        folder,
        document.word("name"),
        document.text("collective"),
        ranks,
        document.optional_number("root"),
        document.flag("reduces"),
        {device: folder / libraries.file(device) for device in ("cuda", "cpu")},
        {role: functions.word(role) for role in _FUNCTIONS},
    )


def _read_document(path: Path) -> Mapping[str, object]:
    """Return the JSON object in a file.

    Raises `InputError` with the path if the file cannot be opened, has more than `_MOST_BYTES`
    (65536) bytes, is no JSON (also not Unicode, or nested too deeply), or has another JSON value.
    """
    location = Location(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(f"more than {_MOST_BYTES} bytes", location=location, cure=_CURE)
        content_object = json.loads(content)
    except OSError as error:
        message = f"the folder of a library has this file: {error.strerror}"
        raise InputError(message, location=location, cure=_CURE) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON: {error}", location=location, cure=_CURE) from None
    if not isinstance(content_object, dict):
        raise InputError("expected an object", location=location, cure=_CURE)
    return content_object


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of an object, with typed access that raises `InputError`."""

    path: Path
    values: Mapping[str, object]

    def refuse(self, name: str, expected: str) -> None:
        """Raise `InputError` for the field `name` of the file.

        The message contains the expected value and the actual one, which is None for a missing
        field.
        """
        shown = repr(self.values.get(name))[:60]
        message = f"{name}: expected {expected}, got {shown}"
        raise InputError(message, location=Location(str(self.path)), cure=_CURE)

    def text(self, name: str) -> str:
        """Return a required field that must be a string.

        Raises `InputError` for any other value and if the field is missing.
        """
        value = self.values.get(name)
        if not isinstance(value, str):
            self.refuse(name, "a string")
        return str(value)

    def word(self, name: str) -> str:
        """Return a text field that must be a C identifier, because it becomes part of names.

        The text has ASCII letters, digits and underscores, and does not begin with a digit.
        Raises `InputError` for any other value and for a missing field.
        """
        value = self.text(name)
        if not (value.isascii() and value.isidentifier()):
            self.refuse(name, "letters, digits and _")
        return value

    def file(self, name: str) -> str:
        """Return a text field that must be the name of a file without a folder.

        Files outside of the folder must not be loaded. Raises `InputError` for a text with a
        separator, `.`, `..`, the empty text, any other value and a missing field.
        """
        value = self.text(name)
        if value != Path(value).name or value in ("", ".."):
            self.refuse(name, "the name of a file in this folder")
        return value

    def number(self, name: str) -> int:
        """Return an integer field, which may be negative.

        Raises `InputError` for other values, such as booleans, and for a missing field.
        """
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(name, "a whole number")
            raise AssertionError
        return value

    def optional_number(self, name: str) -> int | None:
        """Return an integer, or None for null."""
        return None if self.values.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return a required field that must be true or false.

        Raise `InputError` if the field is missing or has any other value, such as 0, 1 or null.
        """
        value = self.values.get(name)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value is True

    def fields(self, name: str) -> _Fields:
        """Return the fields of the nested JSON object `name`; their errors refer to the same file.

        The object may be empty. Raise `InputError` if the field is missing or is no object.
        """
        value = self.values.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object")
            raise AssertionError
        return _Fields(self.path, value)


# `ncclResult_t`, and the size of `ncclUniqueId`, in nccl.h.
_SUCCESS = 0
_ID_BYTES = 128
# The first two return texts.
_FUNCTIONS_OF_NCCL = (
    *("ncclGetErrorString", "ncclGetLastError"),
    *("ncclGetUniqueId", "ncclCommInitRank", "ncclCommDestroy"),
)


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * _ID_BYTES)]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Arguments of the library's function.

    Addresses of the tensors, the count of elements, NCCL's numbers of type and operator.

    `stream`: address of a CUDA stream, 0 for the default stream.
    """

    send: int
    recv: int
    count: int
    datatype: int
    op: int
    stream: int


class NativeLibrary:
    """A loaded library; errors of its functions are raised as `PluginError`."""

    def __init__(self, manifest: Manifest, device: str) -> None:
        """Load the library of `manifest` for `device` (cuda or cpu) and look up its functions.

        This also loads NCCL. Raises `PluginError` (`not-built`) if the file does not exist. Raises
        `PluginError` (`not-loadable`) if it cannot be loaded, or lacks the function run, release or
        error or a function of NCCL. The cure contains the make target. `KeyError` for another
        device.
        """
        path = manifest.library[device]
        target = "library" if device == "cuda" else "double"
        if not path.exists():
            message = f"{path}: the library of the folder is not built for {device}"
            cure = f"run `make {target}` in {manifest.folder}; see its README.md"
            raise PluginError(message, cure=cure, code="not-built")
        try:
            # This also loads NCCL: the one that is already loaded by torch, or the library's.
            self._functions = ctypes.CDLL(str(path.resolve()))
            self._run = self._functions[manifest.functions["run"]]
            self._release = self._functions[manifest.functions["release"]]
            self._error = self._functions[manifest.functions["error"]]
            functions_of_nccl = [getattr(self._functions, name) for name in _FUNCTIONS_OF_NCCL]
        except (OSError, AttributeError) as error:
            message = f"{path} cannot be loaded: {error}"
            cure = f"rebuild it on this host: `make clean {target}`"
            raise PluginError(message, cure=cure, code="not-loadable") from None
        for function in (self._error, *functions_of_nccl[:2]):
            function.restype = ctypes.c_char_p

    def new_id(self) -> bytes:
        """Return a new NCCL ID of 128 bytes, with which ranks join one communicator.

        One rank creates it and sends it to the other ranks; every call returns another ID.
        Raise `PluginError` if NCCL reports an error.
        """
        unique_id = _UniqueId()
        self._check(self._functions.ncclGetUniqueId(ctypes.byref(unique_id)), "ncclGetUniqueId")
        return bytes(unique_id)

    def join(self, unique_id: bytes, num_ranks: int, rank: int) -> int:
        """Join an NCCL communicator on the current device and return its handle.

        Waits until all `num_ranks` ranks have called it. `unique_id`: 128 bytes, the same for
        all ranks. `rank`: from 0. Raises `PluginError` if NCCL reports an error, and
        `ValueError` for fewer bytes.
        """
        communicator = ctypes.c_void_p()
        nccl_id = _UniqueId.from_buffer_copy(unique_id)
        status = self._functions.ncclCommInitRank(
            ctypes.byref(communicator), num_ranks, nccl_id, rank
        )
        self._check(status, "ncclCommInitRank")
        assert communicator.value is not None
        return communicator.value

    def leave(self, communicator: int) -> None:
        """Release the library's resources of a communicator, then destroy the communicator.

        `communicator`: handle, which must not be used afterwards. Raises `PluginError` with the
        name of the call and NCCL's text if one of the calls fails; if the release fails, the
        communicator is not destroyed.
        """
        handle = ctypes.c_void_p(communicator)
        self._check(self._release(handle), "release")
        self._check(self._functions.ncclCommDestroy(handle), "ncclCommDestroy")

    def run(self, communicator: int, call: NativeCall) -> None:
        """Enqueue the library's collective on the stream of the call, without waiting for it.

        `communicator`: handle of `join`. `call` has the addresses of both buffers and of the
        stream, the number of elements, data type and operator. Nothing of it is checked. The memory
        must stay valid until the stream has finished.

        Raises `PluginError` (`nccl`) with the library's error text if its function does not return
        success. The communicator cannot be used any more then.
        """
        status = self._run(
            ctypes.c_void_p(call.send),
            ctypes.c_void_p(call.recv),
            ctypes.c_size_t(call.count),
            call.datatype,
            call.op,
            ctypes.c_void_p(communicator),
            ctypes.c_void_p(call.stream),
        )
        if status != _SUCCESS:
            reason = self._error().decode(errors="replace")
            raise PluginError(reason, code="nccl", cure="the communicator cannot be used further")

    def _check(self, status: int, call: str) -> None:
        """Raise `PluginError` unless the status is success.

        The message has `call`, the name of the function, and NCCL's text for the status and its
        last error.
        """
        if status != _SUCCESS:
            reason = self._functions.ncclGetErrorString(status).decode(errors="replace")
            detail = self._functions.ncclGetLastError(None).decode(errors="replace")
            raise PluginError(f"{call}: {reason}: {detail}", code="nccl")
