"""Conversations as prompts: what the framework does with them, on a fake backend whose template is plain to see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batchwright import LLM, AsyncEngine, Engine, EngineConfig, InvalidRequestError, SamplingParams
from batchwright.backend import ChatTokenizer
from batchwright.prompts import tokenized
from fake_backend import FakeBackend, FakeChatTokenizer, FakeTokenizer

USER = {"role": "user", "content": "hi"}
PARAMS = SamplingParams(max_tokens=3, seed=3)


@pytest.fixture
def make_llm() -> Callable[..., LLM]:
    def make(tokenizer: Any) -> LLM:
        llm = LLM.__new__(LLM)
        llm.engine = Engine(EngineConfig(), backend=FakeBackend(tokenizer=tokenizer, vocab_size=200))
        llm._num_requests = 0
        return llm

    return make


def test_what_counts_as_a_chat_tokenizer() -> None:
    assert isinstance(FakeChatTokenizer(), ChatTokenizer)
    assert not isinstance(FakeTokenizer(), ChatTokenizer)


def test_one_conversation_or_many(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(FakeChatTokenizer())
    (one,) = llm.chat([USER], PARAMS)
    assert one.prompt == "<user:hi>"
    assert one.prompt_token_ids == [*map(ord, "<user:hi>"), 7], "not the ids that the template gave"
    assert len(one.outputs[0].token_ids) == 3
    two = llm.chat([[USER], [{"role": "system", "content": "s"}, USER]], [PARAMS, PARAMS])
    assert [o.prompt for o in two] == ["<user:hi>", "<system:s><user:hi>"]
    assert llm.chat([]) == []
    mixed = llm.generate(["a", {"messages": [USER]}, [3, 4]], PARAMS)
    assert [o.prompt for o in mixed] == ["a", "<user:hi>", None]


def test_options_reach_the_template(make_llm: Callable[..., LLM]) -> None:
    tokenizer = FakeChatTokenizer()
    llm = make_llm(tokenizer)
    llm.chat([USER], PARAMS)
    llm.chat([USER], PARAMS, continue_final_message=True, chat_template="t", chat_template_kwargs={"x": 1}, tools=[{}])
    llm.generate({"messages": [USER], "add_generation_prompt": False}, PARAMS)
    plain = {"continue_final_message": False, "chat_template": None, "chat_template_kwargs": {}, "tools": None}
    told = {"continue_final_message": True, "chat_template": "t", "chat_template_kwargs": {"x": 1}, "tools": [{}]}
    assert tokenizer.options == [
        {"add_generation_prompt": True, **plain},
        {"add_generation_prompt": False, **told},
        {"add_generation_prompt": False},
    ]


def test_text_in_parts(make_llm: Callable[..., LLM]) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    calls = {"role": "assistant", "content": None, "tool_calls": []}
    (output,) = make_llm(FakeChatTokenizer()).chat([{"role": "user", "content": parts}, calls], PARAMS)
    assert output.prompt == "<user:a\nb><assistant:None>"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": USER}, "messages must be a list of messages, not dict"),
        ({"messages": "hi"}, "messages must be a list of messages, not str"),
        ({"messages": [USER, "hi"]}, "messages[1] must be a mapping with a role"),
        ({"messages": [{"content": "hi"}]}, "messages[0] must be a mapping with a role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages[0] has a part of type 'image_url': only text is read here",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0] has a part of type 'int'"),
        ({"messages": [USER], "add_generation_promt": True}, "did you mean 'add_generation_prompt'?"),
        ({"messages": [USER], "add_generation_prompt": True, "continue_final_message": True}, "give one"),
        ({}, "has prompt, prompt_token_ids or messages, not []"),
        ({"text": "a"}, "has prompt, prompt_token_ids or messages, not ['text']"),
    ],
)
def test_what_is_no_conversation(prompt: Any, words: str, make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(FakeChatTokenizer())
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(["fine", prompt], PARAMS)
    assert words in str(caught.value)
    assert not llm.engine.has_unfinished(), "the others were left behind"


def test_without_a_template(make_llm: Callable[..., LLM]) -> None:
    for tokenizer, words in (
        (None, "has no tokenizer, so it takes"),
        (FakeTokenizer(), "takes no messages"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            make_llm(tokenizer).chat([USER])


def test_in_the_async_engine() -> None:
    async def run() -> list[str | None]:
        engine = Engine(EngineConfig(), backend=FakeBackend(tokenizer=FakeChatTokenizer(), vocab_size=200))
        async with AsyncEngine(engine) as serving:
            return [output.prompt async for output in serving.generate({"messages": [USER]}, PARAMS)]

    assert set(asyncio.run(run())) == {"<user:hi>"}


def test_a_prompt_is_given_back_as_it_came() -> None:
    backend = FakeBackend(tokenizer=FakeChatTokenizer(), vocab_size=200)
    ids = [1, 2]
    assert tokenized(backend, ids) == (ids, None)
    assert tokenized(backend, {"prompt_token_ids": ids, "prompt": "x"}) == (ids, "x")
