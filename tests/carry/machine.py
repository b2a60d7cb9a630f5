# SPDX-License-Identifier: BSD-3-Clause
"""Facts about the machine that the results need, and the file that they are sent in."""

import os
import pathlib
import platform
import re
import resource
import subprocess
import sys
import time

SYSFS = pathlib.Path("/sys/class/infiniband")
MODULES = re.compile(r"^(ib_|mlx|rdma_|irdma|bnxt_re|efa|hns|qedr|ionic|mana|erdma|siw|iw_cxgb4|"
                     r"nvidia|amdgpu|udmabuf)")
# Lines of the kernel's log: of these modules, NVIDIA's own prefix, and IOMMUs.
KERNEL = re.compile(MODULES.pattern[1:].replace("(", r"\b(", 1) +
                    r"|NVRM|infiniband|rxe|iommu|IOMMU|DMAR|AMD-Vi|SMMU|BUG|WARNING|AER")
# Of the files in sysfs, none that identifies the machine: no GUID, no serial number.
DEVICE_FILES = ["fw_ver", "hca_type", "board_id", "device/numa_node", "device/current_link_speed",
                "device/current_link_width", "device/vendor", "device/device"]
PORT_FILES = ["state", "link_layer", "rate", "phys_state"]


def whole_file(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


def first_line(path):
    try:
        return path.read_text().split("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def nics():
    """The names of the devices with an active port."""
    return sorted({file.parents[2].name for file in SYSFS.glob("*/ports/*/state")
                   if "ACTIVE" in first_line(file)})


def link_layer(name):
    """Of the first port: Ethernet or InfiniBand, which do not reach each other."""
    return first_line(SYSFS / name / "ports/1/link_layer")


def host_names():
    """A pattern of this host's names, which are nobody's business."""
    names = {platform.node(), platform.node().split(".")[0]} - {"", "localhost"}
    return re.compile("|".join(r"\b%s\b" % re.escape(name) for name in
                               sorted(names, key=len, reverse=True)) or r"(?!)")


class Record:
    """While it is entered, what is printed is also added to a file, without host names."""

    def __init__(self, path):
        # Unbuffered: a machine that crashes has not lost the last lines.
        self.file = open(path, "ab", buffering=0)
        self.path = path
        self.stdout = sys.stdout
        self.names = host_names()

    def write(self, text):
        try:
            self.file.write(self.names.sub("HOST", text).encode(errors="replace"))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        self.stdout.write(text)

    def flush(self):
        self.stdout.flush()

    def __enter__(self):
        sys.stdout = self
        return self

    def __exit__(self, *_):
        sys.stdout = self.stdout
        self.file.close()



def open_kernel_log():
    """Behind its last line, or None."""
    try:
        kernel = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(kernel, 0, os.SEEK_END)
        return kernel
    except OSError:
        return None


def kernel_lines(kernel):
    """Those on NICs, GPUs and IOMMUs. The format: Documentation/ABI/testing/dev-kmsg."""
    while kernel is not None:
        try:
            text = os.read(kernel, 8192).decode(errors="replace").split("\n")[0]
        except BrokenPipeError:
            continue  # lines were overwritten
        except OSError:
            return
        line = text.partition(";")[2]
        if KERNEL.search(line):
            yield line


def say_kernel_log(kernel):
    print("----- the kernel's log during the run")
    if kernel is None:
        print("it cannot be read: try as root")
    for line in kernel_lines(kernel):
        print(line)
    print("-----")


def facts_of_nic(device):
    driver = device / "device/driver"
    yield "%s: driver %s; %s" % (
        device.name, driver.resolve().name if driver.exists() else "without hardware",
        ", ".join("%s %s" % (name.split("/")[-1], first_line(device / name))
                  for name in DEVICE_FILES if first_line(device / name)))
    for port in sorted(device.glob("ports/*")):
        yield "%s port %s, interface %s: %s, %d GIDs" % (
            device.name, port.name, first_line(port / "gid_attrs/ndevs/0") or "none",
            ", ".join("%s %s" % (name.split("/")[-1], first_line(port / name))
                      for name in PORT_FILES if first_line(port / name)),
            sum(bool(first_line(file)) for file in port.glob("gid_attrs/types/*")))


def library_files():
    """With their versions, of what this process has loaded."""
    return sorted(set(re.findall(r"(libibverbs\.so\S*)$", whole_file("/proc/self/maps"), re.M)))


def facts(folder):
    yield "date: %s; pier: %s" % (time.strftime("%Y-%m-%d %H:%M:%S %z"),
                                  whole_file(folder / "commit").strip() or "unknown")
    name = re.search(r'^PRETTY_NAME="?(.*?)"?$', whole_file("/etc/os-release"), re.M)
    yield "system: %s, kernel %s, %s, Python %s" % (
        name[1] if name else "unknown", platform.release(), " ".join(platform.libc_ver()),
        platform.python_version())
    yield "processors: %d, %s" % (os.cpu_count(), platform.machine())
    yield "page size: %d" % resource.getpagesize()
    yield "IOMMU: %s; %s" % (
        "%d units" % len(list(pathlib.Path("/sys/class/iommu").glob("*"))),
        " ".join(re.findall(r"\S*iommu\S*", first_line(pathlib.Path("/proc/cmdline")))) or
        "no option of the kernel")
    yield "limits: %s locked bytes, %s files" % (
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield "libibverbs: %s" % (" ".join(library_files()) or "none")
    for module in sorted(pathlib.Path("/sys/module").glob("*")):
        if MODULES.match(module.name):
            yield "module %s %s" % (module.name, first_line(module / "version"))
    for device in sorted(SYSFS.glob("*")):
        yield from facts_of_nic(device)


def say_machine(env, folder, notes):
    print("----- the machine")
    for line in [*facts(folder), *notes]:
        print(line)
    try:
        print(subprocess.run([env["PIER"], "info"], env=env, universal_newlines=True, timeout=60,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        print("pier info: %s" % error)
    print("-----", flush=True)
