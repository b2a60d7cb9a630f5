#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Generates the calls of tests/unit/api/nulls.c from the public headers.

    null_calls.py GENERATE.PY OUTPUT HEADER...

One call for each exported function and each of its pointers that the header does not
describe as optional: that pointer is NULL, and the other arguments are not.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))
from generate import COMMENT, ITEM, Header  # noqa: E402

DECLARATION = re.compile(r"PIER_API\b([^;{(]*?)\b(\w+)\s*\(([^;]*)\)\s*(?:PIER_PRINTF\([^)]*\))?;", re.DOTALL)
OPAQUE = re.compile(r"^struct (\w+);", re.MULTILINE)
# How a comment says that a pointer is optional, and that it means what another one means.
OPTIONAL = re.compile(r"\bor NULL\b|\bNULL:|\bNULL,? or\b|\bmay be NULL\b(?! only)|NULL is allowed|\bany pointer\b",
                      re.IGNORECASE)
SAME = re.compile(r"\bas (?:for|in) (\w+)\(\)")
# Functions that check nothing, by the comment that says so; and the reason for each other one.
UNCHECKED = re.compile(r"^Private:|without checks, in code that has already made them")
EXCLUDED = {"pier_fail": "the compiler checks its format"}


class Function:
    """An exported function: its parameters as (type, name), and what the comment says of each."""

    def __init__(self, block, result, name, parameters):
        self.text = block.text
        self.result = " ".join(result.split())
        self.name = name
        parts = [" ".join(part.split()) for part in parameters.split(",")]
        self.parameters = [] if parts == ["void"] else [
            re.fullmatch(r"(.*?)(\w+)((?:\[\w+\])?)", part).groups() for part in parts if part != "..."]
        self.items = {}
        for line in block.text.split("\n"):
            item = ITEM.match(line)
            if item:
                names = re.split(r"\W+", item[1])
                self.items.update((name, []) for name in names)
            if item or line.startswith(" ") and self.items:
                for name in names:
                    self.items[name].append(item[2] if item else line.strip())

    def says(self, parameter, functions):
        """The text on a parameter. A destructor has one, and its comment no list."""
        text = " ".join(self.items.get(parameter, []))
        if len(self.parameters) == 1:
            text += " ".join(re.findall(r"NULL is allowed", " ".join(self.text.split())))
        for other in SAME.findall(text):
            if parameter in self.items and other != self.name:
                text += functions[other].says(parameter, functions)
        return text

    def required(self, functions):
        for kind, name, array in self.parameters:
            if is_pointer(kind, array) and not OPTIONAL.search(self.says(name, functions)):
                yield name

    def call(self, null, opaque):
        arguments = ", ".join("NULL" if name == null else value(kind, name, array, opaque)
                              for kind, name, array in self.parameters)
        return "%s(%s)" % (self.name, arguments)


def is_pointer(kind, array):
    return "*" in kind or bool(array) or kind.strip().endswith("_callback")


def value(kind, name, array, opaque):
    """An argument that is possible."""
    kind = kind.replace("const ", "").strip()
    if is_pointer(kind, array):
        struct = re.fullmatch(r"struct (\w+) \*", kind)
        return "given.%s" % struct[1] if struct and struct[1] in opaque else "(void *)scratch"
    if kind.startswith("struct "):
        return "(%s){ 0 }" % kind
    if name == "fd" or name.endswith("_fd"):
        return "-1"
    return "0" if "offset" in name or name.endswith("_ms") or kind.startswith("enum ") else "1"


def functions_of(headers):
    for header in headers:
        for block in header.pages:
            if not block.inline and not UNCHECKED.search(" ".join(block.text.split())):
                for result, name, parameters in DECLARATION.findall(COMMENT.sub("", block.code)):
                    if name not in EXCLUDED:
                        yield Function(block, result, name, parameters)


def main():
    headers = [path for path in map(pathlib.Path, sys.argv[3:]) if "\nPIER_BEGIN_DECLS\n" in path.read_text()]
    functions = {function.name: function for function in functions_of(map(Header, headers))}
    opaque = {name for header in headers for name in OPAQUE.findall(header.read_text())} | {"ibv_pd"}
    lines = []
    for function in functions.values():
        for null in function.required(functions):
            call = function.call(null, opaque)
            if function.result == "void":
                call = "(%s, 0)" % call
            lines.append("\tCALL(%s, %s, %s, (intptr_t)%s)" % (
                function.name, null, "-EINVAL" if function.result == "int" else "0", call))
    pathlib.Path(sys.argv[2]).write_text("".join("%s \\\n" % line for line in ["#define CALLS", *lines]) + "\n")


main()
