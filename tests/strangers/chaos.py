#!/usr/bin/env -S python3 -B
# SPDX-License-Identifier: BSD-3-Clause
"""What NIXL's backends do when peers, processes, networks and bytes fail: docs/chaos.md.

    chaos.py --build DIR --results FILE [--rounds N] [--nixl VERSION] [--row ROW]... [--backend NAME]...
    chaos.py --results FILE --table
    chaos.py --build DIR --smoke

Two agents of an unmodified wheel of NIXL, in processes and network namespaces of their own, are
disturbed, and the time is taken until a transfer succeeds again, with the bytes compared. A line of
FILE has one result; what it has is not run again, so a run that was interrupted goes on. DIR is a build
folder with pier's plugin. Root is needed for the namespaces. --smoke runs a few short rows, and fails if
one of them ends in another way than expected.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import time

from chaos_link import Link, Unavailable

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "nixl"))
import wheels  # noqa: E402

MIB = 1 << 20
SIZE = 64 * MIB
SECONDS = 60  # after which it counts as a hang
NEWEST = "1.5.1"
BACKENDS = "PIER", "UCX", "UCX on soft0", "Mooncake"


class Hang(Exception):
    pass


class Crash(Exception):
    pass


class WrongBytes(Exception):
    pass


class Failed(Exception):
    """An end refused or could not do what it must."""


class Unfit(Exception):
    """The row does not apply to the backend."""


class End:
    """A process with an agent."""

    def __init__(self, name, command, env, log):
        self.name, self.waiting, self.log = name, b"", None if log == "/dev/full" else log
        with open(log, "a") as file:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=file)
        os.set_blocking(self.process.stdout.fileno(), False)

    def last_words(self):
        try:
            text = pathlib.Path(self.log).read_text(errors="replace") if self.log else ""
        except OSError:
            text = ""
        return " / ".join(text.strip().splitlines()[-3:])

    def hear(self, until):
        while b"\n" not in self.waiting:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Hang("%s does not answer" % self.name)
            part = self.process.stdout.read()
            if not part:
                raise Crash("%s ended with %d: %s" % (self.name, self.process.wait(), self.last_words()))
            self.waiting += part
        line, _, self.waiting = self.waiting.partition(b"\n")
        return json.loads(line)

    def tell(self, do, **arguments):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()

    def result(self, until):
        """The answer to a command, after the events of a flow."""
        while True:
            answer = self.hear(until)
            if "error" in answer:
                raise Failed(answer["error"])
            if "is" in answer:
                return answer["is"]

    def ask(self, do, until=None, **arguments):
        self.tell(do, **arguments)
        return self.result(until or time.monotonic() + SECONDS)

    def signal(self, number):
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def end(self):
        self.signal(signal.SIGKILL)
        self.process.stdin.close()
        self.process.stdout.close()


class World:
    """Two ends of a backend, which have moved bytes before anything happens."""

    def __init__(self, options, backend, smoke, more=None, rails=1):
        self.options, self.backend, self.smoke = options, backend, smoke
        self.more, self.rails = more or {}, rails
        self.folder = tempfile.TemporaryDirectory(prefix="pier-chaos-")
        # Datagrams, by which UCX connects, reach processes of one host alone on soft0.
        self.link = None if backend == "UCX on soft0" else Link()
        self.length = (4 if smoke else 16) * MIB
        self.seed, self.ends, self.side = 0, {}, {"initiator": 0, "target": 1}

    def __enter__(self):
        return self

    def prepare(self):
        self.start("target")
        self.start("initiator")
        self.meet()
        self.transfer(time.monotonic() + SECONDS)

    def __exit__(self, *exception):
        for end in self.ends.values():
            end.end()
        if self.link:
            self.link.close()
        self.folder.cleanup()

    def environment(self, name):
        wheel = self.options.cache.mooncake() if self.backend == "Mooncake" else \
            self.options.cache.path(self.options.nixl)
        env = wheels.environment(str(wheel), XDG_RUNTIME_DIR=self.folder.name, UCX_LOG_LEVEL="fatal")
        address = self.link.address(self.side[name]) if self.link else "127.0.0.1"
        if self.backend == "PIER":
            env |= {"PIER_DEVICE": ",".join(["soft0"] * self.rails), "PIER_SOFT_UNIX": "off",
                    "PIER_SOFT_ADDRESS": address, "PIER_NIXL_ADDRESS": address}
        elif self.backend == "UCX":
            env |= {"UCX_TLS": "tcp", "UCX_NET_DEVICES": ",".join("tun%d" % rail for rail in range(self.rails))}
        elif self.backend == "UCX on soft0":
            env |= {"UCX_TLS": "rc_v", "UCX_NET_DEVICES": "soft0:1",
                    "LD_PRELOAD": str(self.options.build / "verbs/libpier-verbs.so")}
        else:
            env |= {"CHAOS_ADDRESS": address, "MC_TCP_BIND_ADDRESS": address}
        return env | self.more

    def start(self, name):
        env = self.environment(name)
        log = env.get("CHAOS_LOG", os.path.join(self.folder.name, name))
        command = [sys.executable, "-B", HERE / "chaos_end.py", name, self.backend.split()[0], str(SIZE)]
        end = End(name, [*(self.link.enter(self.side[name]) if self.link else []), *command], env, log)
        if name in self.ends:
            self.ends[name].end()
        self.ends[name] = end
        answer = end.hear(time.monotonic() + SECONDS)
        setattr(self, name, end)
        if name == "target":
            self.peer = {"name": name, **answer}

    def meet(self):
        self.initiator.ask("add", **{key: self.peer[key] for key in ("metadata", "name")})

    def transfer(self, until):
        """New bytes arrive at the target, or this fails."""
        self.seed += 1
        self.initiator.ask("fill", until, seed=self.seed, length=self.length)
        state = self.initiator.ask("write", until, peer=self.peer, length=self.length)
        if state != "DONE":
            raise Failed(state)
        if self.initiator.ask("digest", until, length=self.length) != \
                self.target.ask("digest", until, length=self.length):
            raise WrongBytes("a transfer was reported as done")

    def recover(self, since, known=True):
        """The seconds until bytes arrive again. A program whose transfer fails removes the peer and adds it."""
        until = time.monotonic() + SECONDS
        last = "no attempt"
        while time.monotonic() < until:
            if not known:
                with contextlib.suppress(Failed):  # the error may have removed it
                    self.initiator.ask("remove", until, name="target")
            try:
                if not known:
                    self.meet()
                self.transfer(until)
                return time.monotonic() - since
            except Failed as problem:
                last, known = str(problem), False
                time.sleep(0.2)
        raise Failed("no transfer succeeded: " + last)

    def begin_flow(self):
        """Transfers of all the memory, one after the other; the second one has begun and runs on for a moment."""
        self.initiator.tell("flow", peer=self.peer, length=SIZE)
        until = time.monotonic() + SECONDS
        answer = {}
        while answer.get("posted") != 1:
            answer = self.initiator.hear(until)
            if "posted" not in answer:
                raise Failed("before anything happened: %s" % answer)
        time.sleep(random.random() / 20)

    def end_flow(self, until=None):
        self.initiator.process.stdin.write(b"stop\n")
        self.initiator.process.stdin.flush()
        return self.initiator.result(until or time.monotonic() + SECONDS)["state"]

    def need_strike(self):
        if "strikes" not in pathlib.Path(self.folder.name, "initiator").read_text():
            raise Unfit("the fault was not injected")

    def flow_error(self, since):
        """The peer is gone: the seconds until the flow fails."""
        state = self.initiator.result(time.monotonic() + SECONDS)["state"]
        return "error", time.monotonic() - since, state

    def recovered(self, since, known=True, detail=""):
        return "recovered", self.recover(since, known), detail


def restart(world):
    """the target ends while idle, and another one starts under its name"""
    world.target.signal(signal.SIGKILL)
    world.start("target")
    return world.recovered(time.monotonic(), known=False)


def kill_target(world):
    """SIGKILL of the target in mid-transfer"""
    world.begin_flow()
    since = time.monotonic()
    world.target.signal(signal.SIGKILL)
    return world.flow_error(since)


def kill_initiator(world):
    """SIGKILL of the initiator in mid-transfer; another one starts under its name"""
    world.begin_flow()
    world.initiator.signal(signal.SIGKILL)
    world.start("initiator")
    since = time.monotonic()
    world.meet()
    return world.recovered(since)


def stop_target(world):
    """SIGSTOP of the target in mid-transfer, for good"""
    world.begin_flow()
    since = time.monotonic()
    world.target.signal(signal.SIGSTOP)
    return world.flow_error(since)


def pause_target(world):
    """SIGSTOP of the target in mid-transfer, for 20 s"""
    return pause(world, world.target, 20)


def pause_initiator(world):
    """SIGSTOP of the initiator in mid-transfer, for 10 s"""
    return pause(world, world.initiator, 10)


def pause(world, end, seconds):
    world.begin_flow()
    end.signal(signal.SIGSTOP)
    time.sleep(seconds)
    end.signal(signal.SIGCONT)
    since = time.monotonic()
    state = world.end_flow()
    return world.recovered(since, state == "DONE", "the transfer ended with " + state)


def remove(world):
    """the initiator removes the target during a transfer, and adds it again"""
    return interfere(world, {"do": "remove", "name": "target"}, known=False)


def reload(world):
    """the initiator loads the target's metadata again during a transfer"""
    return interfere(world, {"do": "add", "metadata": world.peer["metadata"]}, known=True)


def interfere(world, command, known):
    if world.backend == "Mooncake":
        raise Unfit("it keeps no peers")
    since = time.monotonic()
    state = world.initiator.ask("write", peer=world.peer, length=SIZE, meanwhile=command)
    return world.recovered(since, known, "the transfer ended with " + state)


def link_down(world):
    """no packets for 5 s in mid-transfer"""
    return interrupt(world, [(0, 1)] * 10)


def link_lost(world):
    """no packets from now on in mid-transfer, for good"""
    world.begin_flow()
    since = time.monotonic()
    world.link.block(0, 1)
    return world.flow_error(since)


def outage(world):
    """no packets for 20 s in mid-transfer"""
    return interrupt(world, [(0, 1)] * 40)


def flap(world):
    """no packets for 0.5 s, five times, with 0.5 s between"""
    return interrupt(world, [(0, 1), ()] * 5)


def one_way(world):
    """for 5 s, no packets from the target to the initiator arrive"""
    return interrupt(world, [(1,)] * 10)


def interrupt(world, steps):
    """A step lasts half a second: the sides whose packets are lost."""
    world.begin_flow()
    for sides in steps:
        world.link.block(*sides)
        time.sleep(0.1 if world.smoke else 0.5)
    world.link.block()
    since = time.monotonic()
    state = world.end_flow()
    return world.recovered(since, state == "DONE", "the transfer ended with " + state)


def rail(world):
    """one of two rails fails in mid-transfer, for good"""
    since = time.monotonic()
    if world.backend == "PIER":
        # Its plan of faults counts requests.
        state = world.initiator.ask("write", peer=world.peer, length=SIZE)
        world.need_strike()
    else:
        world.begin_flow()
        world.link.block(0, 1, rails=[1])
        state = world.end_flow()
    return world.recovered(since, state == "DONE", "the transfer ended with " + state)


def full_disk(world):
    """standard error, and the log files of the backends, are on a full disk"""
    return world.recovered(time.monotonic())


def crowd(world):
    """300 peers come, get bytes, and go, one after the other"""
    if world.backend == "Mooncake":
        raise Unfit("a peer is an engine, of which a process has one")
    since = time.monotonic()
    for number in range(5 if world.smoke else 300):
        name = "visitor%d" % number
        peer = world.target.ask("come", name=name)
        world.initiator.ask("add", metadata=peer["metadata"], name=name)
        state = world.initiator.ask("write", peer={**peer, "name": name}, length=65536)
        if state != "DONE":
            raise Failed("peer %d: %s" % (number, state))
        world.initiator.ask("remove", name=name)
        world.target.ask("go", name=name)
    return world.recovered(since)


def wrong_bytes(world):
    """a bit of a transfer is flipped on its way, without an error"""
    since = time.monotonic()
    for _ in range(5):
        world.transfer(time.monotonic() + SECONDS)
    world.need_strike()
    return world.recovered(since)


def more_environment(row, backend):
    """Of a row: variables of both ends, and rails."""
    if row is full_disk:
        return {"CHAOS_LOG": "/dev/full", "UCX_LOG_FILE": "/dev/full", "UCX_LOG_LEVEL": "debug",
                "PIER_LOG": "debug", "NIXL_LOG_LEVEL": "DEBUG"}, 1
    if row is wrong_bytes:
        if backend != "PIER":
            raise Unfit("nothing injects them")
        return {"PIER_DEVICE": "fault:corrupt@4:soft0", "PIER_LOG": "info"}, 1
    if row is rail:
        if backend not in ("PIER", "UCX"):
            raise Unfit("one rail")
        return {"PIER_DEVICE": "soft0,fault:dead@30:soft0", "PIER_LOG": "info"} if backend == "PIER" else {}, 2
    return {}, 1


ROWS = [restart, kill_target, kill_initiator, stop_target, pause_target, pause_initiator, remove, reload,
        link_down, outage, flap,
        link_lost, one_way, rail, full_disk, crowd, wrong_bytes]
# Nothing is left to recover, or nothing else can be said: an error is the right end.
ERROR_IS_RIGHT = kill_target, stop_target, link_lost, wrong_bytes
NEED_LINK = link_down, outage, link_lost, flap, one_way
SMOKE = [(restart, "PIER", "recovered"), (restart, "UCX", "recovered"), (kill_target, "PIER", "error"),
         (kill_initiator, "PIER", "recovered"), (flap, "PIER", "recovered"), (wrong_bytes, "PIER", "wrong bytes")]


def run(options, row, backend):
    """The outcome, the seconds until then, and what else there is to say."""
    since = time.monotonic()
    try:
        more, rails = more_environment(row, backend)
        with World(options, backend, options.smoke, more, rails) as world:
            if not world.link and row in NEED_LINK:
                raise Unfit("soft0 carries UCX's datagrams within a host alone")
            world.prepare()
            since = time.monotonic()
            return row(world)
    except (Unfit, Unavailable) as problem:
        return "not applicable", 0, str(problem)
    except Failed as problem:
        outcome, detail = "error", problem
    except Hang as problem:
        outcome, detail = "hang", problem
    except Crash as problem:
        outcome, detail = "crash", problem
    except WrongBytes as problem:
        outcome, detail = "wrong bytes", problem
    return outcome, time.monotonic() - since, str(detail)


def read_results(file):
    with contextlib.suppress(FileNotFoundError), open(file) as lines:
        return [json.loads(line) for line in lines]
    return []


def commit():
    """The last one that changed what is tested."""
    git = subprocess.run(["git", "-C", HERE.parents[1], "log", "-1", "--format=%h", "--", "src", "include",
                          "integrations/nixl"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def run_rows(options):
    done = {(one["row"], one["backend"], one["round"], one["nixl"]) for one in read_results(options.results)}
    rows = [row for row in ROWS if not options.row or row.__name__ in options.row]
    for number in range(1, options.rounds + 1):
        for row in rows:
            for backend in options.backend or BACKENDS:
                if (row.__name__, backend, number, options.nixl) in done:
                    continue
                outcome, seconds, detail = run(options, row, backend)
                line = {"row": row.__name__, "backend": backend, "round": number, "nixl": options.nixl,
                        "outcome": outcome, "seconds": round(seconds, 1), "detail": detail[:300],
                        "commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
                with open(options.results, "a") as file:
                    file.write(json.dumps(line) + "\n")
                print("%s, %s: %s in %.1f s %s" % (row.__name__, backend, outcome, seconds, detail[:200]), flush=True)


def smoke(options):
    failed = False
    for row, backend, wanted in SMOKE:
        outcome, seconds, detail = run(options, row, backend)
        if outcome == "not applicable":
            print("skip: " + detail)
            sys.exit(77)
        failed |= outcome != wanted
        print("%s - %s with %s: %s in %.1f s %s" % ("ok" if outcome == wanted else "not ok", row.__name__, backend,
                                                    outcome, seconds, detail), flush=True)
    sys.exit(failed)


def name_outcome(one):
    """As the page names it: whether the transfer that ran at that time failed counts, too."""
    failed = "ended with" in one["detail"] and not one["detail"].endswith("DONE")
    return {"hang": "hang (%d s)" % SECONDS,
            "recovered": "error, then recovered" if failed else "recovered"}.get(one["outcome"], one["outcome"])


def describe(results):
    """A cell: how often each outcome, and after which time."""
    texts = []
    outcomes = collections.Counter(map(name_outcome, results))
    for outcome, count in outcomes.most_common():
        if outcome == "not applicable":
            return "n/a"
        times = sorted(one["seconds"] for one in results if name_outcome(one) == outcome)
        span = " to ".join("%g" % t for t in dict.fromkeys((times[0], times[-1])))
        texts.append("%d × %s%s" % (count, outcome, " in %s s" % span if outcome.startswith(("r", "e")) else ""))
    return "; ".join(texts) or "not run"


def print_table(results):
    cells = collections.defaultdict(list)
    for one in results:
        cells[one["row"], one["backend"]].append(one)
    backends = [name for name in BACKENDS if any(one["backend"] == name for one in results)]
    print("NIXL %s, pier %s, %s.\n" % tuple(
        ", ".join(sorted({one[key] for one in results})) for key in ("nixl", "commit", "date")))
    print("| what happens | best possible | %s |" % " | ".join(backends))
    print("|---|---|%s" % ("---|" * len(backends)))
    for row in ROWS:
        print("| %s | %s | %s |" % (row.__doc__, "error" if row in ERROR_IS_RIGHT else "recovered",
                                    " | ".join(describe(cells[row.__name__, name]) for name in backends)))


def install_plugin(options):
    env = wheels.environment(options.cache.path(options.nixl))
    subprocess.run([sys.executable, HERE.parents[1] / "integrations/nixl/install", sys.executable, "--plugin",
                    options.build / "integrations/nixl/libplugin_PIER.so"], env=env, check=True,
                   stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results")
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nixl", default=NEWEST)
    parser.add_argument("--row", action="append", choices=[row.__name__ for row in ROWS])
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.smoke and not options.results or not options.table and not options.build:
        parser.error("--results and --build, --results and --table, or --build and --smoke")
    if options.table:
        print_table(read_results(options.results))
        return
    options.build = options.build.resolve()
    options.cache = wheels.Cache(os.environ.get("PIER_TEST_NIXL_WHEELS", options.build / "nixl-wheels"))
    try:
        install_plugin(options)
    except wheels.Unavailable as problem:
        print("skip: NIXL %s: %s" % (options.nixl, problem))
        sys.exit(77)
    if options.smoke:
        smoke(options)
    run_rows(options)


if __name__ == "__main__":
    main()
