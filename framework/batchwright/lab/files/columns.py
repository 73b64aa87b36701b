"""The columns of ``requests.parquet`` and ``steps.parquet``: names, types, units and meanings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["string", "int64", "uint64", "double", "times", "slo"]
"""``times``: large_list<int64>; ``slo``: struct<ttft_s: double, tpot_s: double>."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a file.

    Attributes:
        name: as in the record where it has one.
        kind: type of its values.
        unit: of its values; empty: none.
        doc: what it holds.
        nullable: whether a value may be missing.
        optional: files of before there was such a column lack it; its field then has the default.
    """

    name: str
    kind: Kind
    unit: str
    doc: str
    nullable: bool = False
    optional: bool = False


REQUEST_COLUMNS = (
    Column("request_id", "string", "", "Of the request."),
    Column("client_id", "string", "", "Whose it is.", True),
    Column("priority", "int64", "", "As offered; lower goes first."),
    Column("arrival_ns", "int64", "ns", "When it arrived."),
    Column("first_scheduled_ns", "int64", "ns", "Start of the first step that ran it; null: none did.", True),
    Column("token_times_ns", "times", "ns", "When each of its output tokens was there."),
    Column("finish_ns", "int64", "ns", "When it ended, for whatever reason; null: refused or unfinished.", True),
    Column("num_prompt_tokens", "int64", "tokens", "Length of its prompt."),
    Column("num_output_tokens", "int64", "tokens", "Output tokens that it got."),
    Column("num_cached_tokens", "int64", "tokens", "Prompt tokens that the prefix cache held at its first admission."),
    Column("num_recomputed_tokens", "int64", "tokens", "Computed again because of evictions."),
    Column("num_preemptions", "int64", "", "Times it was evicted."),
    Column("slo", "slo", "s", "Its objectives; null: it has none.", True),
    Column("status", "string", "", "`finished`, `refused`, `aborted`, `failed` or `unfinished`."),
    Column("finish_reason", "string", "", "`stop`, `length`, `trace`, `abort` or `error`; null before its end.", True),
    Column("error", "string", "", "Why it was refused or failed.", True),
    Column("replica", "int64", "", "Which replica of a fleet took it, from 0; null: it was routed to none.", True),
    Column("weight", "double", "", "Of its client, as offered.", optional=True),
    Column("slo_class", "string", "", "The kind of request it is, as offered.", True, True),
    Column("session_id", "string", "", "The conversation that it belongs to, as offered.", True, True),
    Column("program_id", "string", "", "The agent's program that it belongs to, as offered.", True, True),
    Column("preempted_ns", "times", "ns", "When it was evicted, each time.", optional=True),
    Column("resumed_ns", "times", "ns", "When it was admitted again after each eviction.", optional=True),
    Column("offered_arrival_ns", "int64", "ns", "When it was to arrive."),
    Column("prompt_hash", "string", "", "Hex digits of its prompt's token ids: equal hashes, equal prompts."),
    Column("asked_output_tokens", "int64", "tokens", "How long its output was to be; hidden from policies."),
    Column("max_tokens", "int64", "tokens", "Its declared limit."),
)
"""One row for each request that was offered, in order of arrival. Times count from the start of the run."""

OFFERED = {
    "offered_arrival_ns": "arrival_ns",
    "prompt_hash": "prompt_hash",
    "asked_output_tokens": "num_output_tokens",
    "max_tokens": "max_tokens",
}
"""Columns that hold what was asked, to the field of its record; the others hold what became of it."""

STEP_COLUMNS = (
    Column("index", "int64", "", "Of the step, from 0; in a fleet, of its replica."),
    Column("start_ns", "int64", "ns", "When it began."),
    Column("end_ns", "int64", "ns", "When it ended."),
    Column("num_prefill_tokens", "int64", "tokens", "Prompt tokens computed in it, and tokens computed again."),
    Column("num_decodes", "int64", "requests", "Requests that ran one token each."),
    Column("num_preempted", "int64", "requests", "Evicted in it."),
    Column("num_waiting", "int64", "requests", "Waiting, after it."),
    Column("num_running", "int64", "requests", "Resident, after it."),
    Column("free_blocks", "int64", "blocks", "KV blocks that nobody holds, after it."),
    Column("replica", "int64", "", "Which replica of a fleet ran it, from 0."),
    Column("batch_size", "int64", "requests", "In its batch.", optional=True),
    Column("batch", "uint64", "", "Fingerprint of its batch: equal in two runs of one workload where the batches are."),
)
"""One row for each step, in the order of their ends. Times count from the start of the run."""
