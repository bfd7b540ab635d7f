"""Writes docs/configuration.md from the configuration structs and their docstrings.

python -m deploy.reference docs/configuration.md           # write
python -m deploy.reference --check docs/configuration.md   # fail where it is out of date
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from coordinator.admission import AdmissionConfig
from coordinator.config import CoordinatorConfig, StageConfig
from deploy.config import ClusterConfig, CoordinatorStage, RenderStage, WorkerStage
from deploy.environment import API_KEY, CLUSTER_TOKEN, ENABLE_SCALE_OUT
from deploy.wiring import EC_SET_BY_CLUSTER, SET_BY_CLUSTER
from ec_connector.config import EcConfig
from render.config import MediaConfig, RenderConfig
from workers.config import WorkerConfig

_HEAD = """# Configuration

`triptych serve --config FILE` and a Ray Serve config file (`import_path: deploy.app:build`) read
the same YAML mapping; `triptych render`, `worker` and `coordinator` read the keys of their own
server. A flag, or its environment variable, overrides the file. An unknown key, a value of the
wrong type and a combination that cannot work are refused with the path of the key. Annotated files
for every topology are in `deploy/examples/`.

This page is generated: `python -m deploy.reference docs/configuration.md`.
"""

_TABLE = "| key | type | default | meaning |\n|---|---|---|---|"

_SECTIONS: tuple[tuple[str, type[msgspec.Struct], str, dict[str, str]], ...] = (
    ("The cluster", ClusterConfig, "The top of the file.", {}),
    ("`render`", RenderStage, "The render stage of a cluster.", {}),
    (
        "`encode`, `prefill`, `decode`, `prefill_decode`, `all`",
        WorkerStage,
        "A worker stage of a cluster. The topology says which of them there are.",
        {},
    ),
    ("`coordinator`", CoordinatorStage, "The coordinator stage of a cluster.", {}),
    (
        "The render server",
        RenderConfig,
        "`render.server` in a cluster, the file of `triptych render`.",
        SET_BY_CLUSTER,
    ),
    ("The render server: `media`", MediaConfig, "What media a client may send.", {}),
    (
        "A worker",
        WorkerConfig,
        "`encode.server` and so on in a cluster, the file of `triptych worker`.",
        SET_BY_CLUSTER,
    ),
    (
        "The coordinator server",
        CoordinatorConfig,
        "`coordinator.server` in a cluster, the file of `triptych coordinator`.",
        SET_BY_CLUSTER,
    ),
    (
        "The coordinator server: `render`, `encode`, `prefill`, `decode`",
        StageConfig,
        "Limits of one stage, as the coordinator keeps them. Defaults differ by stage.",
        {},
    ),
    (
        "The coordinator server: `admission`",
        AdmissionConfig,
        "What is let in at once; more is refused with 429 and `Retry-After`.",
        {},
    ),
    (
        "The EC connector: `ec`",
        EcConfig,
        "`ec` in the section of a render or worker server.",
        EC_SET_BY_CLUSTER,
    ),
)


def page() -> str:
    """The whole page."""
    parts = [_HEAD, _environment()]
    for title, struct, lead, cluster in _SECTIONS:
        rows = "\n".join((_TABLE, *_rows(struct, cluster)))
        parts.append(f"## {title}\n\n{lead}\n\n{rows}\n")
    return "\n".join(parts)


def descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field -> its text in the `Attributes` of the docstring, those of the bases included."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        for names, text in re.findall(
            r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", section, re.MULTILINE
        ):
            for name in names.split(", "):
                found[name] = " ".join(text.split())
    return found


def _rows(struct: type[msgspec.Struct], cluster: dict[str, str]) -> Iterator[str]:
    texts = descriptions(struct)
    for field in msgspec.structs.fields(struct):
        text = texts.get(field.name, "")
        if field.name in cluster:
            text = f"{text} In a cluster: {cluster[field.name]}.".lstrip()
        cells = (f"`{field.name}`", f"`{_annotation(struct, field.name)}`", _default(field), text)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _annotation(struct: type[msgspec.Struct], name: str) -> str:
    for base in struct.__mro__:
        annotation = inspect.get_annotations(base).get(name)
        if annotation is not None:
            return str(annotation)
    raise KeyError(name)


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return "required"
    if isinstance(value, msgspec.Struct):
        return "see below"
    return f"`{json.dumps(msgspec.to_builtins(value))}`"


def _environment() -> str:
    rows = (
        (API_KEY, "a key that clients must present (`--api-key`)"),
        (CLUSTER_TOKEN, "the secret that replicas share (`--cluster-token`)"),
        (ENABLE_SCALE_OUT, "1 offers the render, derender and generate endpoints"),
    )
    lines = [
        f"| {' or '.join(f'`{name}`' for name in names)} | {meaning} |" for names, meaning in rows
    ]
    return "## Environment\n\n| variable | meaning |\n|---|---|\n" + "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write or check the configuration page.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    text = page()
    if not arguments.check:
        arguments.path.write_text(text, encoding="utf-8")
        return 0
    if arguments.path.is_file() and arguments.path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(
        f"{arguments.path} is out of date: python -m deploy.reference {arguments.path}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
