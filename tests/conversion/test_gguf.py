"""The laws of GGUF files: llama.cpp computes what our model computes, and what does not fit is
refused with the reason."""

import pytest
import torch
from conversion.models import EXACT, GPT2, RELU, RMS, SCALED, SWIGLU, saved
from refusals import refused

from headscope.conversion.gguf import export_gguf
from headscope.data.tokenizer import CharTokenizer, bpe, with_vocab_size

gguf = pytest.importorskip("gguf")

TEXT = "the people form a Union"
ARCHITECTURES = {
    words: architecture
    for models in EXACT.values()
    for words, architecture in models.items()
    if architecture
} | {f"{GPT2} model/position=alibi {words}": "mpt" for words in ("model.heads=2", SCALED)}
REFUSED = {
    "model=gpt": "activation=gelu,",
    "model=modern": "logit_cap",
    "model=gpt2 model/attention=additive": "attention=additive",
    "model=gpt2 model/position=relative": "position=relative",
    "model=gpt2 model.ngrams=2": "ngrams",
    "model=gpt2 model.document_mask=true": "document_mask",
    "model=gpt2 model.head_dim=6": "head_dim",
    f"{RMS} model/activation=gelu": "activation=gelu",
    f"{RELU} model.bias=true": "model.bias",
    f"{SWIGLU} model.attention.qk_norm=true": "qk_norm",
}


@pytest.fixture(scope="module")
def tokenizer():
    words = "The people of the United States, in order to form a more perfect Union: 1787!"
    return bpe([words * 3], vocab_size=290)


@pytest.mark.parametrize("words", ARCHITECTURES)
def test_an_architecture_of_llama_cpp_is_found(words, tmp_path, tokenizer):
    said = export_gguf(saved(tmp_path, words, tokenizer), tmp_path / "out")
    assert f"(architecture {ARCHITECTURES[words]})" in said[1]


@pytest.mark.parametrize("words", REFUSED)
def test_a_model_that_does_not_fit_is_refused_with_its_parts(words, tmp_path, tokenizer):
    loaded = saved(tmp_path / "run", words, tokenizer)
    with refused("to=gguf: no architecture of llama", REFUSED[words]):
        export_gguf(loaded, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("words", ARCHITECTURES)
@torch.no_grad()
def test_llama_cpp_computes_the_same_logits(words, tmp_path, tokenizer):
    llama = pytest.importorskip("cyllama.llama.llama_cpp", reason="needs cyllama, a llama.cpp")
    loaded = saved(tmp_path, words, tokenizer)
    export_gguf(loaded, tmp_path / "out")
    tokens = loaded.tokenizer.encode(TEXT).tolist()[:8]
    ours = loaded.model(torch.tensor([tokens]))[0]
    theirs = llama_logits(llama, tmp_path / "out" / "model.gguf", tokens, ours.size(1))
    # The table in which llama.cpp looks up GELU has 16-bit numbers.
    tolerance = 1e-2 if "gpt2" in words else 1e-4
    scale = max(1.0, ours.abs().max().item() / 10)
    assert (ours - theirs).abs().max().item() < tolerance * scale
    assert (ours.argmax(1) == theirs.argmax(1)).all()


def llama_logits(llama, path, tokens, vocab_size):
    """The logits (T, V) that llama.cpp computes. Its tokenizer must give the same tokens."""
    parameters = llama.LlamaContextParams()
    parameters.n_ctx = 8
    parameters.type_k = parameters.type_v = 0  # float32
    parameters.flash_attn_type = 0
    parameters.n_threads = parameters.n_threads_batch = 1
    kind = type("Model", (llama.LlamaModel,), {"n_vocab": vocab_size})  # cyllama 0.2.18 needs it
    model = kind(str(path), llama.LlamaModelParams(), verbose=False)
    vocab = model.get_vocab()
    assert vocab.tokenize(TEXT, False, False)[: len(tokens)] == tokens
    context = llama.LlamaContext(model, parameters, verbose=False)
    rows = []
    for end in range(1, len(tokens) + 1):
        context.kv_cache_clear()
        batch = llama.llama_batch_get_one(tokens[:end])
        context.decode(batch)
        rows.append(context.get_logits())  # those of the last token
    return torch.tensor(rows)


def test_rows_without_a_token_get_an_unused_one(tmp_path, tokenizer):
    padded = with_vocab_size(tokenizer, 300)
    export_gguf(saved(tmp_path, "model=gpt2", padded), tmp_path / "out")
    fields = gguf.GGUFReader(tmp_path / "out" / "model.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert len(tokens) == len(set(tokens)) == len(kinds) == 300
    assert kinds.index(gguf.TokenType.CONTROL) == tokenizer.end_of_text == 289
    assert set(kinds[290:]) == {gguf.TokenType.UNUSED}


def test_what_has_no_byte_level_tokenizer_is_refused(tmp_path):
    loaded = saved(tmp_path, "model=gpt2", CharTokenizer("abc"))
    with refused("to=gguf: llama.cpp has no tokenizer=char"):
        export_gguf(loaded, tmp_path / "out")
    assert not (tmp_path / "out").exists()
