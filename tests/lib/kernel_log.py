# SPDX-License-Identifier: BSD-3-Clause
"""What the log of the guest's kernel says about it: part of the vm suite's verdict."""

import re

# As dmesg -x prints them, and the console of a guest that did not come that far.
LINE = re.compile(r"^(?:\w+ *:(\w+) *: )?\[ *[\d.]+\] ?(.*)$")
SEVERE = {"emerg", "alert", "crit", "err", "warn"}
# By whatever level, and whatever is in ALLOWED.
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
    # A rxe device whose netdev is removed says so, with Debian's own driver too.
    r"infiniband \w+: ib_query_port failed \(-19\)",
    r"\d+ callbacks suppressed",
    # An emulated processor is late, and more so on a busy host.
    r"hrtimer: interrupt took",
    r"clocksource: |TSC found unstable|tsc: Marking TSC unstable",
    r"sched: DL replenish lagged too much",
    r"perf: interrupt took too long",
)]


def parts(line):
    match = LINE.match(line)
    return (match[1], match[2]) if match else (None, line)


def is_bad(level, text):
    if any(pattern.search(text) for pattern in ALLOWED):
        return False
    return level in SEVERE or bool(BAD.search(text))


def problems(lines):
    """The lines that must not be there, each behind the program that ran then."""
    program = ""
    started = False
    for line in lines:
        level, text = parts(line)
        if text.startswith("guest: "):
            started = True
            program = text.removeprefix("guest: ")
        elif started and is_bad(level, text):
            yield "%s: %s" % (program, text)
    if not started:
        yield "the log does not say that the guest started"
