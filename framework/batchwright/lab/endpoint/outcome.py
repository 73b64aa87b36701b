"""What became of one request."""

from __future__ import annotations

from batchwright.lab.endpoint.answer import Answer
from batchwright.lab.endpoint.asks import Ask
from batchwright.lab.records import RequestRecord


def judge(record: RequestRecord, ask: Ask, answer: Answer, *, given_up: bool, ended: bool, why_lost: str) -> None:
    """Give a request whose stream has ended, one way or another, its status.

    Args:
        record: of which no status is known yet.
        ask: what was asked.
        answer: all of it.
        given_up: its client had enough, or no patience.
        ended: the run ended first.
        why_lost: how its server was lost; empty: it was not.
    """
    reason, num = answer.finish_reason, len(answer.times_ns)
    if answer.error is not None:
        record.status, record.error = "failed", answer.error
    elif reason is None:
        if given_up:
            record.status = "aborted"
        elif why_lost:
            record.status, record.error = "failed", why_lost
        elif not ended:
            record.status, record.error = "failed", f"the stream ended without a reason after {num} tokens"
    elif not num:
        record.status, record.error = "failed", f"the server ended it ({reason}) without a token"
    elif reason in ("abort", "error"):
        record.status, record.error = "failed", f"the server ended it after {num} tokens: {reason}"
    elif ask.offer.request.sampling_params.ignore_eos and num < ask.offer.length:
        record.status = "failed"
        asked = ask.offer.length
        record.error = f"the server ended it ({reason}) after {num} of {asked} tokens, though it was to ignore EOS"
    else:
        record.status = "finished"
        true = ask.offer.num_output_tokens
        is_trace = reason == "length" and true is not None and num == true
        record.finish_reason = "trace" if is_trace else "length" if reason == "length" else "stop"


def cut_off(answer: Answer, why: str) -> str:
    """What to say of a connection that broke."""
    return f"the stream was cut after {answer.num_tokens} tokens: {why}" if answer.num_tokens else why
