# SPDX-License-Identifier: BSD-3-Clause
"""Which source files of the library, its backends and its tools need which.

Each .c and .h file is a node of its own. A file depends on the headers that it
includes, and on the files that define the functions and the tables which its
object refers to (nm(1)). A call through a pointer is no dependency: that is how a
lower layer calls a higher one. A header stays apart from the .c of the same name,
because the header of a folder may be included by every file that its .c calls.
"""

import collections
import json
import re
import subprocess
import sys

from common import BUILD, built_from, includes, relative, resolve_include, tree

# The objects of one shared library, of libpier-verbs, and of the program.
OBJECTS = re.compile(r"(libpier\.so[^/]*|verbs/libpier-verbs\.so|tools/pier)\.p/")
SYMBOL = re.compile(r"^(?P<object>.*\.o): *[0-9a-f]* +(?P<kind>\w) (?P<name>\S+)$", re.MULTILINE)


def objects():
    """The objects of the build: each with the source that it is made of."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    return {command["output"]: built_from(command["file"])
            for command in commands if OBJECTS.match(command["output"])}


def calls():
    """(source, source, symbol): the first refers to a symbol that the second defines."""
    sources = objects()
    missing = [name for name in sources if not (BUILD / name).exists()]
    if missing:
        sys.exit("%s is not built: no %s" % (BUILD, missing[0]))
    listing = subprocess.run(["nm", "-g", "-A", *sources], cwd=BUILD, check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    symbols = [(sources[m["object"]], m["kind"], m["name"]) for m in SYMBOL.finditer(listing)]
    defined = {name: source for source, kind, name in symbols if kind != "U"}
    for source, kind, name in symbols:
        if kind == "U" and name in defined:
            yield source, defined[name], name


def dependencies():
    """{file: {file it depends on: why}}"""
    found = collections.defaultdict(dict)
    for folder in "include", "src", "backends", "verbs", "tools":
        for path in tree("*.c", "*.h", under=folder):
            for quote, name in includes(path):
                target = resolve_include(path, name) if quote == '"' else None
                if target:
                    found[relative(path)][relative(target)] = "includes"
    for source, target, symbol in calls():
        if source != target:
            found[source].setdefault(target, "uses %s of" % symbol)
    return found


def shortest(edges, start):
    """The shortest way from a file back to itself, or []."""
    ways = collections.deque([[start]])
    seen = set()
    while ways:
        way = ways.popleft()
        for target in sorted(edges.get(way[-1], {})):
            if target == start:
                return way + [start]
            if target not in seen:
                seen.add(target)
                ways.append(way + [target])
    return []


def reachable(edges, start):
    found, left = set(), [start]
    while left:
        for target in edges.get(left.pop(), {}):
            if target not in found:
                found.add(target)
                left.append(target)
    return found


def circles(edges):
    """The sets of files that depend on each other."""
    reach = {file: reachable(edges, file) for file in list(edges)}
    left = {file for file in reach if file in reach[file]}
    while left:
        first = min(left)
        circle = {file for file in reach[first] if first in reach.get(file, ())}
        yield circle
        left -= circle


def described(edges, circle):
    """One way round, in words."""
    way = min((shortest(edges, file) for file in sorted(circle)), key=len)
    return ", which ".join("%s%s %s" % (source + " " if n == 0 else "", edges[source][target], target)
                           for n, (source, target) in enumerate(zip(way, way[1:])))
