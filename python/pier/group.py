# SPDX-License-Identifier: BSD-3-Clause
"""Groups of processes, found through what their launcher offers.

Each member makes a blob for each other one (Group.endpoints()), and all of them have to be exchanged
before the group can connect. With soft0 the blobs have the secrets by which channels authenticate,
and none of the exchanges below encrypts them: use a store, an MPI or a PMIx that only this job can read.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, Unpack

from . import _pier, _rendezvous
from ._peers import Pauses
from ._types import ConnectionOptions, GroupRequest, Result

_Locals = _pier.Region | _pier.Span | Sequence[_pier.Region | _pier.Span] | None

# Buffers of exchanges that were given up, which MPI still writes to.
_abandoned: list[object] = []
_pmix_generation = itertools.count()
_SIZE_SECONDS = 10.0  # for the size of the job, which the server has
_pmix_client: Any = None  # init() works once in a process: the bindings start their thread again


class Group(_pier.Group):
    """Processes with a channel to each other: Group(pd, rank, size, *, barrier="dissemination", **attributes).

    pd: the protection domain of the channels
    rank, size: of this member, and the number of members
    barrier: "dissemination", "central" or "binary_tree", the same in all members
    attributes: those of Channel

    from_store(), from_mpi() and from_pmix() make connected groups. Otherwise exchange endpoints() by any
    means and call connect(), or call handshake(). One thread at a time may be inside a call of a group;
    others wait. A child of fork() must create its own group (Forked).
    """

    __slots__ = ()

    @classmethod
    def from_store(cls, store: Any, rank: int | None = None, size: int | None = None, *,
                   pd: _pier.ProtectionDomain | _pier.Device | str | None = None, name: str = "pier",
                   timeout: float = 30.0, **attributes: Unpack[ConnectionOptions]) -> Self:
        """Make a connected group through a store of keys and values. All members call it.

        store: a store of torch.distributed (TCPStore, FileStore, HashStore, PrefixStore), a pier.TCPStore,
        or any object with set(key, bytes) and get(key) -> bytes. With check([key]) or add(key, number) no
        get() waits; otherwise get() must wait, return None, or raise KeyError or TimeoutError
        rank, size: None: of the environment variables RANK and WORLD_SIZE, which torchrun sets
        pd: a ProtectionDomain; or a Device, the name of one or None, for a protection domain of its own
        name: of the group, the same in all members. A name can be used again, also after a failure;
        groups that form at the same time need different names
        timeout: in seconds, for everything
        attributes: those of Group

        The keys begin with the name. If the store can delete (delete_key()), none is left of a group that
        has formed. Whoever can read the store can connect as a member: see the module.

        Raises TimedOut, which names the ranks that did not come, and the errors of Group.connect().
        """
        rank, size = _member(rank, "RANK"), _member(size, "WORLD_SIZE")
        deadline = time.monotonic() + timeout
        return cls._make(pd, rank, size, attributes, deadline, lambda blobs: _rendezvous.exchange(
            store, name, rank, size, blobs, deadline))

    @classmethod
    def from_mpi(cls, comm: Any = None, *, pd: _pier.ProtectionDomain | _pier.Device | str | None = None,
                 timeout: float = 30.0, **attributes: Unpack[ConnectionOptions]) -> Self:
        """Make a connected group of the members of an MPI communicator of mpi4py. All members call it.

        comm: None: MPI.COMM_WORLD
        pd, timeout, attributes: as for from_store()

        After a timeout MPI cannot take back the exchange: abort the job, or never use comm again.
        """
        if comm is None:
            from mpi4py import MPI
            comm = MPI.COMM_WORLD
        deadline = time.monotonic() + timeout
        return cls._make(pd, comm.Get_rank(), comm.Get_size(), attributes, deadline,
                         lambda blobs: _exchange_by_mpi(comm, blobs, deadline))

    @classmethod
    def from_pmix(cls, client: Any = None, *, pd: _pier.ProtectionDomain | _pier.Device | str | None = None,
                  timeout: float = 30.0, **attributes: Unpack[ConnectionOptions]) -> Self:
        """Make a connected group of the processes of a PMIx job (srun --mpi=pmix, prterun, mpirun).

        client: a pmix.PMIxClient; None: one that is made at the first call, and kept. A program that calls
        init() itself must give its client, since the bindings allow one init() in a process
        pd, timeout, attributes: as for from_store()

        Needs the Python bindings of PMIx (Debian: python3-pmix). All members make their groups in the same
        order.
        """
        deadline = time.monotonic() + timeout
        job = _PMIx(client)
        return cls._make(pd, job.rank, job.size(), attributes, deadline,
                         lambda blobs: job.exchange(blobs, deadline))

    @classmethod
    def _make(cls, pd: _pier.ProtectionDomain | _pier.Device | str | None, rank: int, size: int,
              attributes: ConnectionOptions, deadline: float, exchange: Callable[[bytes], bytes | bytearray]) -> Self:
        if not isinstance(pd, _pier.ProtectionDomain):
            pd = _pier.ProtectionDomain(pd)
        group = cls(pd, rank, size, **attributes)
        try:
            blobs = exchange(group.endpoints())
            group.connect(blobs, max(deadline - time.monotonic(), 0.0))
        except BaseException:
            group.close()
            raise
        return group

    def multicast(self, local: _Locals, targets: Iterable[int | tuple[int, _pier.Remote]], *,
                  opcode: str = "write", immediate: int | None = None, timeout: float | None = None) -> list[Result]:
        """Write or send the same memory to several ranks at once: exchange() with one local memory.

        targets: (rank, Remote) for writes, ranks for sends
        """
        pairs = (target if isinstance(target, tuple) else (target, None) for target in targets)
        return self.exchange([GroupRequest(rank, local, remote, opcode, immediate) for rank, remote in pairs],
                             timeout)


def _member(number: int | None, variable: str) -> int:
    if number is not None:
        return number
    try:
        return int(os.environ[variable])
    except KeyError:
        raise ValueError("no %s was given, and the environment has none: launch with torchrun, or give the rank "
                         "and the size" % variable) from None


def _exchange_by_mpi(comm: Any, blobs: bytes, deadline: float) -> bytearray:
    theirs = bytearray(len(blobs))
    request = comm.Ialltoall(blobs, theirs)
    pauses = Pauses(deadline)
    while not request.Test():
        if not pauses.sleep():
            _abandoned.append((request, blobs, theirs))
            raise _rendezvous.timed_out("MPI: not all of the %d ranks exchanged their endpoints in time"
                                        % comm.Get_size())
    return theirs


class _PMIx:
    """The exchange through PMIx: its standard, chapter "Process-Related Non-Reserved Keys"."""

    def __init__(self, client: Any) -> None:
        import pmix
        self.pmix = pmix
        try:
            # The server of PMIx sets them for each process.
            self.nspace, self.rank = os.environ["PMIX_NAMESPACE"], int(os.environ["PMIX_RANK"])
        except KeyError as name:
            raise ValueError("no %s in the environment: the launcher has no PMIx" % name) from None
        self.client = client or self.own_client()

    def own_client(self) -> Any:
        global _pmix_client
        if _pmix_client is None:
            self.client = self.pmix.PMIxClient()
            self.check(self.client.init([])[0], "init()")
            _pmix_client = self.client
        return _pmix_client

    def check(self, status: int, step: str) -> None:
        if status != self.pmix.PMIX_SUCCESS:
            raise _pier.BadMessage(errno.EPROTO, "PMIx: %s: %s" % (step, self.client.error_string(status)))

    def get(self, rank: int, key: str, deadline: float) -> Any:
        """Wait for a key. That of a process that has committed others is not found until it commits again."""
        while True:
            seconds = max(1, round(deadline - time.monotonic()))
            # Without flags, the bindings leave what is in the memory there (pmix_load_info() of pmix.pyx):
            # a bit of it can make the search find nothing.
            timeout = {"key": self.pmix.PMIX_TIMEOUT, "flags": 0, "value": seconds, "val_type": self.pmix.PMIX_INT}
            status, value = self.client.get({"nspace": self.nspace, "rank": rank}, key, [timeout])
            if status != self.pmix.PMIX_ERR_NOT_FOUND or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if status in (self.pmix.PMIX_ERR_TIMEOUT, self.pmix.PMIX_ERR_NOT_FOUND):
            raise _rendezvous.timed_out("PMIx: %s of rank %d did not come in time" % (key, rank))
        self.check(status, "get() of %s of rank %d" % (key, rank))
        return value["value"]

    def size(self) -> int:
        return int(self.get(self.pmix.PMIX_RANK_WILDCARD, self.pmix.PMIX_JOB_SIZE.decode(),
                            time.monotonic() + _SIZE_SECONDS))

    def exchange(self, blobs: bytes, deadline: float) -> bytes:
        """get() waits for the other process, so no fence is needed, which would have no deadline."""
        key = "pier.%d.%%d" % next(_pmix_generation)
        length = len(blobs) // self.size()
        for rank in range(self.size()):
            # As text: byte objects differ between versions of the bindings.
            text = blobs[rank * length:(rank + 1) * length].hex()
            value = {"value": text, "val_type": self.pmix.PMIX_STRING}
            self.check(self.client.put(self.pmix.PMIX_GLOBAL, key % rank, value), "put()")
        self.check(self.client.commit(), "commit()")
        texts = (self.get(rank, key % self.rank, deadline) for rank in range(self.size()))
        return b"".join(map(bytes.fromhex, texts))
