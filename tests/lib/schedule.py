# SPDX-License-Identifier: BSD-3-Clause
"""Runs tasks in parallel.

Each task runs in a process of its own, which adopts what its programs leave running, so
that nothing is blamed on a neighbour. What a task prints appears when it has ended.
"""

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait

from process import STOPS, adopt_orphans, end_orphans, say

PR_SET_PDEATHSIG = 1  # prctl(2)
FORK = multiprocessing.get_context("fork")
# The time that an interrupted task has to end its programs before it is killed.
STOP_SECONDS = 20
# With more tasks, the tests' own deadlines would be too short.
MOST_AT_ONCE = 8
# So often one more task than there are slots may start, if a processor is idle.
LOOK_SECONDS = 0.5


class Interrupted(Exception):
    """Ctrl-C, or a signal that ends the run."""


def interrupted(number, frame):
    for other in STOPS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def stop_on_signals():
    for number in STOPS:
        signal.signal(number, interrupted)


def default_slots():
    """Twice the number of processors, because programs often wait."""
    return min(MOST_AT_ONCE, 2 * len(os.sched_getaffinity(0)))


def has_idle_processor():
    """Whether fewer threads than processors want to run now (proc_loadavg(5)), without this."""
    with open("/proc/loadavg") as file:
        running = int(file.read().split()[3].partition("/")[0])
    return running - 1 < len(os.sched_getaffinity(0))


class Task:
    """Work for a separate process: work(slots) runs there, and its result is passed to done().

    One that is alone runs when all others have ended, and prints at once; an urgent one
    starts as soon as those that run have ended. A build is what others wait for: one runs
    at a time, in all slots but one, which is left to a program if there is one. Tasks of
    higher priority start first: long ones. start() is called before, in the scheduler's
    process, as done() is: with a Failure if there is no result.
    """

    def __init__(self, name, work, done, start=lambda: None, alone=False, build=False, urgent=False,
                 priority=0):
        self.name = name
        self.work = work
        self.done = done
        self.start = start
        self.priority = priority
        self.alone = alone or urgent
        self.build = build
        self.urgent = urgent


class Failure:
    """The result of a task that ended without one."""

    def __init__(self, reason):
        self.reason = reason


class Child:
    """The process of a task that is running."""

    def __init__(self, task, slots):
        self.task = task
        self.slots = slots
        self.output = None if task.alone else tempfile.TemporaryFile()
        self.reader, writer = FORK.Pipe(duplex=False)
        sys.stdout.flush()
        self.process = FORK.Process(target=self.run, args=(writer,))
        self.process.start()
        writer.close()

    def run(self, writer):
        """Runs in the child."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        stop_on_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        adopt_orphans()
        if self.output:
            os.dup2(self.output.fileno(), 1)
            os.dup2(self.output.fileno(), 2)
        try:
            result = self.task.work(self.slots)
        except Interrupted:
            end_orphans(0)
            result = Failure("interrupted")
        except BaseException as error:
            traceback.print_exc()
            result = Failure(repr(error))
        writer.send(result)

    def end(self):
        """Show its output, and return the result."""
        result = None
        with contextlib.suppress(EOFError, OSError):
            result = self.reader.recv()
        self.reader.close()
        self.process.join()
        self.show()
        if result is None:
            return Failure("its process ended with status %d" % self.process.exitcode)
        return result

    def show(self):
        if self.output:
            sys.stdout.flush()
            self.output.seek(0)
            shutil.copyfileobj(self.output, sys.stdout.buffer)
            self.output.close()
            sys.stdout.flush()


class Scheduler:
    """Runs builds first, then tasks of higher priority, else in the order of adding them.

    As many run at once as there are slots, and more while processors are idle.
    """

    def __init__(self, slots, has_idle=has_idle_processor):
        self.slots = slots
        self.has_idle = has_idle
        self.next_look = time.monotonic() + LOOK_SECONDS
        self.tasks = []
        self.children = []

    def add(self, task):
        self.tasks.append(task)

    def next_task(self):
        """The first task that can run beside the running ones, or None."""
        urgent = [task for task in self.tasks if task.urgent]
        if urgent:
            return None if self.children else urgent[0]
        building = any(child.task.build for child in self.children)
        builds = [task for task in self.tasks if task.build]
        programs = [task for task in self.tasks if not task.build and not task.alone]
        if builds and not building:
            return builds[0]
        if programs:
            return max(programs, key=lambda task: task.priority)  # the first of them
        return None if self.children or not self.tasks else self.tasks[0]

    def used(self):
        return sum(child.slots for child in self.children)

    def start_next(self, free):
        """Start a task if there is one that can start now, in this number of slots."""
        if any(child.task.alone for child in self.children):
            free = 0
        task = self.next_task() if free > 0 else None
        if not task:
            return False
        self.tasks.remove(task)
        has_company = self.children or not all(other.build or other.alone for other in self.tasks)
        slots = self.slots if task.alone or task.build else 1
        if task.build and has_company:
            slots = max(1, self.slots - 1)
        task.start()
        # An interrupt that comes while the child is made must find it in the list.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            self.children.append(Child(task, slots))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        return True

    def run(self):
        """Run all tasks, including those that done() adds."""
        try:
            while self.start_next(self.slots - self.used()) or self.children:
                while self.start_next(self.slots - self.used()):
                    pass
                self.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self):
        """Until a task has ended, or it is time to look for idle processors."""
        left = max(0, self.next_look - time.monotonic())
        ready = wait([child.reader for child in self.children], left if self.tasks else None)
        for child in [child for child in self.children if child.reader in ready]:
            self.children.remove(child)
            child.task.done(child.end())
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + LOOK_SECONDS
            if self.has_idle():
                self.start_next(MOST_AT_ONCE - self.used())

    def stop(self):
        """End all tasks and their programs."""
        for child in self.children:
            child.process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for child in self.children:
            child.process.join(max(0, until - time.monotonic()))
            child.process.kill()
            child.process.join()
            child.show()
            say("-- stopped: %s" % child.task.name)
        end_orphans(0)
