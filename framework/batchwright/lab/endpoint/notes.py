"""What a reader of a run at an endpoint should know, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from batchwright.lab.endpoint.dialect import Dialect
from batchwright.lab.endpoint.drive import Drive
from batchwright.lab.endpoint.seen import Seen

LATE_S = 0.005
"""How late this process may be before it is said."""

BUFFERED = 0.5
"""Share of answers that come at one moment, from which on something seems to hold them back."""


def notes_of(arm: str, dialect: Dialect, drive: Drive, *, exact: bool) -> Iterator[str]:
    """The notes of a run.

    Args:
        arm: its name.
        dialect: how requests were written.
        drive: what came back.
        exact: whether answers had a true length.
    """
    server = dialect.server
    name = f" ({server.name})" if server.name else ""
    yield (
        f"{arm} is an endpoint{name}: its latencies are this client's, HTTP included; its steps, queue and KV blocks "
        "are not seen, so neither overload nor decisions are told of it"
    )
    if exact:
        yield f"{arm} was sent the true length of each answer as max_tokens: its scheduler could have read it"
    yield from _of_dialect(arm, dialect)
    yield from _of_streams(arm, drive.seen)
    late = float(np.percentile(drive.seen.lateness_ns, 99)) / 1e9 if drive.seen.lateness_ns else 0.0
    worst = max(late, drive.lag_s)
    if worst > LATE_S:
        yield (
            f"{arm}: this client was up to {worst * 1e3:.0f} ms late (99th percentile) to send or to read, which "
            "counts as the server's; give it a core of its own, or less load"
        )


def _of_dialect(arm: str, dialect: Dialect) -> Iterator[str]:
    if dialect.level == "plain":
        yield (
            f"{arm} takes neither ignore_eos nor stream_options: an answer may end before its true length, which "
            "counts as failed, and tokens are counted by chunks"
        )
    if dialect.made_up != "ids":
        yield (
            f"{arm} takes no token ids: made-up prompts are common words, about one token each, so their lengths are "
            "not quite the workload's, and other arms had other prompts"
        )
    if dialect.level != "full" or not dialect.options.salt_cache or not dialect.server.kind:
        yield f"{arm} may have prefixes in its cache from earlier runs: restart it, or take another --seed"


def _of_streams(arm: str, seen: Seen) -> Iterator[str]:
    if seen.num_several:
        gaps = np.frombuffer(seen.gaps_ns, dtype=np.int64) / 1e6 if seen.gaps_ns else np.zeros(1)
        yield (
            f"{arm} put several tokens into {seen.num_several} of {seen.num_chunks} chunks: these have one time each, "
            f"so gaps of 0 are in its ITL; by chunks, as vllm bench serve counts, it is {gaps.mean():.2f} ms on "
            f"average and {np.percentile(gaps, 99):.2f} ms at the 99th percentile"
        )
    if seen.num_spread:
        yield (
            f"{arm} does not say how many tokens a chunk holds, and {seen.num_spread} answers had more or fewer tokens "
            "than chunks: these are spread evenly over the chunks; TTFT, TPOT and E2EL are exact, single gaps are not"
        )
    if seen.num_at_once > BUFFERED * max(1, seen.num_of_several):
        yield (
            f"{arm}: {seen.num_at_once} of {seen.num_of_several} answers came all at one moment: something on the way "
            "holds streams back (a proxy that buffers?), and its TTFT, TPOT and ITL tell nothing"
        )
    other = [(sent, counted) for sent, counted in seen.lengths if sent != counted]
    if other:
        sent, counted = (sum(column) for column in zip(*seen.lengths, strict=True))
        yield (
            f"{arm} counted other prompt lengths in {len(other)} of {len(seen.lengths)} requests: {counted:,} tokens "
            f"where {sent:,} were sent"
        )
