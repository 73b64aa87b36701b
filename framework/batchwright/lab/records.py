"""Records of requests and steps: all that metrics, statistics and reports read.

Times are integer nanoseconds from the start of the run; names that end in ``_s`` are derived, and are what files hold.
A file of records carries ``record_version``; it grows by new fields, and the number changes when an old one does.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from batchwright.request import SLO

Status = Literal["finished", "refused", "aborted", "failed", "unfinished"]
STATUSES: tuple[Status, ...] = get_args(Status)

NO_TIMES: array[int] = array("q")
"""Shared by all requests that were never evicted; nobody appends to it."""


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _times(seconds: Sequence[float]) -> array[int]:
    return array("q", [round(t * 1e9) for t in seconds])


@dataclass(slots=True)
class OfferedRecord:
    """What was asked: arms are comparable when this is equal for every request.

    Attributes:
        request_id: of the request.
        arrival_ns: when it arrived.
        prompt_hash: hex digits of its token ids.
        num_output_tokens: how long its output was to be: the true length, cut by a shorter declared limit; where nobody
            knows it, the limit.
        max_tokens: its declared limit.
    """

    request_id: str
    arrival_ns: int
    prompt_hash: str
    num_output_tokens: int
    max_tokens: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "request_id": self.request_id,
            "arrival_s": self.arrival_ns / 1e9,
            "prompt_hash": self.prompt_hash,
            "num_output_tokens": self.num_output_tokens,
            "max_tokens": self.max_tokens,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OfferedRecord:
        """From the object that ``to_json`` gave."""
        values = dict(value)
        return cls(arrival_ns=round(values.pop("arrival_s") * 1e9), **values)


@dataclass(slots=True)
class RequestRecord:
    """What became of one request.

    Attributes:
        request_id, client_id, priority, slo: as offered.
        arrival_ns: when it arrived.
        first_scheduled_ns: start of the first step that ran it; None: none did.
        token_times_ns: when each of its output tokens was there.
        finish_ns: when it ended, for whatever reason; None for what was refused or is unfinished.
        num_prompt_tokens, num_output_tokens: lengths, the second as far as it came.
        num_cached_tokens: prompt tokens that the prefix cache held at its first admission.
        num_recomputed_tokens: tokens computed again because of evictions.
        num_preemptions: times it was evicted.
        status: ``finished``; ``refused`` (never taken); ``aborted``; ``failed``; ``unfinished`` (the run ended first).
        finish_reason: ``stop``, ``length``, ``trace``, ``abort`` or ``error``; None before its end.
        error: why it was refused or failed.
        replica: which replica of a fleet took it, from 0; None: it was routed to none.
        weight: of its client, as offered.
        slo_class: the kind of request it is, as offered.
        preempted_ns: when it was evicted, each time: the start of that step.
        resumed_ns: when it was admitted again after each eviction; one less where it never was.
        session_id, program_id: to which conversation and which agent's program it belongs, as offered.
    """

    request_id: str
    client_id: str | None
    priority: int
    arrival_ns: int
    first_scheduled_ns: int | None
    token_times_ns: array[int]
    finish_ns: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    slo: SLO | None
    status: Status
    finish_reason: str | None = None
    error: str | None = None
    replica: int | None = 0
    weight: float = 1.0
    slo_class: str | None = None
    preempted_ns: array[int] = field(default_factory=lambda: NO_TIMES)
    resumed_ns: array[int] = field(default_factory=lambda: NO_TIMES)
    session_id: str | None = None
    program_id: str | None = None

    @classmethod
    def begin(
        cls,
        request_id: str,
        arrival_ns: int,
        num_prompt_tokens: int,
        *,
        client_id: str | None = None,
        priority: int = 0,
        slo: SLO | None = None,
        weight: float = 1.0,
        slo_class: str | None = None,
        session_id: str | None = None,
        program_id: str | None = None,
    ) -> RequestRecord:
        """Of a request that has just arrived: nothing has become of it yet."""
        return cls(
            request_id=request_id,
            client_id=client_id,
            priority=priority,
            arrival_ns=arrival_ns,
            first_scheduled_ns=None,
            token_times_ns=array("q"),
            finish_ns=None,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=0,
            num_cached_tokens=0,
            num_recomputed_tokens=0,
            num_preemptions=0,
            slo=slo,
            status="unfinished",
            weight=weight,
            slo_class=slo_class,
            session_id=session_id,
            program_id=program_id,
        )

    @property
    def arrival_s(self) -> float:
        """When it arrived, in seconds."""
        return self.arrival_ns / 1e9

    @property
    def first_scheduled_s(self) -> float | None:
        """Start of the first step that ran it, in seconds."""
        return _seconds(self.first_scheduled_ns)

    @property
    def token_times_s(self) -> list[float]:
        """When each output token was there, in seconds."""
        return [t / 1e9 for t in self.token_times_ns]

    @property
    def finish_s(self) -> float | None:
        """When it ended, in seconds."""
        return _seconds(self.finish_ns)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, times in seconds."""
        slo = None if self.slo is None else {"ttft_s": self.slo.ttft_s, "tpot_s": self.slo.tpot_s}
        return {
            "request_id": self.request_id,
            "client_id": self.client_id,
            "priority": self.priority,
            "arrival_s": self.arrival_s,
            "first_scheduled_s": self.first_scheduled_s,
            "token_times_s": self.token_times_s,
            "finish_s": self.finish_s,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_output_tokens": self.num_output_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_recomputed_tokens": self.num_recomputed_tokens,
            "num_preemptions": self.num_preemptions,
            "slo": slo,
            "status": self.status,
            "finish_reason": self.finish_reason,
            "error": self.error,
            "replica": self.replica,
            "weight": self.weight,
            "slo_class": self.slo_class,
            "preempted_s": [t / 1e9 for t in self.preempted_ns],
            "resumed_s": [t / 1e9 for t in self.resumed_ns],
            "session_id": self.session_id,
            "program_id": self.program_id,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RequestRecord:
        """From the object that ``to_json`` gave."""
        values = dict(value)
        return cls(
            preempted_ns=_times(values.pop("preempted_s", ())),  # records of before there were any have none
            resumed_ns=_times(values.pop("resumed_s", ())),
            arrival_ns=round(values.pop("arrival_s") * 1e9),
            first_scheduled_ns=_nanoseconds(values.pop("first_scheduled_s")),
            token_times_ns=_times(values.pop("token_times_s")),
            finish_ns=_nanoseconds(values.pop("finish_s")),
            slo=None if (slo := values.pop("slo")) is None else SLO(**slo),
            **values,
        )


@dataclass(slots=True)
class StepRecord:
    """One step; counts are those after it.

    Attributes:
        index: of the step, from 0.
        start_ns, end_ns: when it ran.
        num_prefill_tokens: prompt tokens computed in it (and tokens computed again after an eviction).
        num_decodes: requests that ran one token each.
        num_preempted: requests evicted.
        num_waiting, num_running: requests that wait, and residents.
        free_blocks: KV blocks that nobody holds.
        replica: which replica of a fleet ran it, from 0.
        batch_size: requests in its batch; 0 in records of before it was kept.
    """

    index: int
    start_ns: int
    end_ns: int
    num_prefill_tokens: int
    num_decodes: int
    num_preempted: int
    num_waiting: int
    num_running: int
    free_blocks: int
    replica: int = 0
    batch_size: int = 0

    @property
    def start_s(self) -> float:
        """When it started, in seconds."""
        return self.start_ns / 1e9

    @property
    def end_s(self) -> float:
        """When it ended, in seconds."""
        return self.end_ns / 1e9

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, times in seconds."""
        return {
            "index": self.index,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "num_prefill_tokens": self.num_prefill_tokens,
            "num_decodes": self.num_decodes,
            "num_preempted": self.num_preempted,
            "num_waiting": self.num_waiting,
            "num_running": self.num_running,
            "free_blocks": self.free_blocks,
            "replica": self.replica,
            "batch_size": self.batch_size,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StepRecord:
        """From the object that ``to_json`` gave."""
        values = dict(value)
        return cls(start_ns=round(values.pop("start_s") * 1e9), end_ns=round(values.pop("end_s") * 1e9), **values)
