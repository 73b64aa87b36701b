"""Whatever a policy does: each request has one reason, it agrees with what happened, and watching changes nothing."""

from __future__ import annotations

import random
from collections import Counter

from batchwright.trace.reason import KINDS
from see.drive import random_policy, runs


def test_random_policies() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        rng = random.Random(seed)
        make = random_policy(rng, rng.choice([0.0, 0.0, 0.05]))
        plain, watched = runs(seed, make, 60, on_policy_error=rng.choice(["raise", "fallback"]))
        assert watched.decided == plain.decided
        assert watched.scheduler.policy.slots["admission"].log == plain.scheduler.policy.slots["admission"].log
        seen += watched.seen
        seen.update(step.how for step in watched.traced)
    assert set(KINDS) - set(seen) == {"withheld"}, "the runs never came to some reason"
    assert seen["fallback"] and seen["policy"]
