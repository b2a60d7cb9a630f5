#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""pier cp with an attacker on the wire, and with control characters from the peer."""

import os
import struct
import sys
import unicodedata

from harness import GREETING, MIB, Case, json, main

SENDER = os.environ["HOSTILE_SENDER"]
CHUNK = 64 * 1024
ERROR = 8
COPIES = 60


def content(size):
    """The content of the file that the hostile sender sends: see cp_sender.c."""
    period = bytes(i * 7 & 0xff for i in range(256))
    return period * (size // 256)


def harmless(text):
    """Whether a terminal only displays the text."""
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
               for c in text)


class Wire(Case):
    """The attacks of cp_sender.c."""

    def attack(self, *words, options=("--chunk", "64K")):
        (self.folder / "target").unlink(missing_ok=True)
        return self.run_pier("cp", "--timeout", "20", *options, "--rsh",
                             "'%s' %s" % (SENDER, " ".join(words)), "host:file", "target")

    def beaten(self, status, pattern, *words, **options):
        result = self.attack(*words, **options)
        result.stderr = "".join(line for line in result.stderr.splitlines(True)
                                if not line.startswith("hostile sender"))
        self.check_failure(result, status, pattern)
        self.assertEqual(result.stdout, "")
        self.assertFalse((self.folder / "target").exists())

    def test_the_hostile_sender_without_an_attack_is_verified(self):
        for words in (("honest",), ("honest", "sparse")):
            result = self.attack(*words)
            self.assertEqual((result.status, result.stderr), (0, ""), str(result))
            self.assertIn(" verified:", result.stdout)
            self.assertEqual((self.folder / "target").read_bytes(), content(4 * CHUNK))

    def test_changed_bytes_are_detected(self):
        self.beaten(5, "bytes 65536 to 131071 that arrived .* differ", "payload")

    def test_a_forged_tag_is_detected(self):
        self.beaten(5, "bytes 65536 to 131071 that arrived .* differ", "tag")

    def test_a_replayed_chunk_is_detected(self):
        self.beaten(5, "bytes 65536 to 131071 that arrived .* differ", "replay")

    def test_a_valid_tag_does_not_bypass_the_digest(self):
        self.beaten(5, "not those the sender sent", "digest")

    def test_a_hole_in_place_of_data_is_detected(self):
        self.beaten(5, "not those the sender sent", "hole", "sparse")
        self.beaten(4, "unexpected chunk", "hole")

    def test_wrong_chunk_lengths_are_refused(self):
        self.beaten(4, "unexpected chunk", "length")
        self.beaten(4, "unexpected chunk", "beyond", "sparse")
        self.beaten(4, "unexpected chunk", "short")

    def test_a_missing_digest_is_refused(self):
        self.beaten(4, "unexpected control message", "silent")

    def test_chunks_keep_away_from_kept_bytes(self):
        """A chunk of 128K has a kept byte; one of 64K is not where the sender says."""
        partial = self.folder / ".target.pier-partial"
        for chunk in "128K", "64K":
            with open(partial, "wb") as file:
                os.pwrite(file.fileno(), b"kept" * (CHUNK // 4), CHUNK)
            result = self.attack("honest", options=("--continue", "--chunk", chunk))
            # The tag is checked by a thread, while the fourth chunk is one too many.
            self.assertRegex(result.stderr, "unexpected chunk" + ("" if chunk == "128K" else
                             "|bytes 131072 to 196607 that arrived .* differ"))
            self.assertIn(result.status, (4, 5))
            self.assertFalse((self.folder / "target").exists())
            partial.unlink()

    def test_a_slot_rewritten_during_verification_is_harmless(self):
        verdicts = {0: 0, 5: 0}
        for _ in range(COPIES):
            result = self.attack("rewrite", options=("--chunk", "1M"))
            self.assertIn(result.status, verdicts, str(result))
            verdicts[result.status] += 1
            if result.status == 0:
                self.assertTrue((self.folder / "target").read_bytes() == content(2 * MIB),
                                "verified, but not what was hashed")
            else:
                self.assertFalse((self.folder / "target").exists())
        print("# verified %d times, refused %d times" % (verdicts[0], verdicts[5]))


class Output(Case):
    """Text from the peer is printed, without control characters."""

    def report(self, *options):
        return self.run_pier("cp", *options, "--chunk", "64K", "--rsh",
                             "'%s' words" % SENDER, "host:file", "target")

    def test_control_characters_in_a_report_are_escaped(self):
        result = self.report("-v")
        self.assertEqual(result.status, 0, str(result))
        self.assertTrue(harmless(result.stdout) and harmless(result.stderr), str(result))
        self.assertIn(r"mem\x9b2J\xe2\x80\xae\x0d\x0a memory on dev\x1b]0;x\x07\xc2\x9b2J "
                      "(\U0001f6a2" r"\xed\xa0\x80\xc0\xaf\x7f)", result.stdout)
        self.assertIn(r'why\xe2\x81\xa6\xef\xbb\xbf\xe2\x80\xa8"' "\\\n", result.stdout)

    def test_control_characters_in_a_report_are_escaped_in_json(self):
        result = self.report("--json")
        self.assertEqual(result.status, 0, str(result))
        self.assertTrue(harmless(result.stdout), str(result))
        facts = json.loads(result.stdout)["source"]
        self.assertEqual(facts["device"], "dev\033]0;x\a\x9b2J")
        self.assertEqual(facts["memory"], "mem\ufffd2J\u202e\r\n")
        self.assertEqual(facts["why"], 'why\u2066\ufeff\u2028"\\')

    def error(self, words, *options):
        program = self.folder / "peer"
        data = GREETING + struct.pack("<IIIH", 6 + len(words), ERROR, 1, len(words)) + words
        program.write_text("#!%s\nimport sys\nsys.stdout.buffer.write(%r)\n"
                           "sys.stdout.flush()\nsys.stdin.buffer.read()\n"
                           % (sys.executable, data))
        program.chmod(0o755)
        return self.run_pier("cp", *options, "--rsh", "'%s'" % program, "host:file", "target")

    def test_control_characters_in_a_failure_are_escaped(self):
        words = "no \033[2J\x9b\u202e é".encode() + b"\x9b2J\xff\r\n\xf4\x90\x80\x80"
        shown = r"no \x1b[2J\xc2\x9b\xe2\x80\xae é\x9b2J\xff\x0d\x0a\xf4\x90\x80\x80"
        result = self.error(words)
        self.assertEqual((result.status, result.stderr), (1, "pier: host: %s\n" % shown))
        result = self.error(words, "--json")
        self.assertTrue(harmless(result.stdout), str(result))
        self.assertEqual(json.loads(result.stdout)["error"],
                         "host: no \033[2J\x9b\u202e é\ufffd2J\ufffd\r\n" + 4 * "\ufffd")

    def test_control_characters_before_the_preamble_are_escaped(self):
        program = self.folder / "peer"
        program.write_text("#!/bin/sh\nprintf 'Hi \\033[2J\\302\\2332J\\n'\ncat >/dev/null\n")
        program.chmod(0o755)
        result = self.run_pier("cp", "--rsh", "'%s'" % program, "host:file", "target")
        self.check_failure(result, 4, r'sent something other than the copy protocol, '
                           r'beginning with "Hi \\x1b\[2J\\xc2\\x9b2J"')

    def test_control_characters_in_a_file_name_are_escaped(self):
        name = "no\033[2J\x9b\u2028such"
        result = self.run_pier("cp", name, "target")
        self.check_failure(result, 1, r"cannot read no\\x1b\[2J\\xc2\\x9b\\xe2\\x80\\xa8such: ")


main()
