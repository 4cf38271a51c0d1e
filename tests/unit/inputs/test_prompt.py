"""A prompt becomes the tokens that the checkpoint's own tokenizer gives it, and back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from llmb.errors import UnavailableError, UsageError
from llmb.inputs.prompt import PromptTokenizer

TEXT = "Hello, my name is"


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Hello, my name is llmb. My name is not Hello."] * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path, trained: Tokenizer) -> Path:
    trained.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_the_tokens_are_the_librarys_with_the_beginning_of_a_text(
    folder: Path, trained: Tokenizer
) -> None:
    ids = PromptTokenizer(folder, 300).encode(TEXT)
    assert ids == trained.encode(TEXT).ids
    assert ids[0] == 0
    assert 3 < len(ids) < len(TEXT)


@pytest.mark.parametrize("text", [TEXT, "Grüße, 世界 🙂", " two  spaces ", "line\nline"])
def test_tokens_become_the_text_again(folder: Path, text: str) -> None:
    tokenizer = PromptTokenizer(folder, 300)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_length_that_the_tokenizer_was_cut_to_does_not_cut_a_prompt(
    tmp_path: Path, trained: Tokenizer
) -> None:
    cut = Tokenizer.from_str(trained.to_str())
    cut.enable_truncation(4)
    cut.enable_padding(length=64)
    cut.save(str(tmp_path / "tokenizer.json"))
    assert PromptTokenizer(tmp_path, 300).encode(TEXT) == trained.encode(TEXT).ids


def test_a_token_that_the_model_does_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="of another model"):
        PromptTokenizer(folder, 10).encode(TEXT)


def test_a_prompt_without_tokens_is_refused(tmp_path: Path, trained: Tokenizer) -> None:
    plain = Tokenizer.from_str(trained.to_str())
    plain.post_processor = processors.ByteLevel()
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match="has no tokens"):
        PromptTokenizer(tmp_path, 300).encode("")


def test_a_folder_without_tokenizer_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json beside the weights"):
        PromptTokenizer(tmp_path, 300)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read") as caught:
        PromptTokenizer(tmp_path, 300)
    assert "\n" not in str(caught.value)


def test_without_the_library_it_is_said_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UnavailableError, match=r"pip install 'llmb\[data\]'"):
        PromptTokenizer(folder, 300)


def test_a_token_that_the_model_does_not_know_is_named(folder: Path) -> None:
    most = max(PromptTokenizer(folder, 300).encode(TEXT))
    with pytest.raises(UsageError, match=f"has token {most}, and the model knows only {most}:"):
        PromptTokenizer(folder, most).encode(TEXT)
    assert PromptTokenizer(folder, most + 1).encode(TEXT)
