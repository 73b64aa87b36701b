"""From the rows of a workload to requests as they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from batchwright.errors import InvalidRequestError, WorkloadError
from batchwright.lab.arrivals import Arrivals
from batchwright.lab.endpoint.dialect import Dialect, Form
from batchwright.lab.endpoint.words import as_text
from batchwright.lab.fitting import fitted
from batchwright.lab.materialize import MODEL, Offer, Offers, parse_declared
from batchwright.lab.records import OfferedRecord, RequestRecord
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload
from batchwright.prompts import check_conversation

UNBOUNDED = 1_000_000
"""``max_model_len`` where nobody says it."""

NOT_KNOWN = ""
"""Hash of a prompt that only the server makes into token ids."""


class Unread(tuple[int, ...]):
    """A prompt that the server will make into token ids; here it stands as one token.

    Attributes:
        form: ``text`` or ``messages``.
        given: as the workload has it.
    """

    form: Form
    given: Any

    @classmethod
    def of(cls, form: Form, given: Any) -> Unread:
        """Make one."""
        prompt = cls((0,))
        prompt.form, prompt.given = form, given
        return prompt


@dataclass(slots=True)
class Ask:
    """One request, ready to be sent.

    Attributes:
        offer: what it was made of.
        offered: what is asked, as a record.
        path, body, headers: what is sent.
        max_tokens: as sent; None: the server's own limit.
    """

    offer: Offer
    offered: OfferedRecord
    path: str
    body: bytes
    headers: Mapping[str, str]
    max_tokens: int | None


def forms_of(workload: Workload) -> list[Form]:
    """In which forms its prompts are given, made-up ones and token ids first."""
    found = {_form(row) for row in workload.rows}
    order: tuple[Form, ...] = ("ids", "text", "messages")
    return [form for form in order if form in found]


def _form(row: WorkloadRow) -> Form:
    prompt = row.prompt
    if isinstance(prompt, Unread):
        return prompt.form
    if isinstance(prompt, Mapping):
        if "messages" in prompt:
            return "messages"
        prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt.get("prompt")
    return "text" if isinstance(prompt, str) else "ids"


def _readable(row: WorkloadRow) -> WorkloadRow:
    """The row with its prompt as token ids, or as one that stands for them."""
    form, prompt = _form(row), row.prompt
    if form == "ids":
        return replace(row, prompt=prompt["prompt_token_ids"]) if isinstance(prompt, Mapping) else row
    if form == "text":
        prompt = prompt["prompt"] if isinstance(prompt, Mapping) else prompt
    return replace(row, prompt=Unread.of(form, prompt), num_prompt_tokens=1, answer=None)


class Asks:
    """Writes the requests of a workload.

    Made-up prompts have the token ids that every arm gets with that vocabulary, or as many words where the server takes
    no token ids. The true length of an output is sent as ``max_tokens``, since nobody else can end it there.

    Args:
        workload: what to offer.
        dialect: how the server wants it.
        vocab_size: made-up token ids are below it.
        declared: ``max_tokens`` of rows that declare none.
        seed: of the token ids.
        respect_eos: let the model end an answer before its true length.

    Attributes:
        arrivals: who is offered next, and when.

    Raises:
        WorkloadError: the rule for declared limits, or rows that do not fit together.
    """

    def __init__(
        self,
        workload: Workload,
        dialect: Dialect,
        vocab_size: int,
        declared: str | int = MODEL,
        *,
        seed: int = 0,
        respect_eos: bool = False,
    ) -> None:
        self._dialect = dialect
        self._longest = dialect.server.max_model_len or UNBOUNDED
        self._by_model = parse_declared(declared) == MODEL
        rows = workload.rows
        read = tuple(map(_readable, rows)) if isinstance(rows, tuple) else rows.each(_readable)
        asked, notes = fitted(replace(workload, rows=read), self._longest)
        offers = Offers(asked, vocab_size, self._longest, declared, seed=seed, respect_eos=respect_eos)
        for row in asked.rows:
            self._check(row)
        self.arrivals = Arrivals(asked, offers, notes)

    def write(self, offer: Offer) -> Ask:
        """The request as it is sent.

        Raises:
            WorkloadError: its prompt cannot be sent to this server; the message says which row.
        """
        request, row, options = offer.request, offer.row, self._dialect.options
        sent, prompt, extra = self._prompt(offer)
        max_tokens = self._room(row) if self._is_open(row) else offer.length
        if options.priority:
            extra["priority"] = row.priority
        ignore_eos = request.sampling_params.ignore_eos
        path, body = self._dialect.write(sent, prompt, max_tokens, ignore_eos=ignore_eos, extra=extra)
        named = options.client_header is not None and row.client_id is not None
        return Ask(
            offer=offer,
            offered=OfferedRecord(
                request.request_id,
                request.arrival_ns,
                offer.prompt_hash if sent == "ids" else NOT_KNOWN,
                offer.length,
                request.max_tokens,
            ),
            path=path,
            body=body,
            headers={str(options.client_header): str(row.client_id)} if named else {},
            max_tokens=max_tokens,
        )

    def _check(self, row: WorkloadRow) -> None:
        """Whether it can be sent, before anything is."""
        where, prompt = row.place or "a row", row.prompt
        if self._is_open(row):
            room = self._room(row)
            if room is not None and room < 1:
                raise WorkloadError(
                    f"{where}: its prompt may fill the model's {self._longest:,} tokens, and nobody knows its length "
                    "before it is sent; give the row max_tokens, or a number as --declared-max-tokens"
                )
        if isinstance(prompt, Unread):
            if prompt.form == "messages":
                try:
                    check_conversation(prompt.given)
                except InvalidRequestError as error:
                    raise WorkloadError(f"{where}: {error}") from error
        elif prompt is not None and self._dialect.made_up != "ids":
            url = self._dialect.server.address.url
            raise WorkloadError(f"{where}: it brings token ids, and {url} takes none; give text or messages")

    def _is_open(self, row: WorkloadRow) -> bool:
        """Whether its output ends at what the model leaves, of a prompt whose length nobody knows."""
        unread = isinstance(row.prompt, Unread)
        return unread and row.num_output_tokens is None and row.max_tokens is None and self._by_model

    def _room(self, row: WorkloadRow) -> int | None:
        """What such a prompt leaves at least: each token has a byte. None: the server knows.

        That is a conversation's default; a completion's may be 16 tokens.
        """
        assert isinstance(row.prompt, Unread)
        return None if row.prompt.form == "messages" else self._longest - len(row.prompt.given.encode())

    def _prompt(self, offer: Offer) -> tuple[Form, Any, dict[str, Any]]:
        """How it is sent, what is sent, and further fields."""
        prompt = offer.row.prompt
        if isinstance(prompt, Unread):
            if prompt.form == "text":
                return "text", prompt.given, {}
            messages, extra = check_conversation(prompt.given)
            return "messages", messages, extra
        token_ids = list(offer.request.prompt_token_ids)
        made_up = self._dialect.made_up
        if made_up == "ids":
            return made_up, token_ids, {}
        text = as_text(token_ids)
        return made_up, text if made_up == "text" else [{"role": "user", "content": text}], {}


def begin_record(offer: Offer, arrival_ns: int) -> RequestRecord:
    """The record of a request of which nothing is known yet."""
    record = offer.begin_record(arrival_ns)
    if isinstance(offer.row.prompt, Unread):
        record.num_prompt_tokens = 0
    return record
