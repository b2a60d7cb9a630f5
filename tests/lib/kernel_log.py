# SPDX-License-Identifier: BSD-3-Clause
"""Checks the log of the guest's kernel: part of the vm suite's verdict."""

import re

# The formats of dmesg -x, and of the console of a guest that died early.
LINE = re.compile(r"^(?:\w+ *:(\w+) *: )?\[ *[\d.]+\] ?(.*)$")
SEVERE = {"emerg", "alert", "crit", "err", "warn"}
# Errors at any level, even if ALLOWED matches.
BAD = re.compile(r"WARNING:|BUG:|BUG |Oops|Call Trace:|Kernel panic|KFENCE|KASAN|UBSAN|refcount_t:"
                 r"|possible (circular|recursive)|suspicious RCU|general protection fault"
                 r"|blocked for more than|unregister_netdevice: waiting|Bad page|Bad rss"
                 r"|bad page|leak")
ALLOWED = [re.compile(pattern) for pattern in (
    # The module is not Debian's own.
    r"loading out-of-tree module taints kernel",
    r"module verification failed",
    # Requests that the tests make fail: rxe reports every one.
    r"(make_send_cqe|do_complete): non-flush error status",
    r"rxe\w*: .*returned err = -",
    r"rxe_reg_user_mr: access = \w+ not supported",
    # An rxe device logs the removal of its netdev, also with Debian's own driver.
    r"infiniband \w+: ib_query_port failed \(-19\)",
    r"\d+ callbacks suppressed",
    # An emulated processor is slow, especially on a busy host.
    r"hrtimer: interrupt took",
    r"clocksource: |TSC found unstable|tsc: Marking TSC unstable",
    r"sched: DL replenish lagged too much",
    r"perf: interrupt took too long",
)]
# pyverbs' tests overrun completion queues and post to queue pairs that are not ready.
ALLOWED_OF = {
    "rxe pyverbs": re.compile(r"rxe_cq_post: queue full|rxe_post_send: qp not ready to send"),
}


def parts(line):
    match = LINE.match(line)
    return (match[1], match[2]) if match else (None, line)


def is_bad(program, level, text):
    allowed = [*ALLOWED, *filter(None, [ALLOWED_OF.get(program)])]
    if any(pattern.search(text) for pattern in allowed):
        return False
    return level in SEVERE or bool(BAD.search(text))


def problems(lines):
    """The forbidden lines, each with the program that ran at the time."""
    program = ""
    started = False
    for line in lines:
        level, text = parts(line)
        if text.startswith("guest: "):
            started = True
            program = text.removeprefix("guest: ")
        elif started and is_bad(program, level, text):
            yield "%s: %s" % (program, text)
    if not started:
        yield "the log does not say that the guest started"
