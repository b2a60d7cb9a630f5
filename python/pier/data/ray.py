# SPDX-License-Identifier: BSD-3-Clause
"""Data sets on a Ray cluster: servers and loaders as actors, which Ray places, restarts and discovers.

    ray.init()
    servers = pier.data.ray.start_servers("imagenet", ["/data/imagenet"], count=4, resources={"data": 1})
    loaders = pier.data.ray.start_loaders("imagenet", count=8, batch_size=64, num_gpus=1, memory="cuda:0")
    results, states = zip(*ray.get([loader.run.remote(train, None) for loader in loaders]))

The names of the actors are those of Ray in the current namespace: "pier.data/imagenet/0"...
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import ray
import ray.util
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from .batch import Batch
from .loader import Loader
from .server import Server

# Ray restarts an actor as often as it dies, and repeats calls that it interrupted.
_FOREVER = -1
_PREFIX = "pier.data/"


class ServerActor:
    """A server on one node. Its URL changes when Ray restarts it."""

    def __init__(self, paths: Sequence[str], options: dict[str, Any]) -> None:
        """The arguments are those of Server. It listens on the address by which the other nodes reach this one."""
        address = ray.util.get_node_ip_address()
        listen = "[%s]:0" % address if ":" in address else "%s:0" % address
        self._server = Server(*paths, **{"listen": listen, **options})

    def url(self) -> str:
        """Return the URL for clients."""
        return self._server.url

    def clients(self) -> int:
        """Return the number of clients that are connected."""
        return self._server.clients

    def node(self) -> str:
        """Return Ray's name of the node on which it runs."""
        return str(ray.get_runtime_context().get_node_id())

    def process(self) -> int:
        """Return the number of its process on that node."""
        return os.getpid()


class LoaderActor:
    """A loader on one node, where its batches are used."""

    def __init__(self, name: str, batch_size: int, options: dict[str, Any]) -> None:
        """name: that of the servers, which are found again whenever one is lost."""
        # Ray needs longer than the default of Loader to start a server elsewhere.
        self._loader = Loader(lambda: server_urls(name), batch_size, **{"timeout": 120.0, **options})

    def run(self, function: Callable[[Batch], Any], state: dict[str, Any] | None, batches: int | None = None) -> Any:
        """Call a function with each batch of the rest of the epoch, here.

        function  what it returns is sent to the caller. The batch is released afterwards
        state     where to begin: what an earlier call returned; None: where the loader is
        batches   at most this many

        Returns a list of results and the state behind the last batch. If Ray restarts the actor, it repeats the call,
        and the loader of the new process begins at the same state.
        """
        if state is not None:
            self._loader.load_state_dict(state)
        results: list[Any] = []
        iterator = iter(self._loader)
        while batches is None or len(results) < batches:
            batch = next(iterator, None)
            if batch is None:
                break
            with batch:
                results.append(function(batch))
        return results, self._loader.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is."""
        return self._loader.state_dict()

    def stats(self) -> dict[str, Any]:
        """Return the counts of the loader."""
        return self._loader.stats()


class Actors(list[Any]):
    """Handles of actors that were placed together."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self._group = group

    def stop(self) -> None:
        """End the actors and give back what they had reserved."""
        for actor in self:
            ray.kill(actor)
        remove_placement_group(self._group)


def start_servers(name: str, paths: Sequence[str], count: int = 1, *, num_cpus: float = 1,
                  resources: dict[str, float] | None = None, strategy: str = "SPREAD", timeout: float = 60.0,
                  **options: Any) -> Actors:
    """Start servers of the same data set.

    name       by which loaders find them
    paths      on the nodes of the servers
    resources  that a node must have, such as {"data": 1} of those that have the files
    strategy   of Ray's placement group: "SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"
    timeout    in seconds, for Ray to have the resources. The data may take longer to load
    options    for Server

    Returns when they serve. Raises the errors of Server as ray.exceptions.RayActorError, GetTimeoutError if the
    cluster does not have the resources in time, ValueError if there are servers of this name.
    """
    if _names(name):
        raise ValueError("there are servers of the name %r: stop them, or choose another name" % name)
    arguments = [([str(path) for path in paths], options)] * count
    bundle = _bundle(num_cpus, 0, resources)
    actors = _start(ServerActor, _PREFIX + name + "/%d", arguments, strategy, bundle, timeout)
    ray.get([actor.url.remote() for actor in actors])
    return actors


def start_loaders(name: str, batch_size: int, count: int = 1, *, num_cpus: float = 1, num_gpus: float = 0,
                  resources: dict[str, float] | None = None, strategy: str = "SPREAD",
                  start_timeout: float = 60.0, **options: Any) -> Actors:
    """Start a loader for each of `count` ranks.

    name                 of the servers
    num_cpus, num_gpus, resources, strategy
                         what Ray reserves for a loader, and how it places them
    start_timeout        in seconds, for Ray to have the resources
    batch_size, options  for Loader; rank and world are set

    Raises GetTimeoutError if the cluster does not have the resources in time.
    """
    arguments = [(name, batch_size, {**options, "rank": rank, "world": count}) for rank in range(count)]
    return _start(LoaderActor, None, arguments, strategy, _bundle(num_cpus, num_gpus, resources), start_timeout)


def server_urls(name: str, timeout: float = 60.0) -> list[str]:
    """Return the URLs of the servers of a name that run now.

    timeout  in seconds, to wait for the first one

    Raises LookupError if there is none in time.
    """
    calls: list[Any] = []
    for actor in _names(name):
        # It can end meanwhile.
        with contextlib.suppress(ValueError):
            calls.append(ray.get_actor(actor).url.remote())
    # One that is being restarted answers later.
    done = ray.wait(calls, num_returns=len(calls), timeout=1.0)[0] if calls else []
    done = done or (ray.wait(calls, timeout=timeout)[0] if calls else [])
    urls = []
    for call in done:
        with contextlib.suppress(ray.exceptions.RayError):
            urls.append(ray.get(call))
    if not urls:
        raise LookupError("no server of the name %r runs: start_servers() starts them" % name)
    return urls


def _names(name: str) -> list[str]:
    return sorted(actor for actor in ray.util.list_named_actors() if actor.startswith(_PREFIX + name + "/"))


def _bundle(num_cpus: float, num_gpus: float, resources: dict[str, float] | None) -> dict[str, float]:
    return {key: value for key, value in {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}.items() if value}


def _start(kind: type, name: str | None, arguments: list[Any], strategy: str, bundle: dict[str, float],
           timeout: float) -> Actors:
    """Start an actor in each bundle of a placement group. name: with a place for its number, or None."""
    group = placement_group([bundle] * len(arguments), strategy=strategy)
    actors = Actors(group)
    resources = {key: value for key, value in bundle.items() if key not in ("CPU", "GPU")}
    try:
        ray.get(group.ready(), timeout=timeout)
        for number, values in enumerate(arguments):
            actors.append(ray.remote(kind).options(
                name=name % number if name else None, num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0),
                resources=resources, max_restarts=_FOREVER, max_task_retries=_FOREVER,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, number)).remote(*values))
    except BaseException:
        actors.stop()
        raise
    return actors
