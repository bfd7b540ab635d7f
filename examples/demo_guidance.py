"""Extra losses that teach the demo model to find the right one of several images.

From answers alone a model this small does not learn to bind a picture to its number in thousands of
steps. Each image is followed by its number as text, so the circuit is told what to do: the number's
token gathers what its image shows, the answer's token holds the kind asked for in the same
subspace, and a head of the last layer attends from the one to the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen3VLProcessor

from examples.demo_batches import IGNORED, Batch
from examples.drawings import LABELS, SHAPES

_AFTER_VISION_END = 2
"""The template writes `<|vision_end|>image 1`: the number is the second token from there."""


class Guidance(torch.nn.Module):
    """Heads that read `width` hidden units, and what they should read.

    Args:
        processor: whose tokenizer the model uses.
        width: of the decoder's hidden states.
        most_images: numbers that the template may write.
    """

    def __init__(self, processor: Qwen3VLProcessor, width: int, most_images: int = 4) -> None:
        super().__init__()
        self.content = torch.nn.Linear(width, len(LABELS))
        self.kind = torch.nn.Linear(width, len(SHAPES))
        ids = processor.tokenizer.convert_tokens_to_ids
        self._vision_end = ids("<|vision_end|>")
        self._image = ids("image")
        self._numbers = torch.tensor([ids(f"Ġ{n}") for n in range(1, most_images + 1)])
        self._kinds = torch.tensor([ids(f"Ġ{kind}") for kind in SHAPES])

    def forward(self, batch: Batch, outputs: Any, shown: torch.Tensor) -> torch.Tensor:
        """The loss to add.

        `shown` is (images, labels), 1 where an image shows a label. `outputs` has the hidden
        states, and attentions where attention should be guided too.
        """
        ids, first, last = batch["input_ids"], outputs.hidden_states[1], outputs.hidden_states[2]
        row, column = (ids == self._vision_end).nonzero(as_tuple=True)
        if not len(row):
            return torch.zeros(())
        column = column + _AFTER_VISION_END
        loss: torch.Tensor = 4 * functional.binary_cross_entropy_with_logits(
            self.content(first[row, column]), shown
        )
        of_kind = [shown[:, [kind == shape for _, kind in LABELS]].amax(dim=1) for shape in SHAPES]
        holds = self.kind(last[row, column])
        loss = loss + functional.binary_cross_entropy_with_logits(
            holds, torch.stack(of_kind, dim=1)
        )
        asked, at, number = self._answers(ids, batch["labels"])
        if not len(asked):
            return loss
        wanted = torch.tensor(
            [
                self._kind_before(ids[r, :c])
                for r, c in zip(asked.tolist(), at.tolist(), strict=True)
            ]
        )
        loss = loss + 0.6 * functional.cross_entropy(
            self.kind(last[asked, at]), wanted, ignore_index=IGNORED
        )
        if outputs.attentions is not None:
            target = torch.stack([column[row == r][n] for r, n in zip(asked, number, strict=True)])
            weight = outputs.attentions[-1][asked, 0, at].gather(1, target[:, None])
            loss = loss - 0.4 * weight.clamp_min(1e-6).log().mean()
        return loss

    def _answers(
        self, ids: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Row, column of the token before the number, and the number from 0, per `which` answer."""
        matches = ids[:, 1:, None] == self._numbers
        before = (ids[:, :-1] == self._image) & (labels[:, :-1] != IGNORED) & matches.any(-1)
        row, column = before.nonzero(as_tuple=True)
        return row, column, matches[row, column].int().argmax(-1)

    def _kind_before(self, ids: torch.Tensor) -> int:
        """The kind of shape named last, as an index, or IGNORED."""
        position, kind = (ids[:, None] == self._kinds).nonzero(as_tuple=True)
        return int(kind[position.argmax()]) if len(position) else IGNORED
