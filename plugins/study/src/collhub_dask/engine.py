"""The engine `dask`: a client of a running scheduler, or of a new cluster on this host."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from collhub_dask.plugin import DaskOptions
from hub_core.model import PluginError, UsageError
from hub_core.plugin_api import EngineRequest

if TYPE_CHECKING:
    from distributed import Client

    from collhub_dask.cluster_executor import Restart

# Packages that the extra `dask` of this distribution installs.
_EXTRA = ("distributed", "cryptography")
_CONNECT_S = 3.0
_RESTART_S = 30.0
# Protocols of Dask without encryption; an address without a protocol uses TCP.
_OPEN_PROTOCOLS = ("", "tcp", "ws", "ucx", "ucxx")
_CURE = "check the address, or leave it out for a cluster on this machine"


def start(request: EngineRequest, options: DaskOptions) -> Executor:
    """Start the executor of a Dask cluster: of the given scheduler, or of a new one on this host.

    Waits up to `_CONNECT_S` seconds for a first worker, and checks all workers that have answered
    by then. Until the executor is shut down, Dask writes no log messages, and its warning about
    large graphs has a limit of 1 TiB. If an error is raised, everything that was started is closed.

    Raises `PluginError` (`no-dask`) if `distributed` or `cryptography` is not installed. Then
    raises `UsageError`, in this order:

    1. The scheduler is given together with the options `workers` or `memory`.
    2. The scheduler is not trusted or cannot be reached (`_create_client`).
    3. The scheduler has other package versions than this process, or no worker has answered.
    4. A worker has other package versions. Or it has no nanny, i.e. a process that can stop it, and
       tasks have a timeout.

    Raises `BrokenExecutor` if the scheduler is lost during the checks.
    """
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        message = f"the engine dask needs {' and '.join(missing)}, not installed here"
        cure = "python -m pip install 'collhub-study[dask]'"
        raise PluginError(message, cure=cure, code="no-dask")
    # Imported here, because the import takes seconds.
    import dask
    from distributed.utils import silence_logging_cmgr

    from collhub_dask.cluster_executor import ClusterExecutor
    from collhub_dask.cluster_workers import ClusterWorkers

    if options.scheduler is not None and (options.workers or options.memory):
        message = "workers= and memory= are of a cluster on this machine, not of a scheduler's"
        raise UsageError(message, cure="leave them out, or the scheduler")
    with ExitStack() as setting:
        # Futures raise all errors, so that log messages are redundant.
        setting.enter_context(silence_logging_cmgr(logging.CRITICAL))
        # Networks and algorithms may be larger than the threshold of Dask's warning.
        setting.enter_context(
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"})
        )
        client, restart = _create_client(request, options, setting)
        setting.callback(client.close)
        has_timeout = request.task_timeout_s is not None
        workers = ClusterWorkers(client, needs_nannies=has_timeout)
        workers.check_all(_CONNECT_S)
        return ClusterExecutor(client, workers, request, restart, setting.pop_all())


def _create_client(
    request: EngineRequest, options: DaskOptions, setting: ExitStack
) -> tuple[Client, Restart]:
    """Create a client, and a function that restarts the workers at the addresses it is called with.

    Without `options.scheduler`, a cluster on this host is started; `setting` closes the cluster,
    but not the client. It has `request.workers` workers, at most `options.workers` (None or 0: the
    number of CPUs). Each has the memory limit `options.memory`.

    With `options.scheduler`, the client connects to that scheduler. Raises `UsageError`:

    1. `insecure-scheduler` for a scheduler on another host without TLS, unless `options.insecure`
    2. if no scheduler answers within `_CONNECT_S` seconds

    Dask's warnings about different versions are suppressed in both cases.
    """
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    from collhub_dask.cluster_workers import restart_local_workers, start_local_cluster

    with warnings.catch_warnings():
        # The relevant versions are checked elsewhere, with errors for differences.
        warnings.simplefilter("ignore", VersionMismatchWarning)
        if options.scheduler is None:
            count = min(request.workers, options.workers or os.cpu_count() or 1)
            cluster = setting.enter_context(start_local_cluster(count, options.memory))
            client = Client(cluster, timeout=_CONNECT_S, set_as_default=False)
            return client, partial(restart_local_workers, cluster)
        _check_trust(options.scheduler, options.insecure)
        _check_scheduler(options.scheduler)
        client = Client(options.scheduler, timeout=_CONNECT_S, set_as_default=False)
        return client, partial(_restart, client)


def _restart(client: Client, addresses: Sequence[str]) -> None:
    """Restart workers through their nannies and wait for it, at most `_RESTART_S` seconds.

    Nothing happens without addresses, and a lost scheduler or a worker that does not restart is no
    error.
    """
    if addresses:
        # Without a scheduler there are no workers to restart.
        with suppress(OSError, RuntimeError):
            client.restart_workers(list(addresses), timeout=_RESTART_S, raise_for_error=False)


def _check_trust(address: str, insecure: bool) -> None:
    """Raise `UsageError` (`insecure-scheduler`) for a scheduler on another host without TLS.

    Results of a scheduler are pickles, which can execute any code when they are loaded. An address
    is accepted in each of these cases, otherwise the error is raised:

    - `insecure` is true: the user trusts the network.
    - It has no port. Dask refuses such addresses before it connects.
    - Its protocol is not in `_OPEN_PROTOCOLS`: "" (no protocol, which means TCP), tcp, ws, ucx,
      ucxx. All others use TLS, or Dask refuses them.
    - The host is `localhost` or a loopback address such as 127.0.0.1. Names are not resolved, so
      the host name of this computer is not accepted.
    """
    protocol, _, location = address.rpartition("://")
    host, has_port, _ = location.rpartition(":")
    # Dask itself refuses addresses without port and unknown protocols, before it connects.
    if insecure or not has_port or protocol not in _OPEN_PROTOCOLS:
        return
    host = host.strip("[]")
    if host == "localhost" or _is_loopback(host):
        return
    message = f"the scheduler {address} is on another machine and does not use TLS"
    cure = "use tls://..., a tunnel to localhost, or -O insecure=yes if you trust the network"
    raise UsageError(message, cure=cure, code="insecure-scheduler")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_scheduler(address: str) -> None:
    """Raise `UsageError` with the reason if no scheduler answers at an address.

    The reasons are: no answer within `_CONNECT_S` seconds, an invalid address, an answer that is
    not from Dask, and a Dask server that is not a scheduler. The request is made in a separate
    thread, because notebooks have a running event loop in this one.
    """
    try:
        # In a separate thread, because notebooks run an event loop in this one.
        with ThreadPoolExecutor(1) as thread:
            kind = thread.submit(asyncio.run, _get_server_type(address)).result()
    except OSError:
        reason = f"no scheduler answered within {_CONNECT_S:.0f} s"
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
    # A server of another protocol may answer with arbitrary bytes.
    except Exception:
        reason = "what answers there is no server of Dask"
    else:
        if kind == "Scheduler":
            return
        reason = f"a {kind.lower()} answered, not a scheduler"
    raise UsageError(f"the scheduler {address} cannot be reached: {reason}", cure=_CURE)


async def _get_server_type(address: str) -> str:
    """Return the type that a Dask server reports: `Scheduler`, `Worker` or `Nanny`.

    Pickles in the answer are not loaded, because the server is unknown. Raises `OSError` or
    `TimeoutError` if there is no answer within `_CONNECT_S` seconds.
    """
    from distributed import Security, rpc

    arguments = Security().get_connection_args("client")
    probe = rpc(address, timeout=_CONNECT_S, connection_args=arguments, deserialize=False)
    async with probe as server:
        identity = await asyncio.wait_for(server.identity(), _CONNECT_S)
    return str(identity["type"])
