# SPDX-License-Identifier: BSD-3-Clause
"""The examples of docs/python-channels.md, run in their order."""

import array
import asyncio
import pathlib
import re
import socket
import subprocess
import sys
import unittest

import pier
from channels import HERE, connect_pair
from support import PATIENCE

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/python-channels.md"


def examples():
    """The indented blocks, by the heading above them."""
    blocks = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        code = [line[4:] for line in text.splitlines() if line.startswith("    ") or not line]
        if "".join(code):
            blocks[title] = "\n".join(code).strip() + "\n"
    return blocks


class Examples(unittest.TestCase):
    def test_examples(self):
        blocks = examples()
        self.assertEqual(list(blocks), ["Two processes", "Event loops", "Transfers", "Rings", "Groups"])
        near, far = socket.socketpair()
        names = {"array": array, "pier": pier, "sock": near}
        peer = subprocess.Popen([sys.executable, str(HERE / "channels.py"), str(far.fileno()), str(1 << 20)],
                                pass_fds=[far.fileno()])
        far.close()
        try:
            # The peer of the tests sends its Remote as text, and reads what this side sends as commands.
            code = blocks["Two processes"]
            for old, new in (("sock.sendall(ours)", "pass"),
                             ("from_bytes(sock.recv(len(ours), socket.MSG_WAITALL))",
                              "from_text(sock.makefile().readline())")):
                self.assertIn(old, code)
                code = code.replace(old, new)
            exec(code, names)
            self.assertEqual(names["memory"], bytes(1 << 20))
            self.check_event_loops(blocks["Event loops"], names)
            exec(blocks["Transfers"], names)
            self.assertTrue(names["transfer"].status.ended)
            exec(blocks["Rings"], names)
            self.assertEqual(memoryview(names["batch"]).shape, (64, 4096))
            names.pop("batch"), names.pop("slot")
            exec(blocks["Groups"], {"pier": pier})
        finally:
            for name in ("transfer", "ring", "channel", "region", "pd"):
                if name in names:
                    names[name].close()
            near.close()
            peer.wait(PATIENCE)

    def check_event_loops(self, code, names):
        """On a channel to this process, since the peer has no receive."""
        with pier.Channel(names["pd"]) as one, pier.Channel(names["pd"]) as other:
            connect_pair(one, other)
            local = {**names, "channel": one}
            exec(code, local)

            async def both():
                letter = other.post_recv(names["region"][8:16])
                await asyncio.gather(local["answer"](), other.post_send(None))
                self.assertEqual((await letter).length, 8)
            asyncio.run(asyncio.wait_for(both(), PATIENCE))


if __name__ == "__main__":
    unittest.main()
