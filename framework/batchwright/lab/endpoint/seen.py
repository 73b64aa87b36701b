"""What the streams of a run were like."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise

from batchwright.lab.endpoint.answer import Answer


@dataclass
class Seen:
    """Counts over all answers.

    Attributes:
        num_chunks: chunks with tokens in them.
        num_several: those with more than one.
        num_spread: requests of which nobody knows how many tokens each chunk held.
        num_at_once: requests of several chunks that all came at one moment.
        num_of_several: requests of several chunks.
        gaps_ns: between the chunks of each request.
        lengths: of each prompt, tokens that were sent, and as the server counted them.
        lateness_ns: how long after its time each request was sent.
    """

    num_chunks: int = 0
    num_several: int = 0
    num_spread: int = 0
    num_at_once: int = 0
    num_of_several: int = 0
    gaps_ns: array[int] = field(default_factory=lambda: array("q"))
    lengths: list[tuple[int, int]] = field(default_factory=list)
    lateness_ns: array[int] = field(default_factory=lambda: array("q"))

    def take(self, answer: Answer, num_sent: int) -> None:
        """One more answer; ``num_sent``: prompt tokens that were sent, 0 where nobody knows."""
        chunks = answer.chunk_times_ns
        self.num_chunks += len(chunks)
        self.num_several += answer.num_several
        self.num_spread += answer.is_spread
        if len(chunks) > 1:
            self.num_of_several += 1
            self.num_at_once += chunks[0] == chunks[-1]
            self.gaps_ns.extend(b - a for a, b in pairwise(chunks))
        if num_sent and answer.num_prompt_tokens is not None:
            self.lengths.append((num_sent, answer.num_prompt_tokens))
