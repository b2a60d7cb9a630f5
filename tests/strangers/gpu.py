# SPDX-License-Identifier: BSD-3-Clause
"""Memory of the fake CUDA driver for programs of others, and libpier-dmabuf under them.

The environment: PIER, PIER_DMABUF_LIBRARY, PIER_VERBS_LIBRARY, PIER_FAKE_DRIVERS.
"""

import os
import pathlib

from judge import DEVICE, Outcome, skip_everything

# Of the guest's rxe: dma-bufs that the kernel has registered.
COUNTER = pathlib.Path("/sys/module/rdma_rxe/parameters/dmabuf_registered")


def need_dmabufs():
    if DEVICE != "soft0" and not COUNTER.exists():
        skip_everything("the rdma_rxe that takes dma-bufs is not loaded")


def with_library(command):
    """`pier run` has no soft0 with --dmabuf, so the two libraries are named; their order counts."""
    if DEVICE != "soft0":
        return [os.environ["PIER"], "run", "--dmabuf", "--", *command]
    libraries = os.environ["PIER_DMABUF_LIBRARY"], os.environ["PIER_VERBS_LIBRARY"]
    return ["env", "LD_PRELOAD=" + ":".join(libraries), *command]


def driver_folder(place):
    """For LD_LIBRARY_PATH: beside the fake drivers is a fake libmlx5, which real programs cannot use."""
    folder = place / "drivers"
    folder.mkdir()
    for name in "libcuda.so.1", "libnvidia-ml.so.1":
        (folder / name).symlink_to(pathlib.Path(os.environ["PIER_FAKE_DRIVERS"], name))
    return folder


def take_report(report):
    """The lines of PIER_DMABUF_REPORT, and how many of them are dma-bufs; the file is removed."""
    lines = report.read_text().splitlines() if report.exists() else []
    report.unlink(missing_ok=True)
    fields = [line.split("\t") for line in lines]
    return lines, sum(path == "dma-buf" and error == "0" for *_, path, _, _, error, _ in fields)


def kernel_count():
    return int(COUNTER.read_text()) if DEVICE != "soft0" else 0


def check_regions(run, report, wanted):
    """The outcome of run(), which fails unless exactly so many regions were registered, as
    dma-bufs, to the library and to the kernel."""
    before = kernel_count()
    outcome = run()
    count = kernel_count() - before
    lines, dmabufs = take_report(report)
    right = len(lines) == dmabufs == wanted and (DEVICE == "soft0" or count == wanted)
    text = "\n".join([outcome.text, *lines, "registered by the kernel: %d" % count])
    return Outcome(outcome.state if right else "fails", text)
