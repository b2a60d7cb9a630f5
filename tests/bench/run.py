#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Benchmarks of pier beside its peers, in one run.

    tests/bench/run.py BUILD_DIR [--rounds N | --smoke] [--only NAME,...]

Every round measures every contestant once, in turn, so that whatever else the
machine does hits all of them; what is printed are medians over the rounds and
ratios of medians. The last lines are the figures to reach, and the exit
status is 1 if one was missed. UCX (Debian's ucx-utils), perftest, rsync and
valgrind must be installed, and what tests/vm/guest needs.

--smoke runs one round of everything, much shorter, prints the figures and judges none. It
leaves out the guest and peers that are wheels of PyPI.
"""
import argparse
import ctypes.util
import importlib.util
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

for folder in "nixl", "lib":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / folder))
import loader_bench  # noqa: E402
import wheels  # noqa: E402
from cases import Cases  # noqa: E402

DEADLINE = 300  # seconds, for one command
MIB = 1 << 20
SMOKE = "--smoke" in sys.argv


def few(count):
    """That many, or with --smoke as few as show that it runs."""
    return max(count // 100, 10) if SMOKE else count


def at_least(rounds, least):
    return 1 if SMOKE else max(rounds, least)


def output(command, env=None, deadline=DEADLINE):
    """Standard output of a command that must succeed."""
    merged = dict(os.environ, **(env or {}))
    done = subprocess.run(command, env=merged, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=deadline, text=True)
    if done.returncode:
        sys.exit(f"bench: {' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def perf(build, memory, test, size, count, *options, env=None):
    """The result of `pier perf` between two processes of this host, as in its JSON."""
    text = output([os.path.join(build, "tools", "pier"), "perf", "--json", "-d", "soft0",
                   "--src-mem", memory, "--dst-mem", memory, "-s", str(size), "-n", str(few(count)),
                   *options, test], env)
    return json.loads(text)["results"][0]


def bandwidth(*arguments, **options):
    """Bytes per second."""
    return perf(*arguments, **options)["bytes_per_second"]


def memcpy(build, size, count):
    """Bytes per second."""
    path = os.path.join(build, "tests", "bench", "pier-memcpy")
    return float(output([path, str(size), str(few(count))]))


UCX_TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
UCX_SHARED = {"UCX_TLS": "posix,self"}


def ucx(test, size, count, transport=None, arguments=(), before=()):
    """ucx_perftest's figures: (latency in s, bandwidth in bytes/s, median latency in s)."""
    merged = dict(os.environ, **(transport or UCX_TCP))
    arguments = [*arguments, "-t", test, "-s", str(size), "-n", str(few(count)), "-f"]
    if SMOKE:
        arguments += ["-w", "1"]
    for port in range(20000 + os.getpid() % 20000, 60000, 7):
        server = subprocess.Popen([*before, "ucx_perftest", "-p", str(port), *arguments],
                                  env=merged, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            for _ in range(100):
                client = subprocess.run([*before, "ucx_perftest", "127.0.0.1", "-p", str(port),
                                         *arguments], env=merged, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        timeout=DEADLINE)
                row = re.search(r"^\s+\d+((?:\s+[\d.]+){7})\s*$", client.stdout, re.M)
                if row:
                    figures = [float(field) for field in row.group(1).split()]
                    return figures[2] * 1e-6, figures[4] * MIB, figures[0] * 1e-6
                if server.poll() is not None:
                    break  # the port was taken
                time.sleep(0.05)
        finally:
            server.kill()
            server.wait()
    sys.exit("bench: ucx_perftest gave no figures")


def timed(command, env=None):
    start = time.monotonic()
    output(command, env)
    return time.monotonic() - start


class Table:
    """Samples by contestant; prints medians beside the first contestant's."""

    def __init__(self, title, unit, scale, digits=2):
        self.title, self.unit, self.scale, self.digits = title, unit, scale, digits
        self.samples = {}

    def add(self, name, value):
        self.samples.setdefault(name, []).append(value)

    def median(self, name):
        return statistics.median(self.samples[name])

    def show(self, bigger_is_better, names=None):
        names = names or list(self.samples)
        print(f"\n{self.title} (median of {len(self.samples[names[0]])}, lowest..highest)")
        for name in names:
            values = [value / self.scale for value in self.samples[name]]
            ratio = self.median(names[0]) / self.median(name)
            if not bigger_is_better:
                ratio = 1 / ratio
            note = "" if name == names[0] else f"   {names[0]}: {ratio:.2f} times as fast"
            print(f"  {name:34} {statistics.median(values):9.{self.digits}f} {self.unit}"
                  f"  ({min(values):.{self.digits}f}..{max(values):.{self.digits}f}){note}")


def size_name(size):
    return f"{size >> 20} MiB" if size >= MIB else \
        f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


# Messages of each size: enough for the start not to count, and for UCX's TCP not to take
# minutes.
SOFT_COUNTS = {8: (300000, 30000), 64: (300000, 30000), 512: (300000, 30000),
               4096: (100000, 30000), 32 << 10: (40000, 4000), 256 << 10: (8000, 1000),
               MIB: (12000, 400), 4 * MIB: (3000, 60), 16 * MIB: (600, 10)}
SOFT, SHARED, TCP = "soft0, memfd", "UCX over shared memory", "UCX over TCP"


def bench_soft(build, rounds):
    """Two processes of this host, by one-sided writes; beside UCX's."""
    bandwidths = {size: Table(f"One-sided write, {size_name(size)}, two processes", "GB/s", 1e9, 3)
                  for size in SOFT_COUNTS}
    latency = Table("One-sided write, 8 B, one way, busy polling", "us", 1e-6)
    for _ in range(rounds):
        for size, (count, tcp_count) in SOFT_COUNTS.items():
            table = bandwidths[size]
            table.add(SOFT, bandwidth(build, "memfd", "write_bw", size, count))
            table.add(SHARED, ucx("ucp_put_bw", size, count, UCX_SHARED)[1])
            table.add(TCP, ucx("ucp_put_bw", size, tcp_count)[1])
            table.add("soft0, host", bandwidth(build, "host", "write_bw", size, count // 4))
            table.add("soft0, memfd, sleeping",
                      bandwidth(build, "memfd", "write_bw", size, count, "-e"))
            table.add("memcpy, one thread", memcpy(build, size, count))
        latency.add(SOFT, perf(build, "memfd", "write_lat", 8, 100000)["mean_us"] * 1e-6)
        latency.add(SHARED, ucx("ucp_put_lat", 8, 100000, UCX_SHARED)[0])
        latency.add(TCP, ucx("ucp_put_lat", 8, 20000)[0])
    for table in bandwidths.values():
        table.show(True)
    latency.show(False)
    return soft_goals(bandwidths, latency)


def soft_goals(bandwidths, latency):
    goals = []
    for size, table in bandwidths.items():
        if size >= MIB:
            ratio = table.median(SOFT) / table.median(SHARED)
            goals.append((f"soft0 write bandwidth / UCX over shared memory, {size_name(size)}",
                          ratio, ratio >= 0.8, "at least 0.8"))
    for size, table in bandwidths.items():
        ratio = table.median(SOFT) / table.median(TCP)
        goals.append((f"soft0 write bandwidth / UCX over TCP, {size_name(size)}", ratio,
                      ratio >= 1.0, "at least 1.0"))
    ratio = latency.median(TCP) / latency.median(SOFT)
    goals.append(("latency of UCX over TCP / soft0's, 8 B", ratio, ratio >= 1.0, "at least 1.0"))
    us = latency.median(SOFT) * 1e6
    goals.append(("soft0 write latency in us, 8 B, busy polling", us, us < 2.0, "below 2"))
    return goals


# UCP uses CMA for rendezvous only, so this is UCX's lower layer, which adds nothing to the
# system call.
CMA = "UCX's CMA"
UCX_CMA = ["-x", "cma", "-d", "memory", "-D", "zcopy"]
CMA_COUNTS = {4096: 200000, 8 * MIB if SMOKE else 128 * MIB: 40}


def bench_cma(build, rounds):
    """Host memory without an fd, which the kernel copies between two processes."""
    names = "soft0, host", "soft0, host, through the FIFO"
    writes = {size: Table(f"One-sided write of host memory, {size_name(size)}", "GB/s", 1e9, 3)
              for size in CMA_COUNTS}
    reads = {size: Table(f"One-sided read of host memory, {size_name(size)}", "GB/s", 1e9, 3)
             for size in CMA_COUNTS}
    latency = Table("One-sided write of host memory, 4 KiB, one way, median", "us", 1e-6)
    for _ in range(rounds):
        for size, count in CMA_COUNTS.items():
            for table, ours, theirs in ((writes[size], "write_bw", "put_bw"),
                                        (reads[size], "read_bw", "get")):
                table.add(names[0], bandwidth(build, "host", ours, size, count))
                table.add(CMA, ucx(theirs, size, count, {}, UCX_CMA)[1])
                table.add(names[1], bandwidth(build, "host", ours, size, count // 4,
                                              env={"PIER_SOFT_CMA": "off"}))
        latency.add(names[0], perf(build, "host", "write_lat", 4096, 50000)["p50_us"] * 1e-6)
        latency.add(CMA, ucx("put_lat", 4096, 50000, {}, UCX_CMA)[2])
        latency.add(names[1], perf(build, "host", "write_lat", 4096, 50000,
                                   env={"PIER_SOFT_CMA": "off"})["p50_us"] * 1e-6)
    goals = []
    for what, tables in ("write", writes), ("read", reads):
        for size, table in tables.items():
            table.show(True)
            ratio = table.median(names[0]) / table.median(CMA)
            goals.append((f"soft0 {what} bandwidth of host memory / {CMA}, {size_name(size)}",
                          ratio, ratio >= 0.8, "at least 0.8"))
    latency.show(False)
    ratio = latency.median(CMA) / latency.median(names[0])
    goals.append((f"latency of {CMA} / soft0's, host memory, 4 KiB", ratio, ratio >= 0.8,
                  "at least 0.8"))
    return goals


# Two processes of this host, as if they were on two: an encrypted connection over lo.
SOFT_TCP = {"PIER_SOFT_UNIX": "off", "PIER_SOFT_ADDRESS": "127.0.0.1"}


def bench_tcp(build, rounds):
    """soft0's TCP links beside what libcrypto does alone, and beside UCX, which does not encrypt."""
    seal = os.path.join(build, "tests", "bench", "pier-seal")
    goals = []
    for size, count in (MIB, 400), (4 * MIB, 100):
        table = Table(f"One-sided write over TCP, {size_name(size)}, two processes", "GB/s", 1e9, 3)
        for _ in range(rounds):
            table.add("soft0, encrypted", bandwidth(build, "memfd", "write_bw", size, count,
                                                    env=SOFT_TCP))
            table.add(TCP, ucx("ucp_put_bw", size, count // 2)[1])
            for cipher in "AES-128-GCM", "ChaCha20-Poly1305":
                table.add(f"libcrypto, {cipher}, one thread",
                          float(output([seal, cipher, str(64 << 10), str(few(32000))])))
        table.show(True)
        ratio = table.median("soft0, encrypted") / table.median(TCP)
        goals.append((f"soft0 over TCP / {TCP}, {size_name(size)}", ratio, ratio >= 0.9,
                      "at least 0.9"))
    return goals


PIER_HOST, PIER_MEMFD = "pier, host", "pier, memfd"
UCX_HOST, UCX_MEMFD = "NIXL's UCX, host", "NIXL's UCX, memfd"
MOONCAKE = "Mooncake over TCP, host"


def nixl_perf(build, cache, name, *layers):
    """Start, latency and bandwidth of a contestant, in processes of its own; with "layers",
    the time of a KV cache."""
    wheel = cache.wheel(wheels.NEWEST)
    backend, memory = {PIER_HOST: ("PIER", "host"), PIER_MEMFD: ("PIER", "memfd"),
                       UCX_HOST: ("UCX", "host"), UCX_MEMFD: ("UCX", "memfd"),
                       MOONCAKE: ("mooncake", "host")}[name]
    plugins = {"PIER": os.path.join(os.path.abspath(build), "integrations/nixl"),
               "UCX": str(next(wheel.glob(".*.mesonpy.libs")) / "plugins")}
    path = str(cache.mooncake()) if backend == "mooncake" else cache.path(wheels.NEWEST)
    return [float(field) for field in output(
        [sys.executable, "-B", "tests/nixl/perf.py", backend, memory, *layers],
        wheels.environment(path, PIER_DEVICE="soft0",
                           PIER_TEST_NIXL_SIZE=str((80 if layers else 128) * MIB),
                           PIER_TEST_NIXL_PARTS="160" if layers else "1",
                           NIXL_PLUGIN_DIR=plugins.get(backend, ""))).split()]


def bench_nixl(build, rounds):
    """pier's backend beside UCX's, in the same wheel of NIXL, and beside Mooncake."""
    cache = wheels.Cache(os.path.join(build, "nixl-wheels"))
    starts = Table("Start of an agent", "ms", 1e-3)
    latencies = Table("NIXL, write, 4 KiB, two processes", "us", 1e-6)
    bandwidths = Table("NIXL, write, 128 MiB, two processes", "GB/s", 1e9, 3)
    layers = Table("NIXL, 80 layers, 160 regions, 5120 blocks of 16 KiB, one notification",
                   "ms", 1e-3)
    try:
        for _ in range(at_least(rounds, 7)):
            for name in PIER_HOST, UCX_HOST, PIER_MEMFD, UCX_MEMFD, MOONCAKE:
                start, latency, bandwidth = nixl_perf(build, cache, name)
                starts.add(name, start)
                latencies.add(name, latency)
                bandwidths.add(name, bandwidth)
            for name in PIER_HOST, UCX_HOST:
                layers.add(name, *nixl_perf(build, cache, name, "layers"))
    except wheels.Unavailable as problem:
        print("skip: nixl: %s" % problem)
        return []
    starts.show(False)
    latencies.show(False)
    bandwidths.show(True)
    layers.show(False)
    ms = starts.median(PIER_HOST) * 1e3
    goals = [("start of an agent in ms", ms, ms <= 20, "at most 20")]
    for ours, theirs in (PIER_HOST, UCX_HOST), (PIER_MEMFD, UCX_MEMFD):
        ratio = latencies.median(ours) / latencies.median(theirs)
        goals.append((f"NIXL, 4 KiB: latency {ours} / {theirs}", ratio, ratio <= 1.2,
                      "at most 1.2"))
        ratio = bandwidths.median(ours) / bandwidths.median(theirs)
        goals.append((f"NIXL, 128 MiB: bandwidth {ours} / {theirs}", ratio, ratio >= 1.0,
                      "at least 1.0"))
    return goals


def loader_environments(build):
    """Of each contestant of the loader's benchmark."""
    package = os.path.join(os.path.abspath(build), "python")
    if SMOKE:
        return {name: wheels.environment(package) for name in loader_bench.PEERS
                if not name.startswith("nixl")}
    cache = wheels.Cache(os.path.join(build, "nixl-wheels"))
    path = cache.path(wheels.NEWEST)
    plugins = next(cache.wheel(wheels.NEWEST).glob(".*.mesonpy.libs")) / "plugins"
    nixl = wheels.environment(path, NIXL_PLUGIN_DIR=str(plugins))
    pier = wheels.environment(os.pathsep.join([package, path]))
    return {name: nixl if name.startswith("nixl") else pier for name in loader_bench.PEERS}


def bench_loader(build, rounds):
    """Batches of random samples, every byte compared, beside TCP with sendfile(2) and NIXL."""
    if not os.path.exists(os.path.join(build, "python", "pier", "__init__.py")):
        print("skip: loader: the build has no Python package (-Dpython=enabled)")
        return []
    try:
        environments = loader_environments(build)
    except wheels.Unavailable as problem:
        print("skip: loader: %s" % problem)
        return []
    names = loader_bench.PEERS
    epochs = Table(f"{loader_bench.SAMPLES} random samples of 112 KiB, compared", "s", 1, 3)
    waits = Table("The same, computing longer than reading: waiting in all", "ms", 1e-3)
    found = {}
    for name, figures in loader_bench.measure(build, at_least(rounds, loader_bench.ROUNDS), environments):
        found.setdefault(name, []).append(figures)
        epochs.add(names[name], figures["seconds"])
        waits.add(names[name], sum(figures["waits"][1:]))
    epochs.show(False)
    waits.show(False)
    if SMOKE:
        return []
    print(f"waiting times: {loader_bench.write_plot(build, found)}")
    return loader_goals(found, epochs)


def loader_goals(found, epochs):
    names = loader_bench.PEERS
    goals = []
    for kind, least in ("tcp", 2.0), ("nixl", 1.2):
        best = min((names[name] for name in names if name.startswith(kind)), key=epochs.median)
        ratio = epochs.median(best) / epochs.median(names["pier"])
        goals.append((f"pier's loader / {best}", ratio, ratio >= least, f"at least {least}"))
    for key, what, most in (("python_us", "time in Python per batch in us", 50),
                            ("copies", "copies at the consumer", 0),
                            ("late", "batches that a computing consumer waited for", 0)):
        value = statistics.median(figures[key] for figures in found["pier"])
        goals.append((what, value, value <= most, f"at most {most}"))
    return goals


def bench_transfer(build, rounds):
    """Transfers beside a loop that was written by hand, in the same processes."""
    path = os.path.join(build, "tests", "bench", "pier-transfer-perf")
    goals = []
    for rails in 1, 2:
        table = Table(f"256 MiB by chunks of 1 MiB, soft0, channels: {rails}", "GB/s", 1e9)
        ratios = []
        for _ in range(rounds):
            transfer, loop, ratio = map(float, output(
                [path, "soft0", "memfd", str(256 * MIB), str(MIB), str(rails), "8",
                 str(at_least(1, 9))]).split())
            table.add("transfer", transfer)
            table.add("loop by hand", loop)
            ratios.append(ratio)
        table.show(True)
        ratio = statistics.median(ratios)
        goals.append((f"transfer / loop by hand, channels: {rails}", ratio, ratio >= 0.95,
                      "at least 0.95"))
    return goals


def bench_digest(build, rounds):
    """Transfers with a digest of each chunk beside the same ones without. There is no goal: the
    bytes go a second time over soft0, whose NIC is the processor, and are read twice by it."""
    path = os.path.join(build, "tests", "bench", "pier-transfer-perf")
    for direction in "write", "read":
        table = Table(f"256 MiB by chunks of 1 MiB, soft0, {direction}", "GB/s", 1e9)
        for _ in range(rounds):
            with_digest, without, _ = map(float, output(
                [path, "soft0", "memfd", str(256 * MIB), str(MIB), "1", "8",
                 str(at_least(1, 9)), direction]).split())
            table.add("digest", with_digest)
            table.add("no digest", without)
        table.show(True)
    return []


def bench_bounce(build, rounds):
    """Memory that no NIC reaches beside memory that one does, and copies beside what the NIC
    does beside copies in turn with it. There is no goal: soft0's NIC is the processor that
    copies, and what works beside it is a clock."""
    path = os.path.join(build, "tests", "bench", "pier-bounce-perf")
    folder = tempfile.mkdtemp(prefix="pier-bench-")
    try:
        os.symlink(os.path.abspath(os.path.join(build, "tests/unit/plugins/gpu.so")),
                   os.path.join(folder, "gpu.so"))
        for device in "soft0", "fault:late@1+=500us:soft0", "fault:late@1+=2ms:soft0":
            table = Table(f"64 MiB by chunks of 1 MiB, {device}", "GB/s", 1e9)
            ratios = []
            for _ in range(rounds):
                direct, bounced, in_turn, *found = map(float, output(
                    [path, device, str(64 * MIB), str(MIB), "8", str(at_least(1, 9))],
                    env={"PIER_BACKEND_PATH": folder}).split())
                table.add("direct", direct)
                table.add("bounced, window 8", bounced)
                table.add("bounced, window 1", in_turn)
                ratios.append(found)
            table.show(True)
            beside, pipelined = (statistics.median(r) for r in zip(*ratios))
            print(f"bounced / direct {beside:.2f}, window 8 / window 1 {pipelined:.2f}")
    finally:
        shutil.rmtree(folder)
    return []


def compare_copies(title, contestants, source, target, rounds):
    """Times of commands that copy a file or a folder, each with a cold destination."""
    table = Table(title, "s", 1)
    for turn in range(rounds):
        # In another order each time, the same in every run: what the disk does to the one
        # behind a big writer hits all of them.
        names = list(contestants)
        random.Random(turn).shuffle(names)
        for name in names:
            shutil.rmtree(target, ignore_errors=True)
            if os.path.exists(target):
                os.unlink(target)
            os.sync()  # nobody pays for the write-back of the one before
            table.add(name, timed(contestants[name]))
            if subprocess.call(["diff", "-rq", source, target], stdout=subprocess.DEVNULL):
                sys.exit(f"bench: {name} made a different copy")
    table.show(False, list(contestants))
    return table


def copy_big_file(pier, folder, rounds):
    source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
    with open(source, "wb") as file:
        for _ in range(few(1024)):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    return compare_copies(f"Copy of a 1 GiB file in the page cache, to {folder}", {
        "pier cp": [*pier, source, target],
        "pier cp --no-verify": [*pier, "--no-verify", source, target],
        "rsync --whole-file": ["rsync", "--whole-file", source, target],
        "rsync --whole-file --fsync": ["rsync", "--whole-file", "--fsync", source, target],
        "cp": ["cp", source, target],
        "cp; sync": ["sh", "-c", 'cp "$1" "$2" && sync "$2"', "sh", source, target],
    }, source, target, rounds)


def copy_small_files(pier, folder, rounds):
    source, target = os.path.join(folder, "tree"), os.path.join(folder, "copy")
    for i in range(few(10000)):
        name = os.path.join(source, f"{i // 100:02}", f"{i:05}")
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(os.urandom(4096))
    return compare_copies(f"Copy of 10,000 files of 4 KiB, to {folder}", {
        "pier cp -r": [*pier, "-r", source, target],
        "rsync -r": ["rsync", "-r", source + "/", target],
        "rsync -r; sync -f": ["sh", "-c", 'rsync -r "$1/" "$2" && sync -f "$2"', "sh", source,
                              target],
        "cp -r": ["cp", "-r", source, target],
    }, source, target, rounds)


HOSTS = "one", "two", "three", "four"


def copy_to_many(pier, folder, rounds, limit):
    """One command for four hosts, beside one for each of them."""
    hosts, expected = os.path.join(folder, "hosts"), os.path.join(folder, "expected")
    source = os.path.join(folder, "source")
    with open(source, "wb") as file:
        for _ in range(few(256)):
            file.write(os.urandom(MIB))
    for host in HOSTS:
        os.makedirs(os.path.join(expected, host))
        os.link(source, os.path.join(expected, host, "copy"))
    stub = pathlib.Path(__file__).resolve().parents[1] / "tools" / "stub_hosts"
    begin = ["env", f"PIER_RSH='{stub}'", f"STUB_HOSTS={hosts}", "PIER_DEVICE=soft0",
             "PIER_SOFT_PEERS=none", "sh", "-ec"]
    make = "".join(f"mkdir -p {shlex.quote(os.path.join(hosts, host))}; " for host in HOSTS)
    command = shlex.join([pier[0], "cp", "-q", "--remote-pier", pier[0], *limit, source])
    return compare_copies(f"Copies of 256 MiB to four hosts {' '.join(limit)}", {
        "pier cp, for all": [*begin, make + command + "".join(f" {h}:copy" for h in HOSTS)],
        "pier cp, for each": [*begin, make + "; ".join(f"{command} {h}:copy" for h in HOSTS)],
    }, expected, hosts, rounds)


# Between the two hosts of tests/vm/two_hosts, in turn. Each line: who, bytes per second, and
# how much of both processors was idle.
GUEST_COPY_SCRIPT = '''
pier=$1/../../tools/pier
folder=$(mktemp -d)
mount -t tmpfs none $folder
head -c 536870912 /dev/urandom >$folder/source
idle() {
    awk '/^cpu / { print $5, $2 + $3 + $4 + $5 + $6 + $7 + $8 }' /proc/stat
}
report() {
    set -- "$1" "$2" $3 $(idle)
    echo "$1	$2	$(awk "BEGIN { print ($5 - $3) / ($6 - $4) }")"
}
theirs() {
    ip netns exec b ib_write_bw -d rxeB -s 1048576 -n 120 -F >/dev/null 2>&1 &
    sleep 2
    before=$(idle)
    rate=$(ip netns exec a ib_write_bw -d rxeA -s 1048576 -n 120 -F 198.51.100.2 |
        awk '$1 == 1048576 { print $4 * 1048576 }')
    report ib_write_bw "$rate" "$before"
    wait
}
ours() {
    before=$(idle)
    rate=$(ip netns exec a "$pier" cp --json $2 --rsh "ip netns exec" --remote-pier "$pier" \\
        --device rxeA --remote-device rxeB $folder/source b:$folder/target |
        sed 's/.*"bytes_per_second": \\([0-9.]*\\).*/\\1/')
    report "$1" "$rate" "$before"
    rm $folder/target
}
for round in 1 2 3 4 5 6 7; do
    theirs
    ours "pier cp" ""
    ours "pier cp --no-verify" --no-verify
done'''


def copy_in_guest(build):
    """pier cp of a file in the page cache beside ib_write_bw, on rxe."""
    found, idle = {}, {}
    hosts = os.path.join(os.path.dirname(__file__), "..", "vm", "two_hosts")
    for who, rate, share in guest_lines(build, GUEST_COPY_SCRIPT, cpus=2, seconds=600, before=[hosts]):
        found.setdefault(who, []).append(float(rate))
        idle.setdefault(who, []).append(float(share))
    print("\nCopy of 512 MiB between two hosts, rxe in the guest (medians of 7)")
    goals, theirs = [], found["ib_write_bw"]
    for who, rates in found.items():
        ratio = statistics.median(ours / other for ours, other in zip(rates, theirs))
        print(f"  {who:20} {statistics.median(rates) / 1e6:8.1f} MB/s   {ratio:.2f} of ib_write_bw   "
              f"{statistics.median(idle[who]) * 100:3.0f} % idle")
        if who == "pier cp":
            goals.append(("pier cp / ib_write_bw between two hosts in the guest", ratio, ratio >= 0.95,
                          "at least 0.95"))
    return goals


def bench_cp(build, rounds):
    pier = [os.path.join(build, "tools", "pier"), "cp", "-q", "--device", "soft0"]
    goals, rounds = [], at_least(rounds, 7)
    for place, peer, wanted in ((os.environ.get("PIER_BENCH_DIR"), "cp; sync", 1.0),
                                ("/dev/shm", "cp", 0.6)):
        with tempfile.TemporaryDirectory(prefix="pier-bench-", dir=place) as folder:
            table = copy_big_file(pier, folder, rounds)
            speed = table.median(peer) / table.median("pier cp")
            goals.append((f"speed of pier cp / {peer}, 1 GiB in {folder}", speed, speed >= wanted,
                          f"at least {wanted}"))
        with tempfile.TemporaryDirectory(prefix="pier-bench-", dir=place) as folder:
            table = copy_small_files(pier, folder, rounds)
            speed = table.median("rsync -r") / table.median("pier cp -r")
            goals.append((f"speed of pier cp -r / rsync -r, 10,000 files in {folder}", speed,
                          speed >= 1.0, "at least 1.0"))
    for limit in ([], ["--bwlimit", "200MB"]):
        with tempfile.TemporaryDirectory(prefix="pier-bench-", dir="/dev/shm") as folder:
            table = copy_to_many(pier, folder, rounds, limit)
            speed = table.median("pier cp, for each") / table.median("pier cp, for all")
            goals.append((f"speed of one copy to four hosts / four copies {' '.join(limit)}", speed,
                          speed >= 1.0, "at least 1.0"))
    if not SMOKE:
        goals += copy_in_guest(build)
    print("  (pier cp syncs the files before it names them; rsync and cp do so only as shown)")
    return goals


def cache_perf(build, *test):
    path = os.path.join(build, "tests", "bench", "pier-cache-perf")
    return [float(field) for field in output([path, "soft0", *map(str, test)]).split()]


def callgrind(count, function, *command, env=None):
    """Instructions below a function, over a count."""
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         f"--toggle-collect={function}", *command], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, timeout=DEADLINE, text=True,
        env=dict(os.environ, **(env or {})))
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        sys.exit(f"bench: callgrind: exit {done.returncode}\n{done.stderr}")
    return int(found.group(1)) / count


def cache_instructions(build, regions, hits):
    """Instructions of one hit."""
    path = os.path.join(build, "tests", "bench", "pier-cache-perf")
    return callgrind(hits, "measure_hits", path, "soft0", "instructions", str(regions),
                     str(hits))


def bench_cache(build, rounds):
    sizes, hits = [1, 1000, few(100000)], few(20000)
    counted = {size: cache_instructions(build, size, hits) for size in sizes}
    times = Table("Hit of the registration cache, get and put", "ns", 1e-9, 1)
    beside = Table("1 MiB of host memory, soft0", "us", 1e-6, 3)
    for _ in range(rounds):
        for size in sizes:
            times.add(f"{size} regions", *cache_perf(build, "hit", size, few(1000000)))
        for size in sizes:
            times.add(f"{size} regions, watched",
                      *cache_perf(build, "hit", size, few(1000000), "watched"))
        registering, hit = cache_perf(build, "register", few(2000))
        beside.add("hit, watched", hit)
        beside.add("registering and deregistering", registering)
    print("\nHit of the registration cache, get and put, by callgrind")
    for size in sizes:
        print(f"  {size:6} regions {counted[size]:9.1f} instructions")
    times.show(False)
    beside.show(False)
    ratio = counted[sizes[-1]] / counted[sizes[0]]
    return [("cache hit, instructions at 100,000 regions / at 1", ratio, ratio <= 2.5,
             "at most 2.5")]


def instructions(build, way, inline):
    """Instructions of one write with its completion, as callgrind counts them."""
    name = "pier-instructions" + ("-inline" if inline else "")
    count = few(16000)
    return callgrind(count, "measure", os.path.join(build, "tests", "bench", name), way,
                     str(count))


def bench_instructions(build, _):
    """What a channel adds to bare verbs, on a device that does nothing."""
    ways = ["unchecked", "checked", "unchecked-pairs", "checked-pairs",
            "unchecked-batch", "checked-batch"]
    bare = {kind: instructions(build, kind, False) for kind in ["bare", "bare-batch"]}
    counted = {(way, inline): instructions(build, way, inline)
               for way in ways for inline in [False, True]}
    print("\nInstructions of a write with its completion, by callgrind: above bare verbs")
    print(f"  bare {bare['bare']:.1f}, in batches of 16 {bare['bare-batch']:.1f}")
    print(f"  {'':16} {'calls':>9} {'inline.h':>9}")
    above = {}
    for way in ways:
        base = bare["bare" if "-" not in way else "bare-batch"]
        for inline in [False, True]:
            above[way, inline] = counted[way, inline] - base
        print(f"  {way:16} {above[way, False]:9.1f} {above[way, True]:9.1f}")
    return [(f"instructions above bare verbs, {way}, <pier/inline.h>", above[way, True],
             above[way, True] <= most, f"at most {most}")
            for way, most in [("unchecked", 60), ("checked", 100),
                              ("unchecked-pairs", 40)]]


EXPORT_WAYS = ["bare", "calls", "pier", "wrapped"]


def bench_export(build, rounds):
    """What pier adds to an export by the CUDA driver, on the fake one."""
    path = os.path.join(build, "tests", "bench", "pier-export")
    env = {"LD_LIBRARY_PATH": os.path.join(build, "tests", "fakes", "drivers")}
    counted = {way: callgrind(few(2000), "measure", path, way, str(few(2000)), env=env)
               for way in EXPORT_WAYS}
    times = Table("Export of 1 MiB and close, fake CUDA driver", "us", 1e-6, 3)
    for _ in range(rounds):
        for way in EXPORT_WAYS:
            times.add(way, float(output([path, way, str(few(20000))], env)))
    times.show(False)
    print("\nInstructions of an export and close, fake CUDA driver, by callgrind")
    for way in EXPORT_WAYS:
        print(f"  {way:10} {counted[way]:9.1f}   above bare {counted[way] - counted['bare']:7.1f}"
              f"   {counted[way] / counted['bare']:.2f} of it")
    return []


def bench_many(build, rounds):
    """Memory of a channel, and what idle ones cost: with a completion queue each, and with
    one for all."""
    path = os.path.join(build, "tests", "bench", "pier-many")
    sizes, least = (2, 100) if SMOKE else (2, 100, 1000, 2000), 2
    print("\nMany channels in one process, soft0 (memory: with what the device has for it)")
    print(f"  {'channels':>8} {'queues':>8} {'memory':>10} {'poll one':>10} {'poll all':>10} "
          f"{'write':>10} {'by epoll':>10} {'burst':>10}")
    rows = {}
    for _ in range(rounds):
        for channels in sizes:
            for kind in [], ["shared"]:
                _, *row = output([path, "soft0", str(channels), "100", *kind]).split()
                rows.setdefault((channels, bool(kind)), []).append([float(x) for x in row])
    rows = {key: [statistics.median(column) for column in zip(*found)]
            for key, found in rows.items()}
    for (channels, shared), (memory, *times) in rows.items():
        print(f"  {channels:>8} {'one' if shared else 'each':>8} {memory / 1024:6.1f} KiB "
              + " ".join(f"{time * 1e6:7.2f} us" for time in times))
    ratio = rows[sizes[-1], True][2] / rows[least, True][2]
    return [(f"looking at {sizes[-1]} idle channels on one queue / at {least}", ratio,
             ratio <= 2, "at most 2")]


def guest_lines(build, script, *arguments, cpus=1, seconds=250, before=()):
    """What a script of the shell prints in the guest; its $1 is the folder of programs."""
    guest = os.path.join(os.path.dirname(__file__), "..", "vm", "guest")
    # One processor where one process runs: two emulated ones wait for each other's locks.
    text = output([guest, "--seconds", str(seconds), *before, "sh", "-euc", script, "sh",
                   os.path.join(build, "tests", "bench"), *map(str, arguments)],
                  {"PIER_VM_CPUS": str(cpus)}, seconds + 150)
    return [line.split("\t") for line in text.splitlines() if "\t" in line]


def bench_guest(build, _):
    """Registrations on rxe, beside the bare system calls."""
    goals, bounded = [], ("pier_mr_reg_dmabuf", "pier_mr_reg, host memory")
    for length in 4096, 64 << 10, MIB:
        print(f"\nRegistering and deregistering {length >> 10} KiB, rxe in the guest "
              "(medians of 7 pairs of medians)")
        ratios, times = {}, {}
        for bare, name, least, seconds in guest_lines(
                build, 'for round in 1 2 3 4 5 6 7; do "$1/pier-registration" rxe0 "$2" 151; done',
                length):
            ratios.setdefault((bare, name), []).append(float(seconds) / float(least))
            times.setdefault((bare, name), []).append(float(seconds) * 1e6)
        for (bare, name), values in ratios.items():
            ratio = statistics.median(values)
            print(f"  {name:30} {statistics.median(times[bare, name]):9.2f} us   {ratio:.3f} of "
                  f"{bare} ({min(values):.3f}..{max(values):.3f})")
            if name in bounded:
                goals.append((f"{name} / {bare}, {length >> 10} KiB", ratio, ratio <= 1.05,
                              "at most 1.05"))
    return goals + bench_guest_cache(build)


PERFTEST_PAIRS = at_least(1, 7)
PERFTEST_SIZES = [8, 4096, 65536, MIB]

# One pair for each round and size: perftest between two processes, then pier perf, or
# the other way round. $2: the test; $3: the program of perftest; sizes and counts follow.
PERFTEST_SCRIPT = '''
pier=$1/../../tools/pier test=$2 program=$3 pairs=$4
shift 4
run_theirs() {
    "$program" -d rxe0 -s "$1" -n "$2" -F >/dev/null 2>&1 &
    server=$!
    # The server listens when it has made its queue pair.
    for try in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.3
        row=$("$program" -d rxe0 -s "$1" -n "$2" -F localhost 2>/dev/null |
            grep -E "^ *$1 +[0-9]" | tr "\\t" " ")
        [ -z "$row" ] || break
    done
    wait $server
}
# Now and then it prints a bandwidth of 0: then it is asked again.
theirs() {
    for again in 1 2 3; do
        run_theirs "$1" "$2"
        set -- "$1" "$2" $row
        case $6 in 0.00) ;; *) break ;; esac
        set -- "$1" "$2"
    done
    echo "perftest	$1	$row"
}
ours() {
    echo "pier	$1	$("$pier" perf -d rxe0 --src-mem host --dst-mem host --csv --warm-up 0 \\
        -s "$1" -n "$2" "$test" | tail -n 1 | tr , " ")"
}
for round in $(seq $pairs); do
    for plan in "$@"; do
        size=${plan%:*} count=${plan#*:}
        if [ $((round % 2)) = 1 ]; then
            theirs $size $count; ours $size $count
        else
            ours $size $count; theirs $size $count
        fi
    done
done'''


def perftest_pairs(build, test, program, plans, ours, theirs):
    """{size: the figures of both}; (column, factor) of each."""
    found = {size: {"pier": [], "perftest": []} for size, _ in plans}
    lines = guest_lines(build, PERFTEST_SCRIPT, test, program, PERFTEST_PAIRS,
                        *(f"{size}:{count}" for size, count in plans), cpus=2, seconds=900)
    for who, size, row in lines:
        column, factor = ours if who == "pier" else theirs
        found[int(size)][who].append(float(row.split()[column]) * factor)
    for size, values in found.items():
        if len(values["pier"]) != PERFTEST_PAIRS or len(values["perftest"]) != PERFTEST_PAIRS:
            sys.exit(f"bench: {program} of {size} bytes: {values}")
    return found


# Columns of `pier perf --csv`, and factors.
CSV_RATE, CSV_MEDIAN = (4, 1), (7, 1e-6)


def beside_perftest(build):
    """(test, size, name of the other, unit, [pier], [the other]) on rxe in the guest."""
    if SMOKE:
        return
    tests = [("write_bw", "ib_write_bw", CSV_RATE, (3, MIB)),
             ("read_bw", "ib_read_bw", CSV_RATE, (3, MIB)),
             ("send_bw", "ib_send_bw", CSV_RATE, (3, MIB)),
             ("write_lat", "ib_write_lat", CSV_MEDIAN, (4, 1e-6))]
    for test, program, ours, theirs in tests:
        counts = {8: 2000, 4096: 1000, 65536: 150, MIB: 20}
        if test.endswith("lat"):
            counts = {8: 1000, 4096: 1000, 65536: 200, MIB: 40}
        found = perftest_pairs(build, test, program, list(counts.items()), ours, theirs)
        for size, values in found.items():
            yield test, size, program, values["pier"], values["perftest"]


def ucx_on_soft0(build, test, size, count):
    """UCX's figures on the same device, with its verbs transport."""
    return ucx(test, size, count, {"UCX_TLS": "rc_v", "UCX_NET_DEVICES": "soft0:1"},
               before=[os.path.join(build, "tools", "pier"), "run"])


def beside_ucx(build):
    """The same on soft0 with host memory, between two processes of this host."""
    for size, count in {8: 100000, 4096: 50000, 65536: 10000, MIB: 1000}.items():
        pairs = [(bandwidth(build, "host", "write_bw", size, count),
                  ucx_on_soft0(build, "ucp_put_bw", size, count)[1])
                 for _ in range(PERFTEST_PAIRS)]
        yield "write_bw", size, "ucp_put_bw", *zip(*pairs)
    for size, count in {8: 50000, 4096: 50000, 65536: 10000, MIB: 1000}.items():
        pairs = [(perf(build, "host", "write_lat", size, count)["p50_us"] * 1e-6,
                  ucx_on_soft0(build, "ucp_put_lat", size, count)[2])
                 for _ in range(PERFTEST_PAIRS)]
        yield "write_lat", size, "ucp_put_lat", *zip(*pairs)


def bench_beside(build, _):
    """pier perf beside perftest on rxe in the guest, and beside ucx_perftest on this host."""
    goals = []
    print(f"\npier perf beside others (medians of {PERFTEST_PAIRS} pairs, lowest..highest ratio)")
    for test, size, other, ours, theirs in (*beside_perftest(build), *beside_ucx(build)):
        ratios = [a / b for a, b in zip(ours, theirs)]
        ratio, latency = statistics.median(ratios), test.endswith("lat")
        scale, unit = (1e6, "us") if latency else (1e-6, "MB/s")
        print(f"  {test:10} {size:8} B  pier {statistics.median(ours) * scale:11.2f} {unit:4}  "
              f"{other:12} {statistics.median(theirs) * scale:11.2f} {unit:4}  {ratio:6.3f} "
              f"({min(ratios):.3f}..{max(ratios):.3f})")
        # Within noise: a quarter of the pairs is as fast.
        reached = ratio <= 1.05 if latency else SMOKE or statistics.quantiles(ratios)[2] >= 1.0
        goals.append((f"pier perf {test} / {other}, {size} B", ratio, reached,
                      "at most 1.05" if latency else "at least 1.0 within noise"))
    return goals


def bench_guest_cache(build):
    """Hits of the cache beside registering 1 MiB, on the same device."""
    times = Table("Registration cache, rxe in the guest", "us", 1e-6, 3)
    registering, sizes = "registering and deregistering 1 MiB", (1, 1000, 100000)
    script = '''perf=$1/pier-cache-perf
        for round in 1 2 3; do
            "$perf" rxe0 register 300 | tr " " "\\t"
            for regions in 1 1000 100000; do
                printf "%s\\t%s\\n" "$("$perf" rxe0 hit $regions 100000)" $regions
            done
        done'''
    for first, second in guest_lines(build, script):
        if "." in second or "e" in second:
            times.add(registering, float(first))
            times.add("hit, watched, 1 region", float(second))
        else:
            times.add(f"hit, {second} regions", float(first))
    times.show(False)
    goals = []
    for name in "hit, watched, 1 region", *(f"hit, {size} regions" for size in sizes):
        ratio = times.median(registering) / times.median(name)
        goals.append((f"registering 1 MiB on rxe / {name}", ratio, ratio >= 100,
                      "at least 100"))
    return goals


BENCHES = {
    "instructions": bench_instructions,
    "soft": bench_soft,
    "cma": bench_cma,
    "tcp": bench_tcp,
    "transfer": bench_transfer,
    "digest": bench_digest,
    "nixl": bench_nixl,
    "loader": bench_loader,
    "bounce": bench_bounce,
    "many": bench_many,
    "export": bench_export,
    "cp": bench_cp,
    "cache": bench_cache,
    "guest": bench_guest,
    "beside": bench_beside,
}
# Programs that are not pier's, without which --smoke leaves out one.
PROGRAMS = {"instructions": ["valgrind"], "soft": ["ucx_perftest"], "cma": ["ucx_perftest"],
            "tcp": ["ucx_perftest"], "export": ["valgrind"], "cp": ["rsync"], "cache": ["valgrind"],
            "beside": ["ucx_perftest"]}


def reason_to_skip(name):
    """Why --smoke leaves out a benchmark, or None."""
    missing = [program for program in PROGRAMS.get(name, []) if not shutil.which(program)]
    if missing:
        return "%s is not installed" % missing[0]
    if name == "nixl":
        return "the peers are wheels of PyPI"
    if name == "guest":
        return "an emulated guest takes minutes"
    if name == "loader" and not importlib.util.find_spec("numpy"):
        return "NumPy is not installed"
    if name == "digest" and not ctypes.util.find_library("isal"):
        return "libisal is not installed"
    return None


def problems_of(name, build):
    try:
        BENCHES[name](build, 1)
    except SystemExit as end:
        yield from str(end).splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        yield repr(error)


def run_smoke(build, names):
    """A case for each: it ran, and its figures stand above."""
    cases = Cases()
    for name in names:
        cases.case(name, problems_of(name, build), reason_to_skip(name))
    cases.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default=",".join(BENCHES))
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    wanted = options.only.split(",")
    unknown = set(wanted) - set(BENCHES)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: there are {', '.join(BENCHES)}")
    if SMOKE:
        run_smoke(options.build, wanted)
    goals = []
    for name in wanted:
        goals += BENCHES[name](options.build, options.rounds)
    print("\nTo reach")
    for name, value, reached, goal in goals:
        print(f"  {'reached' if reached else 'MISSED ':8} {name}: {value:.2f} ({goal})")
    return 0 if all(goal[2] for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
