"""Sessions and agent programs: requests that wait for each other, with prompts that grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from batchwright.lab.row import WorkloadRow


@dataclass(frozen=True, slots=True)
class Unit:
    """One session or program.

    Attributes:
        name: of it; the ids of its rows begin with it.
        arrival_ns: when its first request arrives.
        num_stages: turns, or stages of calls.
        width: calls side by side in each stage but the first and the last.
        first_id: ids of its prefixes are counted from here, two for each row.
        prefix: id and length of what its prompts begin with; None: nothing.
    """

    name: str
    arrival_ns: int
    num_stages: int
    width: int
    first_id: int
    prefix: tuple[int, int] | None


def unit_rows(
    unit: Unit, prompts: Sequence[int], outputs: Sequence[int], waits_s: Sequence[float], *, is_session: bool
) -> Iterator[WorkloadRow]:
    """Its rows, stage by stage.

    A prompt is all that was said before (prompts of earlier stages, each with its output) and new tokens of its own. So
    the prompts of two stages share exactly the earlier one, whose output the later has behind it. These output tokens
    are made up as all others are, and are not those that the engine puts out: arms get equal prompts.

    Args:
        unit: what it is.
        prompts: new tokens of each row.
        outputs: output tokens of each row.
        waits_s: think time of each row; that of the first stage is not used.
        is_session: a session; else a program.
    """
    context: list[tuple[int, int]] = [unit.prefix] if unit.prefix is not None else []
    before: tuple[str, ...] = ()
    at = 0
    for stage in range(unit.num_stages):
        is_last = stage == unit.num_stages - 1
        width = 1 if stage == 0 or is_last else unit.width
        said: list[tuple[int, int]] = []
        names: list[str] = []
        for place in range(width):
            name = f"{unit.name}.{stage}" if unit.width == 1 else f"{unit.name}.{stage}.{place}"
            prompt_id = unit.first_id + 2 * at
            segments = [*context] if is_last else [*context, (prompt_id, prompts[at])]
            yield WorkloadRow(
                arrival_ns=unit.arrival_ns if stage == 0 else 0,
                num_prompt_tokens=sum(length for _, length in context) + prompts[at],
                num_output_tokens=outputs[at],
                prefix_ids=tuple(prefix_id for prefix_id, _ in segments),
                prefix_lengths=tuple(length for _, length in segments),
                session_id=unit.name if is_session else None,
                program_id=None if is_session else unit.name,
                row_id=name,
                after=before,
                think_s=waits_s[at] if stage else 0.0,
            )
            names.append(name)
            said += [(prompt_id, prompts[at]), (prompt_id + 1, outputs[at])]
            at += 1
        context += said
        before = tuple(names)
