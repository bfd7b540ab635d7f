# ruff: noqa: S310, T201 - it talks to the URL that it is given, and its output is its answer
"""Sends a picture of a red circle to the front door and checks the answer. Standard library only.

Environment: TRIPTYCH_URL, TRIPTYCH_API_KEY (where a key is asked for), PICTURE, QUESTION, EXPECT (a
regular expression), TIMEOUT_S.
"""

import base64
import json
import os
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request


def call(path, body=None, timeout=30.0):
    """The JSON that the front door answers, or None for an empty body."""
    headers = {"Content-Type": "application/json"}
    key = os.environ.get("TRIPTYCH_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["TRIPTYCH_URL"] + path, data, headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text = answer.read()
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def wait_until_ready(deadline):
    """Wait for /health, which is 200 once every stage has a replica."""
    while True:
        try:
            call("/health", timeout=5.0)
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"not ready: {error}")
            time.sleep(1.0)
        else:
            return


def ask():
    """The answer to the question about the picture."""
    picture = base64.b64encode(pathlib.Path(os.environ["PICTURE"]).read_bytes()).decode()
    model = call("/v1/models")["data"][0]["id"]
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "text", "text": os.environ["QUESTION"]},
    ]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 64,
        "temperature": 0,
    }
    answer = call("/v1/chat/completions", body, timeout=float(os.environ["TIMEOUT_S"]))
    return answer["choices"][0]["message"]["content"]


def main():
    wait_until_ready(time.monotonic() + float(os.environ["TIMEOUT_S"]))
    try:
        text = ask()
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode(errors='replace')[:2000]}")
    print(f"{os.environ['QUESTION']} {text}")
    if not re.search(os.environ["EXPECT"], text, re.IGNORECASE):
        sys.exit(f"the answer does not match {os.environ['EXPECT']}")


if __name__ == "__main__":
    main()
