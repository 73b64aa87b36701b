"""Whether runs may be compared: the very same requests, and the same work done for them."""

from __future__ import annotations

from collections.abc import Sequence

from batchwright.errors import ComparisonError
from batchwright.lab.records import OfferedRecord
from batchwright.lab.run_record import RunRecord

_SHOWN = 3


def check_comparable(runs: Sequence[RunRecord]) -> None:
    """Compare every run with the first.

    Raises:
        ComparisonError: two arms have one name; offered requests differ in arrival, prompt or asked output length; or a
            request finished in both with different output lengths. Says which requests differ, and in what.
    """
    names = [run.arm for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise ComparisonError(f"two arms are called {name!r}: give each arm a name of its own")
    for run in runs[1:]:
        _check_offered(runs[0], run)
        _check_outputs(runs[0], run)


def _check_offered(base: RunRecord, run: RunRecord) -> None:
    if len(base.offered) != len(run.offered):
        raise ComparisonError(
            f"{_arms(base, run)} cannot be compared: {len(base.offered)} and {len(run.offered)} requests were offered; "
            "offer both the same workload"
        )
    found = [
        (a.request_id, what) for a, b in zip(base.offered, run.offered, strict=True) if (what := _differences(a, b))
    ]
    if found:
        prompts = all(what.startswith("prompt") for _, what in found)
        raise ComparisonError(
            f"{_arms(base, run)} cannot be compared: {len(found)} of {len(base.offered)} offered requests differ: "
            f"{_list(found)}; "
            + (
                "prompts follow the vocabulary: compare arms on one model"
                if prompts
                else "offer both the same workload, speedup and rule for max_tokens"
            )
        )


def _differences(a: OfferedRecord, b: OfferedRecord) -> str:
    parts: list[str] = []
    if a.request_id != b.request_id:
        parts.append(f"id {a.request_id} and {b.request_id}")
    if a.arrival_ns != b.arrival_ns:
        parts.append(f"arrival {a.arrival_ns / 1e9:.6f} s and {b.arrival_ns / 1e9:.6f} s")
    if a.prompt_hash != b.prompt_hash:
        parts.append(f"prompt {a.prompt_hash} and {b.prompt_hash}")
    if a.num_output_tokens != b.num_output_tokens:
        parts.append(f"asked output length {a.num_output_tokens} and {b.num_output_tokens}")
    return ", ".join(parts)


def _check_outputs(base: RunRecord, run: RunRecord) -> None:
    found = [
        (a.request_id, f"{a.num_output_tokens} and {b.num_output_tokens} output tokens")
        for a, b in zip(base.requests, run.requests, strict=True)
        if a.status == b.status == "finished" and a.num_output_tokens != b.num_output_tokens
    ]
    if found:
        raise ComparisonError(
            f"{_arms(base, run)} cannot be compared: {len(found)} requests finished in both with different lengths: "
            f"{_list(found)}; let both ignore EOS and give them one max_model_len"
        )


def _arms(base: RunRecord, run: RunRecord) -> str:
    return f"arms {base.arm!r} and {run.arm!r}"


def _list(found: Sequence[tuple[str, str]]) -> str:
    shown = "; ".join(f"{request_id} ({what})" for request_id, what in found[:_SHOWN])
    return shown + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
