"""Records as Parquet: requests and steps of a run, each a file with its schema in it.

The same records give the same bytes, with one release of pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from batchwright.errors import ConfigError, WorkloadError
from batchwright.lab.files.columns import OFFERED, REQUEST_COLUMNS, STEP_COLUMNS, Column
from batchwright.lab.records import NO_TIMES, OfferedRecord, RequestRecord
from batchwright.lab.run_record import RunRecord
from batchwright.lab.step_records import FIELDS, StepRecords, column
from batchwright.request import SLO

SCHEMA_VERSION = 1
"""Raised when a column changes its meaning, its type or its name; a new column leaves it."""

_VERSION, _HOLDS = b"batchwright.schema_version", b"batchwright.holds"


def need_arrow() -> Any:
    """The module pyarrow, with ``pyarrow.parquet`` in it.

    Raises:
        ConfigError: it is not installed; the message says how it comes.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"folders of results hold Parquet files, which need pyarrow ({error}): pip install 'batchwright[parquet]' "
            "(batchwright[lab] has what pages and figures need too), or write one JSON file with --json"
        ) from None
    return pyarrow


def write_requests(path: Path, run: RunRecord) -> None:
    """What was asked and what became of it, a row a request.

    Raises:
        WorkloadError: what was offered and the records of requests do not go together.
        ConfigError: pyarrow is not installed.
        OSError: the file cannot be written.
    """
    if [o.request_id for o in run.offered] != [r.request_id for r in run.requests]:
        raise WorkloadError(
            f"arm {run.arm!r}: its {len(run.offered)} offers and {len(run.requests)} records are not of the same "
            "requests in the same order, so they cannot be written as one table"
        )
    arrays = [_offers(run.offered, c) if c.name in OFFERED else _requests(run.requests, c) for c in REQUEST_COLUMNS]
    _write(path, arrays, REQUEST_COLUMNS, "requests")


def write_steps(path: Path, run: RunRecord) -> None:
    """A row a step, with the fingerprint of its batch.

    Raises:
        WorkloadError: steps and fingerprints differ in number.
        ConfigError: pyarrow is not installed.
        OSError: the file cannot be written.
    """
    arrow = need_arrow()
    if len(run.steps) != len(run.batches):
        raise WorkloadError(f"arm {run.arm!r} has {len(run.steps)} steps and {len(run.batches)} fingerprints of them")
    steps = run.steps if isinstance(run.steps, StepRecords) else StepRecords(run.steps)
    arrays = [arrow.array(column(steps, c.name)) for c in STEP_COLUMNS[:-1]]
    arrays.append(arrow.array(np.frombuffer(run.batches, dtype=np.uint64)))
    _write(path, arrays, STEP_COLUMNS, "steps")


def read_requests(path: Path) -> tuple[list[OfferedRecord], list[RequestRecord]]:
    """What :func:`write_requests` wrote.

    Raises:
        WorkloadError: the file is not there, is something else, or is of another version.
        ConfigError: pyarrow is not installed.
    """
    table = _read(path, REQUEST_COLUMNS, "requests")
    values: dict[str, Sequence[Any]] = {}
    for c in REQUEST_COLUMNS:
        if c.name not in table.column_names:
            continue  # its field has a default
        found = table.column(c.name)
        if c.kind == "times":
            values[c.name] = _time_arrays(found)
        elif c.kind == "slo":
            values[c.name] = [None if slo is None else SLO(**slo) for slo in found.to_pylist()]
        else:
            values[c.name] = found.to_pylist()
    offered = {field: values.pop(name) for name, field in OFFERED.items()}
    offers = _records(OfferedRecord, {"request_id": values["request_id"], **offered})
    return offers, _records(RequestRecord, values)


def read_steps(path: Path) -> tuple[StepRecords, array[int]]:
    """What :func:`write_steps` wrote: the steps, and the fingerprints of their batches.

    Raises:
        WorkloadError: the file is not there, is something else, or is of another version.
        ConfigError: pyarrow is not installed.
    """
    table = _read(path, STEP_COLUMNS, "steps")
    steps = StepRecords()
    zeros = np.zeros(len(table), dtype=np.int64)  # the default of fields that were added
    there = set(table.column_names)
    steps.extend_packed(np.stack([table.column(n).to_numpy() if n in there else zeros for n in FIELDS], axis=1))
    return steps, array("Q", table.column("batch").to_numpy().tobytes())


def _records(kind: Any, values: dict[str, Sequence[Any]]) -> list[Any]:
    names = tuple(values)
    return [kind(**dict(zip(names, row, strict=True))) for row in zip(*values.values(), strict=True)]


def _offers(records: Sequence[OfferedRecord], c: Column) -> Any:
    return need_arrow().array(map(attrgetter(OFFERED[c.name]), records), type=_type(c), size=len(records))


def _requests(records: Sequence[RequestRecord], c: Column) -> Any:
    arrow = need_arrow()
    values = map(attrgetter(c.name), records)
    if c.kind == "times":
        lists: list[array[int]] = list(values)
        ends = np.cumsum([0, *map(len, lists)])
        flat = np.frombuffer(b"".join(lists), dtype=np.int64)
        return arrow.LargeListArray.from_arrays(arrow.array(ends), arrow.array(flat)).cast(_type(c))
    if c.kind == "slo":
        slos = [None if slo is None else {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s} for slo in values]
        return arrow.array(slos, type=_type(c))
    return arrow.array(list(values), type=_type(c))


def _time_arrays(found: Any) -> list[array[int]]:
    arrays: list[array[int]] = []
    for chunk in found.chunks:
        flat = chunk.flatten().to_numpy().tobytes()
        offsets = chunk.offsets.to_numpy()
        ends = ((offsets - offsets[0]) * 8).tolist()
        arrays += [array("q", flat[a:b]) if b > a else NO_TIMES for a, b in pairwise(ends)]
    return arrays


def _type(c: Column) -> Any:
    arrow = need_arrow()
    if c.kind == "times":
        return arrow.large_list(arrow.field("element", arrow.int64(), nullable=False))
    if c.kind == "slo":
        return arrow.struct([("ttft_s", arrow.float64()), ("tpot_s", arrow.float64())])
    return {
        "string": arrow.string(),
        "int64": arrow.int64(),
        "uint64": arrow.uint64(),
        "double": arrow.float64(),
    }[c.kind]


def _write(path: Path, arrays: Sequence[Any], columns: Sequence[Column], holds: str) -> None:
    arrow = need_arrow()
    fields = [
        arrow.field(c.name, _type(c), c.nullable, metadata={"unit": c.unit, "description": c.doc}) for c in columns
    ]
    schema = arrow.schema(fields, metadata={_VERSION: str(SCHEMA_VERSION), _HOLDS: holds})
    deltas = {c.name: "DELTA_BINARY_PACKED" for c in columns if c.kind == "int64"}
    deltas |= {f"{c.name}.list.element": "DELTA_BINARY_PACKED" for c in columns if c.kind == "times"}
    arrow.parquet.write_table(
        arrow.Table.from_arrays(list(arrays), schema=schema),
        path,
        compression="zstd",
        use_dictionary=[c.name for c in columns if c.kind == "string" and c.name not in ("request_id", "prompt_hash")],
        column_encoding=deltas,
    )


def _read(path: Path, columns: Sequence[Column], holds: str) -> Any:
    arrow = need_arrow()
    try:
        table = arrow.parquet.read_table(path)
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from None
    except arrow.ArrowInvalid as error:
        raise WorkloadError(f"{path} is no Parquet file: {error}") from None
    metadata = table.schema.metadata or {}
    version = metadata.get(_VERSION, b"").decode()
    if version != str(SCHEMA_VERSION) or metadata.get(_HOLDS) != holds.encode():
        found = metadata.get(_HOLDS, b"something else").decode()
        raise WorkloadError(
            f"{path} has schema_version {version or 'none'} and holds {found}; this Batchwright reads {holds} of "
            f"version {SCHEMA_VERSION} there: read it with the release that wrote it, or run the experiment again"
        )
    missing = [c.name for c in columns if c.name not in table.column_names and not c.optional]
    if missing:
        raise WorkloadError(f"{path} has no column {', '.join(missing)}: run the experiment again")
    return table
