#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the corpus files that have names: each form as it should be, and wrong
in the ways that its reader looks for. Files named by hashes came from libFuzzer.
"""

import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def endpoint(magic=b"PIEP", version=1, qpn=0x11, psn=0x123456, mtu=1024, generation=7, lid=0,
             link_layer=2, rd_atomic=16, gid=bytes(10) + b"\xff\xff\x7f\x00\x00\x01",
             address=b"", length=None, address_length=None):
    if length is None:
        length = 46 + len(address)
    if address_length is None:
        address_length = len(address)
    return struct.pack("<4sHHIIIIHBB16sH", magic, version, length, qpn, psn, mtu, generation,
                       lid, link_layer, rd_atomic, gid, address_length) + address


ENDPOINTS = {
    "valid": endpoint(),
    "infiniband": endpoint(link_layer=1, lid=3, gid=bytes(16)),
    "address": endpoint(address=bytes(range(192))),
    "empty": b"",
    "cut": endpoint()[:20],
    "longer": endpoint() + b"\0",
    "magic": endpoint(magic=b"PIEX"),
    "version": endpoint(version=2),
    "qpn": endpoint(qpn=1 << 24),
    "psn": endpoint(psn=1 << 24),
    "mtu": endpoint(mtu=1500),
    "link_layer": endpoint(link_layer=9),
    "length": endpoint(length=0xffff),
    "address_length": endpoint(address_length=0xffff),
    "address_too_long": endpoint(address=bytes(210)),
}


def remote(magic=b"PrMR", version=1, length=32, rkey=5, reserved=0, addr=0x1000, size=0x2000):
    return struct.pack("<4sHHIIQQ", magic, version, length, rkey, reserved, addr, size)


REMOTES = {
    "valid": remote(),
    "nothing": remote(addr=2**64 - 1, size=0),
    "to_the_end": remote(addr=2**64 - 2, size=1),
    "overflow": remote(addr=2**64 - 1, size=2**64 - 1),
    "cut": remote()[:31],
    "longer": remote() + b"\0",
    "magic": remote(magic=b"PrMr"),
    "version": remote(version=9),
    "length": remote(length=31),
    "reserved": remote(reserved=1),
}


def text(wire):
    return b"pier-endpoint:" + wire.hex().encode()


TEXTS = {name: text(wire) for name, wire in ENDPOINTS.items()}
TEXTS.update({
    "blanks": b" \t" + text(endpoint()) + b"\n",
    "upper": text(endpoint()).upper().replace(b"PIER-ENDPOINT", b"pier-endpoint"),
    "odd": text(endpoint())[:-1],
    "word_behind": text(endpoint()) + b" x",
    "no_digit": text(endpoint()).replace(b"0", b"g"),
})


def message(kind, payload, magic=b"PIER", version=1, length=None):
    if length is None:
        length = len(payload)
    return struct.pack("<4sHHI", magic, version, kind, length) + payload


def verdict(error=0, generation=1):
    return message(2, struct.pack("<II", error, generation))


HANDSHAKES = {
    "endpoint_only": message(1, endpoint()),
    "both": message(1, endpoint()) + verdict(),
    "no_address": message(1, endpoint(address=b"")) + verdict(generation=7),
    "refused_at_once": verdict(error=13),
    "refused_later": message(1, endpoint()) + verdict(error=111),
    "no_errno": message(1, endpoint()) + verdict(error=2**32 - 1),
    "twice": message(1, endpoint()) * 2,
    "behind": message(1, endpoint()) + verdict() + b"more",
    "magic": message(1, endpoint(), magic=b"HTTP"),
    "version": message(1, endpoint(), version=2),
    "kind": message(3, endpoint()),
    "length": message(1, endpoint(), length=2**32 - 1),
    "cut_header": b"PIER\1",
    "cut_payload": message(1, endpoint())[:-1],
    "ssh_banner": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "endpoint_wrong": message(1, endpoint(psn=1 << 24)),
    "empty": b"",
}


def main():
    for folder, entries in (("endpoint_wire", ENDPOINTS), ("endpoint_text", TEXTS),
                            ("remote_wire", REMOTES), ("handshake", HANDSHAKES)):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, data in entries.items():
            (CORPUS / folder / name).write_bytes(data)


main()
