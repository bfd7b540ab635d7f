"""Writes the chart's values.schema.json and the table of its README from `values_spec.py`.

python helm/generate.py            write them
python helm/generate.py --check    fail if one is out of step
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from values_spec import VALUES
from values_types import Schema

CHART = Path(__file__).parent / "triptych"
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"


def schema() -> str:
    """values.schema.json."""
    return (
        json.dumps(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": "Triptych",
                **VALUES,
            },
            indent=2,
        )
        + "\n"
    )


def rows(
    node: Schema, defaults: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, str, str]]:
    """(path, type, default, description) of every value, in the order of the specification."""
    for key, child in node["properties"].items():
        here = (*path, key)
        if path == () and key == "global":
            continue
        default = defaults.get(key) if isinstance(defaults, dict) else None
        if "properties" in child:
            yield from rows(child, default, here)
        else:
            shown = "" if default is None else f"`{json.dumps(default)}`"
            yield ".".join(here), _type(child), shown, child["description"]


def table() -> str:
    """The values as a Markdown table."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = ["| value | type | default | meaning |", "|---|---|---|---|"]
    lines += [
        "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
        for cells in rows(VALUES, defaults)
    ]
    return "\n".join(lines)


def readme() -> str:
    """README.md with the table of today."""
    text = (CHART / "README.md").read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text)


def _type(node: Schema) -> str:
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    kind = node["type"]
    if kind == "array":
        items = node["items"]
        inner = "/".join(items["enum"]) if "enum" in items else items["type"]
        return f"list of {inner}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def main(arguments: list[str]) -> int:
    """Write, or check; returns the exit status."""
    wanted = {CHART / "values.schema.json": schema(), CHART / "README.md": readme()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path} is out of step: run python helm/generate.py\n")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
