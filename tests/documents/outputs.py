# SPDX-License-Identifier: BSD-3-Clause
"""Whether a command printed what a page shows: the same words, and other numbers."""

import re

# Depends on the machine: pages show a machine without a NIC.
NO_NIC = re.compile(r"no usable RDMA device: using")
# The rest of the sentence depends on the kernel.
NO_DEVICE = re.compile(r"(there is no RDMA device): .*?(; for both sides|$)")
RATE = re.compile(r"\d+\.\d+ [kKMGT]?i?B/s")
NUMBER = re.compile(r"\d+(\.\d+)?")


def normal(line):
    """A line without its numbers, rates and the number of its blanks."""
    line = NO_DEVICE.sub(r"\1\2", line)
    return " ".join(NUMBER.sub("N", RATE.sub("N B/s", line)).split())


def pattern(lines):
    """Of an output: `...` stands for any lines, or for any text within a line."""
    parts = []
    for line in lines:
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        elif not NO_NIC.search(line):
            parts.append(re.escape(normal(line)).replace(r"\.\.\.", ".*") + "\n")
    return "".join(parts)


def output_lines(output):
    return [normal(line) for line in output.splitlines() if not NO_NIC.search(line)]


def is_shown(shown, output):
    return re.fullmatch(pattern(shown), "".join(line + "\n" for line in output_lines(output)))


def absent(shown, output):
    """The lines of an excerpt that the output does not have, in their order."""
    missing, rest = [], output_lines(output)
    for line in filter(str.strip, shown):
        if normal(line) in rest:
            rest = rest[rest.index(normal(line)) + 1:]
        else:
            missing.append(line)
    return missing
