from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright_backends.torch.tokenizer import MAX_HELD, HFTokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog, 1234 times.",
    "  leading and  double spaces \n\n\ttabs and lines ",
    "Grüße aus Köln: naïve café, Ελληνικά, русский, 日本語のテキスト, 한국어.",
    "emoji 👋 🤷🏽‍♀️ 👨‍👩‍👧‍👦 and 🇩🇪 flags",
    "don't, won't, it's . , !",
]


def byte_level() -> HFTokenizer:
    """As GPT-2's and SmolLM2's: tokens are pieces of UTF-8 bytes, so that one character may take several."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(TEXTS[:1] * 3, trainer)
    return HFTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>"))


def sentence_piece() -> HFTokenizer:
    """As Llama 2's: words begin with a mark for the space, unknown characters fall back to single bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    words = ["▁", *"abcdefghijklmnopqrstuvwxyz.,!'", "br", "▁br", "<unk>", "<s>", "</s>"]
    vocabulary = {w: i for i, w in enumerate(words + [f"<0x{b:02X}>" for b in range(256)])}
    merges = [("b", "r"), ("▁", "br")]
    inner = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return HFTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    )


KINDS: dict[str, Callable[[], HFTokenizer]] = {"byte-level": byte_level, "sentence-piece": sentence_piece}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> HFTokenizer:
    return KINDS[request.param]()


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_joined_are_the_text(tokenizer: HFTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    decoder = tokenizer.decoder()
    pieces = [decoder.push([token]) for token in ids]
    assert "".join(pieces) + decoder.finish() == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces), "half a character was given out"
    assert len([p for p in pieces if p]) > len(text) // 12, "it held everything back"


def test_an_emoji_comes_whole_with_its_last_token(tokenizer: HFTokenizer) -> None:
    ids = tokenizer.encode("a👋b")
    decoder = tokenizer.decoder()
    pieces = [decoder.push([token]) for token in ids]
    assert [p for p in pieces if p] == ["a", "👋", "b"]
    assert len(ids) >= 6, "the emoji is one token here: nothing was tested"
    assert decoder.finish() == ""


def test_finish_shows_what_was_cut_off(tokenizer: HFTokenizer) -> None:
    ids = tokenizer.encode("ok 👋")
    decoder = tokenizer.decoder()
    assert decoder.push(ids[:-1]) == "ok "
    assert set(decoder.finish()) == {"\N{REPLACEMENT CHARACTER}"}
    assert decoder.finish() == ""


def test_special_tokens_are_left_out_and_spaces_kept(tokenizer: HFTokenizer) -> None:
    bos, eos = tokenizer.inner.bos_token_id, tokenizer.inner.eos_token_id
    ids = tokenizer.encode("The quick fox")
    mixed = [bos, *ids[:1], eos, eos, *ids[1:], eos]
    decoder = tokenizer.decoder()
    assert "".join(decoder.push([t]) for t in mixed) + decoder.finish() == tokenizer.decode(mixed) == "The quick fox"


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁\0")), seed=st.integers(0, 99))
@pytest.mark.parametrize("kind", KINDS)
def test_any_text_in_any_portions(kind: str, text: str, seed: int) -> None:
    tokenizer = _cached(kind)
    ids = tokenizer.encode(text)
    decoder, rng, pieces, at = tokenizer.decoder(), random.Random(seed), [], 0
    while at < len(ids):
        count = rng.randint(1, 5)
        pieces.append(decoder.push(ids[at : at + count]))
        at += count
    assert "".join(pieces) + decoder.finish() == tokenizer.decode(ids)


_made: dict[str, Any] = {}


def _cached(kind: str) -> HFTokenizer:
    if kind not in _made:
        _made[kind] = KINDS[kind]()
    return _made[kind]


def test_bytes_that_are_no_text_are_not_held_for_ever() -> None:
    tokenizer = byte_level()
    lead = tokenizer.encode("é")[0]  # the first byte of a character, again and again
    decoder = tokenizer.decoder()
    pieces = [decoder.push([lead]) for _ in range(5 * MAX_HELD)]
    assert any(pieces[: MAX_HELD + 1])
    assert "".join(pieces) + decoder.finish() == tokenizer.decode([lead] * 5 * MAX_HELD)
