"""What render must know of a model family: its placeholders, and how a medium becomes tensors.

A family is built twice: in the server, where it names placeholders, and in each process of the
media pool, where `load` prepares its processor and `image`, `video` and `audio` run it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from protocol.items import Field

if TYPE_CHECKING:
    from PIL.Image import Image

    from render.audio import Samples
    from render.video import Frames, VideoInfo


class Run(NamedTuple):
    """`repeat` equal tokens of an expanded placeholder, and whether they take embedding rows."""

    token_id: int
    repeat: int
    embeds: bool = True


class Processed(NamedTuple):
    """One item, ready to be encoded.

    Attributes:
        fields: processor outputs, as the contract has them.
        runs: the tokens that the placeholder in the prompt is replaced by.
    """

    fields: dict[str, Field]
    runs: tuple[Run, ...]


class Placeholder(NamedTuple):
    """How a modality stands in a prompt.

    Attributes:
        token_id: the token in the templated prompt that is replaced by an item's tokens.
        text: what to insert where a chat template knows only strings.
    """

    token_id: int
    text: str


class Checkpoint(NamedTuple):
    """What a family may look at.

    Attributes:
        path: the checkpoint's directory.
        config: config.json.
        token_id: id of a token by its text; raises KeyError.
        token_text: text of a token by its id; raises KeyError.
    """

    path: str
    config: Mapping[str, Any]
    token_id: Callable[[str], int]
    token_text: Callable[[int], str]

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))


class Family(ABC):
    """Model knowledge of one family. Methods are called from one thread of one process."""

    model_types: ClassVar[tuple[str, ...]] = ()
    """`model_type` values of config.json that this family serves."""

    placeholders: dict[str, Placeholder] = {}
    """Modality -> placeholder; a modality that is not here is refused."""

    metadata: ClassVar[frozenset[str]] = frozenset()
    """Fields that prefill needs besides those kept on the CPU."""

    joins: tuple[tuple[int, int, int], ...] = ()
    """Pairs of tokens, and the one that the tokenizer makes of both: where an item's tokens come to
    stand beside text, they are what the text as a whole would have been."""

    mm_kwargs: ClassVar[frozenset[str]] = frozenset()
    """`mm_processor_kwargs` that a trusted request may set."""

    sample_rate: int = 16_000
    """Samples per second of the sounds that the model hears."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @abstractmethod
    def load(self) -> None:
        """Prepare the processors; called once in each process of the pool."""

    def image(self, image: Image, kwargs: Mapping[str, Any]) -> Processed:
        """Process one RGB image.

        Raises:
            ValueError: the image or the arguments cannot be honoured.
        """
        raise ValueError("this model takes no images")

    def choose_frames(self, info: VideoInfo) -> Sequence[int]:
        """Which frames of a video the model samples, in order; raises as `image` does."""
        raise ValueError("this model takes no videos")

    def video(self, frames: Frames, kwargs: Mapping[str, Any]) -> Processed:
        """Process the sampled frames of one video; raises as `image` does."""
        raise ValueError("this model takes no videos")

    def audio(self, samples: Samples, kwargs: Mapping[str, Any]) -> Processed:
        """Process one sound, float32 [samples] at `sample_rate`; raises as `image` does."""
        raise ValueError("this model takes no audio")

    def embeds(self, modality: str, metadata: Mapping[str, Any]) -> Processed:
        """The metadata fields and the tokens of an item whose embedding comes from elsewhere.

        Args:
            modality: what the embedding stands for.
            metadata: JSON values, as the client gave them.

        Raises:
            ValueError: the model does not take it so, or the metadata are wrong.
        """
        raise ValueError(f"this model takes no {modality} embeddings")
