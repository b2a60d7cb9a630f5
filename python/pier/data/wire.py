# SPDX-License-Identifier: BSD-3-Clause
"""The control connection between a server of a data set and a client (docs/wire.md, "Data sets").

One TCP connection per client carries the proofs of the token, the index, the addresses of the shards and the
handshake of a channel. Samples never pass through it. Both ends treat the other's bytes as hostile.
"""

import enum
import errno
import os
import struct
import urllib.parse

from .. import AccessDenied, BadMessage, Busy, ConnectionLost, Error, Invalid, _peers
from .._peers import printable

NONCE_BYTES = 32
DIGEST_BYTES = 32
# Of an index, in bytes. One with 10 million samples of two fields has 750 MB.
MAX_INDEX = 1 << 31
WANT_CHECKSUMS = 1

HELLO = struct.Struct("<32s32s32sII")
WELCOME = struct.Struct("<32s32s")
_HEADER = struct.Struct("<4sHHQ")
_MAGIC = b"PrDS"
_VERSION = 1
_ERROR = struct.Struct("<I")
_MAX_SENTENCE = 1024
_CLASSES: dict[int, type[Error]] = {errno.EACCES: AccessDenied, errno.EBUSY: Busy, errno.EPROTONOSUPPORT: BadMessage}


class Message(enum.IntEnum):
    """Types of messages."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    INDEX = 4
    REMOTES = 5
    CHECKSUMS = 6
    PING = 7
    PONG = 8
    ERROR = 9


class Stream(_peers.Stream):
    """Sends and receives messages over a connected socket, which it owns."""

    def send(self, message: Message, payload: bytes, deadline: float) -> None:
        """Send a message. Raises TimedOut, ConnectionLost."""
        self.send_bytes(_HEADER.pack(_MAGIC, _VERSION, message, len(payload)) + payload, deadline)

    def receive(self, expected: tuple[Message, ...], limit: int, deadline: float | None) -> tuple[Message, bytearray]:
        """Receive a message of at most `limit` bytes. No deadline: wait until the connection ends.

        Raises TimedOut, ConnectionLost, BadMessage; and what the peer reports in an error message.
        """
        magic, version, kind, length = _HEADER.unpack(self.receive_bytes(_HEADER.size, deadline))
        if magic != _MAGIC:
            raise self.bad("what it sent does not begin with %s: is it a server of pier.data?" % _MAGIC.decode())
        if version != _VERSION:
            raise BadMessage(errno.EPROTONOSUPPORT, "%s: version %d of the protocol is not known, only %d: use the "
                             "same version of pier at both ends" % (self.peer, version, _VERSION))
        if kind not in (*expected, Message.ERROR):
            names = " or ".join(message.name for message in expected)
            raise self.bad("message of type %d, where %s is expected" % (kind, names))
        limit = _ERROR.size + _MAX_SENTENCE if kind == Message.ERROR else limit
        if length > limit:
            raise self.bad("message of %d bytes, where at most %d are expected" % (length, limit))
        payload = self.receive_bytes(length, deadline)
        if kind == Message.ERROR:
            raise self._reported(payload)
        return Message(kind), payload

    def _reported(self, payload: bytearray) -> Error:
        if len(payload) < _ERROR.size:
            return self.bad("an error message of %d bytes" % len(payload))
        number, = _ERROR.unpack_from(payload)
        sentence = printable(payload[_ERROR.size:].decode("utf-8", "replace"))
        return _CLASSES.get(number, ConnectionLost)(number, "%s: %s" % (self.peer, sentence))


def error_payload(error: Error) -> bytes:
    """Return the contents of an error message."""
    sentence = (error.strerror or str(error)).encode("utf-8", "replace")[:_MAX_SENTENCE]
    return _ERROR.pack(error.errno or errno.EIO) + sentence


def proof(token: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    """Prove that an end has the token. See _peers.proof()."""
    return _peers.proof(token, b"pier.data ", role, first, second)


def make_url(token: str, host: str, port: int) -> str:
    """Return the URL of a server. An empty token is left out."""
    prefix = urllib.parse.quote(token, safe="") + "@" if token else ""
    return "pier://%s%s:%d" % (prefix, "[%s]" % host if ":" in host else host, port)


def parse_url(url: str) -> tuple[str, str, int]:
    """Return token, host and port of "pier://TOKEN@HOST:PORT". Without a token, that of PIER_DATA_TOKEN.

    Raises Invalid.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "pier" or parts.path.strip("/"):
        raise Invalid(errno.EINVAL, "%s is not the URL of a server: write pier://TOKEN@HOST:PORT"
                      % without_token(url))
    token = urllib.parse.unquote(parts.username or "") or os.environ.get("PIER_DATA_TOKEN", "")
    if not token:
        raise Invalid(errno.EINVAL, "%s has no token: write pier://TOKEN@HOST:PORT, or set PIER_DATA_TOKEN" % url)
    return token, host, port


def without_token(url: str) -> str:
    """Return a URL for logs and sentences."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    return scheme + separator + rest.rpartition("@")[2]
