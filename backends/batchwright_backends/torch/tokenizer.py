"""Text to token ids and back, by transformers' tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character takes 4 bytes, so at most 4 tokens: what stays undecided longer is no text, and is given out as it is.
MAX_HELD = 32


class HFTokenizer:
    """Adapts a tokenizer of transformers to :class:`batchwright.backend.Tokenizer`.

    Attributes:
        inner: the tokenizer of transformers.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._special = frozenset(inner.all_special_ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model wants at its start."""
        # verbose=False: a long prompt is no reason to warn, the engine checks lengths.
        return list(self.inner.encode(text, verbose=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        # Cleaning up would change text that an incremental decoder has already given out.
        text = self.inner.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def decoder(self) -> IncrementalHFDecoder:
        """A decoder for the output of one request."""
        return IncrementalHFDecoder(self)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that ``decode`` leaves out."""
        return self._special


class IncrementalHFDecoder:
    """Text of a growing sequence of tokens, piece by piece.

    A token's text depends on its neighbours (a character may be spread over several tokens, a leading space is only
    shown inside a text), so the tokens of the last piece are decoded again as context, and a piece is given out only
    when it does not end within a character. The pieces joined are what ``decode`` gives for all tokens, as long as
    these are valid UTF-8.
    """

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self._ids: list[int] = []  # the context, then the tokens whose text is not given out yet
        self._num_context = 0
        self._context = ""  # text of the context alone

    def push(self, token_ids: Sequence[int]) -> str:
        """Take further token ids; the text that is certain now and was not returned before."""
        pieces = []
        for token in token_ids:
            if token in self._special:
                continue
            self._ids.append(token)
            text = self._tokenizer.decode(self._ids)
            certain = len(text) > len(self._context) and not text.endswith(REPLACEMENT)
            if certain or len(self._ids) - self._num_context >= MAX_HELD:
                pieces.append(self._give(text))
        return "".join(pieces)

    def finish(self) -> str:
        """The text still held back (an incomplete character becomes U+FFFD)."""
        return self._give(self._tokenizer.decode(self._ids)) if len(self._ids) > self._num_context else ""

    def _give(self, text: str) -> str:
        piece = text[len(self._context) :]
        del self._ids[: self._num_context]
        self._num_context = len(self._ids)
        self._context = self._tokenizer.decode(self._ids)
        return piece
