"""A workload from where it is described: a file, a synthetic specification, or several of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from batchwright.lab.lazy_rows import LazyRows
from batchwright.lab.links import arranged
from batchwright.lab.merging import merge
from batchwright.lab.readers import READERS, Reader, TraceFile
from batchwright.lab.readers.recording import RecordedTraffic, is_recording
from batchwright.lab.synthetic import PREFIX as SYNTHETIC
from batchwright.lab.synthetic import SyntheticSpec
from batchwright.lab.workload import Workload
from batchwright.request import SLO

AND = " + "
"""Between the specifications of workloads that are offered together."""


def load_workload(
    spec: str | Path,
    *,
    speedup: float = 1.0,
    limit: int | None = None,
    slo: SLO | None = None,
    readers: Mapping[str, Reader] | None = None,
    lazy: bool = False,
    skip_bad_rows: bool = False,
) -> Workload:
    """Read a trace, or draw a synthetic workload.

    A file's format is found by its content, not its name: Azure's and BurstGPT's traces (CSV), Mooncake's and Bailian's
    (JSONL), ShareGPT's conversations (JSON), or plain JSONL (see :mod:`batchwright.lab.readers`); a folder is a
    recording of traffic (see :mod:`batchwright.lab.readers.recording`).
    ``synthetic:rate=4,n=100,...`` draws one (see :class:`~batchwright.lab.synthetic.SyntheticSpec`). Several of them
    with `` + `` in between are merged (see :func:`~batchwright.lab.merging.merge`).

    Args:
        spec: a path, or ``synthetic:...``, or several.
        speedup: arrival times are divided by it; deadlines, which count from arrival, are not.
        limit: take the first so many requests only.
        slo: objectives of the requests that bring none.
        readers: further file formats by name, tried before the built-in ones.
        lazy: read the rows whenever they are needed, instead of holding all of them: for files of millions. Such a file
            must be in order of arrival, and no row may wait for others.
        skip_bad_rows: pass over rows that are broken, and say so in the workload's notes.

    Raises:
        WorkloadError: there is no such file, its format is unknown, a row is broken (the message gives file, line and
            row, what was found and what was expected), or ``speedup``, ``limit`` or the specification is out of range.
    """
    text = str(spec)
    if isinstance(spec, str) and AND in text and not _is_there(text):
        parts = [load_workload(part.strip(), readers=readers, skip_bad_rows=skip_bad_rows) for part in text.split(AND)]
        merged = merge(parts)
        workload = replace(merged, name=text, source=text, notes=(*merged.notes, *_alike(text.split(AND))))
    elif text.startswith(SYNTHETIC):
        drawn = SyntheticSpec.parse(text)
        rows = LazyRows(drawn.draw, drawn.n) if lazy and drawn.is_single else tuple(drawn.draw())
        workload = Workload(name=text, rows=rows, source=text)
    else:
        workload = _read(Path(spec), {**(readers or {}), **READERS}, lazy=lazy, skip_bad_rows=skip_bad_rows)
    if limit is not None:
        workload = workload.first(limit)
    if slo is not None:
        workload = workload.with_slo(slo)
    return workload.faster(speedup)


def _alike(parts: Sequence[str]) -> Iterator[str]:
    """That synthetic workloads which are offered together come from the same draws."""
    seeds = Counter(SyntheticSpec.parse(part.strip()).seed for part in parts if part.strip().startswith(SYNTHETIC))
    for seed, num in seeds.items():
        if num > 1:
            yield (
                f"{num} synthetic workloads have seed {seed}: what they draw alike, such as arrivals, is the same in "
                "them, and their requests come together; give each a seed of its own (seed=1, seed=2)"
            )


def _is_there(name: str) -> bool:
    """Whether there is a file of that name; of one that is longer than a name may be, there is none."""
    try:
        return Path(name).exists()
    except OSError:
        return False


def _read(path: Path, readers: Mapping[str, Reader], *, lazy: bool, skip_bad_rows: bool) -> Workload:
    if is_recording(path):
        traffic = RecordedTraffic(path, skip_bad_rows)
        return Workload(name=path.name, rows=arranged(traffic.rows()), source=str(path), notes=traffic.notes)
    file = TraceFile(path, readers, skip_bad_rows)
    rows = LazyRows(lambda: file.rows(in_order=True)) if lazy else arranged(file.rows())
    return Workload(name=path.name, rows=rows, source=str(path), notes=file.notes)
