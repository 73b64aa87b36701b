"""The parts of the endpoint arm, without a server."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.backend import VirtualClock
from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import Recorder, Workload, WorkloadRow, offers
from batchwright.lab.endpoint.address import Address, is_endpoint
from batchwright.lab.endpoint.answer import Answer
from batchwright.lab.endpoint.asks import begin_record
from batchwright.lab.endpoint.client import said
from batchwright.lab.endpoint.events import EventParser
from batchwright.lab.endpoint.options import EndpointOptions, parse_headers
from batchwright.lab.endpoint.prometheus import describe, others_there, parse_counters
from batchwright.lab.endpoint.run import check_config
from batchwright.lab.endpoint.words import WORDS, as_text
from batchwright.request import SLO

# Addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url", "model"),
    [
        ("http://host:8000/v1#some/model:tag", "http://host:8000/v1", "some/model:tag"),
        ("http://host:8000", "http://host:8000/v1", None),
        ("https://host/", "https://host/v1", None),
        ("http://host:8000/v1/", "http://host:8000/v1", None),
        ("http://host/v1/chat/completions#m", "http://host/v1", "m"),
        ("http://host/api/openai#m", "http://host/api/openai", "m"),
        ("http://[::1]:9/v1", "http://[::1]:9/v1", None),
        ("HTTP://Host:1/v1#", "http://host:1/v1", None),
    ],
)
def test_an_address(text: str, url: str, model: str | None) -> None:
    assert is_endpoint(text)
    address = Address.parse(text)
    assert (address.url, address.model) == (url, model)
    assert str(address) == (f"{url}#{model}" if model else url)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://", "there is no host"),
        ("http:///v1", "there is no host"),
        ("http://host:port/v1", "http://HOST:PORT/v1#MODEL"),
        ("http://host:99999/v1", "http://HOST:PORT/v1#MODEL"),
        ("http://host/v1?key=1", "no '?'"),
        ("http://me:secret@host/v1", "backend_options.api_key_env"),
    ],
)
def test_what_is_no_address(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="endpoint") as error:
        Address.parse(text)
    assert words in str(error.value)
    assert "secret" not in str(error.value)


def test_other_backends_are_no_endpoints() -> None:
    assert not any(map(is_endpoint, ("sim:llama-3.1-8b@h100", "cpu:http", "https", "")))


# Options --------------------------------------------------------------------------------------------------------


def test_secrets_come_from_the_environment_and_stay_out_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    monkeypatch.setenv("OPENAI_API_KEY", "k3y")
    options = EndpointOptions.parse({"headers": parse_headers(["X-Key: a-$MY_KEY-${MY_KEY}", "X-Other:plain"])})
    assert options.sent_headers() == {
        "Authorization": "Bearer k3y",
        "X-Key": "a-s3cret-s3cret",
        "X-Other": "plain",
    }
    assert options.shown()["headers"] == ["X-Key", "X-Other"]
    assert "s3cret" not in repr(options) + json.dumps(options.shown())


def test_no_key_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert EndpointOptions().sent_headers() == {}
    monkeypatch.setenv("HERE", "x")
    assert EndpointOptions(api_key_env="HERE").sent_headers() == {"Authorization": "Bearer x"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"timeout": 3}, "did you mean 'timeout_s'?"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"vocab_size": 1}, "vocab_size is 1"),
        ({"api": "responses"}, "api is 'responses'"),
        ({"headers": {"X Y": "z"}}, "'X Y' cannot be the name of a header"),
        ({"client_header": "X:"}, "'X:' cannot be the name of a header"),
    ],
)
def test_wrong_options(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        EndpointOptions.parse(values)
    assert words in str(error.value)


def test_headers_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"X-Key takes its value from \$NOT_THERE"):
        EndpointOptions(headers={"X-Key": "$NOT_THERE"}).sent_headers()
    monkeypatch.setenv("TWO_LINES", "a\r\nHost: evil")
    with pytest.raises(ConfigError, match="X-Key"):
        EndpointOptions(headers={"X-Key": "$TWO_LINES"}).sent_headers()
    for text in ("X-Key", "a b: c", ": c"):
        with pytest.raises(ConfigError, match="Name: value"):
            parse_headers([text])


def test_settings_of_engines_are_refused() -> None:
    config = EngineConfig(backend="http://host:1", max_num_seqs=8, policy="vtc")
    with pytest.raises(ConfigError, match="max_num_seqs, policy: http://host:1/v1 is an endpoint"):
        check_config(config)


# Streams --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary().filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=5), st.data())
def test_events_however_they_are_cut(texts: list[bytes], data: st.DataObject) -> None:
    ends = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    stream = b": ping" + ends + ends
    stream += b"".join(b"id: 7" + ends + b"data: " + text + ends + ends for text in texts)
    parser, found, place = EventParser(), list[bytes](), 0
    while place < len(stream):
        size = data.draw(st.integers(1, 9))
        found += parser.feed(stream[place : place + size])
        place += size
    assert found == [text.strip() for text in texts]
    assert parser.finish() == []


def test_an_event_without_its_end() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\ndata: b") == []
    assert parser.finish() == [b"a\nb"]


def chunk(text: str | None = None, reason: str | None = None, **value: Any) -> bytes:
    choice = {"index": 0, "finish_reason": reason, **({"text": text} if text is not None else {})}
    return b"data: " + json.dumps({"choices": [{**choice, **value.pop("choice", {})}], **value}).encode() + b"\n\n"


def usage(completion: int, prompt: int = 5, **more: Any) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return b"data: " + json.dumps({"choices": [], "usage": counted}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def answer(most: int | None, *chunks: bytes) -> Answer:
    """Chunks at 10, 20, ... ns."""
    found = Answer(most)
    for place, data in enumerate(chunks):
        found.feed(data, 10 * place + 10)
    found.finish()
    return found


def test_one_token_a_chunk() -> None:
    found = answer(3, chunk(" a"), chunk(""), chunk(" c", "length"), usage(3, 7), DONE)
    assert list(found.times_ns) == [10, 20, 30]
    assert (found.finish_reason, found.num_prompt_tokens, found.is_done, found.text) == ("length", 7, True, " a c")
    assert not found.is_spread and not found.num_several and found.error is None


def test_several_tokens_a_chunk_by_a_running_count() -> None:
    def running(text: str, num: int, reason: str | None = None) -> bytes:
        return chunk(text, reason, usage={"prompt_tokens": 1, "completion_tokens": num})

    found = answer(6, running(" a", 1), running(" b c d", 4), running("", 4), running(" e f", 6, "length"), usage(6))
    assert list(found.times_ns) == [10, 20, 20, 20, 40, 40]
    assert list(found.chunk_times_ns) == [10, 20, 40]
    assert found.num_several == 2 and not found.is_spread and found.says_chunks


def test_a_chunk_costs_the_same_however_many_came_before() -> None:
    """What is done with it while others wait would be in their latencies."""
    found, lines = Answer(600), [0]

    def count(*_: Any) -> Any:
        lines[-1] += 1
        return count

    before = sys.gettrace()
    for num in range(1, 601):
        event = chunk("x", usage={"completion_tokens": num})
        sys.settrace(count)
        try:
            found.feed(event, num)
            assert found.num_tokens == num
        finally:
            sys.settrace(before)
        lines.append(0)
    assert lines[599] <= lines[9] + 5


def test_several_tokens_a_chunk_by_their_ids() -> None:
    found = answer(3, chunk(" a", choice={"token_ids": [4]}), chunk(" b", "length", choice={"token_ids": [5, 6]}))
    assert list(found.times_ns) == [10, 20, 20]


def test_several_tokens_a_chunk_that_nobody_counts() -> None:
    found = answer(7, *(chunk(" x") for _ in range(3)), chunk(" x", "length"), usage(7))
    assert found.is_spread
    assert list(found.times_ns) == [10, 10, 20, 20, 30, 30, 40]
    fewer = answer(2, *(chunk(" x") for _ in range(3)), chunk(" x", "length"), usage(2))
    assert list(fewer.times_ns) == [10, 40]
    assert list(answer(1, chunk("a"), chunk("b", "stop"), usage(1)).times_ns) == [20]


def test_a_server_that_counts_nothing() -> None:
    by_limit = answer(4, chunk(" x"), chunk(" y", "length"))
    assert list(by_limit.times_ns) == [10, 10, 10, 20] and by_limit.is_spread
    by_chunks = answer(4, chunk(" x"), chunk(" y", "stop"))
    assert list(by_chunks.times_ns) == [10, 20] and not by_chunks.is_spread


def test_the_role_and_the_end_of_a_conversation_are_no_tokens() -> None:
    def delta(**value: Any) -> bytes:
        reason = value.pop("reason", None)
        return chunk(None, reason, choice={"delta": value})

    found = answer(
        9,
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="Hi"),
        delta(tool_calls=[{"index": 0}]),
        delta(reason="tool_calls"),
    )
    assert list(found.times_ns) == [20, 30, 40]
    assert found.finish_reason == "tool_calls"


def test_a_stream_that_breaks_keeps_what_came() -> None:
    found = answer(9, chunk(" a"), chunk(" b"))
    assert list(found.times_ns) == [10, 20] and found.finish_reason is None and not found.is_done


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'data: {"error": {"message": "out of\\n memory", "code": 500}}\n\n', "out of memory"),
        (b'data: {"error": "gone"}\n\n', "gone"),
        (b"data: {what\n\n", "no JSON"),
        (b"data: [1]\n\n", "no chunk"),
    ],
)
def test_errors_within_a_stream(data: bytes, words: str) -> None:
    found = answer(9, chunk(" a"), data)
    assert found.error is not None and words in found.error
    assert list(found.times_ns) == [10]


def test_cached_tokens_as_the_server_counts_them() -> None:
    found = answer(1, chunk("a", "length"), usage(1, 40, prompt_tokens_details={"cached_tokens": 32}))
    assert found.num_cached_tokens == 32


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"error": {"message": "too  long"}}, "too long"),
        ({"object": "error", "message": "no"}, "no"),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, "field required"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"odd": 1}, "<the text>"),
    ],
)
def test_what_servers_say_of_errors(value: dict[str, Any], words: str) -> None:
    assert said(value, "<the text>") == words


# Counters -------------------------------------------------------------------------------------------------------


def test_counters_of_all_engines_between_two_readings() -> None:
    def reading(preempted: int, queries: int, hits: int, queue_s: float, num: int) -> dict[str, float]:
        lines = ["# HELP vllm:num_preemptions_total x", "python_gc 3", 'other:x{a="b"} 1', "vllm:broken NaN?"]
        for engine in (0, 1):
            label = f'{{engine="{engine}",model_name="a b}}c"}}'.replace("}c", "c")
            lines += [
                f"vllm:num_preemptions_total{label} {preempted}",
                f"vllm:prefix_cache_queries_total{label} {queries}",
                f"vllm:prefix_cache_hits_total{label} {hits}",
                f"vllm:request_queue_time_seconds_sum{label} {queue_s}",
                f"vllm:request_queue_time_seconds_count{label} {num}",
            ]
        return dict(parse_counters("\n".join(lines)))

    said_ = describe(reading(1, 100, 10, 1.0, 4), reading(3, 300, 60, 1.5, 9), "http://h/metrics")
    assert said_ == (
        "its own counters (http://h/metrics): 4 preemptions, prefix-cache hits for 25.0% of 400 prompt tokens, "
        "100.0 ms in its queue on average"
    )
    assert describe({}, parse_counters("python_gc 3"), "x") is None
    assert others_there(parse_counters('vllm:num_requests_running{engine="0"} 1.0'))
    assert not others_there(parse_counters('vllm:num_requests_running{engine="0"} 0.0'))


# Words ----------------------------------------------------------------------------------------------------------


def test_words_keep_shared_prefixes() -> None:
    assert len(set(WORDS)) > 100
    one, two = as_text([1, 2, 3, 4]), as_text([1, 2, 3, 9])
    assert one.split()[:3] == two.split()[:3] and one != two
    assert len(one.split()) == 4


def test_a_record_has_all_that_was_offered() -> None:
    """As an engine's record has it: tables by class and fairness between clients read it."""
    row = WorkloadRow(
        *(5, 20, 3),
        priority=2,
        client_id="c",
        weight=3.0,
        slo=SLO(1.0, None),
        session_id="s",
        program_id="p",
        slo_class="chat",
    )
    (offer,) = offers(Workload("one", (row,), "one"), 100, 100)
    here = begin_record(offer, 5)
    recorder = Recorder()
    recorder.start(VirtualClock())
    recorder.offer(offer)
    (there,) = recorder.finish()
    assert here == there
    assert (here.weight, here.slo_class, here.session_id, here.program_id) == (3.0, "chat", "s", "p")
