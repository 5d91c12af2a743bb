"""The laws of folders for transformers, which opens them in a process without headscope, and of our
own class of transformers, made from the exported source: it computes what our model computes.

The environment variable TRANSFORMERS_PYTHON names the Python of another environment, with another
version of transformers. Then every choice in conf/model is opened with it.
"""

import importlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration
from conversion.models import CHOICES, OWN, saved

from headscope import trained
from headscope.config.parts import Part
from headscope.conversion import export
from headscope.conversion.export import source_files, write_model, write_tokenizer
from headscope.conversion.imported import imported, write_checkpoint
from headscope.conversion.model_card import escaped, model_card
from headscope.conversion.proof import find_class
from headscope.data.tokenizer import CharTokenizer
from headscope.files import write_summary
from headscope.nn.capture import capture
from headscope.nn.loss import next_token_loss

transformers = pytest.importorskip("transformers")

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
SOME = [
    OWN,
    "model.document_mask=true model.ngrams=3 model.ngram_buckets=31 model.tied_head=false",
    "model/position=sinusoidal model/attention=stacked_heads model.bias=true",
    "model/position=head_bias model/feed_forward=swiglu model.logit_cap=15",
]
FOLDERS = CHOICES if "TRANSFORMERS_PYTHON" in os.environ else SOME


@pytest.mark.slow
@pytest.mark.parametrize("words", FOLDERS)
def test_the_command_writes_a_folder_and_says_how_to_load_it(words, script, monkeypatch):
    """Also a model that another class could express."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(export.proof, "find_class", lambda *_: None)
    tokenizer = CharTokenizer("abc é\n") if "bias" in words else None
    saved(Path("run/checkpoints"), words, tokenizer)
    said = script("convert", "checkpoint=run", "to=huggingface", "output=out").succeeded()
    differ = r"differ by at most (0\.0e\+00|\S+e-0[6-9]) "
    assert re.search(f"HeadscopeForCausalLM of transformers .* same greedy .* {differ}", said.out)
    assert 'AutoModelForCausalLM.from_pretrained("out", trust_remote_code=True)' in said.out
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert 'from_pretrained("path/to/this/folder", trust_remote_code=True)' in card
    assert re.search(differ, card)
    assert {path.name for path in Path().iterdir()} == {"run", "out"}


@pytest.mark.parametrize("own", [False, True])
def test_fine_tuning_learns_where_a_text_ends_and_a_text_fills_the_context(tmp_path, own):
    """A collator ignores the targets that are padding, and a pipeline would write 256 tokens."""
    loaded = saved(tmp_path, "")
    write_model(loaded, tmp_path, None if own else find_class(loaded.model, loaded.config.model))
    assert transformers.GenerationConfig.from_pretrained(tmp_path).max_length == 8
    assert json.loads((tmp_path / "config.json").read_text()).get("pad_token_id") is None
    write_tokenizer(loaded, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, padding_side="left")
    assert tokenizer.model_max_length == loaded.model.block_size == 8
    ended = tokenizer(["abc" + tokenizer.eos_token, "many letters"], truncation=True)
    assert [len(tokens) for tokens in ended["input_ids"]] == [4, 8]
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})  # as docs/ecosystem.md says
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=own)
    model.resize_token_embeddings(len(tokenizer))
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    batch = collate([{"input_ids": tokens} for tokens in ended["input_ids"]])
    assert batch["labels"][0].tolist() == [*[-100] * 4, *b"abc", loaded.tokenizer.end_of_text]
    model(**batch).loss.backward()


HOSTILE = "x\n---\n# <script>alert(1)</script> [a](http://x.y) `b` | c | **d** \x1b[2J www.x.y"


def test_the_model_card_shows_text_from_a_checkpoint_as_text(tmp_path):
    run = tmp_path / "run"
    began = "/home/me/outputs/gpt2/checkpoints/best.safetensors"
    loaded = saved(run / "checkpoints", OWN, name=HOSTILE, init_from=began)
    template = f"{HOSTILE}\n```\n{HOSTILE}"
    loaded.config.data = Part(
        _target_="headscope.TextFiles", path=f"/home/someone/{HOSTILE}", template=template
    )
    metrics = dict.fromkeys(("val_loss", "val_bits_per_byte", "train_seconds", "steps"), 1)
    write_summary(run, metrics | {"tokens": 12345, "device": HOSTILE})
    assert "had not been measured" in model_card(loaded, load="code", checked="It is equal.")
    kind = loaded.record().types[0].name
    card = model_card(loaded, load="code", checked="It is equal.")
    header, text = card.split("\n# ", maxsplit=1)
    before, configuration, after = re.split(r"```json\n(.*?)\n```\n", text, flags=re.DOTALL)
    assert json.loads(configuration)["data"]["template"] == template
    assert json.loads(configuration)["init_from"] == "gpt2"
    assert all(character in "\n" or " " <= character <= "~" for character in configuration)
    assert "/home" not in text
    text = before + after
    assert "x" not in header.replace("text-generation", "").replace("headscope", "")
    assert "| tokens | 12,345 |" in text
    assert re.search(rf"\\| {kind} \\| L0H0.* \\|", text)
    for markup in ("<script", "\x1b", "\n---", "\n# ", "http://", "www.x"):
        assert markup not in text
    assert not re.search(r"(?<!\\)[\[\]*]", text.replace("```python\ncode\n```", ""))
    assert re.search(r"\\`b\\` \\\| c \\\| \\\*\\\*d\\\*\\\*", text)
    assert len(escaped(HOSTILE * 1000)) < 2000


def test_the_model_card_of_an_imported_model_claims_no_training(tmp_path):
    ours = saved(tmp_path, "model=gpt2")
    parts = (ours.model, ours.config.model, ours.tokenizer)
    write_checkpoint(tmp_path / "in", imported(tmp_path, *parts, name="in", text=None, step=7))
    loaded = trained.load(tmp_path / "in" / "checkpoints" / "best.safetensors")
    card = model_card(loaded, load="code", checked="It is equal.")
    assert "How it was trained is unknown" in card
    assert "optimizer" not in card


# --- our own class ---


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The module of the exported class, which imports nothing of headscope."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "exported_class").mkdir()
    for name, source in source_files().items():
        (folder / "exported_class" / name).write_text(source)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("exported_class.modeling_headscope")
    sys.path.remove(str(folder))


@pytest.fixture
def make(exported):
    """make("model.ngrams=2") is a new model of the exported class."""

    def model(words="", **options):
        chosen = configuration(*words.split())["model"]
        config = exported.HeadscopeConfig(vocab_size=257, model=chosen, **options)
        return exported.HeadscopeForCausalLM(config).eval()

    return model


def some_tokens(length=8):
    tokens = torch.randint(257, (2, length), generator=torch.Generator().manual_seed(2))
    tokens[0, 2] = 256  # an end of text
    return tokens


@pytest.mark.parametrize("words", CHOICES)
@torch.no_grad()
@pytest.mark.slow
def test_it_computes_what_our_model_computes(words, exported, make, tmp_path):
    """Also after transformers has saved it and loaded it again."""
    loaded, other = saved(tmp_path / "run", words), make(words)
    other.model.load_state_dict(loaded.model.state_dict())
    other.save_pretrained(tmp_path / "theirs")
    theirs = exported.HeadscopeForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    model = loaded.config.model
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["model"] == model
    check_logits(loaded.model, theirs)
    check_generation(loaded.model, theirs)


def check_logits(ours, theirs):
    tokens = some_tokens()
    logits = ours(tokens)
    output = theirs(tokens, labels=tokens, output_attentions=True)
    torch.testing.assert_close(output.logits, logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(output.loss, next_token_loss(logits[:, :-1], tokens[:, 1:]))
    weights = capture(ours, tokens).attention
    torch.testing.assert_close(torch.stack(output.attentions), weights, rtol=0, atol=1e-5)

    # Padding on either side changes no logits of tokens.
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, :3], mask[1, 4:] = 0, 0
    padded = theirs(tokens, attention_mask=mask).logits
    torch.testing.assert_close(padded[:1, 3:], ours(tokens[:1, 3:]), rtol=0, atol=1e-4)
    torch.testing.assert_close(padded[1:, :4], ours(tokens[1:, :4]), rtol=0, atol=1e-4)


def check_generation(ours, theirs):
    tokens = some_tokens(3)
    expected = tokens
    for _ in range(5):
        expected = torch.cat([expected, ours.next_logits(expected).argmax(1, keepdim=True)], dim=1)
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    for use_cache in (True, False):
        assert torch.equal(theirs.generate(tokens, use_cache=use_cache, **options), expected)
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])  # the first token of the second text is padding
    options = {"max_new_tokens": 4, "do_sample": False}
    batch = theirs.generate(tokens, attention_mask=mask, **options)
    alone = theirs.generate(tokens[1:, 1:], attention_mask=torch.ones(1, 2), **options)
    assert torch.equal(batch[1:, 1:], alone)
    beams = [theirs.generate(tokens, use_cache=c, num_beams=2, **options) for c in (True, False)]
    assert torch.equal(*beams)


@torch.no_grad()
@pytest.mark.slow
def test_every_cache_gives_the_same_text(exported, make):
    model, tokens = make("model/attention=grouped_query"), some_tokens(4)[:1]
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    expected = model.generate(tokens, use_cache=False, **options)
    begun = model(tokens[:, :2], use_cache=True, return_dict=False)[1]
    for option in (
        {"cache_implementation": "static"},  # has room for later tokens, which must not be seen
        {"prefill_chunk_size": 3},
        {"assistant_model": model},
        {exported.CACHE: begun},
    ):
        assert torch.equal(model.generate(tokens, **option, **options), expected)
    for option in ({"prefill_chunk_size": 1}, {"prompt_lookup_num_tokens": 2}):
        with pytest.raises(ValueError, match=r"prefill_chunk_size|assisted generation"):
            make("model.ngrams=2").generate(tokens, **option, **options)


@pytest.mark.slow
def test_what_it_cannot_do_is_refused(make):
    model, tokens = make("model/position=rotary", return_dict=False), some_tokens(4)
    assert isinstance(model(tokens), tuple)
    with pytest.raises(ValueError, match="padding between tokens"):
        model(tokens, attention_mask=torch.tensor([[1, 0, 1, 1]] * 2))
    with pytest.raises(ValueError, match="9 tokens are more than block_size=8"):
        model.generate(tokens, max_new_tokens=6, do_sample=False, eos_token_id=None)
    # A loop that feeds only new tokens would be wrong.
    with pytest.raises(ValueError, match="a cache cannot be used with n-gram embeddings"):
        make("model.document_mask=true")(tokens, use_cache=True)
    unknown = model.config.model | {"position": {"_target_": "os.system", "base": 1}}
    with pytest.raises(KeyError):
        type(model)(type(model.config)(vocab_size=5, model=unknown))
