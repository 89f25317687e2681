"""Machine code of kernels: compiled by numba, stored on disk, and loaded without numba.

To import numba and to load a kernel from its cache takes 0.5 to 1.5 CPU seconds, more than most
simulations. A kernel is therefore compiled as a function of addresses, lengths and numbers, and its
object code is stored; a later process needs only LLVM's loader (llvmlite, 0.05 s) to run it.

A stored file belongs to one state of the kernel's source, one kind of processor, one version of
Python and of numba, and is verified by a checksum before it is loaded. Files are stored in
`$NUMBA_CACHE_DIR` if that is set, otherwise in the first of these folders that can be written:
`__pycache__` of this package, `$XDG_CACHE_HOME/collhub/kernels` (by default below `~/.cache`).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np

_Function = Callable[..., object]
_FORMAT = b"collhub-kernel-1"
_SUFFIX = ".kernel"
_ENTRY_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
# Functions that are already registered with numba.
_REGISTERED: set[_Function] = set()
# Engines own the memory of the code that they have loaded, so they must not be freed.
_ENGINES: list[Any] = []


def load(
    function: _Function,
    parts: Mapping[_Function, Mapping[str, Any]],
    digest: str,
    states: Sequence[Any],
    compiles: bool,
) -> Callable[..., int] | None:
    """Return the machine code of a kernel for states of these types, from disk or compiled now.

    The result is a function of such states that returns the integer of the kernel, and raises
    `ArithmeticError` if the machine code reports an error. A stored file is found by `digest`
    (sources of the kernel and its parts), the types of `states`, and the versions of Python, numba
    and the processor; a damaged file counts as missing. Without a file the kernel is compiled,
    which takes up to 50 s, and stored in the first writable folder. With `compiles` False the
    result is None instead. `parts`: functions that the kernel calls, with numba's options. Arrays
    in `states` must be in C order.
    """
    key = _compute_key(digest, states)
    stored = _read_code(function, key)
    if stored is None:
        if not compiles:
            return None
        stored = _compile_kernel(function, parts, states)
        _write_code(function, key, stored)
    return _load_callable(*stored, states)


# --- the form in which states are passed ---


def _iterate_values(states: Sequence[Any]) -> Iterator[Any]:
    """Yield the arrays and numbers of (nested) states, in order."""
    for state in states:
        if isinstance(state, tuple):
            yield from _iterate_values(state)
        else:
            yield state.item() if isinstance(state, np.generic) else state


def _iterate_arguments(states: Sequence[Any]) -> Iterator[int | float]:
    """Yield the arguments of machine code: the address and the lengths of arrays, and numbers.

    Raises `ValueError` for an array that is not contiguous.
    """
    for value in _iterate_values(states):
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError("machine code takes contiguous arrays")
            yield value.ctypes.data
            yield from value.shape
        else:
            yield value


def types_of(states: Sequence[Any]) -> tuple[object, ...]:
    """Return a key that distinguishes the types of states between calls of one kernel."""
    return tuple(
        (value.dtype.num, value.dtype.itemsize, value.ndim)
        if isinstance(value, np.ndarray)
        else type(value)
        for value in _iterate_values(states)
    )


def _describe(value: Any) -> str:
    """Describe the type of a value; equal texts mean equal machine code.

    An array is described by its fields with dtypes and its number of dimensions, a tuple by the
    names of its fields and the descriptions of its entries, a number by its Python type.
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype.descr} {value.ndim}"
    if isinstance(value, tuple):
        return f"{getattr(value, '_fields', ())} {[_describe(item) for item in value]}"
    return type(value.item() if isinstance(value, np.generic) else value).__name__


def _build_entry(function: _Function, states: Sequence[Any]) -> tuple[_Function, Any]:
    """Return a function that calls a kernel with addresses, lengths and numbers, and its signature.

    Machine code has no Python objects, so `states` are flattened to parameters: an array becomes a
    pointer and its lengths as int64 (C order is assumed), a named tuple its entries, a boolean an
    int64 (true if not 0), other numbers int64 or float64. The function assembles the states again,
    calls the kernel, and returns its result as int64.
    """
    import numba
    from numba.np import arrayobj

    types: Any = numba.types
    # The function that `numba.carray` calls; `carray` itself would count references.
    array_at = cast(Any, arrayobj).get_cfarray_intrinsic("C", None)
    names: dict[str, Any] = {"array_at": array_at, "function": function, "int64": np.int64}
    kinds: list[Any] = []

    def parameter(kind: Any) -> str:
        kinds.append(kind)
        return f"p{len(kinds) - 1}"

    def expression(value: Any) -> str:
        if isinstance(value, tuple):
            names[type(value).__name__] = type(value)
            return f"{type(value).__name__}({', '.join(map(expression, value))})"
        if isinstance(value, np.ndarray):
            address = parameter(types.CPointer(numba.from_dtype(value.dtype)))
            lengths = "".join(f"{parameter(types.int64)}, " for _ in value.shape)
            return f"array_at({address}, ({lengths}))"
        number = value.item() if isinstance(value, np.generic) else value
        if isinstance(number, bool):
            return f"({parameter(types.int64)} != 0)"
        return parameter(types.float64 if isinstance(number, float) else types.int64)

    call = f"function({', '.join(map(expression, states))})"
    parameters = ", ".join(f"p{index}" for index in range(len(kinds)))
    exec(f"def entry({parameters}):\n    return int64({call})\n", names)
    return names["entry"], types.int64(*kinds)


# --- compilation ---


def _compile_kernel(
    function: _Function, parts: Mapping[_Function, Mapping[str, Any]], states: Sequence[Any]
) -> tuple[str, bytes]:
    """Compile a kernel with numba for the types of `states`; return (function name, object code).

    `parts`: functions that the kernel calls, with their options; each is registered with numba once
    per process, with the options of its first registration. Takes up to 50 s.
    """
    import numba
    from numba.extending import register_jitable

    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    for part, part_options in {**parts, function: _ENTRY_OPTIONS}.items():
        if part not in _REGISTERED:
            register_jitable(**part_options, **options)(part)
            _REGISTERED.add(part)
    entry, signature = _build_entry(function, states)
    njit: Any = numba.njit
    dispatcher = njit(signature, **_ENTRY_OPTIONS, **options)(entry)
    (result,) = dispatcher.overloads.values()
    _, _, (code, _) = result.library.serialize_using_object_code()
    return result.fndesc.llvm_func_name, code


def _load_callable(name: str, code: bytes, states: Sequence[Any]) -> Callable[..., int]:
    """Load object code and return a Python function that runs it on states.

    `name`: function in the code, with numba's calling convention. `states`: an example that
    determines the types of the arguments: integers, and addresses and lengths of arrays are
    int64, all other arguments double. The returned function takes states of the same structure,
    whose arrays it may change, and returns an integer. It raises `ArithmeticError` if the machine
    code reports an error, and `ValueError` for an array that is not contiguous. The code remains
    loaded until the process ends.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    # numba's calling convention: returns a status; pointers to the result and to an exception come
    # first.
    kinds = [
        ctypes.c_int64 if isinstance(value, int) else ctypes.c_double
        for value in _iterate_arguments(states)
    ]
    pointer = ctypes.POINTER(ctypes.c_int64)
    native = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, *kinds)(
        engine.get_function_address(name)
    )

    def run(*states: Any) -> int:
        result, exception = ctypes.c_int64(), ctypes.c_int64()
        status = native(ctypes.byref(result), ctypes.byref(exception), *_iterate_arguments(states))
        if status:
            raise ArithmeticError(f"machine code ended with status {status}")
        return result.value

    return run


# --- storage ---


def _compute_key(digest: str, states: Sequence[Any]) -> str:
    """Return the digest that identifies a stored file, SHA-256 in hexadecimal.

    It covers the file format, `digest` (of the sources), the types of the states, the versions of
    Python and numba, and the operating system, name and features of the processor.
    """
    from llvmlite import binding

    content = (
        _FORMAT,
        digest,
        [_describe(state) for state in states],
        sys.implementation.cache_tag,
        metadata.version("numba"),
        binding.get_process_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
    )
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _list_folders() -> Iterator[Path]:
    """Yield the folders for stored code, in order of preference; they need not exist.

    If `NUMBA_CACHE_DIR` is set and not empty, it is the only one. Otherwise they are `__pycache__`
    next to this module, then `collhub/kernels` in `XDG_CACHE_HOME` (if that is an absolute path),
    else in `~/.cache`. The last one is left out if the user has no home directory.
    """
    if configured := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(configured)
        return
    yield Path(__file__).parent / "__pycache__"
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # A relative folder is ignored, as the XDG Base Directory Specification requires.
        home = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        yield home / "collhub" / "kernels"
    except RuntimeError:
        # The user has no home directory.
        return


def _get_file_name(function: _Function, key: str) -> str:
    """Return the name of the file in which the machine code of a kernel is stored.

    It consists of the innermost package of the function's module, the name of the function, and the
    first 32 characters of `key`, joined by `-`.
    """
    module = str(getattr(function, "__module__", "")).rpartition(".")[0].rpartition(".")[2]
    return f"{module}-{getattr(function, '__name__', 'kernel')}-{key[:32]}{_SUFFIX}"


def _read_code(function: _Function, key: str) -> tuple[str, bytes] | None:
    """Return the stored (function name, object code) of a kernel; None if there is none.

    `key`: hexadecimal digest of everything on which the code depends. Of the folders of
    `_list_folders` the first one counts that has a file with a correct checksum; unreadable and
    damaged files are skipped.
    """
    for folder in _list_folders():
        try:
            content = (folder / _get_file_name(function, key)).read_bytes()
        except OSError:
            continue
        checksum, _, rest = content.partition(b"\n")
        if hashlib.sha256(rest).hexdigest().encode() == checksum:
            name, _, code = rest.partition(b"\n")
            return name.decode(), code
    return None


def _write_code(function: _Function, key: str, stored: tuple[str, bytes]) -> None:
    """Store the machine code of a kernel in the first writable folder of `_list_folders`.

    `stored`: (function name, object code). The file has a line with the SHA-256 of the rest, a line
    with the name, and the code; everyone can read it (mode 0644). It replaces an existing file
    atomically; an incomplete file is deleted. Without a writable folder the code is not stored, and
    no error is raised.
    """
    rest = stored[0].encode() + b"\n" + stored[1]
    content = hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest
    for folder in _list_folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                try:
                    file.write(content)
                    file.flush()
                    # Other users may load the code of a shared installation.
                    os.chmod(file.name, 0o644)
                    os.replace(file.name, folder / _get_file_name(function, key))
                except BaseException:
                    # Do not leave incomplete files on a full disk.
                    with contextlib.suppress(OSError):
                        os.unlink(file.name)
                    raise
        except OSError:
            continue
        return
