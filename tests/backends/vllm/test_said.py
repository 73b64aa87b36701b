"""What a request says for policies, whoever wrote it: what cannot be is that request's affair, and nobody else's."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.errors import InvalidRequestError
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright_backends.vllm import measuring
from batchwright_backends.vllm.lab import drive
from batchwright_backends.vllm.settings import HostSettings
from batchwright_backends.vllm.stamps import Stamps
from batchwright_backends.vllm.trusted import STAMP, check_said

STAMPS = Stamps(b"nobody knows it, really", lambda: 7.0)  # a stamp made here holds whenever the test runs
WRONG = [
    ("client_id", ["a"]),
    ("client_id", 5),
    ("client_id", ""),
    ("slo_class", ["x"]),
    ("session_id", 5),
    ("program_id", {}),
    ("weight", 0),
    ("weight", math.inf),
    ("priority", "urgent"),
    ("deadline_s", "soon"),
    ("deadline_s", math.nan),
    ("deadline_s", -1.0),
    ("predicted_output_tokens", -1),
    ("predicted_output_tokens", 1.5),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_field_that_cannot_be_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"request 'r7': batchwright_{name}: "):
        check_said("r7", {"client_id": "a", name: value})


def test_an_unknown_field_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidRequestError, match=r"batchwright_dedline_s is nothing that policies go by.*deadline_s"):
        check_said("r7", {"dedline_s": 3})


def test_numbers_come_as_they_are_meant() -> None:
    """Headers are strings."""
    said = check_said("r", {"weight": "2", "priority": "-3", "deadline_s": "0.5"})
    assert said == {"weight": 2.0, "priority": -3, "deadline_s": 0.5}


def test_series_that_fail_end_and_vllm_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy of somebody's may fail to describe itself, say."""
    monkeypatch.setattr(measuring, "is_taken", lambda: True)

    def policy() -> Any:
        raise ValueError("no description")

    stats = object()
    scheduler = SimpleNamespace(num_fallbacks={}, policy_ns=0, make_stats=lambda: stats)
    meters: list[Any] = []
    measuring.measure(
        scheduler,
        "host",
        HostSettings(),
        log_stats=True,
        register=lambda meter, name: meters.append(meter),
        policy=policy,
    )
    core = Scheduler("vllm_v1", num_blocks=100, block_size=4, plugins=meters)
    with caplog.at_level(logging.ERROR, "vllm.batchwright"):
        assert scheduler.make_stats() is stats and scheduler.make_stats() is stats
    assert caplog.text.count("vLLM goes on without them") == 1
    for i in range(20):
        core.add(Request(str(i), [1] * 6, SamplingParams(max_tokens=2), client_id="a"))
    while core.has_unfinished():
        batch = core.schedule()
        core.update(batch, [7] * int(batch.samples.sum()))
    kept = [value for value in vars(meters[0]).values() if isinstance(value, list | dict)]
    assert kept and not any(kept), "what nobody takes is kept"


def test_what_the_lab_offers_can_be_said() -> None:
    """Whatever a workload may say of a request, policies in vLLM can be told."""
    request = Request(
        "r", [1], SamplingParams(), arrival_ns=3, client_id="", deadline_s=3e-9, predicted_output_tokens=0, weight=0.5
    )
    fields = {name.removeprefix("batchwright_"): value for name, value in drive.said(request).items()}
    assert check_said("r", fields) == {"deadline_s": 0.0, "predicted_output_tokens": 0, "weight": 0.5, "priority": 0}


def translated(stamps: Stamps | None, *, trusted: bool, **extra: Any) -> Any:
    pytest.importorskip("vllm")
    from batchwright_backends.vllm.translation import translate

    params = SimpleNamespace(stop_token_ids=(), eos_token_id=None, max_tokens=4, extra_args=extra)
    theirs = SimpleNamespace(
        request_id="r", prompt_token_ids=[1, 2], sampling_params=params, priority=-9, session_id=None
    )
    return translate(theirs, 10**9, trusted=trusted, stamps=stamps)


@pytest.mark.parametrize(
    ("stamps", "trusted", "extra", "priority"),
    [
        (None, False, {}, -9),
        (STAMPS, False, {}, 0),
        (STAMPS, False, {"batchwright_priority": -9}, 0),
        (STAMPS, False, {"batchwright_priority": 3, STAMP: STAMPS.make({"priority": 3})}, 3),
        (STAMPS, True, {}, -9),
    ],
)
def test_a_priority_past_the_middleware_says_nothing(
    stamps: Stamps | None, trusted: bool, extra: dict[str, Any], priority: int
) -> None:
    """Not all of vLLM's ways in have the body in a form that the middleware knows."""
    assert translated(stamps, trusted=trusted, **extra).priority == priority


def test_a_deadline_counts_from_the_arrival() -> None:
    assert translated(None, trusted=True, batchwright_deadline_s=2).deadline_s == 3.0


def load(kind: str, folder: Any, extra: dict[str, Any], policy: str) -> Any:
    """Three requests under one adapter, the second of which says something; recorded."""
    pytest.importorskip("vllm")
    import peers_vllm  # pyright: ignore[reportMissingImports]
    from backends.vllm.runs import Run
    from batchwright_backends.vllm.choosing import choose_scheduler

    base: Any = {"host": peers_vllm.HostOfVllm, "guest": peers_vllm.GuestOfVllm}[kind]
    section = {"policy": policy, "trust_requests": True, "record": str(folder)}
    body: dict[str, Any] = {"additional_config": {"batchwright": section}}
    if kind == "guest":
        body["_class"] = lambda self: choose_scheduler
    run = Run(type("Peer", (base,), body)(64, 16, 8, 64))
    run.add("a", range(10), 4)
    run.add("b", range(20), 4, extra_args=extra)
    run.add("c", range(9), 4)
    run.finish()
    run.core.shutdown()
    return run


@pytest.mark.parametrize(("name", "value"), [("client_id", ["a"]), ("deadline_s", "soon"), ("session_id", 5)])
@pytest.mark.parametrize(("kind", "policy"), [("host", "vtc"), ("guest", "vtc"), ("guest", "observe")])
def test_what_one_request_says_harms_no_other(kind: str, policy: str, name: str, value: Any, tmp_path: Any) -> None:
    """The host refuses that request, a guest does not hear it; the others are served, and recorded."""
    from batchwright.lab.readers.recording import RecordedTraffic

    load(kind, tmp_path, {f"batchwright_{name}": value}, policy)
    found = [request.status for _, _, request in RecordedTraffic(tmp_path).requests()]
    assert sorted(found) == sorted(["finished", "finished", "refused" if kind == "host" else "finished"])
