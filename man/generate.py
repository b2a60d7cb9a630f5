#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Generates the manual pages of section 3 from the comments of the public headers.

    generate.py --list HEADER...  print the names of the pages
    generate.py --date DATE --examples FILE --first FILE --output DIR HEADER...
                                  write the pages

A comment and the functions that follow it become one page, named after the first
function; the other functions become links to it. The first comment of a header,
which describes the whole header, and the types become a page named after the header.

The function example_NAME() of the file of examples, a program that a test runs, is the
example of <pier/NAME.h>. The pages of that header's functions refer to it. --first names
the whole program that pier(3) shows.
"""

import argparse
import errno
import os
import pathlib
import re
import textwrap

COMMENT = re.compile(r"/\*\*(.*?)\*/\n?", re.DOTALL)
FUNCTION = re.compile(r"PIER_API\b[^;{]*?\b(\w+)\s*\([^;]*;", re.DOTALL)
INLINE = re.compile(r"^static inline (.*?)\n\{.*?^\}", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"^(\w[\w, ]*?|\[.*?\)) {2,}(\S.*)$")
# A function with its parentheses, or a page with its section, as words of their own.
REFERENCE = re.compile(r"(?:(?<=\s)|^)(\(?)([\w-]+)\((\d?)\)([.,;:)]*)(?=\s|$)")
MENTIONED = re.compile(r"\b([\w-]+)\((\d?)\)|<(pier)/(\w+)\.h>")
ERROR = re.compile(r"(-E[A-Z0-9]+(?:(?:,| or) -E[A-Z0-9]+)*)(\.?)(?: (.*))?$", re.DOTALL)
EXAMPLE = re.compile(r"^/\* ([^\n]*?) \*/\n(static int example_(\w+)\(.*?^}$)",
                     re.DOTALL | re.MULTILINE)
# Examples that are too long for a page.
FILES = {"backend": "examples/backend_arena.c"}
# What NAME may have without being cut after a clause.
NAME_WIDTH = 80


def strip_comment(text):
    """The text of a comment, without the asterisks."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in text.strip().split("\n")]
    return "\n".join(lines).strip("\n")


def first_sentence(text):
    paragraph = " ".join(re.split(r"\n\s*\n", text)[0].split())
    sentence = re.split(r"(?<=[\w()\"]{2})[.;] |\.$", paragraph)[0]
    return sentence[0].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def shorten(sentence):
    """Its first clause, if it is too long for NAME."""
    if len(sentence) <= NAME_WIDTH:
        return sentence
    for end in re.finditer(r"[:,;.] | \(", sentence):
        clause = sentence[:end.start()]
        # A range is [first, end).
        if len(clause.split()) >= 3 and \
                len(re.findall(r"[(\[]", clause)) == len(re.findall(r"[)\]]", clause)):
            return clause
    return sentence


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
        self.about = shorten(first_sentence(self.general)) if self.general else \
            "functions and types of <pier/%s>" % self.name
        self.has_page = all(self.page not in block.functions for block in self.pages)


def escape(line):
    line = line.replace("\\", "\\e")
    return "\\&" + line if line.startswith((".", "'")) else line


def refer(match):
    """A reference as a line of its own."""
    before, name, section, ends = match.groups()
    macro = "Xr %s %s" % (name, section or 3) if section or name.startswith("pier_") \
        else "Fn " + name
    macro = "Pf ( " + macro if before else macro
    return "\n." + " ".join([macro, *ends]) + "\n"


def prose(line):
    """Running text, with one sentence per line, as mdoc requires."""
    out = []
    for sentence in re.sub(r"(?<=[\w)\"][.]) (?=[A-Z])", "\n", line).split("\n"):
        # Escaped before the references, which are macros.
        for part in REFERENCE.sub(refer, escape(sentence)).split("\n"):
            out += [part.strip()] if part.strip() else []
    return "\n".join(out)


def literal(text):
    return [".Bd -literal", *map(escape, text.split("\n")), ".Ed"]


def declaration(text):
    """One function, wrapped between its parameters."""
    text = text.replace(" ", "\0").replace(",\0", ", ")
    lines = textwrap.wrap(text, 76, subsequent_indent=" " * 8, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def declarations(code):
    code = re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)
    return "\n".join(declaration(" ".join(one[0][len("PIER_API "):].split()).replace("( ", "("))
                     for one in FUNCTION.finditer(code))


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


def errors(text):
    """A list of errors, and the sentences before, between and after them."""
    out, in_list = [], False
    for part in re.split(r"; (?=-E|others |those |the errno )|(?<=[.;:]) (?=-E)", " ".join(text.split())):
        error = ERROR.match(part)
        if not error:
            out += ([".El", ".Pp"] if in_list else [".Pp"] if out else [])
            part = part[0].upper() + part[1:].rstrip(";.")
            out.append(prose(part if part.endswith(":") else part + "."))
            in_list = False
            continue
        codes, stop, text = error.groups()
        text, _, after = ("", "", text) if stop else re.match(
            r"(.*?)([.] (?=[A-Z])|$)(.*)", text or "").groups()
        out += [] if in_list else [".Bl -tag -width Er"]
        in_list = True
        codes = re.split(", | or ", codes)
        out.append(".It " + " , ".join("Er \\" + code for code in codes))
        out.append(prose(text.rstrip(".")) if text else
                   os.strerror(getattr(errno, codes[0][1:])))
        if after:
            out += [".El", ".Pp", prose(after.rstrip(".;") + ".")]
            in_list = False
    return out + ([".El"] if in_list else [])


def body(text, examples):
    """The sections DESCRIPTION, RETURN VALUES, EXAMPLES and ERRORS."""
    sections = {"DESCRIPTION": [], "RETURN VALUES": [], "EXAMPLES": examples, "ERRORS": []}
    where = "DESCRIPTION"
    for chunk in re.split(r"\n[ ]*\n", text):
        if chunk.startswith("Returns"):
            where = "RETURN VALUES"
        elif chunk.startswith("Errors:"):
            sections["ERRORS"] += errors(chunk[len("Errors:"):])
            where = "ERRORS"
            continue
        elif where == "ERRORS":
            where = "DESCRIPTION"
        lines = paragraph(chunk.split("\n"))
        if sections[where] and not lines[0].startswith(".B"):
            lines.insert(0, ".Pp")
        sections[where] += lines
    out = []
    for name, lines in sections.items():
        out += [".Sh " + name] + lines if lines else []
    return out


def top(name, names, about, header):
    return [".Dt %s 3" % name.upper(), ".Os", ".Sh NAME", *[".Nm %s ," % n for n in names[:-1]],
            ".Nm " + names[-1], ".Nd " + escape(about), ".Sh SYNOPSIS", ".In pier/" + header]


def see_also(text, own, *pages):
    """The pages that a comment refers to: functions of other pages, and these pages."""
    found = {(page, "3") for page in pages}
    for name, section, folder, header in MENTIONED.findall(text):
        if section or name.startswith("pier_") or folder:
            found.add((folder + "_" + header if folder else name, section or "3"))
    found = sorted(found - {(name, "3") for name in own} - {("pier_pier", "3")},
                   key=lambda page: (page[1], page[0]))
    return [".Sh SEE ALSO", *[".Xr %s %s ," % page for page in found[:-1]],
            ".Xr %s %s" % found[-1]]


def example_lines(header, examples):
    name = header.name[:-2]
    if name in FILES:
        return ["See", ".Pa " + FILES[name], "of the sources."]
    sentence, code = examples.get(name, ("", ""))
    return [prose(sentence), *literal(code)] if code else []


def function_page(header, block, examples):
    names = list(dict.fromkeys(block.functions))
    example = example_lines(header, examples)
    if example and header.has_page:
        example = ["See", ".Xr %s 3 ." % header.page]
    lines = top(names[0], names, shorten(first_sentence(block.text)), header.name)
    lines += literal(declarations(block.code)) + body(block.text, example)
    lines += see_also(block.text, names, "pier", *[header.page] if header.has_page else [])
    lines = [re.sub(r"(?m)^(\.(?:Pf \( )?)Xr (%s) 3" % "|".join(names), r"\1Fn \2", line)
             for line in lines]
    return names[0], lines, names[1:]


def header_page(header, examples):
    name = header.page
    lines = top(name, [name], header.about, header.name)
    lines += body(header.general or header.about[0].upper() + header.about[1:] + ".",
                  example_lines(header, examples))
    if header.types:
        lines.append(".Sh TYPES AND CONSTANTS")
    for block in header.types:
        lines += [".Pp"] if lines[-1] != ".Sh TYPES AND CONSTANTS" else []
        for chunk in re.split(r"\n[ ]*\n", block.text):
            part = paragraph(chunk.split("\n"))
            lines += [] if lines[-1].startswith((".Sh", ".Pp")) or part[0].startswith(".B") \
                else [".Pp"]
            lines += part
        lines += literal(re.sub(r"\n\n.*", "", block.code, flags=re.DOTALL).strip())
    if header.pages:
        lines += [".Sh FUNCTIONS", ".Bl -tag -width Ds"]
    for block in header.pages:
        names = list(dict.fromkeys(block.functions))
        lines += [".It " + " , ".join("Xr %s 3" % n for n in names),
                  prose(shorten(first_sentence(block.text)))]
    lines += [".El"] if header.pages else []
    return name, lines + see_also(header.general, [name], "pier"), []


def overview(headers, first):
    lines = [".Dt PIER 3", ".Os", ".Sh NAME", ".Nm pier",
             ".Nd transfers data directly between device memory and an RDMA NIC", ".Sh LIBRARY",
             "libpier", ".Sh SYNOPSIS", ".In pier/pier.h", ".Pp",
             ".Dl cc file.c $(pkg-config --cflags --libs pier)", ".Sh DESCRIPTION",
             "Functions return 0 or a negative errno, unless their page says otherwise;",
             ".Xr pier_error_message 3", "returns the reason in one sentence.",
             "Output parameters come last and are written only on success.",
             "Each page below describes one header.", ".Bl -tag -width Ds"]
    for header in sorted(headers, key=lambda header: header.page):
        lines += [".It Xr %s 3" % header.page, header.about]
    return "pier", lines + [".El", ".Sh EXAMPLES", "A complete program:", *literal(first),
                            ".Sh SEE ALSO", ".Xr pier 1 ,", ".Xr pier 7"], []


def pages(headers, examples, first):
    yield overview(headers, first)
    for header in headers:
        if header.has_page:
            yield header_page(header, examples)
        for block in header.pages:
            yield function_page(header, block, examples)


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
    parser.add_argument("--examples", type=pathlib.Path)
    parser.add_argument("--first", type=pathlib.Path)
    parser.add_argument("headers", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    headers = [Header(path) for path in options.headers
               if "\nPIER_BEGIN_DECLS\n" in path.read_text()]
    examples, first = {}, ""
    if options.output:
        examples = {header: (sentence, code) for sentence, code, header in
                    EXAMPLE.findall(options.examples.read_text())}
        first = options.first.read_text().rstrip("\n")
    for name, lines, links in pages(headers, examples, first):
        if options.list:
            print("\n".join(page + ".3" for page in [name, *links]))
        else:
            write(options.output, options.date, name, lines, links)


if __name__ == "__main__":
    main()
