"""``LLM.generate`` on a fake backend, which comes by an entry point like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchwright import LLM, ConfigError, EngineConfig, InfeasibleRequestError, InvalidRequestError, SamplingParams
from batchwright.llm import choose_backend
from batchwright.plugins import load_plugins
from fake_backend import expected_tokens
from fake_plugins import install

PLUGIN = """
from batchwright import hookimpl
from fake_backend import FakeTokenizer
from fake_plugins import fake_entry


@hookimpl
def register_backends():
    return {"fake": fake_entry(tokenizer=FakeTokenizer(), vocab_size=200), "mute": fake_entry()}
"""


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    install(tmp_path, "acme-fake", {"acme": "acme_fake_for_llm"}, {"acme_fake_for_llm.py": PLUGIN})
    monkeypatch.syspath_prepend(tmp_path)
    with LLM("fake:any", policy="stall_free", max_num_batched_tokens=16) as made:
        yield made
    assert made.engine.backend.num_closed == 1  # type: ignore[attr-defined]


def _ids(text: str) -> list[int]:
    return [ord(c) for c in text]


PARAMS = SamplingParams(max_tokens=6, seed=3)


@pytest.mark.parametrize(
    "prompt", ["hello", _ids("hello"), {"prompt": "hello"}, {"prompt_token_ids": _ids("hello")}, tuple(_ids("hello"))]
)
def test_one_prompt_in_any_form(llm: LLM, prompt: Any) -> None:
    (output,) = llm.generate(prompt, PARAMS)
    assert output.prompt_token_ids == _ids("hello")
    assert output.prompt == ("hello" if isinstance(prompt, str) or "prompt" in prompt else None)
    assert output.outputs[0].token_ids == expected_tokens(_ids("hello"), 3, 6, 200)
    assert (output.finished, output.outputs[0].finish_reason, output.outputs[0].index) == (True, "length", 0)


def test_many_prompts_of_different_forms_come_back_in_order(llm: LLM) -> None:
    prompts: list[Any] = ["a", _ids("bcd"), {"prompt": "ef"}, {"prompt_token_ids": _ids("g")}, "a much longer prompt"]
    lengths = [9, 1, 5, 2, 3]
    params = [SamplingParams(max_tokens=n, seed=n) for n in lengths]
    outputs = llm.generate(prompts, params)
    texts = ["a", "bcd", "ef", "g", "a much longer prompt"]
    assert [o.prompt_token_ids for o in outputs] == [_ids(t) for t in texts]
    for output, text, n in zip(outputs, texts, lengths, strict=True):
        assert output.outputs[0].token_ids == expected_tokens(_ids(text), n, n, 200)
    again = llm.generate(prompts, params, use_tqdm=False)
    assert [o.outputs for o in again] == [o.outputs for o in outputs]
    assert len({o.request_id for o in [*outputs, *again]}) == 10


def test_one_sampling_params_for_all_or_none(llm: LLM) -> None:
    outputs = llm.generate(["a", "b"], PARAMS)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [6, 6]
    assert len(llm.generate("a")[0].outputs[0].token_ids) == 16  # the defaults
    assert llm.generate([]) == []


@pytest.mark.parametrize("num_params", [0, 1, 3])
def test_a_wrong_number_of_sampling_params(llm: LLM, num_params: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{num_params} sampling_params for 2 prompts: give one, or one each"):
        llm.generate(["a", "b"], [PARAMS] * num_params)
    assert not llm.engine.has_unfinished()


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ({}, InvalidRequestError, "a prompt as a mapping has prompt, prompt_token_ids or messages, not "),
        ({"text": "a"}, InvalidRequestError, r"not \['text'\]"),
        ("", InvalidRequestError, "prompt_token_ids is empty"),
        ([], InvalidRequestError, "prompt_token_ids is empty"),
        ([1, 200], InvalidRequestError, "200 is among them"),
        ([3] * 5000, InfeasibleRequestError, "max_model_len is 4096"),
        (None, InvalidRequestError, "prompt"),
        (5, InvalidRequestError, "prompt"),
        ([None], InvalidRequestError, "prompt"),
        ([1, "a"], InvalidRequestError, "prompt"),
        ({"prompt": None}, InvalidRequestError, "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_taken_runs_nobody(llm: LLM, prompt: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        llm.generate(["first", prompt], PARAMS)
    assert not llm.engine.has_unfinished()
    assert llm.engine.backend.num_executed == 0  # type: ignore[attr-defined]


def test_text_without_a_tokenizer(llm: LLM) -> None:
    with LLM("mute:any") as mute:
        with pytest.raises(InvalidRequestError, match="fake has no tokenizer: give the prompt as token ids"):
            mute.generate("hello")
        assert mute.generate([[1, 2], [3]], PARAMS)[1].outputs[0].text == ""


def test_settings(llm: LLM) -> None:
    assert llm.engine.policy_name == "stall_free" and llm.engine.limits.max_num_batched_tokens == 16
    base = EngineConfig(max_num_seqs=3, policy="vllm_v1")
    with LLM("fake:any", config=base, max_num_seqs=4) as made:
        assert made.engine.limits.max_num_seqs == 4 and made.engine.policy_name == "vllm_v1"
        assert made.engine.effective.origins["max_num_batched_tokens"] == "default"
    with pytest.raises(ConfigError, match="unknown key 'max_num_seq'; did you mean 'max_num_seqs'"):
        LLM("fake:any", max_num_seq=4)


def test_a_model_alone_runs_on_a_gpu_where_there_is_one() -> None:
    plugins = load_plugins()
    assert choose_backend("sim:llama-3.1-8b@h100", plugins) == "sim:llama-3.1-8b@h100"
    cuda = plugins.backends["cuda"]
    for why_not, expected in ((None, "cuda:some-model"), ("no GPU here", "cpu:some-model")):
        plugins.backends["cuda"] = type(cuda)(cuda.create, cuda.summary, cuda.syntax, lambda w=why_not: w)
        assert choose_backend("some-model", plugins) == expected
