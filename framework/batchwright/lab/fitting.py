"""What becomes of prompts that the model or the KV pool has no room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from batchwright.errors import WorkloadError
from batchwright.lab.links import without_strangers
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import CLIP, DROP, REFUSE, Workload


def fitted(workload: Workload, longest: int) -> tuple[Workload, list[str]]:
    """The workload as it is offered, and what was done to it, in sentences.

    A prompt is too long where no room is left for one output token. By ``workload.too_long`` it is offered all the same
    (``refuse``: the engine says no, and that stands in the records), cut (``clip``: its beginning stays, so shared
    prefixes stay shared, and room for its true output), or left out (``drop``: who waits for it waits no longer).

    Args:
        workload: with its prompts as token ids, or with lengths.
        longest: tokens that one request may have, prompt and output together.

    Raises:
        WorkloadError: nothing would be left.
    """
    if workload.too_long == REFUSE:
        return workload, []
    lengths = [row.num_prompt_tokens or 0 for row in workload.rows]
    num = sum(length >= longest for length in lengths)
    if not num:
        return workload, []
    said = f"{num:,} of {len(lengths):,} prompts left no room for an output in {longest:,} tokens"
    what = f"the longest has {max(lengths):,}"
    rows = workload.rows
    if workload.too_long == CLIP:
        clipped = (
            rows.each(lambda row: _clipped(row, longest))
            if not isinstance(rows, tuple)
            else tuple(_clipped(row, longest) for row in rows)
        )
        return replace(workload, rows=clipped), [f"{said} and were cut ({what})"]
    assert workload.too_long == DROP
    if num == len(lengths):
        raise WorkloadError(
            f"all {num:,} prompts of workload {workload.name!r} are too long for {longest:,} tokens, and are left out: "
            "there is nothing to run; use clip, or a larger max_model_len or num_blocks"
        )
    if isinstance(rows, tuple):
        kept = without_strangers(row for row in rows if (row.num_prompt_tokens or 0) < longest)
        return replace(workload, rows=kept), [f"{said} and were left out ({what})"]
    return replace(workload, rows=rows.only(lambda row: (row.num_prompt_tokens or 0) < longest, len(lengths) - num)), [
        f"{said} and were left out ({what})"
    ]


def _clipped(row: WorkloadRow, longest: int) -> WorkloadRow:
    if (row.num_prompt_tokens or 0) < longest:
        return row
    length = max(1, longest - (row.num_output_tokens or 1))
    if row.prompt is not None:
        assert isinstance(row.prompt, Sequence) and not isinstance(row.prompt, (str, Mapping))
        return replace(row, num_prompt_tokens=length, prompt=list(islice(row.prompt, length)))
    return replace(row, num_prompt_tokens=length)
