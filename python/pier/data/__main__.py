# SPDX-License-Identifier: BSD-3-Clause
"""pier-data serve: a server of data sets."""

import argparse
import logging
import signal
import socket
import sys

from .. import Error
from .._peers import printable
from .server import Server


def main() -> int:
    """Serve until SIGINT or SIGTERM. The first line on standard output is the URL for clients."""
    parser = argparse.ArgumentParser(prog="pier-data", description="Serve data sets to loaders.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve WebDataset archives, MDS data sets and plain files")
    serve.add_argument("paths", nargs="+", metavar="PATH", help="a folder or a file")
    serve.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT",
                       help="where clients connect (default: %(default)s; port 0: any free one)")
    serve.add_argument("--memory", default="memfd:readonly", help="memfd:readonly, udmabuf, or file "
                       "for the page cache (default: %(default)s)")
    serve.add_argument("--device", help="the device to serve with, such as mlx5_0 or soft0")
    serve.add_argument("--max-clients", type=int, default=64, metavar="N", help="default: %(default)s")
    serve.add_argument("--allow-outside", action="store_true", help="serve also files outside of PATH, to which "
                       "links and lists of archives in it lead")
    serve.add_argument("--checksums", action="store_true", help="compute the checksums of all samples now")
    serve.add_argument("--verbose", action="store_true", help="log clients that come and go")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="pier.data: %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Server(*arguments.paths, listen=arguments.listen, memory=arguments.memory, device=arguments.device,
                    max_clients=arguments.max_clients, allow_outside=arguments.allow_outside) as server:
            if arguments.checksums:
                server.compute_checksums()
            print(server.url, flush=True)
            _wait_for_signal()
    except KeyboardInterrupt:
        return 0
    except (Error, OSError) as error:
        # Sentences of pier name the file themselves.
        prefix = "%s: " % printable(error.filename) if error.filename else ""
        print("pier.data: %s%s" % (prefix, error.strerror or error), file=sys.stderr)
        return 1
    return 0


def _wait_for_signal() -> None:
    # Any thread may receive the signal. The byte wakes this one.
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        signal.set_wakeup_fd(writer.fileno())
        try:
            reader.recv(1)
        finally:
            signal.set_wakeup_fd(-1)


if __name__ == "__main__":
    sys.exit(main())
