"""Writes `docs/errors.md` from `protocol/errors.py`: `python docs/errors_page.py [--check]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from protocol import errors  # noqa: E402

PAGE = ROOT / "docs" / "errors.md"

HEAD = """\
# Errors

Generated from `protocol/errors.py` by `python docs/errors_page.py`; do not edit.

Every failure of every server has one form, with the HTTP status in `code`:

```json
{example}
```

* `message` is a sentence for a person, `param` the dotted path of the field at fault.
* `kind` is a stable word for programs, `retryable` says whether the same request can succeed later
  or elsewhere, `stage` names the stage it happened in, `items` the `mm_hash`es it is about.
* A 429 or 503 that knows when a retry makes sense carries `Retry-After`.
* The body of a 401 is `{{"error": "Unauthorized"}}`. An unknown path is 404
  `{{"detail": "Not Found"}}` and a wrong method 405 `{{"detail": "Method Not Allowed"}}`.
* In a stream that has begun the error is an event before the last one, `data: {{"error": ...}}`.

| status | `kind` | `type` | retry | when |
|---|---|---|---|---|
"""

TRANSFER = """
## Kinds of TransferError

An item (processed pixels, an embedding, KV blocks) could not be moved between replicas. The
coordinator repairs all of these itself, by encoding or prefilling again; a client sees one only
when the attempts are used up.

| `kind` | retry | meaning |
|---|---|---|
"""

TRANSFER_KINDS: dict[str, str] = {
    "missing": "the holder does not have the item, or not any more",
    "expired": "the descriptor's time is over, or its holder was restarted",
    "incompatible": "holder and consumer serve different models, dtypes or layouts",
    "peer_unreachable": "the holder could not be reached, or its address is not allowed",
    "transport_failed": "the bytes did not arrive whole",
    "store_full": "every byte of the store is pinned",
    "invalid_content": "what arrived is not the item that was described",
}
"""Meaning of each kind; the test compares the keys with `TransferKind`."""


def page() -> str:
    """The whole page."""
    sample = errors.InvalidRequest(
        "temperature must be in [0, 2], got 3.0.", "sampling_params.temperature", "edge"
    )
    lines = [
        HEAD.format(example=json.dumps(errors.body(sample, "chatcmpl-1f2e3d4c5b6a7988"), indent=2))
    ]
    lines += [
        f"| {cls.status} | {kind(cls)} | `{cls.type}` | {retry(cls)} | {meaning(cls)} |\n"
        for cls in leaves()
    ]
    lines.append(TRANSFER)
    for name in get_args(errors.TransferKind):
        again = "yes" if errors.TransferError("", name).retryable else "no"
        lines.append(f"| `{name}` | {again} | {TRANSFER_KINDS[name]} |\n")
    return "".join(lines)


def leaves() -> list[type[errors.TriptychError]]:
    """The classes that are raised, by status."""
    found = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type)
        and issubclass(cls, errors.TriptychError)
        and cls not in (errors.TriptychError, errors.ClientError)
    ]
    return sorted(found, key=lambda cls: cls.status)


def kind(cls: type[errors.TriptychError]) -> str:
    """The word of the class; transfers have several."""
    return "see below" if cls is errors.TransferError else f"`{cls.kind}`"


def retry(cls: type[errors.TriptychError]) -> str:
    """Whether a retry makes sense."""
    if cls is errors.TransferError:
        return "see below"
    return "yes" if cls.retryable else "no"


def meaning(cls: type[errors.TriptychError]) -> str:
    """The first sentence of the class's docstring."""
    return (cls.__doc__ or "").strip().splitlines()[0]


def main() -> int:
    """Write the page, or with `--check` say whether it is in step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when out of date")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write("docs/errors.md is out of date: run python docs/errors_page.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
