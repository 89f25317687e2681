"""The engine `dask`: a client of a scheduler that is there, or of a cluster on this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from collhub_dask.options import DaskOptions
from hub_core.model import UsageError
from hub_core.plugin_api import EngineRequest

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_S = 3.0
_CURE = "check the address, or leave it out for a cluster on this machine"


def start(request: EngineRequest, options: DaskOptions) -> Executor:
    """The executor of a cluster; raises `UsageError` where its scheduler cannot be reached."""
    # Imported here: it takes seconds.
    import dask
    from distributed.utils import silence_logging_cmgr

    from collhub_dask.cluster_executor import ClusterExecutor
    from collhub_dask.cluster_workers import ClusterWorkers

    if options.scheduler and (options.workers or options.memory):
        message = "workers= and memory= are of a cluster on this machine, not of a scheduler's"
        raise UsageError(message, cure="leave them out, or the scheduler")
    with ExitStack() as setting:
        # What goes wrong is told by what the futures raise.
        setting.enter_context(silence_logging_cmgr(logging.CRITICAL))
        # A network or an algorithm may be large.
        setting.enter_context(
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"})
        )
        client = _client(request, options, setting)
        has_timeout = request.task_timeout_s is not None
        workers = ClusterWorkers(client, needs_nannies=has_timeout)
        workers.check_all(_CONNECT_S)
        is_ours = not options.scheduler
        return ClusterExecutor(client, workers, request, setting.pop_all(), is_ours)


def _client(request: EngineRequest, options: DaskOptions, setting: ExitStack) -> Client:
    """A client, closed with the setting; the cluster behind it as well, where it is ours."""
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    from collhub_dask.local_cluster import local_cluster

    where: object = options.scheduler
    if options.scheduler:
        _check_scheduler(options.scheduler)
    else:
        count = min(request.workers, options.workers or os.cpu_count() or 1)
        where = setting.enter_context(local_cluster(count, options.memory))
    with warnings.catch_warnings():
        # Versions that matter are checked, and differences are errors.
        warnings.simplefilter("ignore", VersionMismatchWarning)
        client = Client(where, timeout=_CONNECT_S, set_as_default=False)
    setting.callback(client.close)
    return client


def _check_scheduler(address: str) -> None:
    """Raise `UsageError` with the reason where no scheduler answers at an address."""
    try:
        # In a thread: in a notebook, an event loop runs in this one.
        with ThreadPoolExecutor(1) as thread:
            kind = thread.submit(asyncio.run, _kind_of_server(address)).result()
    except TimeoutError:
        reason = f"no scheduler answered within {_CONNECT_S:.0f} s"
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
    # Whoever else listens there answers with bytes that may mean anything.
    except Exception:
        reason = "what answers there is no server of Dask"
    else:
        if kind == "Scheduler":
            return
        reason = f"a {kind.lower()} answered, not a scheduler"
    raise UsageError(f"the scheduler {address} cannot be reached: {reason}", cure=_CURE)


async def _kind_of_server(address: str) -> str:
    """`Scheduler`, `Worker` or `Nanny`, as a server of Dask calls itself."""
    from distributed import Security, rpc

    arguments = Security().get_connection_args("client")
    async with rpc(address, timeout=_CONNECT_S, connection_args=arguments) as server:
        found = await asyncio.wait_for(server.identity(), _CONNECT_S)
    return str(found["type"])
