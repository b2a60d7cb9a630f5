# SPDX-License-Identifier: BSD-3-Clause
"""Waiting in event loops: what `await work` and `await transfer` do.

An event loop has one watch for each completion queue. It arms the queue and then lets the loop
sleep on its fd. Arming clears the readiness of the fd, so after a thread or another loop has armed
the queue, the extension calls wake(), and the watch checks all requests that it waits for.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._pier import Channel, Transfer, Work
    from ._types import Result

# How often a transfer is driven that no event drives: it may have stalled.
_DRIVE_SECONDS = 0.2

# By loop, the watches by the owner of their queue: a Channel or a Group.
_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, _Watch]] = weakref.WeakKeyDictionary()


class _Watch:
    """The futures of one event loop that depend on one completion queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: Channel) -> None:
        self.loop = loop
        self.channel = channel
        self.checks: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.armed = False  # since the last event of the fd
        # A duplicate: the channel may be closed, and its fd reused, before the loop forgets it.
        self.fd = os.dup(channel.fileno())
        self.wake = self._wake  # one object: a bound method is a new one each time
        try:
            channel._watch(self.wake)
        except BaseException:
            os.close(self.fd)
            raise
        loop.add_reader(self.fd, self.arm)

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.loop.remove_reader(self.fd)
        os.close(self.fd)
        self.channel._unwatch(self.wake)

    def _wake(self) -> None:
        """Called by any thread."""
        try:
            self.loop.call_soon_threadsafe(self.check)
        except RuntimeError:
            pass  # the loop is closed

    def check(self) -> bool:
        """Complete the futures whose check holds. Return whether there are others."""
        pending = False
        for future, check in list(self.checks.items()):
            if future.done():
                continue
            try:
                if check():
                    future.set_result(None)
                else:
                    pending = True
            except Exception as error:
                future.set_exception(error)
        return pending

    def arm(self) -> None:
        """Check and arm the queue, and let the loop sleep."""
        self.armed = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        try:
            while self.check() and self.channel._arm(self.wake):
                pass
            self.armed = True
            seconds = self.channel.next_poll()
        except Exception as error:  # the channel was closed, or its device is gone
            for future in self.checks:
                if not future.done():
                    future.set_exception(error)
            return
        if seconds is not None:
            self.timer = self.loop.call_later(seconds, self.arm)


def _watch(loop: asyncio.AbstractEventLoop, channel: Channel) -> _Watch:
    watches = _watches.setdefault(loop, {})
    owner = channel._owner
    watch = watches.get(owner)
    if watch is None:
        watch = watches[owner] = _Watch(loop, channel)
    return watch


def _leave(watch: _Watch, future: asyncio.Future[None]) -> None:
    watch.checks.pop(future, None)
    if not watch.checks:
        watches = _watches[watch.loop]
        del watches[watch.channel._owner]
        watch.end()


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _until(check: Callable[[], bool], channels: Iterable[Channel], seconds: float) -> bool:
    """Wait until the check holds. Return False after so many seconds."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("await needs a loop of asyncio, such as uvloop's: with trio and others, wait for "
                           "channel.fileno(), or call wait() in a thread") from None
    future: asyncio.Future[None] = loop.create_future()
    watches = []
    timer = loop.call_later(seconds, _end, future)
    try:
        for channel in channels:
            watch = _watch(loop, channel)
            # Rails can share a channel, and channels of a group a queue.
            if watch not in watches:
                watches.append(watch)
                watch.checks[future] = check
        for watch in watches:
            if not watch.armed:
                watch.arm()
        await future
    finally:
        timer.cancel()
        for watch in watches:
            _leave(watch, future)
    return check()


async def _await_work(work: Work) -> Result:
    if not work.done():
        await _until(work.done, [work.channel], work.channel._timeout)
    # When the time is over, this stops the channel and raises TimedOut.
    return work._end_wait()


def await_work(work: Work) -> Generator[None, None, Result]:
    return _await_work(work).__await__()


async def _await_transfer(transfer: Transfer) -> None:
    while not transfer.advance():
        await _until(transfer.advance, transfer.channels, _DRIVE_SECONDS)


def await_transfer(transfer: Transfer) -> Generator[None, None, None]:
    return _await_transfer(transfer).__await__()
