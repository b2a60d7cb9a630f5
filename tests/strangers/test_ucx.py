#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""UCX's programs (Debian: ucx-utils). usage: test_ucx.py DEVICE"""

from judge import DEVICE, Judge, Place, need_programs
from programs import run_alone, run_pair

# Tests of the transport alone, and with UCP above it: transport, options of ucx_perftest.
UCT = """
    rc_verbs -t am_lat -D short
    rc_verbs -t am_lat -D bcopy -s 4096
    rc_verbs -t am_lat -D zcopy -s 4096
    rc_verbs -t am_bw -D bcopy -s 4096
    rc_verbs -t put_lat -D short
    rc_verbs -t put_lat -D zcopy -s 1000000 -n 20
    rc_verbs -t put_bw -D bcopy -s 4096
    rc_verbs -t get -D bcopy -s 4096
    rc_verbs -t get -D zcopy -s 1000000 -n 20
    rc_verbs -t fadd
    rc_verbs -t swap
    rc_verbs -t cswap
    rc_verbs -t add_mr
    ud_verbs -t am_lat -D short
    ud_verbs -t am_bw -D bcopy -s 4000
"""
UCP = """
    rc_v -t tag_lat
    rc_v -t tag_lat -s 1000000 -n 20
    rc_v -t tag_bw -s 1000000 -n 20
    rc_v -t tag_bw -s 4096 -U
    rc_v -t tag_lat -I -E sleep
    rc_v -t tag_lat -e
    rc_v -t tag_lat -D iov,iov -s 4096,4096
    rc_v -t tag_sync_lat
    rc_v -t ucp_put_lat
    rc_v -t ucp_put_bw -s 1000000 -n 20
    rc_v -t ucp_get -s 1000000 -n 20
    rc_v -t ucp_fadd
    rc_v -t ucp_cswap
    rc_v -t stream_bw -s 100000 -n 20
    rc_v -t ucp_am_bw -s 100000 -n 20
    ud_v -t tag_lat
    ud_v -t tag_bw -s 1000000 -n 20
"""
PORT = DEVICE + ":1"


def perftest(options, env):
    """-n and -w: few rounds, unless the options have their own."""
    common = ["ucx_perftest", "-n", "100", "-w", "5", *options, "-p"]
    return run_pair(lambda port: [*common, str(port)],
                    lambda port: [*common, str(port), "127.0.0.1"],
                    {"UCX_WARN_UNUSED_ENV_VARS": "n", **env})


def main():
    need_programs("ucx-utils", "ucx_info", "ucx_perftest")
    judge = Judge("ucx")
    with Place():
        judge.run("ucx_info -d", lambda: run_alone(
            ["ucx_info", "-d"], contains=["Device: " + PORT, "rc_verbs", "ud_verbs"]))
        for line in UCT.strip().splitlines():
            transport, *options = line.split()
            judge.run("ucx_perftest -x %s %s" % (transport, " ".join(options)),
                      lambda: perftest(["-x", transport, "-d", PORT, *options], {}))
        for line in UCP.strip().splitlines():
            transport, *options = line.split()
            judge.run("UCX_TLS=%s ucx_perftest %s" % (transport, " ".join(options)),
                      lambda: perftest(options, {"UCX_TLS": transport, "UCX_NET_DEVICES": PORT}))
    judge.end()


main()
