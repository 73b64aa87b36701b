"""Workloads that bring their prompts: text, token ids and conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchwright import EngineConfig, WorkloadError
from batchwright.engine import Engine
from batchwright.lab import RunRecord, Workload, WorkloadRow, load_workload, offers, run_arm, with_token_ids
from batchwright.lab.outputs import Outputs
from fake_backend import FakeBackend, FakeChatTokenizer, FakeTokenizer, expected_tokens, say

USER = {"role": "user", "content": "hi"}
ChatFile = Callable[..., Path]


@pytest.fixture
def chats(tmp_path: Path) -> ChatFile:
    def write(*rows: dict[str, Any]) -> Path:
        path = tmp_path / "chats.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


def chatty(**settings: Any) -> FakeBackend:
    return FakeBackend(tokenizer=FakeChatTokenizer(), vocab_size=2000, **settings)


def ran(workload: Workload, backend: FakeBackend, **options: Any) -> RunRecord:
    return run_arm(EngineConfig(), workload, backend=backend, **options)


# Reading -----------------------------------------------------------------------------------------------------------


def test_all_that_a_prompt_may_be(chats: ChatFile) -> None:
    talk = [{"role": "system", "content": "s"}, USER]
    tool = {"type": "function", "function": {"name": "now"}}
    path = chats(
        {"prompt": "Once upon a time"},
        {"prompt_token_ids": [5, 6, 7], "arrival_s": 0.5, "num_output_tokens": 4, "max_tokens": 9},
        {"messages": talk, "tools": [tool], "chat_template_kwargs": {"x": 1}, "client_id": "a", "slo": {"ttft_s": 1}},
    )
    one, three, two = load_workload(path).rows  # in order of arrival
    assert (one.prompt, one.arrival_ns, one.num_prompt_tokens, one.num_output_tokens) == (
        "Once upon a time",
        0,
        None,
        None,
    )
    assert (two.prompt, two.arrival_ns, two.num_output_tokens, two.max_tokens) == ([5, 6, 7], 500_000_000, 4, 9)
    assert three.prompt == {"messages": talk, "tools": [tool], "chat_template_kwargs": {"x": 1}}
    assert three.client_id == "a" and three.slo is not None and three.place == f"{path}, line 3 (row 3)"


def test_rows_with_lengths_and_with_prompts_in_one_file(chats: ChatFile) -> None:
    path = chats({"arrival_s": 0, "num_prompt_tokens": 5, "num_output_tokens": 2}, {"messages": [USER]})
    assert [row.prompt is None for row in load_workload(path).rows] == [True, False]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": "hi"}, "messages must be a list of messages, not str"),
        ({"messages": [USER, {"content": "hi"}]}, "messages[1] must be a mapping with a role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a part of type 'image_url'"),
        ({"messages": [USER], "add_generation_prompt": True, "continue_final_message": True}, "give one"),
        (
            {"messages": [USER], "prompt": "hi"},
            "prompt and messages; expected one of prompt, prompt_token_ids or messages",
        ),
        ({"prompt": "hi", "tools": []}, "tools without messages"),
        ({"prompt": ""}, "prompt is ''; expected a text that is not empty"),
        ({"prompt": ["hi"]}, "prompt is ['hi']; expected a text"),
        ({"prompt_token_ids": []}, "prompt_token_ids is empty"),
        ({"prompt_token_ids": [2**31]}, "prompt_token_ids must be ints in [0, 2^31)"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids holds -1"),
        ({"prompt": "hi", "num_prompt_tokens": 2}, "num_prompt_tokens beside prompt"),
        ({"messages": [USER], "prefix_ids": [1], "prefix_block_size": 4}, "prefix_ids beside messages"),
        ({"messages": [USER], "num_output_tokens": 0}, "num_output_tokens is 0"),
        ({"mesages": [USER], "prompt": "hi"}, "unknown field 'mesages' (did you mean 'messages'?)"),
        ({"arrival_s": 0, "num_prompt_tokens": 4}, "there is no num_output_tokens"),
    ],
)
def test_a_broken_prompt_says_where_and_what(row: dict[str, Any], words: str, chats: ChatFile) -> None:
    path = chats({"messages": [USER]}, row)
    with pytest.raises(WorkloadError) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}, line 2 (row 2): ") and words in str(caught.value)


def test_rows_that_say_too_little_or_too_much() -> None:
    for values in (
        {"num_prompt_tokens": None, "num_output_tokens": 1},
        {"num_prompt_tokens": 1, "num_output_tokens": None},
    ):
        with pytest.raises(WorkloadError, match="a row without a prompt says its num_"):
            WorkloadRow(0, **values)
    with pytest.raises(WorkloadError, match="prefix_ids make up a prompt"):
        WorkloadRow(0, None, None, prompt="hi", prefix_ids=(1,), prefix_block_size=4)


def test_the_hash_is_of_prompts_too(chats: ChatFile) -> None:
    hashes = {
        load_workload(chats(row)).hash
        for row in (
            {"prompt": "a"},
            {"prompt": "b"},
            {"prompt_token_ids": [97]},
            {"messages": [USER]},
            {"messages": [USER], "tools": []},
        )
    }
    assert len(hashes) == 5
    again = load_workload(chats({"tools": [], "messages": [{"content": "hi", "role": "user"}]}))
    assert again.hash in hashes  # the order of keys says nothing
    lengths = {"arrival_s": 1, "num_prompt_tokens": 4, "num_output_tokens": 7, "client_id": "c"}
    assert (
        load_workload(chats(lengths)).hash == "52349e4f1c0b2134"
    )  # of a workload without prompts it is what it always was


# Token ids ---------------------------------------------------------------------------------------------------------


def test_prompts_are_what_the_template_writes(chats: ChatFile) -> None:
    backend = chatty()
    workload = load_workload(chats({"prompt": "ab"}, {"messages": [USER], "continue_final_message": True}))
    rows = with_token_ids(workload, backend).rows
    assert [list(row.prompt or ()) for row in rows] == [[97, 98], [*map(ord, "<user:hi>"), 7]]
    assert [row.num_prompt_tokens for row in rows] == [2, 10]
    assert backend.tokenizer.options == [{"continue_final_message": True}]  # type: ignore[union-attr]
    plain = load_workload("synthetic:n=3")
    assert with_token_ids(plain, backend) is plain
    with pytest.raises(WorkloadError, match="its prompt is text"):
        list(offers(workload, 2000, 100))


@pytest.mark.parametrize(
    ("tokenizer", "row", "words"),
    [
        (None, {"messages": [USER]}, "fake has no tokenizer, so it takes no messages: give token ids"),
        (None, {"prompt": "hi"}, "fake has no tokenizer: give the prompt as token ids"),
        (FakeTokenizer(), {"messages": [USER]}, "the tokenizer of fake takes no messages"),
        (
            FakeChatTokenizer(),
            {"messages": [{"role": "boss", "content": "hi"}]},
            "does not take these messages: no boss",
        ),
    ],
)
def test_what_a_model_does_not_take(tokenizer: Any, row: dict[str, Any], words: str, chats: ChatFile) -> None:
    backend = FakeBackend(tokenizer=tokenizer, vocab_size=2000)
    path = chats({"prompt_token_ids": [5]}, row)
    with pytest.raises(WorkloadError) as caught:
        ran(load_workload(path), backend)
    assert str(caught.value).startswith(f"{path}, line 2 (row 2): ") and words in str(caught.value)
    assert not backend.num_executed and backend.num_closed == 1


def test_a_prompt_without_tokens() -> None:
    class Mute(FakeTokenizer):
        def encode(self, text: str) -> list[int]:
            return []

    with pytest.raises(WorkloadError, match=r"^a row: its prompt is empty"):
        ran(Workload("w", (WorkloadRow(0, None, None, prompt="hi"),), "w"), FakeBackend(tokenizer=Mute()))


# Running -----------------------------------------------------------------------------------------------------------


def test_answers_end_as_the_model_ends_them(chats: ChatFile, tmp_path: Path) -> None:
    """Of the first nobody knows how long it is, and its third token is the end; the second is a replay of five."""
    backend = chatty(eos_token_ids=(0,), script={"r000000": say("ab\0"), "r000001": say("a\0cde")})
    path = chats({"messages": [USER]}, {"messages": [USER], "num_output_tokens": 5}, {"prompt": "x", "max_tokens": 2})
    collected: list[Outputs] = []
    out = tmp_path / "out.jsonl"
    record = ran(load_workload(path), backend, on_engine=lambda engine: collected.append(Outputs(out, engine)))
    assert [(r.finish_reason, r.num_prompt_tokens, r.num_output_tokens) for r in record.requests] == [
        ("stop", 10, 3),
        ("trace", 10, 5),
        ("length", 1, 2),
    ]
    assert [o.num_output_tokens for o in record.offered][1:] == [5, 2]
    assert record.offered[0].num_output_tokens == record.offered[0].max_tokens  # all that is known of it
    assert record.offered[0].prompt_hash == record.offered[1].prompt_hash != record.offered[2].prompt_hash
    collected[0].write(record)
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(x["request_id"], x["status"], x["finish_reason"], x["text"]) for x in lines[:2]] == [
        ("r000000", "finished", "stop", "ab"),
        ("r000001", "finished", "trace", "acde"),
    ]
    assert lines[2]["token_ids"] == expected_tokens([ord("x")], _seed(record, 2), 2, 2000)


def _seed(record: RunRecord, index: int) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(record.requests[index].request_id.encode(), 0)


def test_outputs_of_refused_requests_and_without_a_tokenizer(tmp_path: Path) -> None:
    rows = (WorkloadRow(0, None, 2, prompt=[1, 2, 3]), WorkloadRow(0, None, 2, prompt=[9] * 50))
    collected: list[Outputs] = []
    out = tmp_path / "out.jsonl"
    record = ran(
        Workload("w", rows, "w"),
        FakeBackend(num_blocks=4),
        declared="exact",
        on_engine=lambda engine: collected.append(Outputs(out, engine)),
    )
    collected[0].write(record)
    taken, refused = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert (taken["text"], len(taken["token_ids"]), taken["error"]) == (None, 2, None)
    assert (refused["status"], refused["token_ids"]) == ("refused", []) and "blocks" in refused["error"]


def test_a_true_length_that_nobody_knows_cannot_be_declared(chats: ChatFile) -> None:
    workload = load_workload(chats({"messages": [USER], "max_tokens": 4}, {"messages": [USER]}))
    backend = chatty()
    with pytest.raises(WorkloadError, match=r"line 2 \(row 2\): its declared max_tokens cannot be exact"):
        ran(workload, backend, declared="exact")
    assert not backend.num_executed
    assert [o.max_tokens for o in ran(workload, chatty(), declared=7).offered] == [4, 7]
    assert [o.max_tokens for o in ran(workload, chatty(max_model_len=30)).offered] == [4, 20]  # what 10 of 30 leave


def test_an_engine_keeps_nothing_of_what_it_ran(chats: ChatFile) -> None:
    """A lab run asks for no outputs, so their text is not kept either."""
    engines: list[Engine] = []
    ran(load_workload(chats(*[{"messages": [USER], "max_tokens": 3}] * 5)), chatty(), on_engine=engines.append)
    kept = engines[0]._answers
    assert not kept._texts and not kept._prompts and not kept.any_aborted
