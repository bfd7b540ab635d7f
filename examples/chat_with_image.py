"""Ask a cluster about pictures with the official OpenAI client.

    python -m examples.chat_with_image drawing.png --prompt "Describe this image."

Without a picture it asks in words alone; with several, all are in one prompt. `--stream` prints
the words as they come. OPENAI_BASE_URL and OPENAI_API_KEY are honoured.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openai import OpenAI

from examples.renderer_api_client import data_url

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletionContentPartParam,
        ChatCompletionUserMessageParam,
    )

DEFAULT_URL = "http://127.0.0.1:8000/v1"


def message(prompt: str, images: Sequence[Path]) -> ChatCompletionUserMessageParam:
    """A user message: the pictures, then the question."""
    parts: list[ChatCompletionContentPartParam] = [
        {"type": "image_url", "image_url": {"url": data_url(path)}} for path in images
    ]
    parts.append({"type": "text", "text": prompt})
    return {"role": "user", "content": parts}


def main() -> None:
    """Ask, and print the answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="*", type=Path)
    parser.add_argument("--url", default=os.environ.get("OPENAI_BASE_URL", DEFAULT_URL))
    parser.add_argument("--model", default="", help="default: the first that the server names")
    parser.add_argument("--prompt", default="")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()

    client = OpenAI(base_url=given.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    model = given.model or next(iter(client.models.list())).id
    default = "Hello!" if not given.images else "Describe this image."
    messages = [message(given.prompt or default, given.images)]
    if given.stream:
        with client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=given.max_tokens,
            temperature=0,
            stream=True,
        ) as chunks:
            for chunk in chunks:
                if chunk.choices:
                    print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()
        return
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=given.max_tokens, temperature=0
    )
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
