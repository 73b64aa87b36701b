"""What measurements cover, and so where predictions extrapolate, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batchwright_backends.sim.gpus import TERMS, Gpu
from batchwright_backends.sim.kernel_tables import AttentionRow, KernelTables
from batchwright_backends.sim.recorded_steps import RecordedStep


def missing_terms(fitted: Iterable[str], base: Gpu) -> list[str]:
    """Terms that a fit left as they were, and whose they are."""
    kept = [term for term in TERMS if term not in set(fitted)]
    return [f"no rows for {', '.join(kept)}: these stay as {base.name} has them"] if kept else []


def tables_covered(tables: KernelTables) -> list[str]:
    """How far kernel tables go."""
    said = []
    if tables.matmul:
        rows, widths = _range(r.m for r in tables.matmul), _range(n for r in tables.matmul for n in (r.n, r.k))
        said.append(f"products of other than {rows} rows, or sizes outside {widths}, are extrapolated")
    names = {"generation": "decodes alone", "context": "prompts alone", "mixed": "decodes beside prompts"}
    for regime, what in names.items():
        found = tables.regime(regime)
        if not found:
            said.append(f"attention of {what} was not measured: the form and the other regimes' constants stand for it")
            continue
        said.append(f"attention of {what} is extrapolated beyond {_attention(found)}")
    for name, counts in (("elementwise work", tables.elementwise), ("sampling", tables.sampling)):
        if counts:
            said.append(f"{name} is extrapolated beyond {_range(r.count for r in counts)} rows")
    return said


def steps_covered(steps: Sequence[RecordedStep]) -> list[str]:
    """How far the steps of a run go."""
    said = [
        f"steps of other than {_range(s.num_tokens for s in steps)} tokens, "
        f"{_range(len(s.num_scheduled) for s in steps)} requests, or contexts outside "
        f"{_range(int(c) for s in steps for c in (s.num_computed + s.num_scheduled))} tokens are extrapolated"
    ]
    kinds = {s.regime for s in steps}
    missing = [kind for kind in ("decode", "prefill", "mixed") if kind not in kinds]
    if missing:
        said.append(f"no {' and no '.join(missing)} step ran: their times are extrapolated from the others")
    return said


def _attention(rows: Sequence[AttentionRow]) -> str:
    longest = _range(max(r.prefix + r.chunk, r.decode_context) for r in rows)
    return f"{_range(r.num_rows for r in rows)} requests and contexts of {longest} tokens"


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"
