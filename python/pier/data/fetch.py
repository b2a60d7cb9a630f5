# SPDX-License-Identifier: BSD-3-Clause
"""The thread of a loader that keeps the slots of its ring filled."""

import collections
import contextlib
import errno
import queue
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .. import BadMessage, ConnectionLost, Error, Ring, RingSlot, _pier
from .._peers import printable
from .batch import Event
from .order import Order
from .replicas import Replica, Replicas

# In seconds. A thread that waits looks after the servers as often as this, and a busy one as the next.
_PATIENCE = 0.1
_CHECK_INTERVAL = 0.01
# How often events are asked while the thread waits.
_EVENT_INTERVAL = 0.001

# Events of loaders that were closed, and the slots that devices still read: their memory must last.
_unfired: list[tuple[Event, RingSlot]] = []


class Plan:
    """A batch that is read, or will be."""

    __slots__ = ("attempts", "epoch", "error", "number", "reads", "replica", "samples", "slot")

    def __init__(self, order: Order, number: int, table: memoryview, align: int) -> None:
        self.epoch, self.number, self.samples = order.epoch, number, order.batch(number)
        self.reads: bytes = _pier._plan_reads(self.samples, table, align)
        self.slot = -1
        """The number of its slot in the ring."""
        self.replica: Replica | None = None
        self.error: Error | None = None
        """Of the server, if the reads must be repeated."""
        self.attempts = 0

    @property
    def server(self) -> str:
        """The URL of the server, without its token."""
        return self.replica.name if self.replica else ""

    @property
    def offsets(self) -> memoryview:
        """Where each sample begins in the slot, in bytes."""
        return memoryview(self.reads).cast("Q")[::4]

    @property
    def lengths(self) -> memoryview:
        """The length of each sample, in bytes."""
        return memoryview(self.reads).cast("Q")[2::4]


class Failure(NamedTuple):
    """Takes the place of a batch in the queue: the consumer raises the error."""

    error: BaseException
    batches: int = 0
    """That are lost."""
    is_last: bool = False
    """Whether nothing follows."""


class Fetcher:
    """Fills slots in the order of the plans, and puts each into the queue ``ready`` as (slot, plan), or a Failure.

    Its thread alone uses the ring and the servers; any thread releases slots. ``start()``, ``stop()`` and ``close()``
    are called by one thread at a time.
    """

    def __init__(self, ring: Ring, replicas: Replicas, retries: int) -> None:
        self.ready: queue.SimpleQueue[tuple[RingSlot, Plan] | Failure] = queue.SimpleQueue()
        self.counts: collections.Counter[str] = collections.Counter()
        self._ring, self._replicas, self._retries = ring, replicas, retries
        self._plans: Iterator[Plan] = iter(())
        self._next_plan: Plan | None = None  # could not be begun yet
        self._flying: collections.deque[Plan] = collections.deque()  # in the order in which they began
        self._abandoned = 0  # the first ones of them, which the consumer does not want any more
        self._events: list[tuple[Event, RingSlot]] = []  # of batches that were released
        self._thread: threading.Thread | None = None
        self._stopping = self._closing = False
        # Not a threading.Event: wake() may be called by the garbage collector, in any thread at any point.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._next_check = 0.0
        self._turn = 0
        replicas.attach(ring, self.wake)

    def start(self, plans: Iterable[Plan]) -> None:
        """Begin to fetch these plans, in this order."""
        self._plans, self._next_plan, self._stopping = iter(plans), None, False
        self._thread = threading.Thread(target=self._run, daemon=True, name="pier loader")
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether start() was called after the last stop()."""
        return self._thread is not None

    @property
    def failovers(self) -> int:
        """How often a server was given up."""
        return self._replicas.failovers

    def stop(self) -> None:
        """End the thread, and forget what it has fetched. Reads in flight end by themselves."""
        if self._thread:
            self._stopping = True
            self.wake()
            self._thread.join()
            self._thread = None
        while not self.ready.empty():
            self.ready.get()
        self._abandoned = len(self._flying)

    def close(self) -> None:
        """Stop, and close the connections and the ring. The memory lasts until the last slot is released.

        The garbage collector may call it, also in the thread, which then closes when it ends.
        """
        if self._thread is threading.current_thread():
            self._stopping = self._closing = True
            return
        self.stop()
        _unfired.extend(self._events)
        self._events = []
        with contextlib.suppress(Exception):
            _release_fired(_unfired)
        self._replicas.close()
        self._ring.close()

    def wake(self) -> None:
        """End a wait of the thread. Any thread."""
        self._wakeups.put(None)
        self._ring.wake()

    def keep_until(self, event: Event, slot: RingSlot) -> None:
        """Hold a slot until the event has fired. Any thread."""
        self._events.append((event, slot))
        self.wake()

    def is_kept(self, slot: RingSlot) -> bool:
        """Whether an event of this slot has not fired yet. Any thread."""
        return any(kept is slot for _, kept in self._events[:])

    def waiting_for(self) -> str:
        """Return what the next batch waits for; "": a free slot. Any thread."""
        plan = next(iter(self._flying.copy()), None)
        if plan and not plan.error:
            return "batch %d of epoch %d has not arrived from %s" % (plan.number, plan.epoch, plan.server)
        if plan or not self._replicas.live():
            return "no server answers: %s" % self._replicas.describe()
        return ""

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._look_after()
                # One fill at a time: soft0 copies in begin(), and the consumer may wait for a batch that is complete.
                has_begun = self._begin_fill()
                if not self._deliver() and not has_begun:
                    self._wait()
        except BaseException as error:  # the consumer raises it
            self.ready.put(Failure(error, is_last=True))
        if self._closing:
            self._thread = None
            self.close()

    def _look_after(self) -> None:
        """Do what is due beside the fills of servers that live."""
        if self._events:
            _release_fired(self._events)
        now = time.monotonic()
        if now >= self._next_check or not self._wakeups.empty():
            while not self._wakeups.empty():
                self._wakeups.get()
            self._next_check = now + _CHECK_INTERVAL
            for replica, error in self._replicas.refresh():
                self._fail(replica, error)
            self._repeat_reads()

    def _wait(self) -> None:
        patience = _EVENT_INTERVAL if self._events else _PATIENCE
        if self._flying and self._flying[0].error:
            # The ring has nothing to wait for: its oldest fill has failed.
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=patience)
        elif self._wakeups.empty():
            self._ring.wait(patience)

    def _begin_fill(self) -> bool:
        """Begin to fill a slot, if one is free and a server lives."""
        if not self._ring.free:
            return False
        plan = self._next_plan = self._next_plan or next(self._plans, None)
        replica = self._pick_replica()
        if not plan or not replica or not replica.sources:
            return False
        try:
            plan.slot = self._ring.begin(replica.sources, plan.reads)
        except ConnectionLost as error:
            self._fail(replica, error)
            return True
        plan.replica, self._next_plan = replica, None
        self._flying.append(plan)
        return True

    def _pick_replica(self) -> Replica | None:
        """Return the live server with the fewest batches to deliver, in turn; None if none lives."""
        live = self._replicas.live()
        if len(live) < 2:
            return live[0] if live else None
        busy = [plan.replica for plan in self._flying]
        replica = min(live, key=lambda replica: (busy.count(replica), replica.turn))
        self._turn += 1
        replica.turn = self._turn
        return replica

    def _deliver(self) -> bool:
        """Queue the oldest batch if it is complete. Return whether there may be more to do at once."""
        if not self._flying or self._flying[0].error:
            return False
        plan = self._flying[0]
        assert plan.replica
        try:
            slot = self._ring.next(0)
        except Error as error:
            if not self._ring.missing(plan.slot):
                raise  # no server's fault: the device does not see what has arrived
            self._fail(plan.replica, error)
            return True
        if slot is None:
            return False
        self._flying.popleft()
        plan.replica.failures = 0
        if self._abandoned:
            self._abandoned -= 1
        else:
            self.ready.put(self._checked(slot, plan))
        return True

    def _fail(self, replica: Replica, error: Error) -> None:
        """Give up a server, and repeat its reads."""
        self._drop(replica, error)
        self._repeat_reads()

    def _drop(self, replica: Replica, error: Error) -> None:
        self._replicas.drop(replica, error)
        for plan in self._flying:
            if plan.replica is replica:
                plan.error = error

    def _repeat_reads(self) -> None:
        """Repeat the reads that had not arrived when a server failed: on another one, or on the same one later."""
        while plan := next((plan for plan in self._flying if plan.error), None):
            replica = self._pick_replica()
            if not replica or not replica.sources:
                return
            try:
                # Nothing is repeated if the last read had arrived after all.
                if self._ring.retry(plan.slot, replica.sources):
                    self._count_retry(plan)
                    plan.replica = replica
                plan.error = None
            except ConnectionLost as error:
                self._drop(replica, error)

    def _count_retry(self, plan: Plan) -> None:
        self.counts["retries"] += 1
        plan.attempts += 1
        error = plan.error
        if plan.attempts > self._retries and error:
            self.ready.put(Failure(type(error)(
                error.errno, "batch %d of epoch %d: attempt %d to read it, from %s, failed: %s"
                % (plan.number, plan.epoch, plan.attempts, plan.server, error.strerror))))
            plan.attempts = 0

    def _checked(self, slot: RingSlot, plan: Plan) -> tuple[RingSlot, Plan] | Failure:
        """Return the Failure if a sample of the batch has another checksum than the server's."""
        checksums = self._replicas.checksums
        if checksums is None:
            return slot, plan
        for sample, offset, length in zip(plan.samples, plan.offsets, plan.lengths):
            if zlib.crc32(self._bytes(slot, offset, length)) != checksums[sample]:
                return Failure(BadMessage(
                    errno.EBADMSG, "sample %d (%s) of batch %d of epoch %d has another checksum than at its server, "
                    "%s: its memory, or that of this machine, is damaged" % (
                        sample, printable(self._replicas.key(sample)), plan.number, plan.epoch, plan.server)),
                    batches=1)
        return slot, plan

    def _bytes(self, slot: RingSlot, offset: int, length: int) -> "bytes | memoryview":
        if self._ring.mappable:
            return memoryview(slot.view((length,), "uint8", offset))
        self.counts.update(copies=1, copied_bytes=length)
        return slot.copy_from(offset, length)


def _release_fired(events: list[tuple[Event, RingSlot]]) -> None:
    # Other threads append meanwhile.
    for entry in events[:]:
        has_fired = True
        try:
            has_fired = entry[0].query()
        finally:
            if has_fired:
                events.remove(entry)
