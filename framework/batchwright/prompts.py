"""Prompts in every form that a caller may give them, and what becomes of them: token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.backend import Backend, ChatPrompt, ChatTokenizer
from batchwright.errors import InvalidRequestError, did_you_mean

Message = Mapping[str, Any]
"""A turn of a conversation: ``{"role": "user", "content": "Hello"}``, with further keys where the model's template
reads some. Content is text, or a list of parts ``{"type": "text", "text": ...}``."""

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping: ``{"prompt": text}``, ``{"prompt_token_ids": ids}``, or a conversation ``{"messages":
[...]}`` with any of the options of :meth:`LLM.chat <batchwright.LLM.chat>`."""

CHAT_OPTIONS = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "tools",
)
FORMS = "prompt, prompt_token_ids or messages"


def tokenized(backend: Backend, prompt: Prompt) -> tuple[Sequence[int], str | None]:
    """Token ids of a prompt, and its text where there is one.

    Raises:
        InvalidRequestError: it needs a tokenizer or a chat template that the backend has not, or its form is not known.
    """
    text: str | Sequence[int]
    if isinstance(prompt, Mapping):
        if "messages" in prompt:
            chat = _chat(backend, prompt)
            return chat.token_ids, chat.text
        if not prompt or not set(prompt) <= {"prompt", "prompt_token_ids"}:
            raise InvalidRequestError(f"a prompt as a mapping has {FORMS}, not {sorted(map(str, prompt))}")
        text = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
        if not isinstance(text, str):
            return text, prompt.get("prompt")
    else:
        text = prompt
    if not isinstance(text, str):
        return text, None
    if backend.tokenizer is None:
        raise InvalidRequestError(f"{backend.name} has no tokenizer: give the prompt as token ids")
    return backend.tokenizer.encode(text), text


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    items: list[Any] = list(prompts)
    if items and all(isinstance(i, int) for i in items):
        return [items]
    return items


def as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or many, as a list."""
    items: list[Any] = list(messages)
    return [items] if items and all(isinstance(i, Mapping) for i in items) else items


def check_conversation(prompt: Mapping[str, Any]) -> tuple[list[Message], dict[str, Any]]:
    """Messages and options of a prompt of messages, without regard to what a model takes.

    Raises:
        InvalidRequestError: it is no conversation, or an option is unknown.
    """
    options = {key: value for key, value in prompt.items() if key != "messages"}
    for key in options:
        if key not in CHAT_OPTIONS:
            raise InvalidRequestError(f"a prompt of messages has no {key!r}; {did_you_mean(str(key), CHAT_OPTIONS)}")
    messages = [_message(i, m) for i, m in enumerate(_sequence(prompt["messages"]))]
    if options.get("add_generation_prompt") and options.get("continue_final_message"):
        raise InvalidRequestError(
            "add_generation_prompt opens a new turn, and continue_final_message goes on with the last one: give one"
        )
    return messages, options


def _chat(backend: Backend, prompt: Mapping[str, Any]) -> ChatPrompt:
    messages, options = check_conversation(prompt)
    tokenizer = backend.tokenizer
    if tokenizer is None:
        raise InvalidRequestError(f"{backend.name} has no tokenizer, so it takes no messages: give token ids")
    if not isinstance(tokenizer, ChatTokenizer):
        raise InvalidRequestError(f"the tokenizer of {backend.name} takes no messages: give the prompt as text")
    return tokenizer.apply_chat_template(messages, **options)


def _sequence(messages: Any) -> Sequence[Any]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidRequestError(f"messages must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise InvalidRequestError("messages is empty: a conversation has at least one message")
    return messages


def _message(index: int, message: Any) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(
            f"messages[{index}] must be a mapping with a role and a content, such as "
            f'{{"role": "user", "content": "Hello"}}, not {message!r}'
        )
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    parts = content if isinstance(content, Sequence) else [content]
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequestError(
                f"messages[{index}] has a part of type {kind!r}: only text is read here, as a string or as parts "
                '{"type": "text", "text": ...}'
            )
    return {**message, "content": "\n".join(part["text"] for part in parts)}
