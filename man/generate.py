#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Generates the manual pages of section 3 from the comments of the public headers.

    generate.py --list HEADER...                    print the names of the pages
    generate.py --date DATE --output DIR HEADER...  write the pages

A comment and the functions that follow it become one page, named after the first
function; the other functions become links to it. The first comment of a header,
which describes the whole header, and the types become a page named after the header.
"""

import argparse
import pathlib
import re
import textwrap

COMMENT = re.compile(r"/\*\*(.*?)\*/\n?", re.DOTALL)
FUNCTION = re.compile(r"PIER_API\b[^;{]*?\b(\w+)\s*\([^;]*;", re.DOTALL)
INLINE = re.compile(r"^static inline (.*?)\n\{.*?^\}", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"^(\w[\w, ]*?|\[.*?\)) {2,}(\S.*)$")
SECTIONS = ("RETURN VALUES", "ERRORS")


def strip_comment(text):
    """The text of a comment, without the asterisks."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in text.strip().split("\n")]
    return "\n".join(lines).strip("\n")


def first_sentence(text):
    paragraph = " ".join(re.split(r"\n\s*\n", text)[0].split())
    sentence = re.split(r"(?<=[\w)\"]{2})[.;] |\.$", paragraph)[0]
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() else sentence


class Block:
    """A comment and the code that follows it, up to the next comment."""

    def __init__(self, comment, code):
        self.text = strip_comment(comment)
        self.inline = code.startswith("static inline ")
        if self.inline:
            code = "\n".join("PIER_API %s;" % function for function in INLINE.findall(code))
        self.code = code
        self.functions = FUNCTION.findall(code)


class Header:
    """A public header: its general description, types and functions."""

    def __init__(self, path):
        self.name = path.name.replace(".in", "")
        text = path.read_text()
        text = text[text.find("PIER_BEGIN_DECLS\n") + 17:text.rfind("PIER_END_DECLS")]
        self.blocks = []
        for chunk in re.split(r"\n(?=/\*\*)", text):
            comment = COMMENT.match(chunk.lstrip("\n"))
            if comment:
                self.blocks.append(Block(comment[1], chunk.lstrip("\n")[comment.end():]))
        self.pages = [block for block in self.blocks if block.functions]
        self.page = "pier_" + self.name[:-2]
        # A comment is general if no code follows it directly.
        self.general = "" if self.blocks[0].code[:1].strip() else self.blocks[0].text
        self.types = [block for block in self.blocks
                      if not block.functions and block.code[:1].strip()]
        self.about = first_sentence(self.general) if self.general else \
            "functions and types of <pier/%s>" % self.name
        self.has_page = all(self.page not in block.functions for block in self.pages)


def escape(line):
    line = line.replace("\\", "\\e")
    return "\\&" + line if line.startswith((".", "'")) else line


def prose(line):
    """Running text, with one sentence per line, as mdoc requires."""
    return "\n".join(map(escape, re.sub(r"(?<=[\w)\"][.]) (?=[A-Z])", "\n", line).split("\n")))


def literal(text):
    return [".Bd -literal", *map(escape, text.split("\n")), ".Ed"]


def declaration(text):
    """One function, wrapped between its parameters."""
    text = text.replace(" ", "\0").replace(",\0", ", ")
    lines = textwrap.wrap(text, 76, subsequent_indent=" " * 8, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def declarations(code):
    code = re.sub(r"\bPIER_API ", "", COMMENT.sub("", code))
    return "\n".join(declaration(" ".join(one.split()) + ";")
                     for one in code.split(";") if one.strip())


def paragraph(lines):
    """One paragraph as mdoc: running text, a list of arguments, or code."""
    if all(line.startswith("\t") for line in lines):
        return literal("\n".join(lines))
    out, in_list = [], False
    for line in lines:
        item = ITEM.match(line)
        if item:
            out += [] if in_list else [".Bl -tag -width Ds"]
            in_list = True
            out += [".It Fa " + " , ".join(item[1].split(", ")) if item[1][0] != "["
                    else ".It " + item[1], prose(item[2])]
        else:
            out.append(prose(line.strip()))
    return out + ([".El"] if in_list else [])


def body(text):
    """The sections DESCRIPTION, RETURN VALUES and ERRORS."""
    sections = {"DESCRIPTION": [], "RETURN VALUES": [], "ERRORS": []}
    where = "DESCRIPTION"
    for chunk in re.split(r"\n[ ]*\n", text):
        if chunk.startswith("Returns"):
            where = "RETURN VALUES"
        elif chunk.startswith("Errors:"):
            where = "ERRORS"
            chunk = chunk[len("Errors:"):].strip()
        elif where == "ERRORS":
            where = "DESCRIPTION"
        lines = paragraph(chunk.split("\n"))
        if sections[where] and not lines[0].startswith(".B"):
            lines.insert(0, ".Pp")
        sections[where] += lines
    out = [".Sh DESCRIPTION"] + sections["DESCRIPTION"]
    for name in SECTIONS:
        out += [".Sh " + name] + sections[name] if sections[name] else []
    return out


def top(name, names, about, header):
    return [".Dt %s 3" % name.upper(), ".Os", ".Sh NAME", *[".Nm %s ," % n for n in names[:-1]],
            ".Nm " + names[-1], ".Nd " + escape(about), ".Sh SYNOPSIS", ".In pier/" + header]


def see_also(*pages):
    names = ["pier", *pages]
    return [".Sh SEE ALSO", *[".Xr %s 3 ," % name for name in names[:-1]],
            ".Xr %s 3" % names[-1]]


def function_page(header, block):
    names = list(dict.fromkeys(block.functions))
    see = [header.page] if header.has_page else []
    lines = top(names[0], names, first_sentence(block.text), header.name)
    lines += literal(declarations(block.code)) + body(block.text)
    lines += see_also(*see)
    return names[0], lines, names[1:]


def header_page(header):
    name = header.page
    lines = top(name, [name], header.about, header.name)
    lines += body(header.general) if header.general else []
    if header.types:
        lines.append(".Sh TYPES AND CONSTANTS")
    for block in header.types:
        lines += [".Pp"] if lines[-1] != ".Sh TYPES AND CONSTANTS" else []
        lines += [prose(line.strip()) for line in block.text.split("\n") if line.strip()]
        lines += literal(re.sub(r"\n\n.*", "", block.code, flags=re.DOTALL).strip())
    if header.pages:
        lines += [".Sh FUNCTIONS", ".Bl -tag -width Ds"]
    for block in header.pages:
        names = list(dict.fromkeys(block.functions))
        lines += [".It " + " , ".join("Xr %s 3" % n for n in names),
                  escape(first_sentence(block.text))]
    return name, lines + ([".El"] if header.pages else []) + see_also(), []


def overview(headers):
    lines = [".Dt PIER 3", ".Os", ".Sh NAME", ".Nm pier",
             ".Nd transfers data directly between device memory and an RDMA NIC", ".Sh LIBRARY",
             "libpier", ".Sh SYNOPSIS", ".In pier/pier.h", ".Pp",
             ".Li cc file.c $(pkg-config --cflags --libs pier)", ".Sh DESCRIPTION",
             "Functions return 0 or a negative errno, unless their page says otherwise;",
             ".Xr pier_error_message 3", "returns the reason in one sentence.",
             "Output parameters come last and are written only on success.",
             "Each page below describes one header.", ".Bl -tag -width Ds"]
    for header in headers:
        lines += [".It Xr %s 3" % header.page, header.about]
    return "pier", lines + [".El", ".Sh SEE ALSO", ".Xr pier 1"], []


def pages(headers):
    yield overview(headers)
    for header in headers:
        if header.has_page:
            yield header_page(header)
        for block in header.pages:
            yield function_page(header, block)


def write(folder, date, name, lines, links):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (name + ".3")).write_text("\n".join([".Dd " + date, *lines]) + "\n")
    for link in links:
        (folder / (link + ".3")).write_text(".so man3/%s.3\n" % name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--date")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("headers", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    headers = [Header(path) for path in options.headers
               if "\nPIER_BEGIN_DECLS\n" in path.read_text()]
    for name, lines, links in pages(headers):
        if options.list:
            print("\n".join(page + ".3" for page in [name, *links]))
        else:
            write(options.output, options.date, name, lines, links)


if __name__ == "__main__":
    main()
