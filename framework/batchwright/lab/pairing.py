"""Whether runs may be compared: the very same requests, and the same work done for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batchwright.errors import ComparisonError
from batchwright.lab.records import OfferedRecord
from batchwright.lab.run_record import RunRecord

_SHOWN = 3

INTERRUPTED = "interrupted"


def paired_seeds(base: Mapping[int, RunRecord], runs: Mapping[int, RunRecord]) -> list[int]:
    """Seeds of which both arms have a whole run; where there is none, also those that were interrupted.

    Raises:
        ComparisonError: they have no seed in common.
    """
    common = [seed for seed in runs if seed in base]
    if not common:
        one, two = next(iter(base.values())), next(iter(runs.values()))
        raise ComparisonError(
            f"{_arms(one, two)} cannot be compared: they have no seed in common, but {_seeds(base)} and "
            f"{_seeds(runs)}; run both with the same seeds"
        )
    whole = [seed for seed in common if INTERRUPTED not in (base[seed].stopped, runs[seed].stopped)]
    return whole or common


def check_comparable(arms: Mapping[str, Mapping[int, RunRecord]], pairs: Mapping[str, Sequence[int]]) -> None:
    """Compare every run with that of the first arm and the same seed.

    Args:
        arms: runs by arm and seed; the first is what the others are compared with.
        pairs: seeds in which each of the others is.

    Raises:
        ComparisonError: offered requests differ in arrival, prompt or asked output length; or a request finished in
            both with different output lengths. Says which requests differ, and in what.
    """
    first = next(iter(arms.values()))
    for arm, seeds in pairs.items():
        for seed in seeds:
            where = f" in seed {seed}" if len(seeds) > 1 else ""
            _check_offered(first[seed], arms[arm][seed], where)
            _check_outputs(first[seed], arms[arm][seed], where)


def _check_offered(base: RunRecord, run: RunRecord, where: str) -> None:
    if len(base.offered) != len(run.offered):
        raise ComparisonError(
            f"{_arms(base, run)} cannot be compared{where}: {len(base.offered)} and {len(run.offered)} requests were "
            "offered; offer both the same workload"
        )
    timed = all(r.workload.get("arrivals", "open") == "open" for r in (base, run))
    found = [
        (a.request_id, what)
        for a, b in zip(base.offered, run.offered, strict=True)
        if (what := _differences(a, b, timed=timed))
    ]
    if found:
        prompts = all(what.startswith("prompt") for _, what in found)
        raise ComparisonError(
            f"{_arms(base, run)} cannot be compared{where}: {len(found)} of {len(base.offered)} offered requests "
            f"differ: {_list(found)}; "
            + (
                "prompts follow the vocabulary: compare arms on one model"
                if prompts
                else "offer both the same workload, speedup and rule for max_tokens"
            )
        )


def _differences(a: OfferedRecord, b: OfferedRecord, *, timed: bool) -> str:
    """In words; ``timed``: arrivals are the workload's, and do not follow what the arm did."""
    parts: list[str] = []
    if a.request_id != b.request_id:
        parts.append(f"id {a.request_id} and {b.request_id}")
    if timed and a.arrival_ns != b.arrival_ns:
        parts.append(f"arrival {a.arrival_ns / 1e9:.6f} s and {b.arrival_ns / 1e9:.6f} s")
    if not a.prompt_hash or not b.prompt_hash:
        return ", ".join(parts)  # only the server of an endpoint made it into token ids
    if a.prompt_hash != b.prompt_hash:
        parts.append(f"prompt {a.prompt_hash} and {b.prompt_hash}")
    if a.num_output_tokens != b.num_output_tokens:
        parts.append(f"asked output length {a.num_output_tokens} and {b.num_output_tokens}")
    return ", ".join(parts)


def _check_outputs(base: RunRecord, run: RunRecord, where: str) -> None:
    found = [
        (a.request_id, f"{a.num_output_tokens} and {b.num_output_tokens} output tokens")
        for a, b in zip(base.requests, run.requests, strict=True)
        if a.num_output_tokens != b.num_output_tokens and a.status == b.status == "finished"
    ]
    if found:
        raise ComparisonError(
            f"{_arms(base, run)} cannot be compared{where}: {len(found)} requests finished in both with different "
            f"lengths: {_list(found)}; let both ignore EOS and give them one max_model_len"
        )


def _arms(base: RunRecord, run: RunRecord) -> str:
    return f"arms {base.arm!r} and {run.arm!r}"


def _seeds(runs: Mapping[int, RunRecord]) -> str:
    return ", ".join(map(str, runs))


def _list(found: Sequence[tuple[str, str]]) -> str:
    shown = "; ".join(f"{request_id} ({what})" for request_id, what in found[:_SHOWN])
    return shown + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
