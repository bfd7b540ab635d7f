"""Reads a Dockerfile and applies rules in the manner of hadolint, by its numbers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continuation lines joined.

    Attributes:
        line: where it begins.
        ignored: rules that the comment before it switches off.
        stage: number of the FROM it belongs to, -1 before the first.
    """

    line: int
    name: str
    text: str
    ignored: frozenset[str]
    stage: int


def parse(path: Path) -> list[Instruction]:
    """The instructions of a file."""
    found: list[Instruction] = []
    ignored: frozenset[str] = frozenset()
    stage, buffer, began = -1, "", 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        stripped = line.strip()
        if not buffer and (not stripped or stripped.startswith("#")):
            if match := re.match(r"#\s*hadolint ignore=([A-Z0-9, ]+)", stripped):
                ignored = frozenset(rule.strip() for rule in match[1].split(","))
            continue
        began = began if buffer else number
        buffer += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        name, _, text = buffer.strip().partition(" ")
        stage += name == "FROM"
        found.append(Instruction(began, name, " ".join(text.split()), ignored, stage))
        buffer, ignored = "", frozenset()
    return found


def lint(instructions: list[Instruction]) -> list[str]:
    """Findings, as `line: rule what`."""
    last_stage = max(i.stage for i in instructions)
    findings = [
        f"{instruction.line}: {rule} {what}"
        for instruction in instructions
        for rule, what in _of_one(instruction)
        if rule not in instruction.ignored
    ]
    users = [i for i in instructions if i.name == "USER" and i.stage == last_stage]
    if not users or users[-1].text.split(":")[0] in ("root", "0"):
        findings.append("0: DL3002 the last user must not be root")
    findings += [
        f"0: DL4004 more than one {name}"
        for name in ("ENTRYPOINT", "CMD")
        if sum(i.name == name and i.stage == last_stage for i in instructions) > 1
    ]
    stages = [
        m[1] for i in instructions if i.name == "FROM" and (m := re.search(r" AS (\S+)$", i.text))
    ]
    if len(stages) != len(set(stages)):
        findings.append("0: DL3024 stages of one name")
    findings += [
        f"{i.line}: DL3022 --from names no stage"
        for i in instructions
        if i.name == "COPY"
        and (source := re.search(r"--from=(\S+)", i.text))
        and source[1] not in stages
    ]
    for before, after in itertools.pairwise(instructions):
        if before.name == after.name == "RUN":
            findings.append(f"{after.line}: DL3059 consecutive RUN")
    return findings


def _of_one(instruction: Instruction) -> Iterator[tuple[str, str]]:  # noqa: C901 - a rule a branch
    text = instruction.text
    if instruction.name == "FROM":
        image = text.split()[0]
        if ":" not in image and "@" not in image:
            yield "DL3006", "name a tag"
        if image.endswith(":latest"):
            yield "DL3007", "latest is not a version"
    elif instruction.name == "RUN":
        yield from _of_run(text)
    elif instruction.name == "ADD":
        yield "DL3020", "COPY files"
    elif instruction.name == "MAINTAINER":
        yield "DL4000", "deprecated"
    elif instruction.name == "WORKDIR" and not text.startswith("/"):
        yield "DL3000", "an absolute path"
    elif instruction.name in ("CMD", "ENTRYPOINT"):
        try:
            json.loads(text)
        except ValueError:
            yield "DL3025", "write it as JSON"
    elif instruction.name == "ENV" and re.search(r"(KEY|TOKEN|PASSWORD|SECRET)=", text):
        yield "SECRET", "no secrets in an image"


def _of_run(text: str) -> Iterator[tuple[str, str]]:  # noqa: C901, PLR0912 - a rule a branch
    if "apt-get install" in text:
        packages = re.search(r"apt-get install ([^&|;]*)", text)
        names = [w for w in packages[1].split() if not w.startswith("-")] if packages else []
        if any("=" not in name for name in names):
            yield "DL3008", "pin versions"
        if "rm -rf /var/lib/apt/lists/*" not in text:
            yield "DL3009", "remove the lists"
        if not re.search(r"(-y|--yes)\b", text):
            yield "DL3014", "answer yes"
        if "--no-install-recommends" not in text:
            yield "DL3015", "no recommended packages"
        if names != sorted(names):
            yield "SORTED", "packages in order"
    for command in re.findall(r"pip (?:install|wheel) [^&|;]*", text):
        if "--no-cache-dir" not in command:
            yield "DL3042", "no cache"
        if "--constraint" not in command and "--no-deps" not in command and "==" not in command:
            yield "DL3013", "pin versions"
    if re.search(r"\bsudo\b", text):
        yield "DL3004", "no sudo"
    if re.search(r"(^|&& )cd ", text):
        yield "DL3003", "use WORKDIR"
    if re.search(r"\b(curl|wget) https?:", text):
        yield "DL3047", "nothing is fetched from outside of the registries"
    if (
        "useradd" in text
        and "--uid" in text
        and not re.search(r"--no-log-init|-l\b|--uid \d{1,6}\b", text)
    ):
        yield "DL3046", "a high uid without --no-log-init makes a huge file"
