# SPDX-License-Identifier: BSD-3-Clause
"""One member of a group, in a process of its own: what test_group.py starts.

    members.py KIND PLACE RANK SIZE

Makes two groups one after the other, exchanges bytes with all other members, and prints "done RANK".
"""

import datetime
import os
import sys

import pier
from support import PATIENCE


def store_of(kind, place, rank, size):
    """Each kind of store, as its own users make it."""
    if kind == "pier":
        host, port = place.rsplit(":", 1)
        return pier.TCPStore(host, int(port), timeout=PATIENCE)
    import torch.distributed
    timeout = datetime.timedelta(seconds=PATIENCE)
    if kind in ("file", "prefix"):
        store = torch.distributed.FileStore(place, size)
        return torch.distributed.PrefixStore("mine", store) if kind == "prefix" else store
    host, port = place.rsplit(":", 1)
    return torch.distributed.TCPStore(host, int(port), size, False, timeout=timeout)


def use(group):
    """Every rank writes its row into all others', which then have the whole table."""
    rank, size = group.rank, group.size
    table = bytearray(size * size)
    with group.pd.register(table) as region:
        table[rank * size:(rank + 1) * size] = bytes([rank + 1]) * size
        mine = region[rank * size:(rank + 1) * size]
        inbox = bytearray(size * 256)
        with group.pd.register(inbox) as letters:
            remote = region.remote.to_bytes()
            outbox = bytearray(remote)
            with group.pd.register(outbox) as letter:
                others = [other for other in range(size) if other != rank]
                requests = [pier.GroupRequest(other, letter, None, "send") for other in others]
                requests += [pier.GroupRequest(other, letters[other * 256:other * 256 + 256], None, "recv")
                             for other in others]
                results = group.exchange(requests, PATIENCE)
                lengths = [result.length for result in results[len(others):]]
                assert lengths == [len(remote)] * len(others), lengths
            remotes = {other: pier.Remote.from_bytes(inbox[other * 256:other * 256 + len(remote)])
                       for other in others}
            group.multicast(mine, [(other, remotes[other][rank * size:(rank + 1) * size]) for other in others],
                            timeout=PATIENCE)
            group.barrier(PATIENCE)
            expected = b"".join(bytes([other + 1]) * size for other in range(size))
            assert table == expected, table
            group.barrier(PATIENCE, algorithm="central", ranks=range(size))


def groups(kind, place, rank, size):
    """Two groups, one after the other: what forms a group works again."""
    if kind == "mpi":
        return (pier.Group.from_mpi(timeout=PATIENCE) for _ in range(2))
    if kind == "pmix":
        return (pier.Group.from_pmix(timeout=PATIENCE) for _ in range(2))
    if kind != "torchrun":
        store = store_of(kind, place, rank, size)
        return (pier.Group.from_store(store, rank, size, timeout=PATIENCE) for _ in range(2))
    import torch.distributed
    torch.distributed.init_process_group("gloo")
    store = torch.distributed.distributed_c10d._get_default_store()
    return (pier.Group.from_store(store, timeout=PATIENCE) for _ in range(2))


def main(kind, place, rank, size):
    for group in groups(kind, place, rank, size):
        with group:
            use(group)
            rank = group.rank
    # In one piece: the processes of a launcher share their output.
    os.write(1, b"done %d\n" % rank)


if __name__ == "__main__":
    os.environ.setdefault("PIER_DEVICE", "soft0")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
