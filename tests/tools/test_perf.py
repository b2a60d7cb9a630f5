#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier perf: its tests, its numbers, and what happens if a side fails. No speed is judged."""

import csv
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess

from harness import Case, PATIENCE, PIER, STUB_RSH, main

COMPARE = pathlib.Path(__file__).resolve().parents[2] / "tools/perf/compare"
FAULTY = os.path.dirname(os.environ["FAULTY_BACKEND"])
TESTS = ["write_bw", "read_bw", "send_bw", "atomic_bw",
         "write_lat", "read_lat", "send_lat", "atomic_lat"]
BRIEF = ["--warm-up", "0", "-n", "50", "-l", "4", "--tx-depth", "16"]
MAGIC = b"\x89PIERPF\n"
ENDLESS = ["-D", "600", "write_bw"]
HEADER = re.compile(r"^ +bytes +messages .*\n", re.MULTILINE)


def table(output):
    """The rows of the table, as lists of numbers."""
    body = output[HEADER.search(output).end():]
    return [[float(cell) for cell in line.split()]
            for line in body.splitlines() if not line.startswith("#")]


class Perf(Case):
    def perf(self, *arguments, **options):
        result = self.run_pier("perf", *arguments, **options)
        self.assertEqual((result.status, result.stderr), (0, ""), str(result))
        return result.stdout

    def json(self, *arguments, **options):
        return json.loads(self.perf("--json", *arguments, **options))


class ByHand(Perf):
    """Both sides are started by the user: --listen and --connect."""

    def listen(self, *arguments, where="127.0.0.1:0"):
        process = self.start("perf", "--listen", where, *arguments)
        line = process.stderr.readline()
        found = re.fullmatch(r"pier perf: waiting for one client at (\S+) port (\d+)\n", line)
        self.assertTrue(found, line)
        return process, found[1], found[2]

    def test_a_measurement(self):
        for where in "127.0.0.1:0", "[::1]:0", "0":
            with self.subTest(where):
                server, address, port = self.listen(where=where)
                host = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(address, address)
                result, = self.json(*BRIEF, "--connect", port, "-d", "soft0", "--remote-device", "soft0",
                                    "write_bw", host)["results"]
                self.assertEqual(result["messages"], 50)
                done = self.finish(server)
                self.assertEqual((done.status, done.stdout, done.stderr), (0, "", ""))

    def test_failures(self):
        self.refused(4, "cannot connect to 127.0.0.1 port 1: Connection refused; is 'pier perf --listen 1'",
                     "perf", "--connect", "1", "write_bw", "127.0.0.1")
        server, _, port = self.listen()
        self.refused(4, "cannot listen at .*: Address already in use", "perf", "--listen", "127.0.0.1:" + port)
        # The client gives up before it sends anything.
        socket.create_connection(("127.0.0.1", int(port))).close()
        self.check_failure(self.finish(server), 4, "127.0.0.1 ended before the measurement was complete")
        server, _, _ = self.listen("--timeout", "0.1")
        self.check_failure(self.finish(server), 4, "no client came within 0.1 s")

    def test_a_stranger_does_not_hold_the_server(self):
        server, address, port = self.listen()
        with socket.create_connection((address, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            self.check_failure(self.finish(server), 4, 'protocol, beginning with "GET / HTTP/1.1": another program')
        # One that sends nothing, if it connects within the second.
        connected = False
        while not connected:
            server, address, port = self.listen("--timeout", "1")
            stranger = socket.socket()
            connected = stranger.connect_ex((address, int(port))) == 0
            done = self.finish(server)
            stranger.close()
            self.check_failure(done, 4, "127.0.0.1 did not respond for 1 s" if connected else "no client came")

    def serve(self, answer):
        """Connect a client to a server that sends these bytes, and return its result."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = self.start("perf", "--connect", server.getsockname()[1], "write_bw", "127.0.0.1")
            connection = server.accept()[0]
            connection.sendall(answer)
            done = self.finish(client)
            connection.close()
            return done

    def test_a_client_refuses_other_servers(self):
        self.check_failure(self.serve(b"SSH-2.0-OpenSSH_9.2\r\n"), 4,
                           'protocol, beginning with "SSH-2.0-OpenSSH_9.2": another program uses the port')
        self.check_failure(self.serve(b"\x89PIERCP\n" + bytes(8)), 4, "another command of pier, not 'pier perf'$")

    def test_another_version_is_refused_by_both_sides(self):
        pattern = "127.0.0.1 uses version 2 of the .* protocol, this side uses version 1: install the same version"
        other = MAGIC + struct.pack("<II", 2, 0)
        self.check_failure(self.serve(other), 4, pattern)
        server, address, port = self.listen()
        with socket.create_connection((address, int(port))) as client:
            client.sendall(other)
            self.check_failure(self.finish(server), 4, pattern)
            self.assertEqual(client.recv(16, socket.MSG_WAITALL), MAGIC + struct.pack("<II", 1, 0))

    def measure(self):
        server, address, port = self.listen()
        client = self.start("perf", "--connect", port, "-d", "soft0", "--remote-device", "soft0", *ENDLESS, address)
        while not HEADER.match(client.stdout.readline()):
            pass
        return server, client

    def test_a_side_that_is_killed_ends_the_other(self):
        for killed, survivor in (0, 1), (1, 0):
            with self.subTest(killed):
                sides = self.measure()
                sides[killed].kill()
                self.check_failure(self.finish(sides[survivor]), 4, "127.0.0.1 ended before the measurement")

    def test_ctrl_c_ends_both_sides(self):
        server, _, _ = self.listen()
        server.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(server).status, -signal.SIGINT)
        for stopped in 0, 1:
            with self.subTest(stopped):
                sides = self.measure()
                sides[stopped].send_signal(signal.SIGINT)
                for side, process in enumerate(sides):
                    self.check_failure(self.finish(process), 128 + signal.SIGINT,
                                       "^pier: %sinterrupted$" % ("" if side == stopped else "127.0.0.1: "))

    def test_wrong_usage(self):
        self.refused(2, "--listen takes no other arguments", "perf", "--listen", "0", "write_bw")
        self.refused(2, "--listen takes no other arguments", "perf", "-d", "soft0", "--listen=0")
        self.refused(2, "--listen takes no other arguments", "perf", "--listen=0", "-b")
        for where in "host:http", "65536", "::1:", "":
            self.refused(2, "not PORT or ADDRESS:PORT", "perf", "--listen", where)
        self.refused(2, "--connect needs HOST", "perf", "--connect", "1", "write_bw")


class Tests(Perf):
    def test_every_test_moves_verified_messages(self):
        for name in TESTS:
            for memory in ("memfd", "host", "faulty"):
                with self.subTest((name, memory)):
                    found = self.json(*BRIEF, name, "--src-mem", memory, "--dst-mem", memory,
                                      env={"PIER_BACKEND_PATH": FAULTY})
                    result, = found["results"]
                    self.assertEqual(result["messages"], 50)
                    self.assertGreater(result["seconds"], 0)
                    self.assertEqual(found["here"]["memory"], memory)
                    self.assertEqual(found["there"]["memory"], memory)

    def test_both_directions_add_up(self):
        for name in TESTS[:4]:
            with self.subTest(name):
                result, = self.json(*BRIEF, "-b", "-q", "3", "--threads", "2", name)["results"]
                self.assertEqual(result["messages"], 2 * 3 * 50)

    def test_threads_that_sleep_end_as_well(self):
        for name in TESTS:
            with self.subTest(name):
                result, = self.json(*BRIEF, "-e", name)["results"]
                self.assertEqual(result["messages"], 50)

    def test_staged_messages_are_verified_in_the_memory(self):
        for arguments in (["write_bw"], ["send_bw", "-b", "-q", "2"], ["write_lat"],
                          ["send_lat", "-e"], ["write_bw", "--rx-depth", "2"]):
            with self.subTest(arguments):
                found = self.json("-n", "200", "--path", "staged", *arguments, "-s", "5,100K",
                                  "--src-mem", "faulty", "--dst-mem", "faulty",
                                  env={"PIER_BACKEND_PATH": FAULTY})
                self.assertTrue(found["settings"]["staged"])
                self.assertTrue(found["here"]["path"].startswith("staged"), found["here"])
                for result in found["results"]:
                    self.assertEqual(result["messages"], 400 if "-q" in arguments and
                                     "-b" not in arguments else 200 * (4 if "-b" in arguments
                                                                       else 1))

    def test_the_compare_and_swap_is_an_atomic_too(self):
        found = self.json(*BRIEF, "-A", "CMP_AND_SWAP", "-b", "atomic_bw")
        self.assertEqual(found["settings"]["atomic"], "CMP_AND_SWAP")

    def test_reads_take_the_bytes_of_the_other_side(self):
        found = self.json(*BRIEF, "--src-mem", "host", "--dst-mem", "memfd", "read_bw")
        self.assertEqual(found["here"]["memory"], "memfd")
        self.assertEqual(found["there"]["memory"], "host")

    def test_a_time_is_kept(self):
        for name in ("write_bw", "write_lat", "send_bw"):
            with self.subTest(name):
                result, = self.json("-D", "0.2", name)["results"]
                self.assertGreaterEqual(result["seconds"], 0.2)
                self.assertGreater(result["messages"], 0)

    def test_sizes_are_lists_and_ranges(self):
        rows = table(self.perf(*BRIEF, "-s", "3-20,64K,1", "write_bw"))
        self.assertEqual([row[0] for row in rows], [3, 4, 8, 16, 20, 65536, 1])
        rows = table(self.perf(*BRIEF, "-a", "read_lat"))
        self.assertEqual([row[0] for row in rows], [2 << i for i in range(23)])

    def test_the_options_of_the_connection_arrive(self):
        found = self.json(*BRIEF, "-m", "1024", "--tclass", "32", "-u", "14", "-o", "4",
                          "--channel", "retry=3", "read_bw")
        self.assertEqual(found["settings"]["channel"],
                         "mtu=1024,tc=32,timeout=14,rd_atomic=4,retry=3")

    def test_several_nics_share_the_channels(self):
        for arguments in ((), ("-b",), ("--path", "staged")):
            with self.subTest(arguments):
                found = self.json(*BRIEF, "-d", "soft0,soft0", "--rails", "2", "-q", "2",
                                  *arguments, "write_bw")
                self.assertEqual(found["results"][0]["messages"], 50 * 4 * (1 + ("-b" in arguments)))

    def test_another_host(self):
        found = self.json(*BRIEF, "--remote-pier", PIER, "write_bw", "somewhere",
                          env={"PIER_RSH": STUB_RSH})
        self.assertEqual(found["there"]["device"], "soft0")


class Verification(Perf):
    def test_a_wrong_byte_at_the_other_side_is_found(self):
        for name in ("write_bw", "send_bw", "write_lat"):
            with self.subTest(name):
                result = self.run_pier("perf", *BRIEF, "--dst-mem", "faulty:flip1", name,
                                       env={"PIER_BACKEND_PATH": FAULTY})
                self.check_failure(result, 5, r"verification failed: byte \d+ of a message of \d+")

    def test_a_wrong_byte_at_this_side_is_found(self):
        result = self.run_pier("perf", *BRIEF, "--dst-mem", "faulty:flip1", "read_bw",
                               env={"PIER_BACKEND_PATH": FAULTY})
        self.check_failure(result, 5, r"verification failed: byte \d+ of a message of \d+")

    def test_a_wrong_sum_of_atomics_is_found(self):
        result = self.run_pier("perf", *BRIEF, "--dst-mem", "faulty:flip1", "atomic_bw",
                               env={"PIER_BACKEND_PATH": FAULTY})
        self.check_failure(result, 5, r"after \d+ atomics")

    def test_a_copy_that_fails_ends_a_staged_test(self):
        result = self.run_pier("perf", *BRIEF, "--path", "staged", "--src-mem", "faulty:broken",
                               "write_bw", env={"PIER_BACKEND_PATH": FAULTY})
        self.check_failure(result, 3, "faulty")


class Output(Perf):
    def test_the_table_fits_100_columns(self):
        for name in ("write_bw", "write_lat"):
            output = self.perf(*BRIEF, name)
            self.assertLessEqual(max(map(len, output.splitlines())), 100, output)

    def test_the_formats_agree(self):
        found = self.json(*BRIEF, "-s", "64,1K", "write_bw")
        lines = self.perf(*BRIEF, "-s", "64,1K", "--csv", "write_bw").splitlines()
        rows = list(csv.DictReader(lines))
        self.assertEqual([int(row["bytes"]) for row in rows],
                         [result["bytes"] for result in found["results"]])
        for row in rows:
            self.assertEqual(row["test"], "write_bw")
            self.assertEqual(int(row["messages"]), 50)
            rate = int(row["messages"]) * int(row["bytes"]) / float(row["seconds"])
            self.assertAlmostEqual(float(row["bytes_per_second"]) / rate, 1, delta=0.1)

    def test_the_times_are_in_order_and_complete(self):
        for name in ("write_lat", "send_lat", "read_lat", "atomic_lat"):
            with self.subTest(name):
                result, = self.json("-n", "3000", "--histogram", name)["results"]
                order = [result[key + "_us"] for key in ("min", "p50", "p99", "p999", "max")]
                self.assertEqual(order, sorted(order))
                self.assertGreater(result["min_us"], 0)
                buckets = result["histogram_ns"]
                self.assertEqual(sum(count for _, count in buckets), 3000)
                middle = sorted(start for start, count in buckets for _ in range(count))[1500]
                self.assertAlmostEqual(middle / 1e3 / result["p50_us"], 1, delta=0.01)

    def test_a_histogram_is_drawn(self):
        self.assertRegex(self.perf("-n", "500", "--histogram", "write_lat"),
                         r"(?m)^# +[0-9.]+ us +[0-9]+ #+$")

    def test_the_record_says_what_was_measured(self):
        found = self.json(*BRIEF, "write_bw")
        self.assertEqual(set(found), {"test", "date", "settings", "here", "there", "results"})
        for side in (found["here"], found["there"]):
            self.assertEqual(side["device"], "soft0")
            self.assertEqual(side["path"], "dma-buf")
            self.assertIn(os.uname().release, side["kernel"])
            self.assertTrue(side["pier"] and side["host"])
            self.assertGreater(side["register_ns"], 0)
            self.assertGreater(side["deregister_ns"], 0)
            self.assertEqual(side["registered_bytes"], 2 * 65536)

    def test_processor_time_is_reported(self):
        result, = self.json("-D", "0.2", "write_bw")["results"]
        self.assertGreater(result["cpu_s_per_gib_here"], 0)

    def test_no_usable_device_is_a_note(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("this machine has an RDMA device")
        result = self.run_pier("perf", *BRIEF, "write_bw", env={"PIER_DEVICE": ""})
        self.assertEqual(result.status, 0)
        self.assertIn("soft0", result.stderr)
        result = self.run_pier("perf", *BRIEF, "--quiet", "write_bw", env={"PIER_DEVICE": ""})
        self.assertEqual((result.status, result.stderr), (0, ""))


class Comparison(Perf):
    """The script that compares results of --json."""

    def compare(self, *arguments):
        return subprocess.run([COMPARE, *arguments], cwd=self.folder, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)

    def result(self, name, test, values):
        """A result of pier perf, with the bandwidth or latency of each size set."""
        found = self.json(*BRIEF, "-s", ",".join(map(str, values)), test)
        for result, value in zip(found["results"], values.values()):
            result["bytes_per_second"], result["p50_us"] = value * 1e9 / 8, value
        found["there"]["device"] = "$\\frac{1$\x1b[2J"
        return self.file(name, json.dumps(found).encode()).name

    def test_ratios_to_the_first_result(self):
        for test, heading in (("write_bw", "# bandwidth, Gbit/s"), ("write_lat", "# median latency, us")):
            files = [self.result("first.json", test, {64: 8, 4096: 2}),
                     self.result("second\n.json", test, {64: 2, 8192: 5})]
            done = self.compare(*files)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual([line.split() for line in done.stdout.splitlines()], [
                heading.split(), ["bytes", "first", "second-"], ["64", "8.00", "2.00", "x0.25"],
                ["4096", "2.00", "-"], ["8192", "-", "5.00"]])

    def test_what_is_no_result_is_refused(self):
        for text in ("", "{", "{}", "[]", '{"test": "write_bw"}', "[" * 100000, "\xff",
                     '{"test": "x", "here": {}, "there": {}, "results": [{"bytes": 1}]}'):
            with self.subTest(text[:40]):
                self.file("junk", text.encode())
                done = self.compare("junk")
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, "'junk' is not a result of 'pier perf --json'")
        self.assertIn("No such file", self.compare("missing").stderr)
        files = [self.result(test, test, {64: 1}) for test in ("read_bw", "read_lat")]
        self.assertIn("latency cannot be compared with bandwidth", self.compare(*files).stderr)
        self.assertIn(".svg or .png", self.compare("--plot", "a.pdf", files[0]).stderr)

    def test_a_picture_of_two_results(self):
        """Also where code of the current folder waits to be run in place of a module."""
        for name in ("matplotlib.py", "sitecustomize.py", "os.py", "json.py"):
            self.file(name, b"open('proof', 'w')\n")
        self.file("matplotlibrc", b"figure.dpi: much\n")
        files = [self.result("first", "write_bw", {64: 8, 4096: 2}), self.result("second", "write_bw", {64: 1})]
        for name, start in (("a.svg", b"<?xml"), ("it's $(b).png", b"\x89PNG")):
            done = self.compare("--plot", name, *files)
            if "install matplotlib" in done.stderr:
                break
            # A first run may say there that it looks for fonts.
            self.assertNotIn("much", done.stderr)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((self.folder / name).read_bytes().startswith(start))
        self.assertFalse((self.folder / "proof").exists())
        if "install matplotlib" in done.stderr:
            self.assertFalse((self.folder / "a.svg").exists())
            self.skipTest("matplotlib is not installed")


class Failures(Perf):
    def start_endless(self, *arguments, **options):
        """A measurement that has begun."""
        process = self.start("perf", *ENDLESS, *arguments, **options)
        for line in process.stdout:
            if HEADER.match(line):
                return process
        self.fail("it ended too soon")

    def test_a_signal_ends_both_sides(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start_endless()
            process.send_signal(number)
            result = self.finish(process)
            self.check_failure(result, 128 + number, "interrupted|terminated")

    def test_a_killed_server_is_noticed(self):
        for arguments in ((), ("-b",)):
            process = self.start_endless(*arguments)
            os.kill(self.server_of(process), signal.SIGKILL)
            self.check_failure(self.finish(process), 4, "ended before|killed|failed")

    def test_a_stopped_server_is_noticed(self):
        process = self.start_endless()
        server = self.server_of(process)
        os.kill(server, signal.SIGSTOP)
        self.check_failure(self.finish(process), 4, "did not (respond|answer)|timeout")

    def test_a_killed_client_ends_the_server(self):
        process = self.start_endless()
        process.kill()
        self.finish(process)
        # tearDown() waits until no process is left.

    def test_devices_and_memory_that_do_not_exist(self):
        for option in ("--device", "--remote-device", "--src-mem", "--dst-mem"):
            with self.subTest(option):
                self.refused(3, "nothing", "perf", option, "nothing", "write_bw")
        self.refused(3, "mtu 1000", "perf", "--mtu", "1000", "write_bw")

    def test_memory_without_a_direct_path_names_the_other_one(self):
        self.refused(3, "--path staged", "perf", "--src-mem", "faulty:sealed", "write_bw",
                     env={"PIER_BACKEND_PATH": FAULTY})
        self.perf(*BRIEF, "--path", "staged", "--src-mem", "faulty:sealed", "write_bw",
                  env={"PIER_BACKEND_PATH": FAULTY})

    def test_a_remote_shell_that_fails(self):
        self.refused(4, "exited with status 1", "perf", "--rsh", "false", "write_bw", "host")
        result = self.run_pier("perf", "--rsh", STUB_RSH, "write_bw", "nowhere")
        self.assertEqual(result.status, 4)
        self.assertIn("exited with status 255", result.stderr)

    def test_a_full_disk_is_noticed(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            result = self.run_pier("perf", *BRIEF, "--json", "write_bw", stdout=full)
        self.check_failure(result, 1, "standard output")


class Usage(Perf):
    def test_invalid_values_are_refused(self):
        for option, values in {
                "--size": ("", "0", "2G", "4K-", "-4K", "4K-1K", "1,,2", "x", "1-2-3",
                           ",".join("1" * 65)),
                "--duration": ("", "0", "-1", "x", "nan", "1s"), "--iters": ("0", "-1", "1.5"),
                "--warm-up": ("-1", "x"), "--path": ("", "bounce"), "--rails": ("0", "5"),
                "--qp": ("0", "129"), "--threads": ("0", "65"), "--tx-depth": ("0", "4097"),
                "--rx-depth": ("0", "4097"), "--post_list": ("0", "33"),
                "--inline_size": ("-1", "4097"), "--atomic_type": ("ADD",),
                "--mtu": ("0", "5000"), "--gid-index": ("-1",), "--sl": ("16",),
                "--tclass": ("255",), "--outs": ("0",), "--qp-timeout": ("32",),
                "--channel": ("nothing=1",), "--timeout": ("0", "x"),
                "--device": ("", "x" * 256), "--src-mem": ("", "x" * 64)}.items():
            for value in values:
                with self.subTest((option, value)):
                    self.refused(2, "%s: " % option, "perf", option, value, "write_bw")

    def test_what_does_not_fit_together_is_refused(self):
        for pattern, *arguments in (
                ("TEST is required",), ("unknown test 'write'", "write"),
                ("one HOST", "write_bw", "a", "b"), ("HOST is empty", "write_bw", ""),
                ("begins with '-'", "write_bw", "--", "-oProxyCommand=x"),
                ("bandwidth tests", "-b", "write_lat"), ("bandwidth tests", "-q2", "read_lat"),
                ("8 bytes", "-s4", "atomic_bw"), ("atomic_bw", "-A", "CMP_AND_SWAP", "write_bw"),
                ("staged is for", "--path", "staged", "read_bw"),
                ("128", "--rails", "4", "-q", "33", "write_bw"),
                ("4G of memory", "-s", "1G", "-q", "3", "write_bw")):
            with self.subTest(arguments):
                self.refused(2, pattern, "perf", *arguments)

    def test_the_help_names_every_option(self):
        self.assertEqual(self.run_pier("perf", "--help").stdout,
                         self.run_pier("help", "perf").stdout)


class Peers(Perf):
    """Servers and clients that do not keep to the protocol."""

    def serve(self, script, seconds=60):
        """Measure against a shell script in place of the server."""
        path = self.folder / "server"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        return self.run_pier("perf", "--timeout", seconds, "--rsh", str(path), "write_bw", "host")

    def test_a_server_of_another_kind(self):
        self.check_failure(self.serve("echo Welcome!; exec cat > /dev/null"), 4, "Welcome!")
        self.check_failure(self.serve("printf '\\211PIERCP\\n\\1\\0\\0\\0\\0\\0\\0\\0'; cat"),
                           4, "another command of pier")

    def test_a_server_that_sends_nothing_useful(self):
        start = "printf '\\211PIERPF\\n\\1\\0\\0\\0\\0\\0\\0\\0"
        for rest in "\\0\\0\\0\\0\\42\\0\\0\\0", "\\377\\377\\377\\377\\42\\0\\0\\0":
            with self.subTest(rest):
                self.check_failure(self.serve(start + rest + "'; exec sleep 600"), 4,
                                   "unexpected")
        self.check_failure(self.serve(start + "'; exec sleep 600", 2), 4, "did not respond")

    def request(self, **changes):
        """The client's first bytes, with some settings changed."""
        values = {"opcode": 2, "flags": 0, "slot": 4096, "iterations": 1, "duration": 1,
                  "warm_up": 0, "depth": 16, "rx_depth": 16, "batch": 1, "inline": 0,
                  "rails": 1, "channels": 1, "threads": 1, "timeout": 2000, "strings": b"\0" * 6}
        values.update(changes)
        strings = values.pop("strings")
        payload = struct.pack("<IIQQ10I", *values.values()) + strings
        return MAGIC + struct.pack("<II", 1, 0) + struct.pack("<II", len(payload), 32) + payload

    def ask(self, request):
        server = subprocess.run([PIER, "perf", "--server", "--local"], input=request,
                                capture_output=True, env=self.environment(), check=False,
                                timeout=60)
        return server.returncode, server.stdout

    def test_a_server_refuses_what_is_out_of_range(self):
        for changes in ({"opcode": 99}, {"flags": 16}, {"slot": 0}, {"slot": 1 << 31},
                        {"depth": 0}, {"depth": 4097}, {"rx_depth": 0}, {"batch": 17},
                        {"rails": 0}, {"rails": 5}, {"channels": 129}, {"threads": 0},
                        {"timeout": 0}, {"flags": 8}, {"opcode": 7}, {"flags": 3},
                        {"slot": 1 << 30, "channels": 3}, {"strings": b"\xff\xff"},
                        {"strings": b"\0" * 7}):
            with self.subTest(changes):
                status, output = self.ask(self.request(**changes))
                self.assertEqual(status, 4)
                self.assertIn(b"invalid request", output)

    def test_a_server_takes_a_valid_request(self):
        """So the test above cannot pass because of something else."""
        status, output = self.ask(self.request())
        self.assertEqual(status, 4)
        self.assertNotIn(b"invalid request", output)

    def test_a_server_takes_no_arguments(self):
        self.refused(2, "no arguments", "perf", "--server", "write_bw")
        self.refused(2, "--under", "perf", "--server", "--under", "/")


if __name__ == "__main__":
    main()
