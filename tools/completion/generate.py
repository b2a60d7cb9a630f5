#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the completion of pier for a shell, from the tables of options of the program.

    generate.py PIER bash|zsh|fish FILE
"""

import json
import re
import subprocess
import sys

# The kinds of memory that are built in.
MEMORY = "host", "memfd", "udmabuf", "dma_heap", "cuda", "hip", "level_zero"
FILES = ("FILE", "PATH", "COMMAND")
DEVICES = ("NAME", "NAMES")


class Option:
    def __init__(self, table):
        self.letter, self.name = table["letter"], "--" + table["name"]
        self.value, self.text = table["argument"], table["help"]

    @property
    def names(self):
        return ["-" + self.letter, self.name] if self.letter else [self.name]


    @property
    def choices(self):
        """All values of the option, if the help lists them."""
        return self.value.split("|") if self.value and "|" in self.value else []


class Program:
    def __init__(self, pier):
        tables = json.loads(subprocess.run([pier, "--option-tables"], check=True,
                                           stdout=subprocess.PIPE).stdout)
        self.options = [Option(table) for table in tables["options"]]
        self.commands = {c["name"]: c["help"] for c in tables["commands"]}
        self.of_command = {c["name"]: [Option(table) for table in c["options"]]
                           for c in tables["commands"]}
        # The arguments of these are a program and its own options.
        self.runs_program = {c["name"] for c in tables["commands"] if c["runs_program"]}
        # All values of the first argument.
        self.first = {c["name"]: c["first"].split("|") for c in tables["commands"] if c["first"]}


def bash(program):
    lines = ["# Completion of pier for bash, made by tools/completion/generate.py.", "_pier() {",
             "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}",
             "    local command=${COMP_WORDS[1]} words='' value=''",
             "    # In --name=value, the = is a word.",
             "    if [ \"$current\" = = ]; then",
             "        current=''",
             "    elif [ \"$before\" = = ]; then",
             "        before=${COMP_WORDS[COMP_CWORD - 2]}",
             "    fi",
             "    if [ \"$COMP_CWORD\" = 1 ]; then",
             "        COMPREPLY=($(compgen -W '%s' -- \"$current\"))" % " ".join(
                 [*program.commands, *(n for o in program.options for n in o.names)]),
             "        return", "    fi", "    case $command in"]
    for name, options in program.of_command.items():
        lines.append("    %s)" % name)
        if name == "help":
            lines.append("        words='%s'" % " ".join(n for n in program.commands if n != name))
        else:
            words = " ".join(n for o in options for n in o.names)
            only = '[ "$COMP_CWORD" != 2 ] || ' if name in program.runs_program else ""
            lines.append("        %swords='%s'" % (only, words))
        if name in program.first:
            lines += ["        case $current in", "        -*) ;;", "        *)",
                      "            words='%s'" % " ".join(program.first[name]),
                      "            [[ ! \" ${COMP_WORDS[*]:2:COMP_CWORD-2} \" =~ ' '(%s)' ' ]] || words=''"
                      % "|".join(program.first[name]), "            ;;", "        esac"]
        values = [o for o in options if o.value]
        if values:
            lines.append("        case $before in")
            for option in values:
                lines.append("        %s) value='%s' ;;" % (" | ".join(option.names), option.value))
            lines.append("        esac")
        lines.append("        ;;")
    lines += ["    esac", "    case $value in", "    '')",
              "        case $command:$current in",
              "        %s | *:-*) COMPREPLY=($(compgen -W \"$words\" -- \"$current\")) ;;"
              % " | ".join(name + ":*" for name in ("help", *program.first)),
              "        esac", "        ;;",
              "    SPEC) COMPREPLY=($(compgen -W '%s' -- \"$current\")) ;;" % " ".join(MEMORY),
              "    %s)" % " | ".join(DEVICES),
              "        COMPREPLY=($(compgen -W \"soft0 $(ls /sys/class/infiniband 2>/dev/null)\" "
              "-- \"$current\"))", "        ;;",
              "    %s) ;;" % " | ".join(FILES),
              "    *'|'*) COMPREPLY=($(compgen -W \"${value//|/ }\" -- \"$current\")) ;;",
              "    *) compopt +o default 2>/dev/null ;;", "    esac", "}",
              "complete -o default -F _pier pier"]
    return lines


def quote(text):
    return "'%s'" % text.replace("'", "'\\''")


def zsh_action(value):
    if "|" in value:
        return ":value:(%s)" % value.replace("|", " ")
    if value in FILES:
        return ":%s:_files" % value
    if value in DEVICES:
        return ":%s:(soft0 $(ls /sys/class/infiniband 2>/dev/null))" % value
    if value == "SPEC":
        return ":%s:(%s)" % (value, " ".join(MEMORY))
    return ":%s: " % value


def zsh_options(options):
    for option in options:
        text = re.sub(r"([\[\]:\\])", r"\\\1", option.text)
        for name in option.names:
            line = "%s[%s]" % (name, text)
            if option.value:
                line += zsh_action(option.value)
            yield quote(line) if "$" not in line else '"%s"' % line.replace('"', '\\"')


def zsh(program):
    lines = ["#compdef pier", "# Completion of pier for zsh, made by tools/completion/generate.py.",
             "local -a subcommands=("]
    lines += ["    " + quote("%s:%s" % (name, text.replace(":", "\\:")))
              for name, text in program.commands.items()]
    lines += [")", "if ((CURRENT == 2)); then", "    _describe command subcommands",
              "    _arguments " + " ".join(zsh_options(program.options)),
              "    return", "fi", "local command=$words[2]", "shift words", "((CURRENT--))",
              "case $command in"]
    for name, options in program.of_command.items():
        rest = "'*:command:(%s)'" % " ".join(program.commands) if name == "help" else \
            "'*::program:_normal'" if name in program.runs_program else \
            "'1:test:(%s)' '2:host:_hosts'" % " ".join(program.first[name]) \
            if name in program.first else "'*:file:_files'"
        lines.append("%s)" % name)
        lines.append("    _arguments \\")
        lines += ["        %s \\" % line for line in zsh_options(options)]
        lines += ["        " + rest, "    ;;"]
    return [*lines, "esac"]


def fish_option(condition, option):
    line = "complete -c pier -n %s" % quote(condition)
    if option.letter:
        line += " -s " + option.letter
    line += " -l " + option.name[2:]
    if option.value:
        line += " -r" + ("F" if option.value in FILES else "f")
    if option.value in DEVICES:
        line += " -a '(echo soft0; ls /sys/class/infiniband 2>/dev/null)'"
    if option.choices:
        line += " -a " + quote(" ".join(option.choices))
    if option.value == "SPEC":
        line += " -a %s" % quote(" ".join(MEMORY))
    return line + (" -d " + quote(option.text) if option.text else "")


def fish(program):
    lines = ["# Completion of pier for fish, made by tools/completion/generate.py."]
    lines += ["complete -c pier -n __fish_use_subcommand -f -a %s -d %s" % (name, quote(text))
              for name, text in program.commands.items()]
    lines += [fish_option("__fish_use_subcommand", o) for o in program.options]
    lines.append("complete -c pier -n '__fish_seen_subcommand_from help' -f -a %s"
                 % quote(" ".join(program.commands)))
    for name, options in program.of_command.items():
        lines += [fish_option("__fish_seen_subcommand_from " + name, o) for o in options]
        if name in program.first:
            lines.append("complete -c pier -n '__fish_seen_subcommand_from %s' -f -a %s"
                         % (name, quote(" ".join(program.first[name]))))
    return lines


def main():
    pier, shell, name = sys.argv[1:]
    lines = {"bash": bash, "zsh": zsh, "fish": fish}[shell](Program(pier))
    with open(name, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


main()
