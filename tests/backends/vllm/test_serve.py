"""A live server of vLLM's under our policies, asked by OpenAI's client: nothing is lost. Minutes: make check-vllm."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")
pytest.importorskip("openai", reason="needs the client: pip install openai")

import openai  # pyright: ignore[reportMissingImports]

from backends.vllm.live import Server, additional, serving
from batchwright_backends.vllm.trusted import SECRET

if not os.environ.get("BATCHWRIGHT_REAL_VLLM"):
    pytest.skip("minutes long: make check-vllm", allow_module_level=True)

WHO = ("a fox", "a king", "two bears", "a girl", "an owl", "a cook", "a wolf", "the moon")
PROMPTS = [f"Once upon a time, long before anybody wrote a word of it down, there lived {who} who " for who in WHO]
STOPS: dict[str, Any] = {"stop": ["the"]}
PERSON = {
    "type": "object",
    "properties": {"mood": {"enum": ["merry", "sad"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["mood", "age"],
    "additionalProperties": False,
}
FORMATS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
    {},
    {"extra_body": {"structured_outputs": {"choice": ["Once", "Never again"]}}},
    {"extra_body": {"structured_outputs": {"regex": "[a-f]{20}"}}},
]
QUESTIONS = [(f"Who is it? {PROMPTS[i]}", FORMATS[i % 4]) for i in range(8)]
"""Every other is told which form the answer is to have."""
ADAPTERS = {
    "host": ("--scheduler-cls", "batchwright_backends.vllm.host.HostScheduler"),
    "guest": ("--scheduler-cls", "batchwright_backends.vllm.scheduler"),
}
"""Options that put our policy in. vLLM's default is to schedule asynchronously, but on CPU it never does."""

TWO, RANKS = "guest, two API servers", "host, two data-parallel ranks"
SERVERS = {
    **ADAPTERS,
    TWO: (*ADAPTERS["guest"], "--api-server-count", "2"),
    RANKS: (*ADAPTERS["host"], "--data-parallel-size", "2"),
}
"""Each data-parallel rank has an engine of its own, and vLLM starts as many API servers."""

on_all_servers = pytest.mark.parametrize("live", SERVERS, indirect=True, scope="module")

MIDDLEWARE = "batchwright_backends.vllm.middleware.TrustedFields"
TRUSTED = {
    "headers": {"client_id": "X-Client"},
    "api_keys": {f"sha256:{hashlib.sha256(b'sk-bob').hexdigest()}": {"client_id": "bob", "slo_class": "gold"}},
}

SAYS = [{"role": "user", "content": "Who lives there?"}]
LIES = {"vllm_xargs": {"batchwright_client_id": "mallory", "batchwright_slo_class": "gold"}}

MOODY = """
import time
from pathlib import Path
from batchwright import Policy, hookimpl

MOOD = Path(__file__).with_name("mood")


class Moody(Policy):
    fair_to_clients = True

    @hookimpl
    def admission(self, step):
        mood = MOOD.read_text()
        yield step.running
        if mood == "raises" or (mood == "raises at times" and step.index % 3 == 1):
            raise RuntimeError("on purpose")
        while mood == "hangs" and step.index % 4 == 1:
            time.sleep(0.001)
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                return
"""


@cache
def stock() -> tuple[list[str], list[str], list[str]]:
    """What vLLM's own scheduler answers: to all at once, where strings stop them, and in which forms."""
    with TemporaryDirectory() as folder, serving(Path(folder)) as server:
        return server.ask(PROMPTS), server.ask(PROMPTS[:3], **STOPS), server.chat(QUESTIONS)


class Live:
    """A server, and its policy's mood."""

    def __init__(self, server: Server, folder: Path, kind: str) -> None:
        self.server, self.kind, self.adapter = server, kind, kind.partition(",")[0]
        self._mood = folder / "mood"

    def feel(self, mood: str) -> None:
        self._mood.write_text(mood)


@pytest.fixture(scope="module", params=ADAPTERS)
def live(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    stock()  # one server at a time
    folder = tmp_path_factory.mktemp("server")
    (folder / "moody.py").write_text(MOODY)
    (folder / "mood").write_text("well")
    section = {"policy": f"{folder}/moody.py:Moody", "max_policy_ms": 100, "trusted": TRUSTED}
    options = (*SERVERS[request.param], *additional(section), "--middleware", MIDDLEWARE)
    with serving(folder, *options, env={SECRET: "nobody knows it, really"}) as server:
        yield Live(server, folder, request.param)


@pytest.fixture(autouse=True)
def _well(live: Live) -> Iterator[None]:
    live.feel("well")
    yield
    live.feel("well")
    live.server.check_empty()


@on_all_servers
def test_streams_to_many_at_once(live: Live) -> None:
    """Each gets what he gets from vLLM's own scheduler; the pool is too small for all, so that some are evicted."""
    before = live.server.total("num_preemptions_total")
    assert live.server.ask(PROMPTS) == stock()[0]
    assert live.server.ask([PROMPTS[0]], stream=True) == stock()[0][:1]
    assert live.server.total("num_preemptions_total") > before


def test_whoever_leaves_in_mid_stream_gives_back_all(live: Live) -> None:
    leave = (1, 4, 6)
    told = live.server.ask(PROMPTS, leave, max_tokens=60)
    for i, text in enumerate(told):
        if i not in leave:
            assert text.startswith(stock()[0][i])
        else:
            assert stock()[0][i].startswith(text)
    live.server.check_empty()


def test_strings_that_stop(live: Live) -> None:
    assert live.server.ask(PROMPTS[:3], **STOPS) == stock()[1]


@on_all_servers
def test_answers_have_the_form_that_was_asked_for(live: Live) -> None:
    """Beside others that were asked for none, while some are evicted, and as with vLLM's own scheduler."""
    before = live.server.total("num_preemptions_total")
    told = live.server.chat(QUESTIONS)
    assert told == stock()[2]
    assert live.server.total("num_preemptions_total") > before
    for person, _, choice, letters in (told[:4], told[4:]):
        assert set(json.loads(person)) == {"mood", "age"} and choice in ("Once", "Never again")
        assert re.fullmatch("[a-f]{20}", letters)


def test_a_form_that_cannot_be_is_refused(live: Live) -> None:
    """By vLLM's server, and the next is answered."""
    for wrong in ({"regex": "(("}, {"grammar": "nothing like it"}):
        with pytest.raises(openai.BadRequestError):
            live.server.chat([("Who is it?", {"extra_body": {"structured_outputs": wrong}})])
    assert live.server.chat(QUESTIONS[:1]) == stock()[2][:1]


@pytest.mark.parametrize("mood", ["raises at times", "raises", "hangs"])
def test_a_policy_that_fails_loses_nothing(live: Live, mood: str) -> None:
    cause = "late" if mood == "hangs" else "raised"
    before = live.server.total("batchwright_fallbacks_total", cause=cause)
    live.feel(mood)
    assert live.server.ask(PROMPTS) == stock()[0]
    live.server.check_empty()
    assert live.server.total("batchwright_fallbacks_total", cause=cause) > before + 3


@on_all_servers
def test_series_tell_what_happens(live: Live) -> None:
    """As vLLM's own, where those tell the same."""
    server = live.server

    def now() -> dict[str, float]:
        server.check_empty()
        ours = {
            "tokens": server.total("batchwright_service_tokens_total", kind="output"),
            "preemptions": server.total("batchwright_preemptions_total"),
            "first tokens": server.total("batchwright_time_to_first_token_seconds_count"),
            "admissions": server.total("batchwright_queue_time_seconds_count"),
            "policy": server.total("batchwright_policy_seconds_total"),
        }
        return {**ours, **{name: server.total(f"{name}_total") for name in ("generation_tokens", "num_preemptions")}}

    before = now()
    server.ask(PROMPTS, (3,))
    after = {name: value - before[name] for name, value in now().items()}
    assert after["first tokens"] == after["admissions"] == len(PROMPTS)
    assert after["tokens"] == after["generation_tokens"] > 200
    assert after["preemptions"] == after["num_preemptions"] > 0
    assert 0 < after["policy"] < 30
    assert server.total("batchwright_time_to_first_token_seconds_sum") > 0
    [said] = [said for said, value in server.series("batchwright_policy_info", adapter=live.adapter).items() if value]
    assert said.endswith("policy=Moody") and said.startswith("parameters=")


@on_all_servers
def test_whose_requests_they_are_is_not_for_bodies_to_say(live: Live) -> None:
    server, series = live.server, "batchwright_service_tokens_total"

    def served() -> dict[str, float]:
        server.check_empty()
        return server.series(series, kind="output")

    before, golden = served(), server.total("batchwright_queue_time_seconds_count", **{"class": "gold"})
    said = [
        server.ask(PROMPTS[:1], extra_body=LIES),
        server.ask(PROMPTS[1:2], extra_body=LIES, extra_headers={"X-Client": "alice"}),
        server.ask(PROMPTS[2:3], extra_body=LIES, api_key="sk-bob"),
    ]
    assert [texts[0] for texts in said] == stock()[0][:3]
    new = {client: num - before.get(client, 0) for client, num in served().items()}
    assert set(new) == {"client=", "client=alice", "client=bob"} and all(num > 5 for num in new.values())
    assert server.total("batchwright_queue_time_seconds_count", **{"class": "gold"}) == golden + 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAYS, "max_tokens": 5}),
        ("/v1/responses", {"input": "Who lives there?", "max_output_tokens": 5}),
        ("/v1/messages", {"messages": SAYS, "max_tokens": 5}),
    ],
)
def test_other_ways_in_are_filled_in_too(live: Live, path: str, body: dict[str, Any]) -> None:
    live.server.post(path, {"model": "m", **LIES, **body}, **{"X-Client": path})
    live.server.check_empty()
    served = live.server.series("batchwright_service_tokens_total", kind="output")
    assert served[f"client={path}"] > 0 and "client=mallory" not in served


@on_all_servers
def test_all_processes_take_part_and_ranks_say_what_they_are(live: Live) -> None:
    """All API servers are there, and each rank serves; that a policy is fair within a rank only stands in the log."""
    server, ranks = live.server, ("0", "1") if live.kind == RANKS else ("0",)
    server.ask(PROMPTS)
    server.check_empty()
    for rank in ranks:
        assert server.total("batchwright_service_tokens_total", engine=rank) > 0
    said = "policy Moody is fair within each data-parallel rank and not among them" in server.log
    assert said == (live.kind == RANKS)
    servers = set(re.findall(r"^\((ApiServer_\d+) pid=", server.log, re.MULTILINE))
    assert len(servers) == (2 if "two" in live.kind else 0)
