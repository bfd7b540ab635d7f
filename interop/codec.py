"""Whether the reference's own codec reads our items as we do."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interop.difference import Answer, Difference
from protocol.items import Tensor, decode_base64

_SCRIPT = Path(__file__).with_name("reference_codec.py")


class ReferenceCodec:
    """The reference's decoder as a process; use as a context manager.

    Args:
        command: the reference's `vllm`; its Python lies beside it.
        log: where it may complain.
    """

    def __init__(self, command: Path, log: Path) -> None:
        self._python = command.with_name("python")
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> ReferenceCodec:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(self._python), "-P", str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def check(self, answer: Answer) -> Iterator[Difference]:
        """Our items that it refuses or reads differently."""
        for at, text in _items(answer.body):
            mine = {name: _described(field.data) for name, field in decode_base64(text).items()}
            with self._turn:
                other = self._decode(text)
            if mine != other:
                yield Difference(f"{at} (decoded there)", mine, other)

    def _decode(self, text: str) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(text + "\n")
        process.stdin.flush()
        while True:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the reference's codec ended, see {self._log}")
            if line.startswith("{"):
                return json.loads(line)


def _items(body: Any) -> Iterator[tuple[str, str]]:
    features = body.get("features") if isinstance(body, dict) else None
    for column in ("kwargs_data", "mm_metadata"):
        for modality, items in ((features or {}).get(column) or {}).items():
            for index, item in enumerate(items):
                if item is not None:
                    yield f"features.{column}.{modality}[{index}]", item


def _described(data: Any) -> Any:
    if isinstance(data, Tensor):
        return [data.dtype, list(data.shape), hashlib.sha256(data.data).hexdigest()]
    return data
