"""What an experiment is: its design, arms, workload and options, as ``experiment.json`` holds them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab.files.keys import fingerprint
from batchwright.lab.workload import Workload


@dataclass(frozen=True)
class Manifest:
    """What an experiment is.

    Attributes:
        design: ``run``, ``ab``, ``sweep``, …
        arms: name to config, as plain data; the first is what others are compared with. What was left unset is not in
            it: policies have defaults of their own for that, so it is not the same as the config's default.
        workload: name, source, hash, speedup and number of requests.
        runs: labels of all its runs, in order.
        seeds: of the runs.
        options: how runs are made.
        details: what the design has beside, such as the axes of a sweep.
        command: what was typed; empty: it was started from Python.
    """

    design: str
    arms: Mapping[str, Mapping[str, Any]]
    workload: Mapping[str, Any]
    runs: Sequence[str]
    seeds: Sequence[int] = (0,)
    options: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()

    @classmethod
    def of(cls, design: str, configs: Mapping[str, EngineConfig], workload: Workload, **values: Any) -> Manifest:
        """From configs and a workload as they are given to an executor; ``values`` are the other attributes."""
        about = {
            "name": workload.name,
            "source": workload.source,
            "hash": workload.hash,
            "speedup": workload.speedup,
            "num_requests": len(workload),
        }
        return cls(
            design,
            {arm: config.model_dump(mode="json", exclude_unset=True) for arm, config in configs.items()},
            about,
            **values,
        )

    @property
    def key(self) -> str:
        """16 hex digits of all but the command: equal in two experiments that would give the same runs."""
        values = {name: value for name, value in asdict(self).items() if name != "command"}
        values["workload"] = self.workload.get("hash")
        for name in ("options", "details"):  # what came later is None in an experiment that has no use for it
            values[name] = {key: value for key, value in values[name].items() if value is not None}
        return fingerprint(values)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; :meth:`from_json` reads it back."""
        return {"key": self.key, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """From the object that ``to_json`` gave.

        Raises:
            WorkloadError: it is something else.
        """
        try:
            return cls(**{name: value[name] for name in cls.__dataclass_fields__})
        except (KeyError, TypeError) as error:
            raise WorkloadError(f"not what an experiment is described by: {error!r}") from None


def run_labels(parts: Iterable[Sequence[str]]) -> list[str]:
    """Names for the folders of runs: readable, and each its own.

    Args:
        parts: of each run what tells it apart, in words: arm, point of a sweep, ``seed 3``.

    Returns:
        The parts joined by ``-``, with ``_`` for what a file name should not hold; of equal ones the later have a
        number behind them.
    """
    labels: list[str] = []
    seen: Counter[str] = Counter()
    for words in parts:
        label = "-".join(re.sub(r"[^\w.=,+-]+", "_", word).strip("_") for word in words).lstrip(".") or "run"
        seen[label.lower()] += 1  # some file systems do not tell a from A
        labels.append(label if seen[label.lower()] == 1 else f"{label}~{seen[label.lower()]}")
    return labels
