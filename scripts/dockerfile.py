"""Reads the Dockerfile: its stages with their instructions, with arguments substituted."""

import json
import re
import shlex
from collections import namedtuple

#: `flags` are the --flags before the arguments, as (name, value).
Instruction = namedtuple("Instruction", "name flags arguments")
#: `base` is an image or the name of an earlier stage.
Stage = namedtuple("Stage", "name base instructions")

FLAG = re.compile(r"--([a-z-]+)=(\S+)\s+")
VARIABLE = re.compile(r"\$\{(\w+)\}")
#: Nanoseconds of each unit of a duration.
UNITS_NS = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


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


def pairs(stage, name):
    """Returns what the instructions of this name set, which are lists of key=value."""
    words = [word for one in stage.instructions if one.name == name for word in shlex.split(one.arguments)]
    return dict(word.split("=", 1) for word in words)


def environment(stage):
    """Returns the variables that ENV sets."""
    return pairs(stage, "ENV")


def labels(stage):
    """Returns the labels that LABEL sets."""
    return pairs(stage, "LABEL")


def last(stage, name):
    """Returns the arguments of the last instruction of this name."""
    return [one.arguments for one in stage.instructions if one.name == name][-1]


def image_config(stage):
    """Returns the image's configuration that the stage sets, in the words of OCI's specification, which has the health
    check from Docker."""
    health = [one for one in stage.instructions if one.name == "HEALTHCHECK"][-1]
    flags = {"".join(word.title() for word in name.split("-")): value for name, value in health.flags}
    return {
        "User": last(stage, "USER"),
        "ExposedPorts": {f"{port}/tcp": {} for port in last(stage, "EXPOSE").split()},
        "Env": [f"{name}={value}" for name, value in environment(stage).items()],
        "Entrypoint": json.loads(last(stage, "ENTRYPOINT")),
        "Cmd": json.loads(last(stage, "CMD")),
        "Labels": labels(stage),
        "Healthcheck": {
            "Test": ["CMD", *json.loads(health.arguments.split(None, 1)[1])],
            **{name: int(value[:-1]) * UNITS_NS[value[-1]] for name, value in flags.items()},
        },
    }
