"""The record of one run."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchwright.errors import WorkloadError
from batchwright.lab.records import OfferedRecord, RequestRecord, StepRecord
from batchwright.lab.step_records import StepRecords
from batchwright.lab.window import Window
from batchwright.predictor import NO_PREDICTIONS
from batchwright.version import RECORD_VERSION

if TYPE_CHECKING:
    from batchwright.engine import Engine


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The sizes a run had, as they came out of config, policy and backend.

    Attributes:
        max_num_seqs, max_num_batched_tokens, max_num_residents, max_model_len: as in ``batchwright.limits.Limits``.
        num_blocks, block_size: the KV pool.

    Those of an endpoint are its server's, and 0 where that does not say them.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_residents: int | None
    max_model_len: int | None
    num_blocks: int
    block_size: int

    @classmethod
    def of(cls, engine: Engine) -> RunLimits:
        """Those of an engine."""
        limits, capacity = engine.limits, engine.capacity
        return cls(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_residents=limits.max_num_residents,
            max_model_len=limits.max_model_len,
            num_blocks=capacity.num_blocks,
            block_size=capacity.block_size,
        )


@dataclass(slots=True)
class RunRecord:
    """One arm of an experiment: what was offered, under which settings, and what came out.

    Attributes:
        arm: its name in tables.
        policy, backend: names, as a user would write them.
        settings: the engine's effective settings, nested by section.
        limits: the sizes in effect.
        workload: name, source, hash, speedup and number of requests of the workload.
        declared_max_tokens: the rule for declared limits, in words.
        predictions: where predicted output lengths come from, in words; an oracle is called one.
        virtual_time: whether the clock was a simulator's.
        offered: what was asked, in order of arrival.
        requests: what became of each, in the same order.
        steps: every step; none of an endpoint.
        batches: a 64-bit fingerprint of each step's batch (which requests, and how many tokens of each),
            equal in different runs of one workload where the batches are.
        events: what detectors reported, as they came.
        notes: what the backend says a reader should know, in sentences.
        duration_ns: from the start of the run to its end.
        stopped: None when it ran to its end; else ``interrupted``, ``max_steps``, ``max_seconds`` or ``server_lost``
            (an endpoint answered no more).
        version: of the schema.
        seed: of what was drawn for the run: prompts, noise, arrivals. Runs of one seed are paired.
        given: names of the settings that somebody gave; None: not known. The others follow from these.
        window: which requests count, where some are left out as warm-up or cool-down.
        num_leapt: steps that a simulator took several at once; the other fields are the same without it, so it is not
            in files, and equal records may differ in it.
    """

    arm: str
    policy: str
    backend: str
    settings: dict[str, Any]
    limits: RunLimits
    workload: dict[str, Any]
    declared_max_tokens: str
    virtual_time: bool
    offered: list[OfferedRecord]
    requests: list[RequestRecord]
    steps: Sequence[StepRecord]
    batches: array[int]
    events: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    predictions: str = NO_PREDICTIONS
    duration_ns: int = 0
    stopped: str | None = None
    seed: int = 0
    given: list[str] | None = None
    window: Window | None = None
    version: int = RECORD_VERSION
    num_leapt: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.window is not None:
            self.window = Window(*self.window)  # files hold a list

    @property
    def num_replicas(self) -> int:
        """Replicas of the fleet that ran it; 1 where there was none."""
        return int(self.settings.get("replicas", 1))

    @property
    def is_endpoint(self) -> bool:
        """Whether a server elsewhere ran it: its steps, queue and blocks are then not known, and there are no steps."""
        return "endpoint" in self.settings

    @property
    def duration_s(self) -> float:
        """Length of the run in seconds."""
        return self.duration_ns / 1e9

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; :meth:`from_json` reads it back to an equal record."""
        return {
            "record_version": self.version,
            "arm": self.arm,
            "policy": self.policy,
            "backend": self.backend,
            "workload": self.workload,
            "declared_max_tokens": self.declared_max_tokens,
            "predictions": self.predictions,
            "virtual_time": self.virtual_time,
            "duration_s": self.duration_s,
            "stopped": self.stopped,
            "seed": self.seed,
            "window": None if self.window is None else list(self.window),
            "limits": {name: getattr(self.limits, name) for name in RunLimits.__slots__},
            "settings": self.settings,
            "given": self.given,
            "events": self.events,
            "notes": self.notes,
            "offered": [o.to_json() for o in self.offered],
            "requests": [r.to_json() for r in self.requests],
            "steps": [s.to_json() for s in self.steps],
            "batches": [f"{b:016x}" for b in self.batches],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRecord:
        """From the object that ``to_json`` gave.

        Raises:
            WorkloadError: it is not a run record, or of another schema version.
        """
        version = value.get("record_version")
        if version != RECORD_VERSION:
            raise WorkloadError(
                f"record_version is {version!r}; this Batchwright reads {RECORD_VERSION}: read the file with the "
                "release that wrote it, or run the experiment again"
            )
        try:
            return cls(
                arm=value["arm"],
                policy=value["policy"],
                backend=value["backend"],
                settings=dict(value["settings"]),
                limits=RunLimits(**value["limits"]),
                workload=dict(value["workload"]),
                declared_max_tokens=value["declared_max_tokens"],
                predictions=value.get("predictions", NO_PREDICTIONS),  # records of before there were any have no word
                virtual_time=value["virtual_time"],
                offered=_all(OfferedRecord, value["offered"]),
                requests=_all(RequestRecord, value["requests"]),
                steps=StepRecords(map(StepRecord.from_json, value["steps"])),
                batches=array("Q", [int(b, 16) for b in value["batches"]]),
                events=list(value["events"]),
                notes=list(value["notes"]),
                duration_ns=round(value["duration_s"] * 1e9),
                stopped=value["stopped"],
                seed=value.get("seed", 0),  # as of predictions
                given=value.get("given"),
                window=value.get("window"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise WorkloadError(f"not a run record of version {RECORD_VERSION}: {error!r}") from None

    def dumps(self) -> str:
        """The record as one JSON text; equal records give equal bytes."""
        return json.dumps(self.to_json(), allow_nan=False)


def _all(kind: Any, values: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [kind.from_json(v) for v in values]
