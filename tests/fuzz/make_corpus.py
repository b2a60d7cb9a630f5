#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the corpus files that have names: each form correct, and with each mistake
that its reader checks for. Files named by hashes came from libFuzzer.
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


def gid_list(*gids, magic=b"PrGI", version=1, length=None, rest=b""):
    """Of types and GIDs."""
    offers = b"".join(struct.pack("<H", kind) + gid for kind, gid in gids) + rest
    return struct.pack("<4sHH", magic, version, 8 + len(offers) if length is None else length) + \
        offers


IPV4 = bytes(10) + b"\xff\xff\xc0\0\2\1"
IPV6 = b"\x20\1\x0d\xb8" + bytes(11) + b"\1"
LINK_LOCAL = b"\xfe\x80" + bytes(13) + b"\1"
GID_LISTS = {
    "valid": gid_list((2, IPV4)),
    "families": gid_list((2, IPV4), (2, IPV6), (2, LINK_LOCAL), (1, IPV4), (0, IPV6)),
    "most": gid_list(*[(2, IPV6)] * 10),
    "too_many": gid_list(*[(2, IPV6)] * 11),
    "none": gid_list(),
    "zero": gid_list((2, bytes(16))),
    "type": gid_list((0xffff, IPV4)),
    "empty": b"",
    "cut": gid_list((2, IPV4))[:-1],
    "longer": gid_list((2, IPV4), rest=b"\0"),
    "magic": gid_list((2, IPV4), magic=b"PrGi"),
    "version": gid_list((2, IPV4), version=2),
    "length": gid_list((2, IPV4), length=0xffff),
}

ENDPOINTS = {
    "valid": endpoint(),
    "infiniband": endpoint(link_layer=1, lid=3, gid=bytes(16)),
    "address": endpoint(address=bytes(range(192))),
    "gids": endpoint(address=GID_LISTS["families"]),
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


def group_blob(magic=b"PIEG", version=1, length=536, size=4, sender=1, receiver=2,
               first=endpoint(), second=endpoint(qpn=0x12), lengths=None, rest=b"\0"):
    if lengths is None:
        lengths = len(first), len(second)
    return struct.pack("<4sHHIIIHH", magic, version, length, size, sender, receiver,
                       *lengths) + first.ljust(256, rest) + second.ljust(256, rest)


GROUP_BLOBS = {
    "valid": group_blob(),
    "addresses": group_blob(first=endpoint(address=bytes(192)), second=endpoint(address=b"x")),
    "empty": b"",
    "cut": group_blob()[:535],
    "longer": group_blob() + b"\0",
    "magic": group_blob(magic=b"PIEP"),
    "version": group_blob(version=2),
    "length": group_blob(length=535),
    "members": group_blob(size=2**32 - 1),
    "sender": group_blob(sender=4),
    "itself": group_blob(sender=2),
    "first": group_blob(first=endpoint(qpn=1 << 24)),
    "second": group_blob(second=endpoint(version=2)),
    "lengths": group_blob(lengths=(0xffff, 0xffff)),
    "shorter": group_blob(lengths=(45, 46)),
    "rest": group_blob(rest=b"\1"),
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


def part(rkey=5, reserved=0, addr=0x1000, size=0x2000):
    return struct.pack("<IIQQ", rkey, reserved, addr, size)


def remote_vec(parts, magic=b"PrMV", version=1, count=None, length=None, reserved=0):
    if count is None:
        count = len(parts)
    if length is None:
        length = 16 + 24 * len(parts)
    return struct.pack("<4sHHII", magic, version, length, count, reserved) + b"".join(parts)


THREE = [part(), part(rkey=6, addr=0x9000, size=1), part(rkey=7, addr=0, size=77)]
REMOTE_VECS = {
    "valid": remote_vec(THREE),
    "one": remote_vec([part()]),
    "no_parts": remote_vec([]),
    "part_of_nothing": remote_vec([part(), part(size=0)]),
    "most_parts": remote_vec([part(size=1)] * 1024),
    "too_many_parts": remote_vec([part(size=1)] * 1025),
    "to_the_end": remote_vec([part(addr=2**64 - 2, size=1)]),
    "end_overflow": remote_vec([part(), part(addr=2**64 - 1, size=2)]),
    "sum_overflow": remote_vec([part(addr=0, size=2**64 - 1), part(size=1)]),
    "cut_header": remote_vec(THREE)[:15],
    "cut": remote_vec(THREE)[:-1],
    "longer": remote_vec(THREE) + b"\0",
    "magic": remote_vec(THREE, magic=b"PrMR"),
    "version": remote_vec(THREE, version=2),
    "length": remote_vec(THREE, length=87),
    "count": remote_vec(THREE, count=4),
    "fewer": remote_vec(THREE, count=2),
    "count_wraps": remote_vec(THREE, count=3 + 2**29),
    "reserved": remote_vec(THREE, reserved=1),
    "part_reserved": remote_vec([part(), part(reserved=2**31)]),
}


def transfer_state(missing, magic=b"PrTS", version=1, reserved=0, count=None, more=0,
                   length=1000):
    if count is None:
        count = len(missing)
    return struct.pack("<4sHHIIQ", magic, version, reserved, count, more, length) + b"".join(
        struct.pack("<QQ", *piece) for piece in missing)


MISSING = [(0, 10), (20, 10), (900, 100)]
TRANSFER_STATES = {
    "valid": transfer_state(MISSING),
    "nothing": transfer_state([]),
    "all": transfer_state([(0, 1000)]),
    "of_nothing": transfer_state([], length=0),
    "longest": transfer_state([(0, 2**64 - 1)], length=2**64 - 1),
    "behind_the_last": transfer_state([(5, 2**64 - 6), (0, 1)], length=2**64 - 1),
    "empty": transfer_state([(0, 10), (20, 0)]),
    "touches": transfer_state([(0, 10), (10, 10)]),
    "overlaps": transfer_state([(0, 10), (9, 10)]),
    "order": transfer_state([(20, 10), (0, 10)]),
    "leaves": transfer_state([(0, 10), (991, 10)]),
    "wraps": transfer_state([(1, 2**64 - 1)]),
    "count": transfer_state(MISSING, count=4),
    "count_wraps": transfer_state(MISSING, count=3 + 2**28),
    "reserved": transfer_state(MISSING, reserved=1),
    "more_reserved": transfer_state(MISSING, more=1),
    "magic": transfer_state(MISSING, magic=b"PrTs"),
    "version": transfer_state(MISSING, version=2),
    "cut_header": transfer_state(MISSING)[:23],
    "cut": transfer_state(MISSING)[:-1],
    "longer": transfer_state(MISSING) + b"\0",
}


def texts(prefix, wires):
    """The text forms of wire forms, and the valid one with the mistakes of texts."""
    forms = {name: prefix + wire.hex().encode() for name, wire in wires.items()}
    valid = forms["valid"]
    return {
        **forms,
        "blanks": b" \t" + valid + b"\n",
        "upper": prefix + wires["valid"].hex().upper().encode(),
        "odd": valid[:-1],
        "word_behind": valid + b" x",
        "no_digit": valid.replace(b"0", b"g"),
        "prefix": valid[1:],
    }


def message(kind, payload, magic=b"PIER", version=1, length=None):
    if length is None:
        length = len(payload)
    return struct.pack("<4sHHI", magic, version, kind, length) + payload


def verdict(error=0, generation=1):
    return message(2, struct.pack("<II", error, generation))


HANDSHAKES = {
    # A port of this host on which no process listens.
    "address": message(1, endpoint(address=struct.pack("<BBH", 1, 1, 1) + bytes(16) +
                                   bytes(10) + b"\xff\xff\x7f\x00\x00\x01")),
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


def frame(opcode, length=0, msn=0, flags=0, syndrome=0, timer=0, key=b"rkey", address=0x10000,
          immediate=0, reserved=0, payload=None):
    """The key is a mark, which the target replaces by the key of its region."""
    if payload is None:
        payload = bytes([opcode]) * {5: 0, 6: 16, 7: 16, 16: 0, 17: 0}.get(opcode, length)
    return struct.pack("<BBBBII4sQII", opcode, flags, syndrome, timer, msn, length, key,
                       address, immediate, reserved) + payload


SEND, SEND_IMM, WRITE, WRITE_IMM, READ, COMPARE_SWAP, FETCH_ADD, SEND_INV = range(1, 9)
ACK, NAK, READ_RESPONSE, ATOMIC_RESPONSE = range(16, 20)
STREAMS = {
    "send": frame(SEND, 64),
    "sends": b"".join(frame(SEND, 256, msn) for msn in range(3)),
    "send_too_long": frame(SEND, 257),
    "send_imm": frame(SEND_IMM, 0, immediate=7, flags=1),
    "write": frame(WRITE, 4096),
    "write_nothing": frame(WRITE, 0),
    "write_past_end": frame(WRITE, 4097),
    "write_before": frame(WRITE, 16, address=0xffff),
    "write_wraps": frame(WRITE, 64, address=2**64 - 32),
    "write_bad_key": frame(WRITE, 64, key=b"\1\0\0\0"),
    "write_imm": frame(WRITE_IMM, 128, immediate=1) + frame(WRITE_IMM, 0, 1),
    "write_cut": frame(WRITE, 4096)[:100],
    "read": frame(READ, 4096),
    "reads": b"".join(frame(READ, 64, msn) for msn in range(40)),
    "read_past_end": frame(READ, 4097),
    "read_huge": frame(READ, 1 << 30),
    "compare_swap": frame(COMPARE_SWAP, 8, payload=struct.pack("<QQ", 0x5a5a5a5a5a5a5a5a, 1)),
    "fetch_add": frame(FETCH_ADD, 8),
    "atomics": b"".join(frame(6 + msn % 2, 8, msn, address=0x10000 + 8 * msn) for msn in range(40)),
    "atomic_last": frame(FETCH_ADD, 8, address=0x10ff8) + frame(FETCH_ADD, 8, 1, address=0x11000),
    "atomic_misaligned": frame(FETCH_ADD, 8, address=0x10004),
    "atomic_length": frame(FETCH_ADD, 16),
    "atomic_cut": frame(COMPARE_SWAP, 8)[:40],
    "window_write": frame(WRITE, 1024, key=b"wkey", address=0x10040),
    "window_write_past_end": frame(WRITE, 1024, key=b"wkey", address=0x10041),
    "window_read_before": frame(READ, 64, key=b"wkey", address=0x1003f),
    "window_no_atomics": frame(FETCH_ADD, 8, key=b"wkey", address=0x10040),
    "send_inv": frame(SEND_INV, 64, key=b"wkey") + frame(WRITE, 8, 1, key=b"wkey", address=0x10040),
    "send_inv_twice": frame(SEND_INV, 0, key=b"wkey") + frame(SEND_INV, 0, 1, key=b"wkey"),
    "send_inv_region": frame(SEND_INV, 8),
    "send_inv_cut": frame(SEND_INV, 256, key=b"wkey")[:100],
    "wrong_order": frame(SEND, 8, msn=5),
    "answers": frame(READ_RESPONSE, 256, 0) + frame(ACK, 0, 2),
    "answer_too_long": frame(READ_RESPONSE, 257, 0),
    "answer_too_short": frame(READ_RESPONSE, 255, 0),
    "atomic_answer": frame(READ_RESPONSE, 256, 0) + frame(ATOMIC_RESPONSE, 8, 2),
    "atomic_acked": frame(READ_RESPONSE, 256, 0) + frame(ACK, 0, 3),
    "atomic_answer_first": frame(ATOMIC_RESPONSE, 8, 0),
    "atomic_answer_length": frame(READ_RESPONSE, 256, 0) + frame(ATOMIC_RESPONSE, 16, 2),
    "ack_first": frame(ACK, 0, 2),
    "ack_future": frame(ACK, 0, 1000),
    "refused": frame(NAK, 0, 0, syndrome=3),
    "not_ready": frame(NAK, 0, 0, syndrome=1, timer=1) * 3,
    "unknown_opcode": frame(9, 0),
    "unknown_flag": frame(SEND, 0, flags=0x80),
    "length": frame(WRITE, 2**32 - 1, payload=b""),
    "reserved": frame(SEND, 0, reserved=1),
    "all": frame(SEND, 16) + frame(WRITE, 100, 1) + frame(READ, 100, 2) +
    frame(READ_RESPONSE, 256, 0) + frame(WRITE_IMM, 10, 3) + frame(ACK, 0, 2),
    "garbage": b"GET / HTTP/1.1\r\nHost: soft0\r\n\r\n" * 3,
    "empty": b"",
}



def shared(messages=b"", fifo=b"", fd=False, serial=0, head=None, more=False, loose=False):
    if head is not None:
        fifo = struct.pack("<Q", head) + fifo
    return bytes([fd | (head is not None) << 1 | more << 2 | loose << 3, serial]) + \
        struct.pack("<H", len(messages)) + messages + fifo


def request(key=b"rkey"):
    return b"\2\0\0\0" + key


def about(kind, slot, serial):
    return struct.pack("<BxxxII", kind, slot, serial)


def grant(pieces=((0, 4096, 0),), fds=1, key=1, slot=0, serial=7, iova=0x10000, count=None):
    form = struct.pack("<BBBxIII4xIQ8x", 5, fds, 0, key, slot, serial,
                       len(pieces) if count is None else count, iova)
    return form + b"".join(struct.pack("<QQI4x", *piece) for piece in pieces)


COPIED, SKIP = 2, 32
FIFOS = {
    **{"fifo_" + name: shared(fifo=data) for name, data in STREAMS.items()},
    "request": shared(request()),
    "request_often": shared(request() * 70),
    "request_whole": shared(request(b"wkey")),
    "request_whole_often": shared(request(b"wkey") * 70),
    "request_whole_returned": shared(request(b"wkey") + about(3, 0, 1) + request(b"wkey")),
    "request_bad_key": shared(request(b"\1\0\0\0")),
    "request_returned": shared(request() + about(3, 0, 1) + request() + about(3, 5, 5)),
    "revoked": shared(about(4, 0, 7)),
    "grant": shared(grant(), fd=True, serial=7),
    "grant_used": shared(grant(), frame(READ_RESPONSE, 256, 0) + frame(READ_RESPONSE, 256, 1),
                       fd=True, serial=7),
    "grant_loose": shared(grant(), fd=True, serial=7, loose=True),
    "grant_fds": shared(grant(((0, 4096, 0), (0, 4096, 2)), fds=3), fd=True, serial=7, more=True),
    "grant_fds_surplus": shared(grant(), fd=True, serial=7, more=True),
    "wake_fds": shared(b"\1", fd=True, more=True),
    "grant_revoked": shared(grant() + about(4, 0, 7), fd=True, serial=7),
    "grant_invalid": shared(grant(), fd=True, serial=6),
    "grant_twice": shared(grant() * 2, fd=True, serial=7),
    "grant_no_fd": shared(grant(), serial=7),
    "grant_denied": shared(grant(pieces=(), fds=0)),
    "grant_pieces": shared(grant(pieces=((0, 10, 0), (7, 100, 0), (100, 3986, 0))), fd=True,
                         serial=7),
    "grant_past_end": shared(grant(pieces=((1, 4096, 0),)), fd=True, serial=7),
    "grant_overflow": shared(grant(pieces=((0, 4096, 0), (0, 2**64 - 1, 0))), fd=True, serial=7),
    "grant_iova": shared(grant(iova=2**64 - 1), fd=True, serial=7),
    "grant_fd": shared(grant(pieces=((0, 4096, 1),)), fd=True, serial=7),
    "grant_slot": shared(grant(slot=64), fd=True, serial=7),
    "grant_count": shared(grant(count=65), fd=True, serial=7),
    "grant_short": shared(grant(count=2), fd=True, serial=7),
    "grant_small": shared(grant(pieces=((0, 100, 0),)), fd=True, serial=7),
    "fd_alone": shared(b"\1", fd=True),
    "wakes": shared(b"\1" * 1000),
    "no_message": shared(b"\x63"),
    "copied": shared(fifo=frame(WRITE, 64, flags=COPIED, payload=b"")),
    "copied_imm": shared(fifo=frame(WRITE_IMM, 64, flags=COPIED, payload=b"")),
    "copied_read": shared(fifo=frame(READ, 64, flags=COPIED)),
    "copied_past_end": shared(fifo=frame(WRITE, 4097, flags=COPIED, payload=b"")),
    "copied_send": shared(fifo=frame(SEND, 64, flags=COPIED, payload=b"")),
    "skip": shared(fifo=frame(SKIP, msn=9) + frame(SEND, 8, msn=9)),
    "skip_back": shared(fifo=frame(WRITE, 8) + frame(SKIP, msn=0)),
    "skip_length": shared(fifo=frame(SKIP, 8, msn=1)),
    "head_too_far": shared(fifo=frame(SEND, 8), head=256 * 1024 + 1),
    "head_behind": shared(fifo=frame(SEND, 8), head=2**64 - 1),
    "head_full": shared(fifo=frame(WRITE, 4096), head=256 * 1024),
    "empty": shared(),
}

LOOPBACK = bytes(10) + b"\xff\xff\x7f\x00\x00\x01"


def soft_address(version=4, count=1, port=4791, secret=bytes(range(16)), addresses=LOOPBACK):
    return struct.pack("<BBH", version, count, port) + secret + addresses


FORMS = {
    "header": frame(WRITE, 64, payload=b""),
    "header_nak": frame(NAK, 0, 0, syndrome=1, timer=31),
    "hello": b"piersof\4" + bytes(range(32)) + LOOPBACK * 2 + struct.pack("<II", 5, 6),
    "hello_version": b"piersof\3" + bytes(72),
    "envelope": b"pud\1\3" + bytes(3) + struct.pack("<IIII", 5, 6, 7, 8),
    "envelope_flags": b"pud\1\4" + bytes(19),
    "address": soft_address(),
    "address_none": soft_address(count=0, addresses=b""),
    "address_version": soft_address(version=2),
    "address_count": soft_address(count=255),
    "address_port": soft_address(port=0),
    "address_multicast": soft_address(addresses=b"\xff\x02" + bytes(14)),
    "address_link_local": soft_address(addresses=b"\xfe\x80" + bytes(14)),
    "address_unspecified": soft_address(addresses=bytes(16)),
    "address_cut": soft_address()[:19],
    "empty": b"",
}

# Four bytes each: an operation (of enum operation in soft_seal.c) and three arguments.
RECORD, LARGEST, EMPTY, TOO_LONG, RAW, CHANGED, REPEATED, LEFT_OUT = range(8)


def operation(kind, number=99, first=10, second=10):
    return bytes((kind, number, first, second))


SEALS = {
    "records": operation(RECORD) * 5,
    "largest": operation(LARGEST, 0) + operation(LARGEST, 1, 255, 255) + operation(RECORD, 0, 0),
    "no_bytes": operation(RECORD) + operation(EMPTY) + operation(RECORD),
    "too_long": operation(RECORD) + operation(TOO_LONG) + operation(RECORD),
    "changed_length": operation(CHANGED, second=0) + operation(LARGEST) * 3,
    "changed": operation(RECORD) + operation(CHANGED, first=7, second=50) + operation(RECORD),
    "repeated": operation(REPEATED) + operation(RECORD),
    "left_out": operation(RECORD) + operation(LEFT_OUT) + operation(RECORD),
    "length_0": operation(RAW, 3) + bytes(4),
    "length_16": operation(RAW, 19) + struct.pack("<I", 16) + bytes(16),
    "length_all": operation(RAW, 3) + b"\xff" * 4,
    "forged": operation(RAW, 35) + struct.pack("<I", 32) + bytes(32),
    "cut": operation(RECORD) + operation(RAW, 9) + struct.pack("<I", 32) + bytes(6),
    "empty": b"",
}


def rail_port(name=b"mlx5_0", port=1, speed=400000, kind=1, layer=1, distance=2, gids=0,
              subnet=b"\xfe\x80" + bytes(14), bits=64, zeros=bytes(3)):
    return struct.pack("<64sIIBBBB16sB3s", name, port, speed, kind, layer, distance, gids,
                       subnet, bits, zeros)


def rails(*ports, magic=b"PrRL", version=1, count=None, salt=7):
    return struct.pack("<4sHHQ", magic, version, len(ports) if count is None else count,
                       salt) + b"".join(ports)


ROCE = {"layer": 2, "gids": 8, "subnet": bytes(10) + b"\xff\xff\x0a\1\0\0", "bits": 112}
RAILS = {
    "infiniband": rails(rail_port(), rail_port(name=b"mlx5_1")),
    "roce": rails(rail_port(**ROCE)),
    "soft": rails(rail_port(name=b"soft0", kind=2, layer=2, distance=6, bits=0,
                            subnet=bytes(16))),
    "most": rails(*[rail_port(port=i + 1) for i in range(64)]),
    "too_many": rails(*[rail_port(port=i + 1) for i in range(65)]),
    "none": rails(),
    "empty": b"",
    "cut": rails(rail_port())[:-1],
    "longer": rails(rail_port()) + b"\0",
    "magic": rails(rail_port(), magic=b"PrRX"),
    "version": rails(rail_port(), version=2),
    "count": rails(rail_port(), count=2),
    "no_name": rails(rail_port(name=b"")),
    "name": rails(rail_port(name=b"mlx5\n0")),
    "long_name": rails(rail_port(name=b"x" * 64)),
    "port": rails(rail_port(port=256)),
    "kind": rails(rail_port(kind=0)),
    "layer": rails(rail_port(layer=0)),
    "distance": rails(rail_port(distance=7)),
    "gids": rails(rail_port(gids=32)),
    "routed": rails(rail_port(**{**ROCE, "gids": 24})),
    "subnet": rails(rail_port(bits=8)),
    "bits": rails(rail_port(bits=129)),
    "zeros": rails(rail_port(zeros=b"\0\0\1")),
}


def main():
    for folder, entries in (("endpoint_wire", ENDPOINTS), ("remote_wire", REMOTES),
                            ("remote_vec_wire", REMOTE_VECS),
                            ("remote_vec_text", texts(b"pier-remote-vec:", REMOTE_VECS)),
                            ("endpoint_text", texts(b"pier-endpoint:", ENDPOINTS)),
                            ("gid_list", GID_LISTS), ("group_blob", GROUP_BLOBS),
                            ("rails", RAILS), ("remote_text", texts(b"pier-remote:", REMOTES)),
                            ("handshake", HANDSHAKES),
                            ("soft_forms", FORMS), ("soft_fifo", FIFOS), ("soft_seal", SEALS),
                            ("soft_stream", STREAMS), ("transfer_state", TRANSFER_STATES)):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, data in entries.items():
            (CORPUS / folder / name).write_bytes(data)


main()
