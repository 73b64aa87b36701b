"""What vLLM's workers know of each request, and what a step has to tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.sched.output import (  # pyright: ignore[reportMissingImports]
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    from batchwright.batch import Batch
    from batchwright.request import Request

NULL_BLOCKS = 1
"""vLLM's first block holds nobody's tokens; so our block 0 is its block 1."""


class Seat:
    """One unfinished request.

    Attributes:
        request: ours.
        theirs: vLLM's.
        num_sent: blocks of it that workers know.
        is_known: whether workers know the request itself.
        has_ended: whether its last step is under way.
        is_constrained: whether a grammar constrains its output.
    """

    __slots__ = ("has_ended", "is_constrained", "is_known", "num_sent", "request", "theirs")

    def __init__(self, request: Request, theirs: VllmRequest) -> None:
        self.request = request
        self.theirs = theirs
        self.num_sent = 0
        self.is_known = self.has_ended = False
        self.is_constrained = theirs.structured_output_request is not None


class Seats:
    """All unfinished requests by their ids.

    Attributes:
        num_constrained: those whose output a grammar constrains.

    Args:
        second_runner: whether workers run vLLM's second model runner, which takes a resumed request as a new one.
        is_async: whether a step is scheduled while the one before it is under way. Workers then want the tokens of
            whoever was not in that one: these are known.
    """

    def __init__(self, *, second_runner: bool, is_async: bool = False) -> None:
        self._second_runner = second_runner
        self._is_async = is_async
        self._last: Container[str] = ()  # who was in the step before
        self._seats: dict[str, Seat] = {}
        self._finished: set[str] = set()  # since the last step
        self._preempted: set[str] = set()
        self.num_constrained = 0

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[str]:
        return iter(self._seats)

    def get(self, request_id: str) -> Seat | None:
        """The seat of an unfinished request."""
        return self._seats.get(request_id)

    def take(self, request: Request, theirs: VllmRequest) -> None:
        """Somebody came."""
        seat = self._seats[request.request_id] = Seat(request, theirs)
        self.num_constrained += seat.is_constrained

    def leave(self, request_id: str) -> VllmRequest:
        """Somebody ended; workers are told with the next step."""
        seat = self._seats.pop(request_id)
        self.num_constrained -= seat.is_constrained
        if not seat.has_ended:
            self._finished.add(request_id)
        return seat.theirs

    def end(self, request_id: str) -> None:
        """Somebody's last step is under way: he runs no more, though he is to be told of it."""
        self._seats[request_id].has_ended = True
        self._finished.add(request_id)

    def drop(self, request_id: str) -> None:
        """Somebody was not taken after all; workers never heard of it."""
        self.num_constrained -= self._seats.pop(request_id).is_constrained

    @property
    def has_finished(self) -> bool:
        """Whether workers are still to be told of an end."""
        return bool(self._finished)

    def preempt(self, request: Request) -> None:
        """Somebody lost all blocks."""
        seat = self._seats[request.request_id]
        seat.num_sent = 0
        if seat.is_known:
            self._preempted.add(request.request_id)

    def tell(self, batch: Batch | None, rows: Sequence[Request]) -> SchedulerOutput:
        """What workers are told of a step.

        Args:
            batch: what it runs; None: nothing.
            rows: the requests of the batch.
        """
        new: list[NewRequestData] = []
        cached = CachedRequestData.make_empty()
        ids, tables, computed, outputs = (
            cached.req_ids,
            cached.new_block_ids,
            cached.num_computed_tokens,
            cached.num_output_tokens,
        )
        scheduled: dict[str, int] = {}
        if batch is not None:
            seats = self._seats
            riding = len(batch.riders or ())  # decodes, whose tokens are one more than those computed
            counts, dones = batch.num_scheduled.tolist(), batch.num_computed.tolist()
            for place, (request, num, done) in enumerate(zip(rows, counts, dones, strict=True)):
                name = request.request_id
                scheduled[name] = num
                seat = seats[name]
                table = request.block_table
                sent = seat.num_sent
                if not seat.is_known or (self._second_runner and not sent):
                    new.append(self._introduce(seat, done))
                    continue
                if self._is_async and name not in self._last:
                    cached.all_token_ids[name] = [*request.prompt_token_ids, *request.output_token_ids]
                ids.append(name)
                computed.append(done)
                outputs.append(done + 1 - request.num_prompt_tokens if place < riding else request.num_output_tokens)
                if len(table) == sent:
                    tables.append(None)
                    continue
                if not sent:
                    cached.resumed_req_ids.add(name)
                tables.append(([block + NULL_BLOCKS for block in table[sent:]],))
                seat.num_sent = len(table)
        told = SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=batch.num_tokens if batch is not None else 0,
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            finished_req_ids=self._finished,
            free_encoder_mm_hashes=[],
            preempted_req_ids=self._preempted,
        )
        self._finished, self._preempted = set(), set()
        self._last = scheduled
        return told

    def _introduce(self, seat: Seat, num_computed: int) -> NewRequestData:
        request, theirs = seat.request, seat.theirs
        seat.is_known = True
        seat.num_sent = len(request.block_table)
        tokens = [*request.prompt_token_ids, *request.output_token_ids] if self._second_runner else None
        return NewRequestData(
            req_id=request.request_id,
            prompt_token_ids=theirs.prompt_token_ids,
            mm_features=[],
            sampling_params=theirs.sampling_params,
            pooling_params=None,
            block_ids=([block + NULL_BLOCKS for block in request.block_table],),
            num_computed_tokens=num_computed,
            lora_request=None,
            prefill_token_ids=tokens,
        )
