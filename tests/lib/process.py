# SPDX-License-Identifier: BSD-3-Clause
"""Runs programs with a deadline, and leaves none of their children behind."""

import contextlib
import ctypes
import os
import resource
import selectors
import signal
import subprocess
import time

# Signals that end a run of tests.
STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Deadline(Exception):
    """The program did not end in time, and was killed."""


def say(line):
    print(line, flush=True)


PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def adopt_orphans():
    """From now on, processes that a program leaves running become our children."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes():
    """
    (pid, parent, state) of all processes. Lists of children in /proc lack some of those that
    run while others end (proc_tid_children(5)).
    """
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        fields = read_proc("/proc/%s/stat" % name).rpartition(")")[2].split()
        if fields:
            yield int(name), int(fields[1]), fields[0]


def children():
    """(pid, state, command line) of our children."""
    for pid, parent, state in processes():
        if parent == os.getpid():
            yield pid, state, read_proc("/proc/%d/cmdline" % pid).replace("\0", " ").strip()


def below(pid):
    """The descendants of a process, with their states, but those that have ended."""
    found = {}
    for child, parent, state in processes():
        found.setdefault(parent, []).append((child, state))
    above = [pid]
    while above:
        for child, state in found.get(above.pop(), []):
            above.append(child)
            if state not in "ZX":
                yield child, state


def processor_seconds():
    """Processor time of all programs that this process has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def reap(pid):
    """Reaps it, unless the thread that started it was faster."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def end_orphans(patience):
    """End the processes that a program left running, and return their command lines.

    Those that end by themselves within `patience` seconds are none.
    """
    until = time.monotonic() + patience
    ended = []
    while True:
        running = [(pid, line) for pid, state, line in children() if state != "Z"]
        if not running:
            break
        if time.monotonic() > until:
            # Their own orphans become our children, and are ended in the next round.
            for pid, line in running:
                os.kill(pid, signal.SIGKILL)
                reap(pid)
                ended.append(line)
        else:
            time.sleep(0.02)
    for pid, _, _ in list(children()):
        reap(pid)
    return ended


def kill_group(process):
    """End the program and its children: it leads a process group."""
    for number in signal.SIGTERM, signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(3)
    process.wait()


def lines_until(process, until):
    """The lines of a program's output, until it closes it or ends."""
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    buffered = b""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise Deadline
        if not selector.select(min(left, 0.2)):
            # A child that outlives the program may keep the pipe open. The program may
            # have written its last lines since the look at the pipe.
            if process.poll() is not None and not selector.select(0):
                break
            continue
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            break
        *lines, buffered = (buffered + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if buffered:
        yield buffered.decode(errors="replace")


def read_proc(path):
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def threads_of_session(session):
    """The folders in /proc of the threads of a session's processes."""
    for process in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if process.name.isdigit() and os.getsid(int(process.name)) == session:
                yield from (thread.path for thread in os.scandir(process.path + "/task"))


def describe_threads(session):
    """What each thread of a session does, for a program that does not end."""
    for thread in threads_of_session(session):
        state, *numbers = read_proc(thread + "/stat").rpartition(")")[2].split() or "?"
        used = sum(map(int, numbers[10:12])) / os.sysconf("SC_CLK_TCK")
        line = read_proc(thread + "/../../cmdline").replace("\0", " ")
        yield "# thread %s of %s: %s: state %s, %.1f s of processors, system call %s" % (
            thread.rpartition("/")[2], line, read_proc(thread + "/comm"), state, used,
            read_proc(thread + "/syscall") or "?")
        # For root only.
        yield from ("#   " + frame for frame in read_proc(thread + "/stack").splitlines())


def run(argv, seconds, on_line, env=None, cwd=None):
    """Run a program, give each line to on_line, return its exit status.

    Raises Deadline after killing it, when it takes longer than that.
    """
    until = time.monotonic() + seconds
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=env, cwd=cwd,
                               start_new_session=True)
    try:
        for line in lines_until(process, until):
            on_line(line)
        return process.wait(max(0.1, until - time.monotonic()))
    except (Deadline, subprocess.TimeoutExpired):
        for line in describe_threads(process.pid):
            on_line(line)
        raise Deadline from None
    finally:
        kill_group(process)
        process.stdout.close()
