# SPDX-License-Identifier: BSD-3-Clause
"""A folder with programs, files and hosts, where the commands of the pages run."""

import os
import pathlib
import shlex
import sys

from blocks import ROOT

BUILD = pathlib.Path(os.environ["BUILD"])
DRIVERS = BUILD / "tests/fakes/drivers"
HOSTS = ["node1", "node2", "node3", "node4", "trainer-0"]
# pier perf measures each size for a second: a few messages show as well that a command works.
PIER = """#!/bin/sh
[ "$1" != perf ] || [ "$2" = --server ] || { shift; set -- perf --warm-up 0 -n 32 "$@"; }
exec %s "$@"
"""
# Each host is a folder, whose .profile may set variables. The command follows the host, or `--`.
SHELL = """#!/bin/sh
while [ ! -d "$HOSTS/$1" ]; do shift; done
cd "$HOSTS/$1" && shift || exit 255
[ ! -e .profile ] || . ./.profile
while [ "$1" = -c ] || [ "$1" = trainer ] || [ "$1" = -- ]; do shift; done
exec sh -c "exec $*"
"""
COMPARE = """#!/bin/sh
exec %s -B %s "$@"
"""
# Commands run beside its folder. The flags must not contain a blank, which full paths may have.
VERBS_PROGRAM = """#include <infiniband/verbs.h>
#include <stdio.h>
int main(void)
{
	static char memory[4096];
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd || !ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE))
		return 1;
	printf("%s registers memory\\n", ibv_get_device_name(list[0]));
	return 0;
}
"""
PACKAGE = """Name: pier
Description: as it is built
Version: 0
Cflags: -I../packages/source/include -I../packages/build/include
Libs: -L../packages/build -lpier
"""


def write_programs(folder):
    folder.mkdir()
    quoted = shlex.quote
    for name, text in (("pier", PIER % quoted(os.environ["PIER"])), ("ssh", SHELL), ("kubectl", SHELL),
                       ("pier-perf-compare", COMPARE % (
                           quoted(sys.executable), quoted(str(ROOT / "tools/perf/compare"))))):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def write_package(folder):
    folder.mkdir()
    (folder / "pier.pc").write_text(PACKAGE)
    (folder / "source").symlink_to(ROOT)
    (folder / "build").symlink_to(BUILD)


def write_hosts(folder):
    for host in HOSTS:
        for name in ("scratch", "x", "srv/model"):
            (folder / host / name).mkdir(parents=True)


def write_files(folder, content):
    """The files that the pages copy."""
    for name in ("model/shards", "model/cache", "shards", "config"):
        (folder / name).mkdir(parents=True)
    for name in ("model.bin", "model/tok1", "model/tok2", "model/tok3", "model/shards/0.bin",
                 "model/shards/1.bin", "model/cache/0", "model/config", "shards/0.bin", "config/a"):
        (folder / name).write_bytes(content(70001))
    (folder / "model/latest").symlink_to("shards/1.bin")


def environment(folder):
    return {"PATH": "%s:%s" % (folder / "bin", os.environ["PATH"]), "HOSTS": str(folder / "hosts"),
            "PIER_DEVICE": "soft0",
            "PKG_CONFIG_PATH": str(folder / "packages")}
