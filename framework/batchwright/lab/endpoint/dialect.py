"""How requests are written for one server: which extensions of the OpenAI format it takes, found by asking it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from batchwright.errors import BackendError
from batchwright.lab.endpoint.answer import Answer
from batchwright.lab.endpoint.client import Client, LostError
from batchwright.lab.endpoint.options import EndpointOptions
from batchwright.lab.endpoint.server import Server
from batchwright.lab.endpoint.words import as_text

Form = Literal["ids", "text", "messages"]
"""How a prompt is given: as token ids, as text, or as a conversation."""

Level = Literal["full", "lean", "plain"]
"""``plain``: what every OpenAI-compatible server takes. ``lean``: also ``ignore_eos`` and the number of tokens at the
end. ``full``: also the number of tokens in every chunk, and a salt of the prefix cache."""

LEVELS: tuple[Level, ...] = ("full", "lean", "plain")
COMPLETIONS, CHAT = "/completions", "/chat/completions"
_NOT_TAKEN = (400, 404, 405, 415, 422, 501)
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a server takes.

    Attributes:
        server: which.
        options: of the endpoint.
        level: how far its extensions go.
        made_up: how prompts that a workload gives as lengths are sent: as token ids, or as words where the server takes
            none, in a conversation where it has no completions.
        salt: of this run's prefix cache.
    """

    server: Server
    options: EndpointOptions
    level: Level
    made_up: Form
    salt: str

    def write(
        self,
        form: Form,
        prompt: Any,
        max_tokens: int | None,
        *,
        ignore_eos: bool,
        extra: Mapping[str, Any] | None = None,
    ) -> tuple[str, bytes]:
        """Path and body of a request.

        Args:
            form: of the prompt.
            prompt: token ids, text, or messages.
            max_tokens: output tokens at most; None leaves it to the server.
            ignore_eos: whether it is to go on to ``max_tokens`` whatever it says.
            extra: further fields, as of a conversation.
        """
        chat = form == "messages"
        fields: dict[str, Any] = {"model": self.server.model, "messages" if chat else "prompt": prompt}
        if max_tokens is not None:
            fields["max_tokens"] = max_tokens
        fields |= {"temperature": 0, "stream": True}
        if self.level != "plain":
            usage = {"include_usage": True}
            if self.level == "full":
                usage["continuous_usage_stats"] = True
            fields["stream_options"] = usage
            if ignore_eos:
                fields["ignore_eos"] = True
                if not self.server.kind and max_tokens is not None:
                    # vLLM and SGLang go on without it, and it would cost them a mask of the logits in every step.
                    fields["min_tokens"] = max_tokens
        if self.level == "full" and self.options.salt_cache:
            fields["cache_salt"] = self.salt
        fields |= {**(extra or {}), **self.options.body}
        return CHAT if chat else COMPLETIONS, json.dumps(fields).encode()


async def learn(
    client: Client, server: Server, options: EndpointOptions, forms: Sequence[Form], vocab_size: int, salt: str
) -> Dialect:
    """Send one small request after the other until the server takes one; that is the warm-up, too.

    Args:
        client: connected.
        server: who is there.
        options: of the endpoint.
        forms: of the workload's prompts; the first is what is tried first.
        vocab_size: made-up token ids are below it.
        salt: of this run's prefix cache.

    Returns:
        How to write requests.

    Raises:
        BackendError: the server takes none, fails, or does not stream.
    """
    chosen: Dialect | None = None
    for form in forms:
        taken = await _first_taken(client, _tries(server, options, form, salt, chosen), vocab_size)
        if chosen is None:
            chosen = taken
    assert chosen is not None, "a workload has a request"
    return chosen


def _tries(
    server: Server, options: EndpointOptions, form: Form, salt: str, known: Dialect | None
) -> Iterator[tuple[Form, Dialect]]:
    """What to try, the best first."""
    sent: tuple[Form, ...] = (form,)
    if form == "ids":
        forms: dict[str, tuple[Form, ...]] = {"auto": ("ids", "text", "messages"), "completions": ("ids", "text")}
        sent = forms.get(options.api, ("messages",))
    for one in sent:
        for level in (known.level,) if known is not None else LEVELS:
            yield one, Dialect(server, options, level, one if form == "ids" else "ids", salt)


async def _first_taken(client: Client, tries: Iterator[tuple[Form, Dialect]], vocab_size: int) -> Dialect:
    refusals: dict[str, None] = {}
    for sent, dialect in tries:
        server = dialect.server
        path, body = dialect.write(sent, _prompt(sent, vocab_size), _WARM_UP_TOKENS, ignore_eos=True)
        where = f"POST {server.address.url}{path}"
        answer = Answer(_WARM_UP_TOKENS)
        try:
            async with client.post(path, body, {}) as stream:
                if stream.status in _NOT_TAKEN:
                    reply = await stream.read()
                    if sent == "ids":
                        _check_vocabulary(where, reply.words(), vocab_size)
                    refusals[f"{_FORMS[sent]}: {reply.words()}"] = None
                    continue
                if stream.status != 200:
                    raise BackendError(f"the warm-up failed: {where}: {(await stream.read()).words()}")
                if stream.content_type != "text/event-stream":
                    raise BackendError(
                        f"the server does not stream: {where}: its answer is {stream.content_type}, not "
                        "text/event-stream; without streaming there is neither TTFT nor ITL to measure"
                    )
                async for data in stream.chunks():
                    answer.feed(data, 0)
                answer.finish()
        except LostError as error:
            raise BackendError(f"the warm-up failed: {where}: {error}") from None
        if answer.error is not None:
            _check_vocabulary(where, answer.error, vocab_size)
            raise BackendError(f"the warm-up failed: {where}: {answer.error}")
        if not answer.num_tokens:
            raise BackendError(f"the warm-up failed: {where}: a stream without a token; is it a generative model?")
        return dialect
    raise BackendError(f"the server takes no request of ours; tried {'; '.join(refusals)}")


def _check_vocabulary(where: str, words: str, vocab_size: int) -> None:
    if "vocab" in words.lower():
        raise BackendError(
            f"{where}: {words}: made-up token ids are below {vocab_size}; give the model's own number with "
            "backend_options.vocab_size"
        )


_FORMS: Mapping[Form, str] = {
    "ids": f"token ids to {COMPLETIONS}",
    "text": f"text to {COMPLETIONS}",
    "messages": f"messages to {CHAT}",
}


def _prompt(form: Form, vocab_size: int) -> Any:
    """A short prompt; of token ids the highest ones, so that a wrong vocabulary shows at once."""
    ids = [max(0, vocab_size - 1 - place) for place in range(_WARM_UP_TOKENS)]
    if form == "ids":
        return ids
    text = as_text(ids)
    return text if form == "text" else [{"role": "user", "content": text}]
