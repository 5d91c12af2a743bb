"""The laws of every format: what is exported computes what the model computes. What does not fit or
differs is refused in one line and leaves nothing."""

import resource
import signal
import subprocess
import sys
import time
from functools import partial

import gguf
import psutil
import pytest
import torch
from choices import slow_unless
from conversion.models import EXACT, GPT2, OWN, SCALED, SWIGLU, saved
from refusals import refused
from running import ROOT

from headscope import trained
from headscope.conversion import export, nanogpt
from headscope.conversion.convert import FORMATS, import_model
from headscope.conversion.export import check_greedy
from headscope.conversion.gguf_file import load_gguf
from headscope.conversion.imported import write_checkpoint
from headscope.conversion.proof import NotEqual, converted, find_class
from headscope.data.tokenizer import CharTokenizer, bpe, gpt2
from headscope.errors import UserError
from headscope.nn import MultiHeadAttention
from headscope.trained import TrainedModel, checkpoint

NANOGPT = "model=gpt2 model/activation=gelu model.heads=2 model.dropout=0.1"
CHAR = CharTokenizer("".join(map(chr, range(256))))
BPE = bpe(["The people of the United States, in order to form: 1787!" * 3], vocab_size=290)
TOKENIZERS = {"nanogpt": CHAR, "gguf": BPE, "huggingface": None, "safetensors": None}
MODELS = {"nanogpt": NANOGPT, "gguf": "model=gpt2", "huggingface": OWN, "safetensors": OWN}
"""A model that fits each format."""

UNSCALED = "model/attention=stacked_heads model.scale_embedding=false"
NO_POSITION = "model/position=none model.attention.scale=0.9 model.attention.out_proj=false"
THERE_AND_BACK = [
    ("safetensors", OWN),
    ("nanogpt", f"{NANOGPT} model.bias=false model.qkv_bias=true"),
    ("nanogpt", f"{NANOGPT} model/position=sinusoidal {UNSCALED}"),
    ("nanogpt", f"{NANOGPT} {NO_POSITION}"),
    ("huggingface", f"{SWIGLU} model.bias=true model.qkv_bias=true"),
    ("huggingface", f"{GPT2} model/position=sinusoidal {SCALED}"),
]
QUICK = [case for case in THERE_AND_BACK if case[0] != "huggingface"]


@pytest.mark.parametrize("case", slow_unless(QUICK, THERE_AND_BACK), ids=" ".join)
def test_what_goes_out_comes_in_again(case, tmp_path):
    to, words = case
    loaded = saved(tmp_path / "a", words, gpt2([]) if to == "nanogpt" else None)
    said = FORMATS[to](loaded, tmp_path / "out")
    assert str(tmp_path / "out") in "".join(said)
    run = tmp_path / "out"
    if to == "safetensors":
        assert "training" not in checkpoint.read(checkpoint.find(str(run))).data
    else:
        run = tmp_path / "run"
        import_model(str(tmp_path / "out" / ("ckpt.pt" if to == "nanogpt" else "")), run)
    again = trained.load(checkpoint.find(str(run)))
    tokens = torch.randint(again.model.vocab_size, (2, 8))
    torch.testing.assert_close(again.model(tokens), loaded.model(tokens), atol=1e-4, rtol=0)
    assert again.tokenizer.encode("To be").tolist() == loaded.tokenizer.encode("To be").tolist()


REFUSED = [
    ("gguf", "model=gpt", BPE, "activation=gelu,"),
    ("gguf", "model=modern", BPE, "logit_cap"),
    ("gguf", "model=gpt2 model/attention=additive", BPE, "attention=additive"),
    ("gguf", "model=gpt2 model.document_mask=true", BPE, "document_mask"),
    ("gguf", f"{SWIGLU} model.attention.qk_norm=true", BPE, "qk_norm"),
    ("gguf", "model=gpt2", CHAR, "tokenizer=char"),
    ("nanogpt", f"{NANOGPT} model/position=rotary", CHAR, "model/position=rotary"),
    ("nanogpt", f"{NANOGPT} model.tied_head=false", CHAR, "model.tied_head=false"),
    ("nanogpt", f"{NANOGPT} model.ff_dim=24", CHAR, "model.ff_dim=24"),
    ("nanogpt", NANOGPT, BPE, "its tokenizer is bpe"),
]


@pytest.mark.parametrize(("to", "words", "tokenizer", "reason"), REFUSED)
def test_what_does_not_fit_is_refused_with_its_parts(to, words, tokenizer, reason, tmp_path):
    loaded = saved(tmp_path / "run", words, tokenizer)
    with refused(f"to={to}: ", reason):
        FORMATS[to](loaded, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_missing_is_said_in_one_line(tmp_path, monkeypatch):
    loaded = saved(tmp_path, OWN, BPE)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for to in ("gguf", "huggingface"):
        with refused(f"to={to} needs", "pip install 'headscope[huggingface]'"):
            FORMATS[to](loaded, tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with refused("source=", "needs transformers"):
        import_model(str(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- writing a folder ---


@pytest.mark.parametrize("to", [*FORMATS, "checkpoint"])
def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(to, tmp_path):
    loaded = saved(tmp_path / "run", MODELS.get(to, "model=gpt2"), TOKENIZERS.get(to))
    write, size = partial(write_checkpoint, loaded=loaded), r"it needs at least [\d,]+ bytes.*"
    if to in FORMATS:
        write, size = partial(FORMATS[to], loaded), ""
    expected = f"could not be written: (File too large|the disk is full).*{size} free"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, hard))  # the largest file, in bytes
    try:
        with pytest.raises(UserError, match=expected):
            write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def damaged_model(theirs, gpt, config):
    entries, model = converted(theirs, gpt, config)
    model.blocks[1].feed_forward.up_proj.bias.data += 0.1
    return entries, model


def damaged_file(weights, metadata):
    name = "model.blocks.0.attention.w"
    return export_save(weights | {name: weights[name] * 1.01}, metadata)


def damaged_tensor(writer, name, tensor):
    add_tensor(writer, name, tensor + 1e-6)


export_save, add_tensor = export.save, gguf.GGUFWriter.add_tensor
DAMAGES = {
    "nanogpt": (nanogpt, "converted", damaged_model),
    "gguf": (gguf.GGUFWriter, "add_tensor", damaged_tensor),
    "huggingface": (export, "save", damaged_file),  # of our own class
}


@pytest.mark.parametrize("to", slow_unless(["nanogpt", "gguf"], DAMAGES))
def test_what_differs_from_the_model_is_removed(to, tmp_path, monkeypatch):
    loaded = TrainedModel(**vars(saved(tmp_path / "run", MODELS[to], TOKENIZERS[to])))
    monkeypatch.setattr(*DAMAGES[to])
    write = loaded.save_pretrained if to == "huggingface" else partial(FORMATS[to], loaded)
    with pytest.raises(NotEqual, match=r"logits differ by|other tensors"):
        write(tmp_path / "new" / "out")
    assert {path.name for path in tmp_path.rglob("*")} <= {"run", "best.safetensors", "new"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_export_leaves_no_process_and_the_next_one_cleans_up(tmp_path, number):
    loaded = saved(tmp_path / "run" / "checkpoints", OWN)
    words = ["checkpoint=run", "to=huggingface", "output=out"]
    command = [sys.executable, str(ROOT / "scripts" / "convert.py"), *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        children: list[psutil.Process] = []
        while not children or not list(tmp_path.glob(".writing-*/out/.proof")):
            assert process.poll() is None
            children = psutil.Process(process.pid).children()
            time.sleep(0.02)
        process.send_signal(number)
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert (len(gone), alive) == (1, [])
    assert process.returncode == -number
    (tmp_path / ".writing-1" / "output").mkdir(parents=True)  # that of another name
    FORMATS["huggingface"](loaded, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out", ".writing-1"}


# --- the proof ---


def test_other_greedy_tokens_are_found(tmp_path):
    loaded, prompt = saved(tmp_path, OWN), [1, 2, 3, 4]
    greedy = [*prompt, int(loaded.model.next_logits(torch.tensor([prompt])).argmax())]
    check_greedy(loaded, prompt, greedy, 1)
    for wrong, count in (([*prompt, (greedy[-1] + 1) % 257], 1), (greedy, 2), (greedy[1:], 0)):
        with pytest.raises(NotEqual, match="greedy"):
            check_greedy(loaded, prompt, wrong, count)


def test_an_attention_that_was_changed_in_place_is_noticed(tmp_path, monkeypatch):
    """Its name is that of an attention that other tools have. Only the logits differ."""
    words = "model=gpt2 model.block_size=32 model/activation=gelu_tanh"
    loaded = saved(tmp_path, words, BPE)
    assert find_class(loaded.model, loaded.config.model).name == "GPT2LMHeadModel"
    attend = MultiHeadAttention.attend

    def windowed(self, q, k, v, *, mask, **options):
        near = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(-15)
        return attend(self, q, k, v, mask=near if mask is None else near & mask, **options)

    monkeypatch.setattr(MultiHeadAttention, "attend", windowed)
    assert find_class(loaded.model, loaded.config.model) is None
    for to in ("gguf", "nanogpt"):
        with refused(f"to={to}: "):
            FORMATS[to](loaded, tmp_path / "out")


# --- llama.cpp ---

TEXT = "the people form a Union"
ARCHITECTURES = {
    words: architecture
    for models in EXACT.values()
    for words, architecture in models.items()
    if architecture
} | {f"{GPT2} model/position=alibi {words}": "mpt" for words in ("model.heads=2", SCALED)}


@pytest.mark.parametrize("words", ARCHITECTURES)
def test_a_gguf_file_comes_in_again(words, tmp_path):
    loaded = saved(tmp_path, words, BPE)
    said = FORMATS["gguf"](loaded, tmp_path / "out")
    assert f"(architecture {ARCHITECTURES[words]})" in said[1]
    again = load_gguf(tmp_path / "out" / "model.gguf", name="again")
    tokens = loaded.tokenizer.encode(TEXT).tolist()[:8]
    assert again.tokenizer.encode(TEXT).tolist()[:8] == tokens
    torch.testing.assert_close(again.logits(tokens), loaded.logits(tokens))


@pytest.mark.parametrize("words", ARCHITECTURES)
@torch.no_grad()
def test_llama_cpp_has_an_architecture_that_computes_the_same_logits(words, tmp_path):
    llama = pytest.importorskip("cyllama.llama.llama_cpp", reason="needs cyllama, a llama.cpp")
    loaded = saved(tmp_path, words, BPE)
    FORMATS["gguf"](loaded, tmp_path / "out")
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
    assert model.get_vocab().tokenize(TEXT, False, False)[: len(tokens)] == tokens
    context = llama.LlamaContext(model, parameters, verbose=False)
    rows = []
    for end in range(1, len(tokens) + 1):
        context.kv_cache_clear()
        context.decode(llama.llama_batch_get_one(tokens[:end]))
        rows.append(context.get_logits())  # those of the last token
    return torch.tensor(rows)
