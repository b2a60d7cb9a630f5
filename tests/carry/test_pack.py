#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The suites as they are carried: packed, and run on the fake drivers, on lying ones, and
without any. soft0 stands for the NIC.

FAKE_DRIVERS is the folder of the fakes, PIER_BUILD the build, and PTXAS NVIDIA's assembler,
or empty.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[0] / "lib"))
from cases import Cases  # noqa: E402
from process import adopt_orphans, end_orphans  # noqa: E402

BUILD = pathlib.Path(os.environ["PIER_BUILD"])
FAKE = os.environ["FAKE_DRIVERS"]
SECONDS = 300
# The device generations that the driver may compile for.
TARGETS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
# Since 2.38 the headers put this before the names of functions that read numbers.
SYMBOL = re.compile(r"\bGLIBC_2\.(\d+)[.\d]*\)?\s+(?:__isoc23_)?(\w+)$")
# The signal comes at the first sleep that is as long as a pull.
PULL = """
import os, signal, sys, types
sys.path.insert(0, sys.argv[1])
import test_pull
test_pull.time.sleep = lambda seconds: seconds == test_pull.PULLED and os.kill(os.getpid(), signal.SIGTERM)
test_pull.pull("any0", types.SimpleNamespace(poll=lambda: None))
"""
# Of the NICs a, b and c, b is nearest to the GPU of the second backend, and reaches c alone.
NICS = """
import importlib.machinery, sys, types
run = importlib.machinery.SourceFileLoader("run", sys.argv[1] + "/run").load_module()
opened = []
run.ctypes.CDLL = lambda name: types.SimpleNamespace(
    pier_error_message=lambda: b"", pier_device_name=lambda device: opened[-1],
    pier_buffer_alloc=lambda spec, length, buffer: spec != b"hip:0",
    pier_device_open_near=lambda memory, device: opened.append(b"b") if memory is not None else 1,
    pier_device_open=lambda name, device: opened.append(name))
run.nics, run.link_layer = lambda: ["a", "b", "c"], lambda name: "Ethernet"
run.subprocess.call = lambda argv, **_: "-d b --remote-device c" not in " ".join(argv)
run.probe_nics()
"""
# soft0 stands for a NIC, which perftest needs and is not there.
PERF = """
import os, sys
exists = os.path.exists
os.path.exists = lambda path: path.startswith("/sys/class/infiniband/") or exists(path)
sys.path.insert(0, sys.argv.pop(1))
import test_perf
test_perf.SIZES = [4096]
test_perf.main()
"""
# The side with an address is the client. One without another option has only a usage.
PERFTEST = """#!/bin/sh
case "$*" in
--help) echo "--use_cuda_dmabuf Use CUDA DMA-BUF" ;;
*--use_cuda=1\\ --use_cuda_dmabuf\\ 127.0.0.1) %s ;;
*--use_cuda=1\\ --use_cuda_dmabuf) %s ;;
*) exit 1 ;;
esac
"""
# Inline functions before glibc 2.33.
INLINE = re.compile(r"[fl]?stat(at)?(64)?$")


def run(*command, **env):
    """Exit status and output; what is None is not in the environment."""
    # The fake HIP driver needs nothing of this kernel: backends/hip/load.c.
    merged = {name: value for name, value in {**os.environ, "PIER_DMABUF": "on", **env}.items()
              if value is not None}
    done = subprocess.run(list(map(str, command)), env=merged, text=True, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def counts(output):
    """Of the last line: passed, failed, skipped."""
    words = output.splitlines()[-1].split() if output else []
    return [int(word) for word in words if word.isdigit()]


def show(output):
    for line in output.splitlines():
        print("#   " + line)


def check_pack(folder):
    status, output = run(HERE / "pack", BUILD, folder)
    show(output)
    if status or "glibc 2." not in output:
        yield "exit status %d" % status
        return
    for name in "run", "commit", "bin/pier", "bin/conformance", "bin/gpu_export", "lib/libpier.so.0", \
            "lib/without-rdma-core/libibverbs.so.1":
        if not (folder / name).exists():
            yield "%s is not in it" % name
    for path in folder.glob("lib/libc.*"):
        yield "%s is in it" % path.name
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > 12 << 20:
        yield "%d bytes are a lot to carry" % size
    if run(HERE / "pack", BUILD, folder)[0] == 0:
        yield "what was there was overwritten"


def check_foreign_pack(folder):
    """As for another processor: libraries are found by their names, and not by the loader."""
    system = pathlib.Path(re.search(r"libc\.so\.6 => (\S+)", run(
        "ldd", folder / "bin/pier")[1])[1]).parent
    other = folder.parent / "by name"
    status, output = run(HERE / "pack", BUILD, other, system)
    if status or "for %s with glibc 2." % platform.machine() not in output:
        show(output)
        yield "exit status %d" % status
    for pattern in "bin/*", "lib/**/*":
        names = [{path.name for path in place.glob(pattern)} for place in (folder, other)]
        if names[0] != names[1]:
            yield "%s: only one has %s" % (pattern, sorted(names[0] ^ names[1]))
    shutil.rmtree(other)


def versions_of(file):
    """{symbol: its versions 2.N of the C library}; weak ones may be missing."""
    versions = {}
    for line in run("objdump", "-T", file)[1].splitlines():
        match = SYMBOL.search(line)
        if match and not (" w " in line and "*UND*" in line):
            versions.setdefault(match[2], []).append(int(match[1]))
    return versions


def check_libc(folder):
    """
    tests/carry/build links for glibc 2.28, where the linker refuses newer functions. Here
    each function must have a version that is as old: many also got another one in 2.34.
    """
    libpier = folder / "lib/libpier.so.0"
    libc = versions_of(re.search(r"libc\.so\.6 => (\S+)", run("ldd", libpier)[1])[1])
    for file in [libpier, *sorted(folder.glob("bin/*"))]:
        for name, versions in versions_of(file).items():
            if min(versions + libc.get(name, [])) > 28 and not INLINE.match(name):
                yield "%s needs %s of glibc 2.%d" % (file.name, name, min(versions))


def check_run(folder):
    """All programs, of which none may find anything of the build."""
    status, output = run(folder / "run", "--result", folder / "result.txt", LD_LIBRARY_PATH=FAKE,
                         PYTHONPATH=str(HERE.parent / "gpu/standin"), PIER_BUILD=None,
                         PIER_GPU_NIC="soft0")
    show(output)
    found = counts(output)
    if status or len(found) != 3 or found[1] or found[0] < 700:
        yield "exit status %d" % status
    for part in ("for docs/hardware.md", "gpu_export cuda soft0", "gpu_export hip soft0",
                 "conformance cuda soft0", "conformance hip soft0", "conformance memfd soft0",
                 "test_cp.py hip soft0", "test_torch.py cuda soft0", "test_torch.py hip soft0",
                 "----- the machine"):
        if part not in output:
            yield "nothing of %s" % part
    # What this run skips, and a machine with GPUs and a NIC does not.
    allowed = ("loads no modules", "gives no memory of this kind", "no device of the kernel",
               "udmabuf", "dma_heap", "dma-buf", "soft0")
    for line in output.splitlines():
        if line.startswith("skipped: ") and not any(part in line for part in allowed):
            yield line
    yield from problems_of_result(folder / "result.txt", output)


def problems_of_result(result, output):
    text = result.read_text()
    if text.splitlines()[-1:] != output.splitlines()[-1:] or len(text) < len(output) * 0.9:
        yield "the result lacks output"
    if len(platform.node()) > 3 and platform.node() in text:
        yield "the result names the host"
    result.unlink()


def check_two_nics(folder):
    """The second one is the peer's of copies and of conformance."""
    status, output = run(folder / "run", "--result", folder / "result.txt", "gpu_copy",
                         "test_cp.py", LD_LIBRARY_PATH=FAKE, PIER_GPU_NIC="soft0",
                         PIER_GPU_PEER_NIC="fault:soft0")
    if status or "gpu_copy cuda soft0 to fault:soft0" not in output or \
            "test_cp.py host soft0 to fault:soft0" not in output:
        show(output)
        yield "exit status %d" % status


def check_lie(folder, program, message, *arguments, **env):
    """The bare program, which the canary does not save."""
    status, output = run(folder / "bin" / program, *arguments, LD_LIBRARY_PATH="%s:%s" % (
        folder / "lib", FAKE), PIER_GPU_NIC="soft0", PIER_GPU_BACKEND="hip", PIER_CANARY="off",
        **env)
    if status in (0, 77) or message not in output:
        show(output)
        yield "exit status %d" % status


def check_without_torch(folder):
    blocked = folder / "blocked"
    (blocked / "torch").mkdir(parents=True)
    (blocked / "torch/__init__.py").write_text("raise ImportError('torch is blocked')\n")
    status, output = run(sys.executable, "-B", folder / "tests/gpu/test_torch.py",
                         PYTHONPATH=blocked)
    shutil.rmtree(blocked)
    if status != 77 or "skip: no PyTorch for cuda: ImportError: torch is blocked" not in output:
        show(output)
        yield "exit status %d" % status


def check_failure(folder):
    """What fails is told, and the last line stays what it is."""
    failing = folder / "bin/gpu_copy"
    kept = failing.read_bytes()
    failing.write_text("#!/bin/sh\nexit 3\n")
    status, output = run(folder / "run", "--result", folder / "result.txt", "gpu", "gpu_facts",
                         "gpu_copy", LD_LIBRARY_PATH=FAKE, FAKE_HIP_DEVICES="0",
                         PIER_GPU_NIC="soft0")
    failing.write_bytes(kept)
    found = counts(output)
    if status != 1 or found != [2, 1, 0] or "gpu_copy cuda soft0: exit status 3" not in output:
        show(output)
        yield "exit status %d" % status


def check_skip(folder, reason, **env):
    status, output = run(folder / "run", "--result", folder / "result.txt", "gpu", **env)
    if status != 77 or counts(output) != [0, 0, 1] or reason not in output or \
            "nothing was tested" not in output:
        show(output)
        yield "exit status %d" % status


def check_mistakes(folder):
    """Nothing runs, and nothing is written."""
    result = folder / "none.txt"
    for words, env, message in (
            (["gpu_export", "gpu_cop"], {}, "'gpu_cop'; there are: gpu nic "),
            (["--peer", "host:7471"], {}, "--peer needs HOST:PORT:KEY: 'host:7471'"),
            (["--pul"], {}, "unrecognized arguments: --pul"),
            (["nic"], {"PIER_GPU_NIC": "absent9"}, 'no RDMA device "absent9"'),
            (["nic"], {"PIER_GPU_NIC": "soft0", "PIER_GPU_PEER_NIC": "absent9"}, '"absent9"'),
            (["gpu"], {"PIER_GPU_DEVICE": "one"}, "PIER_GPU_DEVICE is no number: 'one'")):
        status, output = run(folder / "run", "--result", result, *words, **env)
        if status != 2 or message not in output or result.exists():
            show(output)
            yield "%s: exit status %d" % (" ".join(words), status)
    status, output = run(folder / "run", "--result", "/dev/full", "nic")
    if status != 1 or output.splitlines()[-1] != "run: /dev/full: No space left on device":
        show(output)
        yield "with a full disk: exit status %d" % status


def check_ended(folder):
    """The result of an earlier run stays, and that of this one is complete."""
    result = folder / "kept.txt"
    result.write_text("earlier\n")
    process = subprocess.Popen(
        [folder / "run", "--result", result, "nic"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PIER_GPU_NIC": "soft0", "PIER_GPU_PEER_NIC": ""})
    for line in process.stdout:
        if line.startswith("-- nic: "):
            process.terminate()
            break
    output = process.stdout.read()
    text = result.read_text()
    if process.wait() != 1 or counts(output)[1:2] != [1] or "Traceback" in output or \
            not text.startswith("earlier\n----- the machine\n") or \
            not text.endswith(output[-40:]):
        show(output)
        yield "exit status %d" % process.returncode


def check_pull(folder):
    """SIGTERM, as it comes after Ctrl-C, while the interface is down: it comes up again."""
    said = folder / "said"
    (folder / "ip").write_text('#!/bin/sh\necho "$*" >>"%s"\n' % said)
    (folder / "ip").chmod(0o755)
    status, output = run(sys.executable, "-c", PULL, folder / "tests/nic",
                         PATH="%s:%s" % (folder, os.environ["PATH"]))
    if status != 1 or said.read_text() != "link set any0 down\nlink set any0 up\n":
        show(output)
        yield "exit status %d" % status


def check_choice(folder):
    status, output = run(sys.executable, "-B", "-W", "ignore", "-c", NICS, folder / "tests/carry",
                         PIER_GPU_NIC=None, PIER_GPU_PEER_NIC=None)
    if status or output != "b\nc\n":
        yield "exit status %d: %s" % (status, output)


def check_perftest(folder):
    """In the memory of a GPU: a ratio; a failure of pier alone; and what is skipped."""
    def compare(client, server, **env):
        for name in "ib_write_bw", "ib_read_bw":
            (folder / name).write_text(PERFTEST % (client, server))
            (folder / name).chmod(0o755)
        return run(sys.executable, "-B", "-c", PERF, folder / "tests/nic", "1",
                   PATH="%s:%s" % (folder, os.environ["PATH"]), LD_LIBRARY_PATH="%s:%s" % (folder / "lib", FAKE),
                   PIER=str(folder / "bin/pier"), PIER_GPU_NIC="soft0", PIER_GPU_DEVICE="1",
                   PIER_GPU_BACKEND="cuda", **env)

    works = "echo ' 4096 20 9.0 8.0 0.1'", "exec sleep 600"
    fails = "exit 1", "echo 'no dma-buf'; exit 1"
    refused = {"FAKE_CUDA_DMABUF": "0", "PIER_PEERMEM": "off"}
    for programs, env, status, part in (
            (works, {}, 0, "read_bw, 4096 bytes: pier "), (works, refused, 1, "# pier: PIER_PEERMEM=off"),
            (fails, refused, 0, "# SKIP ib_read_bw: no dma-buf (pier perf: pier: PIER_PEER")):
        found, output = compare(*programs, **env)
        if found != status or part not in output:
            show(output)
            yield "exit status %d" % found


def listen(folder, **env):
    """A host that listens, and the name of it that it prints."""
    process = subprocess.Popen([folder / "run", "--listen", "0"], stdout=subprocess.PIPE,
                               text=True, env={**os.environ, "PIER_DMABUF": "on", **env})
    for line in process.stdout:
        if "--peer" in line:
            return process, re.sub(r".* \S+:(\d+:\w+)$", r"127.0.0.1:\1", line.strip())
    return process, ""


def check_hosts(folder):
    """Two on one machine, which meet over TCP. A wrong key, before, changes nothing."""
    env = {"LD_LIBRARY_PATH": FAKE, "PIER_GPU_NIC": "soft0", "PIER_SOFT_UNIX": "off",
           "FAKE_HIP_DEVICES": "0"}
    process, peer = listen(folder, **env)
    result = folder / "of two hosts.txt"
    status, output = run(folder / "run", "--result", result, "--peer", peer + "0", **env)
    if status != 1 or "it refuses the key" not in output or result.exists():
        show(output)
        yield "with a wrong key: exit status %d" % status
    status, output = run(folder / "run", "--result", result, "--peer", peer, **env)
    if status or counts(output)[1:] != [0, 0]:
        show(output)
        yield "exit status %d" % status
    for part in ("----- the other host", "ok 6 - write_lat from host to host",
                 "and back", "skip: no HIP device", "gpu_copy cuda soft0 to soft0",
                 "send_bw from cuda:0 to cuda:0", "----- of the other host"):
        if part not in output:
            yield "nothing of %s" % part
    if process.wait(SECONDS):
        yield "the other host: exit status %d" % process.returncode
    yield from problems_of_result(result, output)


def check_failing_host(folder):
    """Its failures are reported here, and it fails itself if this side is killed."""
    env = {"LD_LIBRARY_PATH": FAKE, "PIER_GPU_NIC": "soft0", "PIER_CANARY": "off"}
    process, peer = listen(folder, FAKE_HIP_GTT="1", **env)
    status, output = run(folder / "run", "--result", folder / "result.txt", "--peer", peer,
                         "gpu_copy", **env)
    if status != 1 or "there: peer: what was written" not in output or process.wait(SECONDS):
        show(output)
        yield "exit status %d" % status
    process, peer = listen(folder, **env)
    # A killed run leaves its program running, and perhaps a folder.
    adopt_orphans()
    other = subprocess.Popen([folder / "run", "--result", folder / "result.txt", "--peer", peer],
                             stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **env, "TMPDIR": str(folder.parent)})
    for line in other.stdout:
        if line.startswith("ok"):
            break
    other.kill()
    other.communicate()
    if process.wait(SECONDS) != 1:
        yield "the other host: exit status %d" % process.returncode
    end_orphans(0)


def check_ptx(ptxas, folder):
    source = folder / "kernels.ptx"
    status, text = run(BUILD / "tests/gpu/gpu_kernels_test", "--ptx")
    source.write_text(text)
    for target in TARGETS:
        status, output = run(ptxas, "-arch=" + target, source, "-o", folder / "kernels.bin")
        if status:
            show(output)
            yield "for %s: exit status %d" % (target, status)


def main():
    cases = Cases()
    with tempfile.TemporaryDirectory(prefix="pier-gpu-") as place:
        folder = pathlib.Path(place, "carried here")
        cases.case("packs", check_pack(folder))
        cases.case("packs a build for another processor", check_foreign_pack(folder))
        cases.case("calls no function that is newer than glibc 2.28", check_libc(folder))
        cases.case("runs on the fake drivers", check_run(folder))
        cases.case("copies between two NICs", check_two_nics(folder))
        cases.case("fails on a driver that exports what pier refuses", check_lie(
            folder, "gpu_kinds", "the bare driver exports it", FAKE_HIP_MANAGED="1"))
        cases.case("fails on a driver that exports other pages", check_lie(
            folder, "gpu_copy", "bytes are wrong", FAKE_HIP_GTT="1"))
        cases.case("conformance fails on a driver that exports other pages", check_lie(
            folder, "conformance", "not what it must be", "--device", "soft0", "--backend",
            # Others wait for bytes that do not come, until their deadlines expire.
            "hip", "--case", "*write*", FAKE_HIP_GTT="1"))
        cases.case("skips PyTorch where there is none", check_without_torch(folder))
        cases.case("tells of a failure", check_failure(folder))
        cases.case("refuses mistakes before it runs anything", check_mistakes(folder))
        cases.case("completes its result when it is ended", check_ended(folder))
        cases.case("brings a pulled link up when it is ended", check_pull(folder))
        cases.case("takes the nearest NIC, and another that it reaches", check_choice(folder))
        cases.case("compares with perftest on a GPU", check_perftest(folder))
        cases.case("runs between two hosts", check_hosts(folder))
        cases.case("tells what fails on the other host", check_failing_host(folder))
        # A machine with a driver has it somewhere: it shall not be found.
        empty = pathlib.Path(place, "empty")
        empty.mkdir()
        for name in ["libcuda.so.1"] + ["libamdhip64.so." + n for n in "675"]:
            (empty / name).write_text("")
        cases.case("is skipped without a driver",
                   check_skip(folder, "no NVIDIA driver: ", LD_LIBRARY_PATH=str(empty)))
        cases.case("is skipped without a device", check_skip(
            folder, "no CUDA device: cuInit gives 100", LD_LIBRARY_PATH=FAKE,
            FAKE_CUDA_DEVICES="0", FAKE_HIP_DEVICES="0"))
        cases.case("is skipped without the device that is named", check_skip(
            folder, "no HIP device 9 (PIER_GPU_DEVICE): the driver counts ", LD_LIBRARY_PATH=FAKE,
            PIER_GPU_DEVICE="9"))
        if os.environ.get("PTXAS"):
            cases.case("its kernels are assembled",
                       check_ptx(os.environ["PTXAS"], pathlib.Path(place)))
        else:
            cases.skip("its kernels are assembled", "ptxas is not installed")
    cases.end()


main()
