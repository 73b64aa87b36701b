"""What a check found, in sentences."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "skipped", "unreached", "expected", "unexpected"]
"""``skipped``: it is not about this policy; ``unreached``: a fault of another check ended all its runs; ``expected``:
it failed, as ``expected_failures`` says; ``unexpected``: it passed, though it was to fail."""


class ConformanceError(AssertionError):
    """A policy does not keep what it must; the message says what was expected, what it did, and how to see it again."""


class Failed(Exception):
    """The verdict of a check; it never leaves the kit.

    Attributes:
        sentence: what was expected and what the policy did.
        where: scenario and step; empty where there is none.
    """

    def __init__(self, sentence: str, scenario: str | None = None, step: int | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.where = ""
        if scenario is not None:
            self.where = f"scenario {scenario}" + (f", step {step}" if step is not None else "")


class Skipped(Exception):
    """The verdict of a check that has nothing to hold the policy to; its message says why."""


class Unreached(Exception):
    """The verdict of a check that could not be made, for what another check is about; its message says for what."""


@dataclass(frozen=True)
class Outcome:
    """What came of one check.

    Attributes:
        name: of the check.
        status: what came of it.
        detail: what was expected and what the policy did, or why it was not checked; empty when it passed.
        where: scenario and step.
        reason: from ``expected_failures``.
        again: how to run this check alone.
    """

    name: str
    status: Status
    detail: str = ""
    where: str = ""
    reason: str = ""
    again: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it makes the whole fail."""
        return self.status in ("failed", "unexpected")

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        if self.status == "failed":
            return f"{self.name}: {self.detail}{where}. Again: {self.again}"
        if self.status == "unexpected":
            return f"{self.name}: it passes, and expected_failures says it fails ({self.reason}); take it out there"
        if self.status == "expected":
            return f"{self.name}: fails as expected ({self.reason}): {self.detail}{where}"
        said = "not reached" if self.status == "unreached" else self.status
        return f"{self.name}: {said}" + (f", {self.detail}" if self.detail else "")

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {k: v for k, v in vars(self).items() if v or k in ("name", "status")}


@dataclass(frozen=True)
class Report:
    """What came of all checks of a policy.

    Attributes:
        policy: how it was named.
        seed: of the generated states.
        outcomes: one for each check, in the order of running.
    """

    policy: str
    seed: int
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and every check could be made; but for what was expected."""
        return not any(o.is_bad or (o.status == "unreached" and not o.reason) for o in self.outcomes)

    def summary(self) -> str:
        """One line: how many passed, failed and were skipped."""
        words = {"failed": "failed", "unexpected": "passed unexpectedly", "expected": "failed as expected"}
        words |= {"unreached": "not reached", "skipped": "skipped"}
        counts = {status: sum(o.status == status for o in self.outcomes) for status in ("passed", *words)}
        rest = [f"{counts[status]} {said}" for status, said in words.items() if counts[status]]
        parts = [f"{counts['passed']} of {len(self.outcomes)} checks passed", *rest]
        return f"{self.policy}, seed {self.seed}: {', '.join(parts)}"

    def __str__(self) -> str:
        said = [str(o) for o in self.outcomes if o.status not in ("passed", "unreached")]
        together: dict[str, list[str]] = {}  # one fault keeps many checks from being made
        for outcome in self.outcomes:
            if outcome.status == "unreached":
                together.setdefault(outcome.detail, []).append(outcome.name)
        said += [f"{', '.join(names)}: not reached, {detail}" for detail, names in together.items()]
        return "\n".join([self.summary(), *said])

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        checks = [o.to_json() for o in self.outcomes]
        return {"policy": self.policy, "seed": self.seed, "ok": self.ok, "checks": checks}


def again(spec: str | None, label: str, check: str, seed: int) -> str:
    """How to run one check alone: a command where the policy has a name, else a call."""
    if spec is not None:
        return f"batchwright check {shlex.quote(spec)} --only {check} --seed {seed}"
    return f"check_policy(…, checks=[{check!r}], seed={seed}), with the {label} that was checked"
