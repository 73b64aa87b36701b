"""From the rows of a workload to requests that an engine takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from batchwright.backend import Backend
from batchwright.errors import InvalidRequestError, WorkloadError
from batchwright.lab.prompts import Prompts
from batchwright.lab.records import RequestRecord
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload
from batchwright.prompts import tokenized
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams

if TYPE_CHECKING:
    from batchwright.engine import Engine

EXACT, MODEL = "exact", "model"
DECLARED = f"{EXACT}, {MODEL} or a whole number of at least 1"


class Offer(NamedTuple):
    """One request of a workload, ready to be added.

    Attributes:
        request: fresh: each arm of a comparison needs its own.
        num_output_tokens: how many tokens it really puts out; the engine hides it from policies. None: nobody knows.
        prompt_hash: 16 hex digits of its token ids, or of what they follow from; equal hashes, equal prompts.
        place: of its row among those of the workload.
        row: what it was made of.
    """

    request: Request
    num_output_tokens: int | None
    prompt_hash: str
    place: int
    row: WorkloadRow

    @property
    def length(self) -> int:
        """Output tokens that are asked for: the true length, cut by a shorter limit; else the limit."""
        most = self.request.max_tokens
        return most if self.num_output_tokens is None else min(self.num_output_tokens, most)

    def begin_record(self, arrival_ns: int) -> RequestRecord:
        """Its record, from its arrival on, in nanoseconds of the run."""
        request = self.request
        return RequestRecord.begin(
            request.request_id,
            arrival_ns,
            request.num_prompt_tokens,
            client_id=request.client_id,
            priority=request.priority,
            slo=request.slo,
            weight=request.weight,
            slo_class=self.row.slo_class,
            session_id=request.session_id,
            program_id=request.program_id,
        )


def parse_declared(declared: str | int) -> str | int:
    """Check a rule for declared limits: ``exact``, ``model`` or a number, which may come as text.

    Raises:
        WorkloadError: it is none of these.
    """
    if declared in (EXACT, MODEL):
        return declared
    text = str(declared)
    if not isinstance(declared, bool) and text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise WorkloadError(f"the rule for declared max_tokens is {declared!r}; expected {DECLARED}")


def describe_declared(declared: str | int, workload: Workload) -> str:
    """The rule in words, for the header of a report; says how many rows declare a limit of their own.

    Raises:
        WorkloadError: it is none of these, or ``exact`` where a true length is not known.
    """
    rule = parse_declared(declared)
    if rule == EXACT:
        for row in workload.rows:
            _max_tokens(row, rule, 1)
    words = {
        EXACT: "exact: the true output length, which policies can therefore read",
        MODEL: "model: all that model and KV pool allow",
    }.get(str(rule), f"{rule} tokens")
    own = sum(row.max_tokens is not None for row in workload.rows)
    if own == len(workload):
        return "by the workload's rows"
    return f"by {own} of {len(workload)} rows, the others {words}" if own else words


class Offers:
    """Makes the requests of a workload, one at a time and in any order.

    Token ids depend on the workload, the vocabulary's size and the seed, on nothing else: arms on any backend get the
    very same prompts. Request ids are ``r000000``, ``r000001``, … in the order of the rows.
    """

    def __init__(
        self,
        workload: Workload,
        vocab_size: int,
        max_model_len: int,
        declared: str | int = MODEL,
        *,
        seed: int = 0,
        respect_eos: bool = False,
    ) -> None:
        """Makes one for a workload.

        Args:
            workload: what to offer; prompts are token ids already, or made up.
            vocab_size: of the model: token ids are in ``range(vocab_size)``.
            max_model_len: tokens that one request may have, prompt and output together; for the rule ``model``.
            declared: max_tokens of rows that declare none: ``exact`` (the true output length: a policy that reads it is
                an oracle), ``model`` (as much as ``max_model_len`` leaves) or a number.
            seed: of the token ids.
            respect_eos: let the model's end-of-sequence tokens end a request before its true length, as they do where
                none is known.

        Raises:
            WorkloadError: the rule is none of these.
        """
        self._rule = parse_declared(declared)
        self._prompts = Prompts(workload.rows, vocab_size, seed)
        self._longest = max_model_len
        self._respect_eos = respect_eos
        self._greedy: dict[tuple[int, bool], SamplingParams] = {}  # few different limits: one object each

    @classmethod
    def to(
        cls,
        engine: Engine,
        workload: Workload,
        declared: str | int = MODEL,
        *,
        seed: int = 0,
        respect_eos: bool = False,
        vocab_size: int | None = None,
    ) -> Offers:
        """With the vocabulary and the limits of an engine.

        Made-up token ids are below ``vocab_size`` where that is less than the engine's.

        Raises:
            WorkloadError: the rule is none of these.
        """
        known = min(engine.capacity.vocab_size, vocab_size or engine.capacity.vocab_size)
        return cls(workload, known, longest_of(engine), declared, seed=seed, respect_eos=respect_eos)

    def make(self, index: int, row: WorkloadRow, arrival_ns: int) -> Offer:
        """The request of the row that stands at ``index``, as it arrives at this time of the engine's clock.

        Raises:
            WorkloadError: its prompt is text.
        """
        prompt, prompt_hash = self._prompts.prompt(index, row)
        max_tokens = _max_tokens(row, self._rule, self._longest - len(prompt))
        ignore_eos = not self._respect_eos and row.num_output_tokens is not None
        params = self._greedy.get((max_tokens, ignore_eos))
        if params is None:
            params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos)
            self._greedy[max_tokens, ignore_eos] = params
        request = Request(
            f"r{index:06d}",
            prompt,
            params,
            arrival_ns=arrival_ns,
            priority=row.priority,
            client_id=row.client_id,
            weight=row.weight,
            deadline_s=None if row.deadline_s is None else arrival_ns / 1e9 + row.deadline_s,
            slo=row.slo,
            predicted_output_tokens=row.predicted_output_tokens,
            session_id=row.session_id,
            program_id=row.program_id,
            extra=None if row.slo_class is None else {"slo_class": row.slo_class},
        )
        return Offer(request, row.num_output_tokens, prompt_hash, index, row)


def row_place(request_id: str) -> int:
    """The place of a request's row in the workload."""
    return int(request_id[1:])


def longest_of(engine: Engine) -> int:
    """Tokens that one request may have in an engine, prompt and output together: by its model, and by its KV pool."""
    capacity, limits = engine.capacity, engine.limits
    return min(limits.max_model_len or capacity.max_model_len, capacity.num_blocks * capacity.block_size + 1)


def offers(
    workload: Workload,
    vocab_size: int,
    max_model_len: int,
    declared: str | int = MODEL,
    *,
    seed: int = 0,
    start_ns: int = 0,
    respect_eos: bool = False,
) -> Iterator[Offer]:
    """Requests of the workload, in order of their rows, made when they are asked for; see :class:`Offers`.

    Args:
        workload, vocab_size, max_model_len, declared, seed, respect_eos: as of :class:`Offers`.
        start_ns: when the run starts, in nanoseconds of the engine's clock; arrivals count from it. Rows that wait for
            others arrive when these have ended: here they have the earliest time.

    Raises:
        WorkloadError: the rule is none of these, or a prompt is text.
    """
    made = Offers(workload, vocab_size, max_model_len, declared, seed=seed, respect_eos=respect_eos)
    for index, row in enumerate(workload.rows):
        yield made.make(index, row, start_ns + row.arrival_ns)


def with_token_ids(workload: Workload, backend: Backend) -> Workload:
    """The workload with every prompt as token ids, by the tokenizer and the chat template of a model.

    Raises:
        WorkloadError: a prompt cannot be made into token ids: the backend has no tokenizer, the model no chat template,
            or the template does not take the messages. The message says which row.
    """
    rows = workload.rows
    if not isinstance(rows, tuple):  # read lazily, one by one
        return replace(workload, rows=rows.each(lambda row: _with_token_ids(row, backend)))
    if all(row.prompt is None for row in rows):
        return workload
    return replace(workload, rows=tuple(_with_token_ids(row, backend) for row in rows))


def _with_token_ids(row: WorkloadRow, backend: Backend) -> WorkloadRow:
    if row.prompt is None:
        return row
    try:
        token_ids, _ = tokenized(backend, row.prompt)
    except InvalidRequestError as error:
        raise WorkloadError(f"{row.place or 'a row'}: {error}") from error
    if not len(token_ids):
        raise WorkloadError(f"{row.place or 'a row'}: its prompt is empty; a prompt has at least one token")
    num_output_tokens = row.num_output_tokens
    if num_output_tokens is None and row.answer is not None and backend.tokenizer is not None:
        num_output_tokens = max(1, len(backend.tokenizer.encode(row.answer)))
    return replace(
        row,
        prompt=token_ids,
        num_prompt_tokens=len(token_ids),
        num_output_tokens=num_output_tokens,
        answer=None,
    )


def materialize(
    workload: Workload, vocab_size: int, max_model_len: int, declared: str | int = MODEL, *, seed: int = 0
) -> Iterator[tuple[Request, int | None]]:
    """Requests of a workload, each with its hidden true output length; see :func:`offers`, which gives more.

    Raises:
        WorkloadError: the rule for declared limits is unknown.
    """
    for offer in offers(workload, vocab_size, max_model_len, declared, seed=seed):
        yield offer.request, offer.num_output_tokens


def _max_tokens(row: WorkloadRow, rule: str | int, room: int) -> int:
    if row.max_tokens is not None:
        return row.max_tokens
    if rule == EXACT:
        if row.num_output_tokens is None:
            raise WorkloadError(
                f"{row.place or 'a row'}: its declared max_tokens cannot be {EXACT}: it has no num_output_tokens; "
                f"take {MODEL} or a number, or give the row max_tokens"
            )
        return row.num_output_tokens
    if rule == MODEL:
        # A prompt that fills the model by itself still declares one token: the engine refuses it with its numbers.
        return max(1, room)
    return int(rule)
