# SPDX-License-Identifier: BSD-3-Clause
"""The program vm_peer: pier's end of a channel."""

import contextlib
import signal
import subprocess

# Beyond this vm_peer hangs: it gives all its own waits less.
PATIENCE = 40
# What it is told to wait at most, in milliseconds.
WAIT = 15000


class Unavailable(Exception):
    """This memory is not here."""


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, values):
        super().__init__("errno %(errno)s, status %(status)s: %(says)s" % values)
        self.errno = int(values["errno"])
        self.status = int(values["status"])
        self.says = values["says"]


@contextlib.contextmanager
def deadline(seconds, what):
    def ring(number, frame):
        raise TimeoutError("%s within %d s" % (what, seconds))

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def values_of(words):
    return dict(word.split("=", 1) for word in words.split())


class Peer:
    def __init__(self, program, prefix, **options):
        argv = [*prefix, program, *("%s=%s" % item for item in options.items())]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        try:
            self.numbers = self.answer()
        except BaseException:
            self.kill()
            raise

    def answer(self):
        with deadline(PATIENCE, "vm_peer did not answer"):
            line = self.process.stdout.readline().rstrip("\n")
        kind, _, rest = line.partition(" ")
        if kind == "ok":
            return values_of(rest)
        if kind == "skip:":
            raise Unavailable(rest)
        if kind != "error":
            raise EOFError("vm_peer ended, saying %r" % line)
        values, _, says = rest.partition(" says=")
        raise Refused({**values_of(values), "says": says})

    def ask(self, command, **values):
        """The values of the answer; None is not sent."""
        words = ["%s=%s" % item for item in values.items() if item[1] is not None]
        with deadline(PATIENCE, "vm_peer did not listen"):
            self.process.stdin.write(" ".join([command, *words]) + "\n")
            self.process.stdin.flush()
        return self.answer()

    def post(self, command, **values):
        return self.ask(command, **values)["work"]

    def wait(self, work, ms=WAIT):
        return self.ask("wait", work=work, ms=ms)

    def put(self, image):
        self.ask("put", offset=0, bytes=image.hex())

    def get(self):
        return bytes.fromhex(self.ask("get")["bytes"])

    def end(self):
        """In order: it must be able to give everything back."""
        with deadline(PATIENCE, "vm_peer did not end"):
            self.process.communicate()
        if self.process.returncode:
            raise ChildProcessError("vm_peer ended with %d" % self.process.returncode)

    def kill(self):
        self.process.kill()
        self.process.communicate()
