#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's tensors, known to pier by their pointers: what kind of memory each allocator
of PyTorch gives, and that bytes come from one tensor into another over the NIC.

An allocator is chosen once in a process, so each has one: test_torch.py ALLOCATOR.
"""

import ctypes
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "lib"))
from cases import Cases  # noqa: E402

SECONDS = 240
NIC = os.environ.get("PIER_GPU_NIC", "soft0")
BACKEND = os.environ.get("PIER_GPU_BACKEND", "cuda")
SHARED, DIRECT, BOUNCE, WRITE, PATIENT = 7, 0, 3, 2, 60000
# PyTorch's settings, and what its memory then is to pier.
ALLOCATORS = {
    "native": ("", "cuMemAlloc"),
    "expandable_segments": ("expandable_segments:True", "VMM"),
    "cudaMallocAsync": ("backend:cudaMallocAsync", "stream-ordered pool"),
}
if BACKEND == "hip":
    # ROCm's PyTorch keeps the names, and where it has no such segments it says so and goes on.
    ALLOCATORS = {"native": ("", "hipMalloc"),
                  "expandable_segments": ("expandable_segments:True", ("hipMemMap", "hipMalloc"))}


class Info(ctypes.Structure):
    """struct pier_buffer_info"""
    _fields_ = [("backend", ctypes.c_char * 32), ("unit", ctypes.c_char * 32),
                ("kind", ctypes.c_char * 48), ("no_export", ctypes.c_char * 256),
                ("pci", ctypes.c_char * 16), ("numa_node", ctypes.c_int),
                ("mappable", ctypes.c_bool), ("wrapped", ctypes.c_bool),
                ("allocation", ctypes.c_uint64), ("allocation_length", ctypes.c_uint64)]


class Gather(ctypes.Structure):
    """struct pier_gather"""
    _fields_ = [("addr", ctypes.c_uint64), ("length", ctypes.c_uint32),
                ("lkey", ctypes.c_uint32)]


class Remote(ctypes.Structure):
    """struct pier_remote"""
    _fields_ = [("addr", ctypes.c_uint64), ("length", ctypes.c_uint64),
                ("rkey", ctypes.c_uint32)]


class Request(ctypes.Structure):
    """struct pier_request"""
    _fields_ = [("opcode", ctypes.c_int), ("flags", ctypes.c_uint32),
                ("gather", ctypes.POINTER(Gather)), ("num_sge", ctypes.c_uint32),
                ("remote_count", ctypes.c_uint32), ("immediate", ctypes.c_uint32),
                ("remote", ctypes.POINTER(Remote)), ("compare", ctypes.c_uint64),
                ("operand", ctypes.c_uint64), ("context", ctypes.c_void_p)]


class Pier:
    """libpier as far as this needs it; what fails is an exception with its sentence."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("PIER_LIBRARY", "libpier.so.0"))
        for name in "pier_error_message", "pier_path_name", "pier_mr_reason":
            getattr(self.library, name).restype = ctypes.c_char_p
        self.library.pier_mr_iova.restype = ctypes.c_uint64

    def __getattr__(self, name):
        function = getattr(self.library, "pier_" + name)

        def call(*arguments):
            result = function(*arguments)
            if isinstance(result, int) and result < 0:
                raise RuntimeError("pier_%s: %s" % (name, self.library.pier_error_message().decode()))
            return result
        return call

    def make(self, name, *arguments):
        """A call whose last argument is the object that it makes."""
        made = ctypes.c_void_p()
        getattr(self, name)(*arguments, ctypes.byref(made))
        return made


def bytes_of(tensor):
    """By PyTorch's own copy to the CPU, without NumPy."""
    tensor = tensor.contiguous().cpu()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


class Tensor:
    """A tensor's memory as a buffer, and a region of it on the NIC."""

    def __init__(self, pier, pd, tensor, name):
        self.pier, self.tensor = pier, tensor
        self.size = tensor.numel() * tensor.element_size()
        address = tensor.data_ptr()
        self.buffer = pier.make("buffer_wrap", ctypes.c_void_p(address),
                                ctypes.c_size_t(self.size))
        self.info = Info()
        pier.buffer_query(self.buffer, ctypes.byref(self.info),
                          ctypes.c_size_t(ctypes.sizeof(self.info)))
        self.mr = pier.make("mr_reg_buffer", pd, self.buffer, ctypes.c_size_t(0),
                            ctypes.c_size_t(self.size), SHARED, BOUNCE)
        print("# %s: %d bytes, kind \"%s\", %d bytes into its allocation of %d; export: %s" % (
            name, self.size, self.info.kind.decode(), address - self.info.allocation,
            self.info.allocation_length, self.info.no_export.decode() or "not excluded"))
        print("#   on %s: %s, %d parts; not better: %s" % (
            NIC, pier.path_name(pier.mr_path(self.mr)).decode(), pier.mr_parts(self.mr),
            pier.mr_reason(self.mr).decode() or "-"))

    def copied(self):
        """Its bytes, by pier's own copy."""
        found = ctypes.create_string_buffer(self.size)
        self.pier.buffer_copy_from(self.buffer, ctypes.c_size_t(0), found,
                                   ctypes.c_size_t(self.size))
        return found.raw

    def close(self):
        self.pier.mr_dereg(self.mr)
        self.pier.buffer_free(self.buffer)


class Loop:
    """A channel of the NIC to another in this process."""

    def __init__(self, pier):
        self.pier = pier
        self.device = pier.make("device_open", NIC.encode())
        self.pd = pier.make("pd_alloc", self.device)
        self.ends = [pier.make("channel_create", self.pd, None) for _ in range(2)]
        endpoints = [ctypes.create_string_buffer(8192) for _ in self.ends]  # more than one has
        for end, endpoint in zip(self.ends, endpoints):
            pier.channel_endpoint(end, endpoint)
        for end, endpoint in zip(self.ends, reversed(endpoints)):
            pier.channel_connect(end, endpoint)

    def write(self, source, target):
        """All of one tensor's region into the other's."""
        elements, parts = (Gather * 64)(), (Remote * 64)()
        element_count, count = ctypes.c_uint32(), ctypes.c_uint32()
        size = ctypes.c_uint64(source.size)
        self.pier.mr_sync_for_nic(source.mr, ctypes.c_uint64(0), size)
        self.pier.mr_gather_list(source.mr, ctypes.c_uint64(self.pier.mr_iova(source.mr)), size,
                              elements, 64, ctypes.byref(element_count))
        self.pier.mr_remote_vec(target.mr, parts, 64, ctypes.byref(count))
        request = Request(opcode=WRITE, gather=elements, num_sge=element_count.value,
                          remote_count=count.value, remote=parts)
        self.pier.channel_run_request(self.ends[0], ctypes.byref(request), PATIENT, None)
        self.pier.mr_sync_for_device(target.mr, ctypes.c_uint64(0), size)

    def close(self):
        for end in self.ends:
            self.pier.channel_destroy(end)
        self.pier.pd_dealloc(self.pd)
        self.pier.device_close(self.device)


# First element, and how many: of a large tensor, and of a small one.
VIEWS = [("a tensor", 4 << 20, 0, 4 << 20), ("an interior view", 4 << 20, 123457, 700001),
         ("a small tensor", 5000, 0, 5000), ("a view of a small tensor", 5000, 77, 1001)]


def check_view(torch, pier, loop, kind, view):
    """What is wrong with a tensor of that kind, and its copy."""
    name, whole, first, count = view
    device = "cuda:%d" % int(os.environ.get("PIER_GPU_DEVICE", "0"))
    here = torch.arange(whole, dtype=torch.int32, device=device)
    there = torch.zeros(whole, dtype=torch.int32, device=device)
    torch.cuda.synchronize()
    source = Tensor(pier, loop.pd, here[first:first + count], name)
    target = Tensor(pier, loop.pd, there[first:first + count], name)
    if source.info.backend.decode() != BACKEND or not source.info.kind.decode().startswith(kind):
        yield "it is %s memory, \"%s\"" % (source.info.backend, source.info.kind)
    if source.copied() != bytes_of(source.tensor):
        yield "pier copies other bytes than PyTorch"
    loop.write(source, target)
    if bytes_of(target.tensor) != bytes_of(source.tensor):
        yield "other bytes arrived"
    if any(bytes_of(there[:first])) or any(bytes_of(there[first + count:])):
        yield "bytes arrived outside of the view"
    target.close()
    source.close()


def run_allocator(name):
    import torch
    pier, cases = Pier(), Cases()
    print("# PyTorch %s of %s %s, allocator %s" % (
        torch.__version__, BACKEND, getattr(torch.version, BACKEND),
        torch.cuda.memory.get_allocator_backend()))
    loop = Loop(pier)
    for view in VIEWS:
        try:
            problems = list(check_view(torch, pier, loop, ALLOCATORS[name][1], view))
        except RuntimeError as error:
            problems = [str(error)]
        cases.case("%s of the allocator %s" % (view[0], name), problems)
        if problems:
            break  # what it had is not given back
    else:
        loop.close()
    cases.end()


def no_torch():
    """Why it cannot be used, in a process of its own: importing it takes memory."""
    script = "import torch, sys; sys.exit(0 if torch.version.%s and " \
             "torch.cuda.is_available() else 3)" % BACKEND
    done = subprocess.run([sys.executable, "-c", script], universal_newlines=True,
                          stderr=subprocess.PIPE, timeout=SECONDS)
    if done.returncode == 3:
        return "PyTorch has no device of %s" % BACKEND
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def main():
    reason = no_torch()
    if reason:
        reason = "no PyTorch for %s: %s" % (BACKEND, reason)
        print("skip: %s\n1..0 # skip %s" % (reason, reason))
        sys.exit(77)
    cases = Cases()
    for name, (settings, _) in ALLOCATORS.items():
        env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
        try:
            done = subprocess.run([sys.executable, "-B", str(HERE), name], env=env,
                                  universal_newlines=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=SECONDS)
            problem = "exit status %d" % done.returncode if done.returncode else None
            said = done.stdout
        except subprocess.TimeoutExpired:
            problem, said = "it did not end within %d s" % SECONDS, ""
        print("".join("# %s\n" % line for line in said.splitlines()), end="")
        cases.case("tensors of the allocator " + name, [problem] if problem else [])
    cases.end()


if sys.argv[1:]:
    run_allocator(sys.argv[1])
else:
    main()
