# SPDX-License-Identifier: BSD-3-Clause
"""Which rooms of the library, its backends, its tools and its Python extension need which.

A room is x.c with x.h, named by its path without the suffix. It depends on the headers that
it includes, and on the rooms that define the functions and the tables which its object
refers to (nm(1)). A call through a pointer is no dependency: that is how a lower layer calls
a higher one.
"""

import collections
import json
import re
import subprocess
import sys

from common import BUILD, built_from, includes, relative, resolve_include, tree

# The objects of one shared library, of those to preload, and of the program.
OBJECTS = re.compile(r"(libpier\.so[^/]*|verbs/libpier-verbs\.so|preload/libpier-dmabuf\.so|tools/pier)\.p/")
EXTENSION = re.compile(r"python/.*\.p/")
# They define functions of libc and libibverbs. Other folders call those of these libraries.
REPLACING = ("verbs/", "preload/")
SYMBOL = re.compile(r"^(?P<object>.*\.o): *[0-9a-f]* +(?P<kind>\w) (?P<name>\S+)$", re.MULTILINE)


def objects():
    """The objects of the build: each with the source that it is made of."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    return {command["output"]: built_from(command["file"]) for command in commands
            if OBJECTS.match(command["output"]) or EXTENSION.match(command["output"])}


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
        if kind == "U" and name in defined and (
                source.startswith(REPLACING) or not defined[name].startswith(REPLACING)):
            yield source, defined[name], name


def room(path):
    return re.sub(r"\.[ch]$", "", path)


def dependencies():
    """{room: {room it depends on: why}}"""
    found = collections.defaultdict(dict)
    for folder in "include", "src", "backends", "verbs", "preload", "tools", "python/extension":
        for path in tree("*.c", "*.h", under=folder):
            for quote, name in includes(path):
                target = resolve_include(path, name) if quote == '"' else None
                if target and room(relative(target)) != room(relative(path)):
                    found[room(relative(path))][room(relative(target))] = "includes"
    for source, target, symbol in calls():
        if room(source) != room(target):
            found[room(source)].setdefault(room(target), "uses %s of" % symbol)
    return found


def shortest(edges, start):
    """The shortest way from a room back to itself, or []."""
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
    """The sets of rooms that depend on each other."""
    reach = {name: reachable(edges, name) for name in list(edges)}
    left = {name for name in reach if name in reach[name]}
    while left:
        first = min(left)
        circle = {name for name in reach[first] if first in reach.get(name, ())}
        yield circle
        left -= circle


def described(edges, circle):
    """One way round, in words."""
    way = min((shortest(edges, name) for name in sorted(circle)), key=len)
    return ", which ".join("%s%s %s" % (source + " " if n == 0 else "", edges[source][target], target)
                           for n, (source, target) in enumerate(zip(way, way[1:])))
