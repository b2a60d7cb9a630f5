#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Copies whose connection breaks, by fault plans, and is restored."""

import itertools

from harness import Case, MIB, PROMISE, each, main, slowness

RESTORED = r"\Apier cp: the connection broke and was restored \(times: \d+\)\n\Z"
# More than the completions of the first chunks, without which nothing is restored. A receiver
# posts a note about room for one to eight chunks: at least 16 notes for 129 chunks.
PLANS = ("wc@40=RETRY_EXC_ERR", "wc@40=WR_FLUSH_ERR", "dead@10=20ms")
# The side that noticed the break fails first, or the other one.
FAILED = ("the transfer failed: .*(did not answer|WR_FLUSH_ERR)|"
          r"no progress for 30 s \(see --timeout\): the other process lost the connection")


class Broken(Case):
    def setUp(self):
        super().setUp()
        self.source = self.file("source", 8 * MIB + 12345)

    def break_at(self, side, plan, *options):
        """A copy in small chunks on soft0, with a plan for one side's device."""
        sides = {"--device": "soft0", "--remote-device": "soft0"}
        sides[side] = "fault:%s:soft0" % plan
        return self.run_pier("cp", "--chunk", "64K", *[word for pair in sides.items() for word in pair],
                             *options, self.source, "target")


class Breaks(Broken):
    def check_restored(self, result):
        self.assertEqual(result.status, 0, str(result))
        self.assertRegex(result.stderr, RESTORED)
        self.check_same(self.source, self.folder / "target")

    def test_a_broken_connection_is_restored(self):
        for side in ("--device", "--remote-device"):
            for plan in PLANS:
                with self.subTest((side, plan)):
                    self.check_restored(self.break_at(side, plan))

    def test_a_connection_that_breaks_often_is_restored(self):
        """By chance: the seed decides which completions fail."""
        for side in ("--device", "--remote-device"):
            for _ in range(8):
                plan = "wc~50=RETRY_EXC_ERR,seed=%d" % self.random.getrandbits(30)
                with self.subTest((side, plan)):
                    result = self.break_at(side, plan, "--depth", "3")
                    # A very early one means that the connection never worked. The other side may notice
                    # that this one disconnected, and report it, before this one reports why.
                    if result.status == 4:
                        self.check_failure(result, 4, "the peer (did not answer|disconnected)")
                    elif result.stderr:
                        self.check_restored(result)

    def test_a_break_at_the_end_is_restored(self):
        """131 chunks: the last announcements and credits."""
        for side in ("--device", "--remote-device"):
            for number in range(255, 264):
                plan = "wc@%d=RETRY_EXC_ERR" % number
                with self.subTest((side, plan)):
                    result = self.break_at(side, plan)
                    self.assertEqual(result.status, 0, str(result))
                    self.check_same(self.source, self.folder / "target")

    def test_holes_are_restored(self):
        with open(self.source, "r+b") as file:
            file.truncate(0)
            for offset in range(0, 16 * MIB, 512 * 1024):
                file.seek(offset)
                file.write(self.bytes(64 * 1024))
        self.check_restored(self.break_at("--device", "wc@40=RETRY_EXC_ERR"))

    def test_one_of_several_nics_breaks(self):
        """The others move its chunks, and a line names it. A NIC gets a chunk when those
        before it are busy, so only a large file has enough for each."""
        self.source = self.file("large", 64 * MIB + 12345)
        for number in (3, 5, 10):
            for side, other in (("--device", "--remote-device"), ("--remote-device", "--device")):
                with self.subTest((number, side)):
                    broken = "soft0,fault:wc@%d=RETRY_EXC_ERR:soft0,soft0" % number
                    self.check_went_on(self.run_pier(
                        "cp", "--chunk", "64K", side, broken, other, "soft0,soft0,soft0",
                        self.source, "target"))

    def check_went_on(self, result):
        self.assertEqual(result.status, 0, str(result))
        self.assertRegex(result.stderr, r"\Apier cp: the copy went on without (fault:)?soft0: .*\n\Z")
        self.check_same(self.source, self.folder / "target")

    @each(("wc@5+=RETRY_EXC_ERR", "--device", "--remote-device"),
          ("wc@5+=RETRY_EXC_ERR", "--remote-device", "--device"),
          ("dead@10+=100ms", "--device", "--remote-device"))
    def test_a_nic_that_stays_dead_is_left_out(self, case):
        """A receiver posts too little for the plan of a dead one."""
        plan, side, other = case
        self.check_went_on(self.run_pier(
            "cp", "--chunk", "64K", side, "soft0,fault:%s:soft0" % plan,
            other, "soft0,soft0", self.source, "target"))

    def test_quiet_does_not_mention_it(self):
        result = self.break_at("--device", PLANS[0], "--quiet")
        self.assertEqual((result.status, result.stderr), (0, ""))

    @each("--device", "--remote-device")
    def test_a_connection_that_stays_broken_fails_the_copy(self, side):
        result = self.break_at(side, "wc@40+=RETRY_EXC_ERR")
        self.check_failure(result, 4, FAILED)
        self.assertFalse((self.folder / "target").exists())

    def test_a_connection_that_never_worked_is_not_restored(self):
        for side in ("--device", "--remote-device"):
            with self.subTest(side):
                result = self.break_at(side, "wc@1+=RETRY_EXC_ERR")
                self.check_failure(result, 4, FAILED)
                self.assertLess(result.seconds, PROMISE * slowness())

    def test_a_refused_access_is_not_repeated(self):
        result = self.break_at("--device", "wc@40=REM_ACCESS_ERR")
        self.check_failure(result, 4, "IBV_WC_REM_ACCESS_ERR")
        self.assertLess(result.seconds, PROMISE * slowness())


class Ports(Broken):
    """The port of one side goes down, and the sentence names it, whichever side fails first."""

    # How the copy notices: the connection breaks, or nothing arrives any more.
    SYMPTOMS = ("wc@40+=RETRY_EXC_ERR", "wc@40+=WR_FLUSH_ERR", "lost@40+")

    @each(*itertools.product(("--device", "--remote-device"), SYMPTOMS))
    def test_a_port_that_is_down_is_named(self, case):
        side, symptom = case
        result = self.break_at(side, "async@5=PORT_ERR," + symptom)
        self.check_failure(result, 4, r"\Apier: port 1 of fault:soft0 is down: check the cable, "
                           r"the switch and \(InfiniBand\) the subnet manager \(")
        self.assertFalse((self.folder / "target").exists())

    @each("--device", "--remote-device")
    def test_a_port_that_comes_back_is_not_named(self, side):
        result = self.break_at(side, "async@5=PORT_ERR,async@6=PORT_ACTIVE,lost@40+")
        self.check_failure(result, 4, r"\Apier: no progress for 30 s \(see --timeout\)")


class Attributes(Case):
    """soft0 has one port, so a copy on port 2 fails on the side that heard of it."""

    def test_channel_replaces_the_environment_on_both_sides(self):
        source = self.file("source", 1000)
        wrong = {"PIER_CHANNEL": "port=2"}
        self.refused(3, "port 2 is not in 1 to 1", "cp", source, "target", env=wrong)
        self.copy("--channel", "tc=106,rnr_timer=1", source, "target", env=wrong)
        self.check_same(source, self.folder / "target")
        self.refused(3, "port 3 is not in 1 to 1", "cp", "--channel", "port=3", source, "target")

    def test_a_wrong_environment_is_reported(self):
        source = self.file("source", 1000)
        self.refused(3, "PIER_CHANNEL: \"ts=1\" is not KEY=NUMBER; the keys are port, gid", "cp",
                     source, "target", env={"PIER_CHANNEL": "ts=1"})


main(at_once=16)
