"""The laws of our own class of transformers, made from the exported source: it computes what our
model computes, for every choice in conf/model."""

import importlib
import json
import sys

import pytest
import torch
from checkpoint_files import configuration
from conversion.models import CHOICES, saved

from headscope.conversion.export import source_files
from headscope.nn.capture import capture
from headscope.nn.loss import next_token_loss

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")


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
def test_generation_computes_only_new_tokens(make):
    model = make()
    counts = []
    model.model.embedding.register_forward_pre_hook(lambda _, args: counts.append(args[0].size(1)))
    tokens = some_tokens(6)
    model.generate(tokens[:, :3], max_new_tokens=4, do_sample=False)
    assert counts == [3, 1, 1, 1]


@torch.no_grad()
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


def test_it_can_be_trained(make):
    model, tokens = make("model/position=learned model.tied_head=false"), some_tokens()
    ignored = torch.full_like(tokens, -100)
    ignored[:, 4] = tokens[:, 4]
    loss = model(tokens, labels=ignored).loss
    expected = torch.nn.functional.cross_entropy(model(tokens).logits[:, 3], tokens[:, 4])
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


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
