# SPDX-License-Identifier: BSD-3-Clause
"""The other end: a reliable connected queue pair of pyverbs, and host memory."""

import ctypes
import mmap
import random
import socket
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 1
DEPTH = 16
READS = 8
WAIT = 15
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
OPCODES = {
    "send": (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM),
    "write": (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM),
    "read": (e.IBV_WR_RDMA_READ, None),
}
DONE = {
    e.IBV_WC_SEND: "send",
    e.IBV_WC_RDMA_WRITE: "write",
    e.IBV_WC_RDMA_READ: "read",
    e.IBV_WC_RECV: "recv",
    e.IBV_WC_RECV_RDMA_WITH_IMM: "recv_write_imm",
}


class Failed(Exception):
    """A completion with an error; `status` is enum ibv_wc_status."""

    def __init__(self, status):
        super().__init__("the stranger's request ended with status %d" % status)
        self.status = status


def mtu_code(size):
    """enum ibv_mtu."""
    return size.bit_length() - 8


def gid_of(context, wanted):
    """(index, entry): the one that is wanted, or RoCE v2 on IPv4, or the first."""
    table = context.query_gid_table(context.query_port(PORT).gid_tbl_len)
    table = [entry for entry in table if wanted in (None, entry.gid_index)]
    roce = [entry for entry in table if entry.gid_type == e.IBV_GID_TYPE_ROCE_V2
            and entry.gid_str().startswith("0000:" * 5 + "ffff:")]
    entry = (roce or table)[0]
    return entry.gid_index, bytes.fromhex(entry.gid_str().replace(":", ""))


def grouped(gid):
    """As pyverbs takes it: "fe80:0000:..."."""
    text = gid.hex()
    return ":".join(text[i:i + 4] for i in range(0, 32, 4))


class Stranger:
    """[offset, offset + length) of `size` bytes of memory is registered."""

    def __init__(self, device, gid_index, size, offset, length):
        self.context = Context(name=device)
        self.port = self.context.query_port(PORT)
        self.gid_index, self.gid = gid_of(self.context, gid_index)
        self.pd = PD(self.context)
        self.memory = mmap.mmap(-1, size)
        self.pin = ctypes.c_char.from_buffer(self.memory)
        self.base = ctypes.addressof(self.pin)
        self.mr = MR(self.pd, length, ACCESS, address=self.base + offset)
        self.offset, self.length = offset, length
        self.cq = CQ(self.context, 2 * DEPTH, None, None, 0)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags = ACCESS
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq,
                                         cap=cap, sq_sig_all=1), attr)
        self.psn = random.randrange(1 << 24)
        self.mtu = 128 << self.port.active_mtu
        self.reads = READS
        self.peer = None
        self.next_id = 1
        self.done = {}

    def numbers(self):
        """What the peer must know."""
        return {"qpn": self.qp.qp_num, "psn": self.psn, "lid": self.port.lid,
                "gid": self.gid.hex(), "mtu": self.mtu, "max_rd_atomic": self.reads}

    def region(self):
        return {"addr": self.base + self.offset, "length": self.length, "rkey": self.mr.rkey}

    def connect(self, peer):
        """To who printed these numbers, as tests/vm/stranger/peer.c does."""
        self.peer = peer
        route = GlobalRoute(dgid=GID(grouped(bytes.fromhex(peer["gid"]))),
                            sgid_index=self.gid_index, hop_limit=64)
        attr = QPAttr(port_num=PORT)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT, dlid=int(peer["lid"]))
        attr.dest_qp_num = int(peer["qpn"])
        attr.rq_psn = int(peer["psn"])
        attr.sq_psn = self.psn
        attr.path_mtu = mtu_code(min(self.mtu, int(peer["mtu"])))
        attr.max_dest_rd_atomic = self.reads
        attr.max_rd_atomic = min(READS, int(peer["max_rd_atomic"]))
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = 6  # rxe takes 7 for ever
        attr.rnr_retry = 7  # for ever
        self.qp.to_rts(attr)

    def put(self, image):
        self.memory[:] = image

    def get(self):
        return self.memory[:]

    def new_id(self):
        self.next_id += 1
        return self.next_id

    def element(self, offset, length):
        return [SGE(self.base + offset, length, self.mr.lkey)]

    def recv(self, offset, length):
        number = self.new_id()
        self.qp.post_recv(RecvWR(number, 1, self.element(offset, length)))
        return number

    def post(self, kind, offset, length, at=None, immediate=None, rkey=None):
        """`at` is an offset in the peer's region; verbs take immediates in network order."""
        number = self.new_id()
        opcode = OPCODES[kind][immediate is not None]
        request = SendWR(number, opcode, 1, socket.htonl(immediate or 0),
                         self.element(offset, length))
        if at is not None:
            request.set_wr_rdma(int(self.peer["rkey"]) if rkey is None else rkey,
                                int(self.peer["addr"]) + at)
        self.qp.post_send(request)
        return number

    def wait(self, number):
        """How the request ended, as vm_peer says it of its own."""
        until = time.monotonic() + WAIT
        while number not in self.done:
            _, found = self.cq.poll(DEPTH)
            self.done.update((completion.wr_id, completion) for completion in found)
            if not found:
                if time.monotonic() > until:
                    raise TimeoutError("no completion of the stranger within %d s" % WAIT)
                time.sleep(0.002)
        completion = self.done.pop(number)
        if completion.status != e.IBV_WC_SUCCESS:
            raise Failed(completion.status)
        result = {"opcode": DONE[completion.opcode], "length": str(completion.byte_len)}
        if completion.wc_flags & e.IBV_WC_WITH_IMM:
            result["immediate"] = str(socket.ntohl(completion.imm_data))
        return result

    def close_qp(self):
        self.qp.close()

    def close(self):
        self.qp.close()
        self.cq.close()
        self.mr.close()
        self.pd.close()
        self.context.close()
        del self.pin
        self.memory.close()
