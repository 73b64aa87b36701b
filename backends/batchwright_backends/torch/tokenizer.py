"""Text to token ids and back, by transformers' tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.backend import ChatPrompt
from batchwright.errors import InvalidRequestError

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

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ChatPrompt:
        """See :class:`batchwright.backend.ChatTokenizer`.

        Raises:
            InvalidRequestError: there is no template, or it does not take these messages.
        """
        if chat_template is None and getattr(self.inner, "chat_template", None) is None:
            raise InvalidRequestError(
                "this model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "give the prompt as text, give a template as chat_template, or choose a model that was tuned for chat"
            )
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        try:
            text = self.inner.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **(chat_template_kwargs or {}),
            )
        except Exception as error:  # a template may raise what it likes, and does so to refuse messages
            raise InvalidRequestError(
                f"the chat template does not take these messages ({type(error).__name__}: {error}); see the "
                "model's card for the roles and their order that it knows"
            ) from error
        # The template has written the special tokens: encode() would put a second BOS before its first.
        return ChatPrompt(text, list(self.inner.encode(text, add_special_tokens=False, verbose=False)))

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
