"""The laws of checkpoints: a whole file gives the model back, and what a reading of attention holds
and refuses."""

import os
import shutil

import numpy as np
import pytest
import torch
from checkpoint_files import configuration, content, save
from choices import PAIRS, every_pair
from refusals import refused
from viewer_data import decoded

import headscope
from headscope import trained
from headscope.data.tokenizer import CharTokenizer, byte
from headscope.trained import checkpoint
from headscope.trained.checkpoint import pick_device


@every_pair
def test_saved_then_loaded_gives_the_same_logits(tmp_path, pair):
    attention, position = pair
    number = PAIRS.index(pair)
    tokenizer = (byte([]), CharTokenizer("abcé\n"))[number % 2]
    config = configuration(f"model/attention={attention}", f"model/position={position}")
    config["model"] |= {"tied_head": number % 3 > 0, "qkv_bias": number % 4 > 1, "dropout": 0.5}
    saved, model = content(config, tokenizer)
    file, tokens = tmp_path / "a.safetensors", torch.randint(tokenizer.vocab_size, (2, 8))
    save(saved, file)
    # No mask and no computed table takes up room in the file.
    in_file = checkpoint.read(file).weights()
    assert set(in_file) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    loaded = trained.load(file)
    file.write_bytes(b"")  # a loaded model does not need its file
    assert torch.equal(loaded.model(tokens), model.eval()(tokens))
    assert loaded.config.kept() == config | {"callbacks": {}}
    assert loaded.step == 7
    assert loaded.tokenizer.state() == tokenizer.state()


def test_a_model_with_a_document_mask_knows_the_end_of_text_of_its_tokenizer(tmp_path):
    file, config = tmp_path / "a.safetensors", configuration("model.document_mask=true")
    save(content(config, CharTokenizer("abcé\n"))[0], file)
    loaded = trained.load(file)
    for model in (loaded.model, loaded.with_block_size(16)):
        assert model.end_of_text == loaded.tokenizer.end_of_text
    save(content(config, CharTokenizer("a", special_tokens=False))[0], file)
    with refused("document_mask=true", "end-of-text"):
        trained.load(file)


def test_find_takes_a_file_a_run_or_the_newest_run(tmp_path):
    best, last = (tmp_path / "a/checkpoints" / f"{name}.safetensors" for name in ("best", "last"))

    def assert_refused(path, words):
        with refused(words):
            checkpoint.find(path and str(tmp_path / path), outputs=tmp_path)

    assert_refused(None, "no run in")
    best.parent.mkdir(parents=True)
    assert_refused("a", "has no checkpoints")
    for file in (last, best):  # the best, where there is one
        save(content()[0], file)
        for given in (None, str(tmp_path / "a")):
            assert checkpoint.find(given, outputs=tmp_path) == file
    assert checkpoint.find(str(last)) == last
    assert_refused("b", "b does not exist")
    for other in ("config.json", "ckpt.pt"):  # a model of another tool must be converted
        (tmp_path / other).write_text("{}")
    assert_refused(".", "headscope convert")
    with refused("headscope convert"):
        checkpoint.read(tmp_path / "ckpt.pt")


def test_a_finished_run_is_found_before_one_that_still_trains(tmp_path, capsys):
    runs = trains, *others = [tmp_path / name for name in ("trains", "sweep/new", "old")]
    for age, run in enumerate(runs):
        (run / "checkpoints").mkdir(parents=True)
        save(content()[0], file := run / "checkpoints/last.safetensors")
        os.utime(file, (1e9 - age, 1e9 - age))
    assert checkpoint.find(None, outputs=tmp_path).parents[1] == trains
    for run in (*reversed(others), trains):
        (run / "summary.json").touch()
        assert checkpoint.find(None, key="other", outputs=tmp_path).parents[1] == run
        said = capsys.readouterr().err
        assert said.count(f"finished run, {run} (or give other={trains})\n") == (run != trains)


def test_the_run_with_the_newest_checkpoint_is_found(tmp_path):
    runs = [tmp_path / name for name in ("b", "sweep/c", "a")]
    for age, run in enumerate(runs):
        file = run / "checkpoints" / ("last.safetensors" if age else "best.safetensors")
        file.parent.mkdir(parents=True)
        save(content()[0], file)
        os.utime(file, (1e9 - age, 1e9 - age))
    save(content()[0], file.with_name("step_000001.safetensors"))  # which may be a copy
    for run in runs:
        assert checkpoint.find(None, outputs=tmp_path).parents[1] == run
        shutil.rmtree(run / "checkpoints")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("reading") / "some.safetensors"
    save(content(configuration("model/position=alibi"))[0], path)
    return headscope.load(path)


def test_the_first_tokens_of_a_reading_are_shown_like_a_reading_of_them(loaded):
    whole, alone = loaded.read("We the"), loaded.read("We ")
    assert whole.loss(3) == pytest.approx(alone.loss())
    found = [each.snapshot(whole.record(), 3) for each in (whole, alone)]
    assert found[0].header["labels"] == found[1].header["labels"] == alone.labels
    assert [each.header["text_tokens"] for each in found] == [6, 3]
    ours, theirs = (decoded(each.header, each.parts) for each in found)
    for kind, parts in ours.items():
        for one, other in zip(parts, theirs[kind], strict=True):
            for name, values in one.items():
                most = 1 if name in ("maps", "codes") else 1e-5
                np.testing.assert_allclose(values, other[name], rtol=1e-3, atol=most)


def test_bertviz_gets_the_attention_layer_by_layer(loaded):
    reading = loaded.read("a 多\n<b")
    attention, tokens = reading.to_bertviz()
    assert tokens == reading.labels == ["a", "·", "多 1/3", "多 2/3", "多 3/3", "⏎", "<", "b"]
    assert [each.shape for each in attention] == [(1, 4, 8, 8)] * 2
    assert torch.equal(torch.cat(attention), reading.attention)


def test_tokens_are_integers_of_any_kind_in_the_vocabulary(loaded):
    for tokens in ([1, 2], np.array([1, 2]), torch.tensor([1, 2]), (1, 2)):
        assert loaded.read(tokens).tokens.tolist() == [1, 2]
    beyond = [1] * 8 + [999]  # the last one, beyond block_size
    for tokens in ([-1], [1, 2.0], torch.tensor([0.5]), [[1, 300]], [2**70], beyond):
        with refused("token ", "0 to 256"):
            loaded.read(tokens)
    for tokens in (None, 5, [1, "a"], [[1, 2], 3]):
        with refused("list of token ids"):
            loaded.read(tokens)


def test_a_device_that_is_not_here_is_refused(loaded):
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    for device in ("bogus", "cpu:x", "", torch.device("meta")):
        with refused("device="):
            headscope.load(loaded.path, device=device)
