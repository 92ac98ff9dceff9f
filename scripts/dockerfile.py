"""Reads the Dockerfile: its stages with their instructions, with arguments substituted."""

import re
import shlex
from collections import namedtuple

#: `flags` are the --flags before the arguments, as (name, value).
Instruction = namedtuple("Instruction", "name flags arguments")
#: `base` is an image or the name of an earlier stage.
Stage = namedtuple("Stage", "name base instructions")

FLAG = re.compile(r"--([a-z-]+)=(\S+)\s+")
VARIABLE = re.compile(r"\$\{(\w+)\}")


def instructions(text):
    """Yields the instructions of a Dockerfile, without comments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip():
            name, rest = line.split(None, 1)
            flags = []
            while flag := FLAG.match(rest):
                flags.append(flag.groups())
                rest = rest[flag.end() :]
            yield Instruction(name, flags, rest.strip())


def stages(text, **given):
    """Returns the stages in order. `given` are build arguments, which override the defaults. Only those before the
    first stage are known to FROM, as in Docker."""
    arguments, found = {}, []
    for instruction in instructions(text):
        if instruction.name == "ARG" and not found:
            name, default = instruction.arguments.split("=", 1)
            arguments[name] = given.get(name, default)
        elif instruction.name == "FROM":
            words = VARIABLE.sub(lambda match: arguments[match.group(1)], instruction.arguments).split()
            found.append(Stage(words[2] if len(words) == 3 else None, words[0], []))
        else:
            found[-1].instructions.append(instruction)
    return found


def environment(stage):
    """Returns the variables that ENV sets."""
    words = [word for one in stage.instructions if one.name == "ENV" for word in shlex.split(one.arguments)]
    return dict(word.split("=", 1) for word in words)


def last(stage, name):
    """Returns the arguments of the last instruction of this name."""
    return [one.arguments for one in stage.instructions if one.name == name][-1]
