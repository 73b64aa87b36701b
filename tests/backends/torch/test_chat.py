"""Chat templates of real tokenizers, against transformers' own ``apply_chat_template``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.torch.test_tokenizer import sentence_piece
from batchwright import LLM, EngineConfig, InvalidRequestError, SamplingParams, WorkloadError
from batchwright.backend import ChatTokenizer
from batchwright.cli.app import app
from batchwright.lab import load_workload, run_arm
from batchwright_backends.torch.tokenizer import HFTokenizer

TALK = [
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris"},
    {"role": "user", "content": "And of Italy?"},
]
LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)


def adds_bos() -> HFTokenizer:
    """As Llama's: ``encode`` puts a BOS in front, and so does the template."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = sentence_piece()
    bos = tokenizer.inner.bos_token_id
    tokenizer.inner.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    tokenizer.inner.chat_template = LLAMA2
    assert tokenizer.encode("hi")[0] == bos, "this tokenizer does not add a BOS: nothing is tested"
    return tokenizer


@pytest.mark.parametrize("more", [{}, {"add_generation_prompt": False}, {"continue_final_message": True}])
@pytest.mark.parametrize("num_messages", [1, 2, 3, 4])
def test_the_real_model_s_template(num_messages: int, more: dict[str, Any], smollm2_folder: str) -> None:
    from transformers import AutoTokenizer

    inner = AutoTokenizer.from_pretrained(smollm2_folder)
    theirs: dict[str, Any] = {"add_generation_prompt": not more, **more}
    want = inner.apply_chat_template(TALK[:num_messages], tokenize=True, return_dict=False, **theirs)
    tokenizer = HFTokenizer(inner)
    assert isinstance(tokenizer, ChatTokenizer)
    got = tokenizer.apply_chat_template(TALK[:num_messages], **more)
    assert got.token_ids == want
    assert inner.decode(want) == got.text
    opened = got.text.endswith("<|im_start|>assistant\n")
    assert opened == (not more), "what opens the assistant's turn"


def test_no_second_bos() -> None:
    tokenizer = adds_bos()
    talk = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(talk)
    assert prompt.text == "<s>hia:"
    assert prompt.token_ids.count(tokenizer.inner.bos_token_id) == 1
    theirs = tokenizer.inner.apply_chat_template(talk, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert prompt.token_ids == theirs


def test_variables_tools_and_templates_of_the_caller() -> None:
    tokenizer = adds_bos()
    template = "{{ mood }}{% for t in tools %}{{ t['function']['name'] }}{% endfor %}{{ messages[0]['content'] }}"
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], chat_template=template, chat_template_kwargs={"mood": "gay"}, tools=[tool]
    )
    assert prompt.text == "gaynowhi"


def test_what_a_template_does_not_take() -> None:
    tokenizer = adds_bos()
    with pytest.raises(InvalidRequestError, match=r"does not take these messages \(TemplateError: only user and"):
        tokenizer.apply_chat_template([{"role": "system", "content": "hi"}])
    with pytest.raises(InvalidRequestError, match="does not take these messages"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], chat_template="{% for %}")
    tokenizer.inner.chat_template = None
    with pytest.raises(InvalidRequestError, match="this model has no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


def test_the_real_model_answers(smollm2_folder: str) -> None:
    params = SamplingParams(max_tokens=12, temperature=0)
    with LLM(f"cpu:{smollm2_folder}", num_blocks=64) as llm:
        plain, again = llm.chat([[TALK[1]], [TALK[1]]], params, use_tqdm=False)
        begun = [TALK[1], {"role": "assistant", "content": "The capital of France is"}]
        (opened,) = llm.chat(begun, params, use_tqdm=False, continue_final_message=True)
    assert "Paris" in plain.outputs[0].text and plain.outputs[0].token_ids == again.outputs[0].token_ids
    assert plain.outputs[0].finish_reason in ("stop", "length")
    assert opened.prompt is not None and opened.prompt.endswith("The capital of France is")
    assert opened.outputs[0].text.startswith(" Paris")


def test_conversations_of_a_file_are_answered(smollm2_folder: str, tmp_path: Path) -> None:
    """``batchwright run`` on a real model says what ``LLM.chat`` does."""
    path, out = tmp_path / "chats.jsonl", tmp_path / "answers.jsonl"
    talks = [TALK[:2], TALK]
    path.write_text("".join(json.dumps({"messages": talk, "max_tokens": 8}) + "\n" for talk in talks))
    backend = f"cpu:{smollm2_folder}"
    args = ["run", "stall_free", "--backend", backend, "--workload", str(path), "--outputs", str(out), "--quiet"]
    with pytest.raises(SystemExit) as ended:
        app(args)
    assert not ended.value.code
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    with LLM(backend) as llm:
        theirs = llm.chat(talks, SamplingParams(max_tokens=8, temperature=0), use_tqdm=False)
    for answer, output in zip(answers, theirs, strict=True):
        assert answer["token_ids"] == output.outputs[0].token_ids and answer["text"] == output.outputs[0].text
        assert answer["text"] and answer["finish_reason"] == output.outputs[0].finish_reason


def test_a_file_of_what_a_template_does_not_take(smollm2_folder: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": TALK}, {"messages": TALK[:1], "chat_template": LLAMA2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = EngineConfig(backend=f"cpu:{smollm2_folder}")
    with pytest.raises(
        WorkloadError, match=r"line 2 \(row 2\): the chat template does not take these messages .*only user"
    ):
        run_arm(config, load_workload(path))
