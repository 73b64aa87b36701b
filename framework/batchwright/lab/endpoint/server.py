"""What a server says of itself, asked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from batchwright.errors import BackendError, did_you_mean
from batchwright.lab.endpoint.address import Address
from batchwright.lab.endpoint.client import Client, LostError, no_server
from batchwright.lab.endpoint.options import EndpointOptions

VOCAB_SIZE = 32_000
"""Below this all made-up token ids are where nobody says the vocabulary: most models have at least so many."""

_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        address: where it is, and the model's name as the server writes it.
        kind: what it says it is, as ``owned_by`` of its model: ``vllm``, ``sglang``; may be empty.
        version: of it; empty where it does not say.
        max_model_len: prompt and output tokens of one request; None: it does not say.
        vocab_size: token ids are below it; None: it does not say.
    """

    address: Address
    kind: str = ""
    version: str = ""
    max_model_len: int | None = None
    vocab_size: int | None = None

    @property
    def name(self) -> str:
        """What it is, for people: ``vLLM 0.32.0``; empty where it does not say."""
        return f"{_NAMES.get(self.kind, self.kind)} {self.version}".strip()

    @property
    def model(self) -> str:
        """The model's name in requests."""
        return self.address.model or ""


async def find_server(client: Client, address: Address, options: EndpointOptions) -> Server:
    """Ask who is there and which models it has.

    Raises:
        BackendError: nobody answers, it is no OpenAI-compatible server, or it has not that model.
    """
    url = f"{address.url}/models"
    try:
        reply = await client.get(url)
    except LostError as error:
        raise no_server(address, url, str(error)) from None
    if reply.status in (401, 403):
        raise BackendError(
            f"the server at {address.url} lets nobody in without a key: GET {url}: {reply.words()}; set "
            f"{options.api_key_env}, name another variable with backend_options.api_key_env, or give --header"
        )
    found = reply.json()
    cards = found.get("data") if isinstance(found, Mapping) else None
    if reply.status != 200 or not isinstance(cards, Sequence):
        raise BackendError(
            f"what answers at {address.url} is no OpenAI-compatible server: GET {url}: {reply.words()}; the address "
            "ends where /models and /completions begin, as in http://HOST:8000/v1"
        )
    card = _card(address, [card for card in cards if isinstance(card, Mapping) and isinstance(card.get("id"), str)])
    kind = str(card.get("owned_by") or "")
    return Server(
        address=Address(address.url, str(card["id"])),
        kind=kind if kind in _NAMES else "",
        version=await _version(client, address),
        max_model_len=options.max_model_len or _number(card, "max_model_len"),
        vocab_size=options.vocab_size or _number(card, "vocab_size"),
    )


def _card(address: Address, cards: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the server says of the model that is meant."""
    names = [str(card["id"]) for card in cards]
    if not names:
        raise BackendError(f"the server at {address.url} has no model loaded; start it with one")
    if address.model is None:
        if len(names) > 1:
            raise BackendError(
                f"the server at {address.url} has {len(names)} models: {', '.join(names)}; name one, as in "
                f"{address.url}#{names[0]}"
            )
        return cards[0]
    if address.model not in names:
        raise BackendError(
            f"the server at {address.url} has no model {address.model!r}; {did_you_mean(address.model, names)} "
            f"(it has {', '.join(names)})"
        )
    return cards[names.index(address.model)]


def _number(card: Mapping[str, Any], name: str) -> int | None:
    value = card.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 2 else None


async def _version(client: Client, address: Address) -> str:
    """What vLLM and SGLang say at ``/version``; empty elsewhere."""
    with suppress(LostError):
        reply = await client.get(f"{address.root}/version")
        found = reply.json()
        if reply.status == 200 and isinstance(found, Mapping) and isinstance(found.get("version"), str):
            return str(found["version"])
    return ""
