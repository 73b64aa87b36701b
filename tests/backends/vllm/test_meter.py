"""What is told of a policy for series on vLLM's /metrics; vLLM is not needed for it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from batchwright import Policy, SamplingParams
from batchwright.active_policy import ActivePolicy
from batchwright.request import Request
from batchwright.scheduler import Scheduler
from batchwright_backends.vllm.carrier import FIELD, put, take
from batchwright_backends.vllm.meter import Meter
from batchwright_backends.vllm.top_clients import OTHER, TopClients


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Metered:
    """A scheduler with a meter; a step takes half a second."""

    def __init__(self, num_blocks: int = 100, most_clients: int = 2, age_s: float = 0.0) -> None:
        self.clock = Clock()
        self.fallbacks: dict[str, int] = {}
        self.policy = ActivePolicy.of(Policy(), "mine")
        self.meter = Meter(
            "host",
            policy=lambda: self.policy,
            num_fallbacks=lambda: self.fallbacks,
            policy_ns=lambda: round(self.clock.now * 1e8),
            most_clients=most_clients,
            clock_s=self.clock,
            age_s=lambda request: age_s,
        )
        self.core = Scheduler("vllm_v1", num_blocks=num_blocks, block_size=4, plugins=[self.meter])

    def add(
        self, name: str, client: str | None = None, kind: str | None = None, prompt: int = 6, most: int = 4
    ) -> None:
        extra = {} if kind is None else {"slo_class": kind}
        params = SamplingParams(max_tokens=most)
        self.core.add(Request(name, [1] * prompt, params, client_id=client, extra=extra))

    def step(self) -> dict[str, Any]:
        batch = self.core.schedule()
        self.clock.now += 0.5
        self.core.update(batch, [7] * int(batch.samples.sum()))
        stats = SimpleNamespace(**{FIELD: {}})
        self.meter.tell(stats)
        told = take(stats)
        assert not getattr(stats, FIELD) and len(told) <= 1
        return json.loads(told[0]) if told else {}

    def run(self) -> dict[str, Any]:
        """All that is told until nobody is left, put together."""
        whole: dict[str, Any] = {"served": {}, "ttft": [], "queue": [], "preemptions": 0, "policy_ns": 0}
        while self.core.has_unfinished():
            told = self.step()
            for client, kind, num in told.pop("served", ()):
                whole["served"][client, kind] = whole["served"].get((client, kind), 0) + num
            for name, value in told.items():
                whole[name] = whole[name] + value if name in whole else value
        return whole


def test_times_and_service_are_told() -> None:
    run = Metered()
    run.add("a", "alice", "gold", prompt=6, most=4)
    run.add("b", None, None, prompt=5, most=2)
    told = run.run()
    assert told["served"] == {
        ("alice", "prompt"): 6,
        ("alice", "output"): 4,
        ("", "prompt"): 5,
        ("", "output"): 2,
    }
    assert told["ttft"] == [["gold", 0.5], ["", 0.5]] and told["queue"] == [["gold", 0.0], ["", 0.0]]
    assert told["policy"] == {"adapter": "host", "policy": "mine", "parameters": '{"use": "mine"}'}
    assert told["policy_ns"] == round(run.clock.now * 1e8)


def test_who_came_before_policies_hear_of_it_has_waited_since() -> None:
    run = Metered(age_s=3.0)
    run.add("a", "alice", "gold")
    told = run.run()
    assert told["ttft"] == [["gold", 3.5]] and told["queue"] == [["gold", 3.0]]


def test_prompt_tokens_that_were_cached_are_no_service() -> None:
    run = Metered()
    run.add("a", "alice", prompt=12)
    run.run()
    run.add("b", "bob", prompt=12)
    assert run.run()["served"]["bob", "prompt"] == 4


def test_recomputed_tokens_count_once_and_evictions_are_counted() -> None:
    run = Metered(num_blocks=8)
    for name in "abc":
        run.add(name, name, prompt=6, most=16)
    told = run.run()
    assert told["preemptions"] > 0
    output = {key[0]: num for key, num in told["served"].items() if key[1] == "output"}
    assert sum(output.values()) == 48 and len(told["ttft"]) == len(told["queue"]) == 3


def test_who_leaves_is_counted_until_then() -> None:
    run = Metered()
    run.add("a", "alice", most=50)
    run.add("b", "bob", most=50)
    first = run.step()
    run.core.abort("a")
    run.step()
    run.core.abort("b")
    run.add("c", most=1)
    served = run.run()["served"]
    assert first["served"] == [
        ["alice", "prompt", 6],
        ["alice", "output", 1],
        ["bob", "prompt", 6],
        ["bob", "output", 1],
    ]
    assert served == {("bob", "output"): 1, ("", "prompt"): 2, ("", "output"): 1}
    assert not run.meter._here and not run.meter._begun and not run.meter._awaited


def test_only_what_is_new_is_told() -> None:
    run = Metered()
    run.fallbacks = {"raised": 2}
    run.add("a", most=100)
    assert run.step()["fallbacks"] == {"raised": 2}
    run.fallbacks = {"raised": 5, "late": 1}
    assert "fallbacks" not in run.step()  # decodes go on: service is told once a second
    told = run.step()
    assert told["fallbacks"] == {"raised": 3, "late": 1} and told["served"] == [["", "output", 2]]
    assert "policy" not in told
    run.policy = ActivePolicy.of(Policy(), "another")
    assert "policy" not in run.step()
    assert run.step()["policy"]["policy"] == "another"


def test_classes_are_bounded() -> None:
    run = Metered(most_clients=2)
    for i in range(5):
        run.add(str(i), kind=f"class {i}", most=1)
    assert [kind for kind, _ in run.run()["ttft"]] == ["class 0", "class 1", OTHER, OTHER, OTHER]


def test_the_names_of_clients_are_bounded_whoever_makes_them_up() -> None:
    top = TopClients(3)
    named = {top.label(f"c{i}", 1) for i in range(10_000)}
    assert named == {"c0", "c1", "c2", OTHER}
    assert top.label(None, 5) == ""


def test_who_gets_most_service_takes_a_place() -> None:
    top = TopClients(2)
    for client, num in (("a", 100), ("b", 10), ("c", 21), ("d", 5)):
        top.label(client, num)
    assert top.settle(30.0) == []
    assert top.settle(60.0) == ["b"]
    assert [top.label(c, 0) for c in "abcd"] == ["a", OTHER, "c", OTHER]
    for _ in range(20):
        top.settle(1e9 * (_ + 1))
    assert not top._lately  # nobody is remembered for ever


def test_one_that_is_closed_holds_nobody_and_counts_no_more() -> None:
    """Its series have failed; requests come and go all the same."""
    run = Metered()
    run.add("a", most=6)
    run.add("b", most=2)
    run.step()
    run.meter.close()
    run.add("c")
    for _ in range(12):
        run.core.update(batch := run.core.schedule(), [7] * int(batch.samples.sum()))
    assert not run.core.has_unfinished() and run.core.num_observer_faults == 0
    held = [one for those in vars(run.meter).values() if isinstance(those, dict | list) for one in those]
    assert not held, held


def test_what_is_carried_leaves_nothing_behind() -> None:
    stats = SimpleNamespace(**{FIELD: {"an adapter": 3}})
    put(stats, "hello")
    assert take(stats) == ["hello"]
    assert getattr(stats, FIELD) == {"an adapter": 3} and take(stats) == []
