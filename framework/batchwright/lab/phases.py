"""What a request did when, from its record."""

from __future__ import annotations

from bisect import bisect_right

from batchwright.lab.records import RequestRecord
from batchwright.lab.samples import stretches_out


def phases(record: RequestRecord, end_ns: int) -> list[tuple[str, int, int]]:
    """What a request did when: (phase, begin, end), in nanoseconds, one behind the other.

    ``waiting`` up to the first step that ran it, ``prefill`` up to its first token, ``decode``; ``preempted`` from each
    eviction to the next admission, and ``recompute`` from there to the next token.

    Args:
        record: of the request.
        end_ns: when it ended, or the run did.
    """
    begun, tokens = record.first_scheduled_ns, record.token_times_ns
    if begun is None:
        # Of a server elsewhere only tokens are known.
        first = tokens[0] if tokens else end_ns
        parts = [("waiting", record.arrival_ns, first), ("decode", first, end_ns)]
        return [part for part in parts if part[1] < part[2]]
    found = [("waiting", record.arrival_ns, begun)]
    since = begun
    for out, back in [*stretches_out(record, end_ns), (end_ns, end_ns)]:
        token = bisect_right(tokens, since)  # the first behind the admission ends what is computed again
        computed = min(tokens[token] if token < len(tokens) else out, out)
        found.append(("recompute" if token else "prefill", since, computed))
        found.append(("decode", computed, out))
        found.append(("preempted", out, back))
        since = back
    return [part for part in found if part[1] < part[2]]
