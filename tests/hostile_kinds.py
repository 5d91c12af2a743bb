"""Hostile inputs of four kinds for tests/hostile_inputs.py: each function changes files in a folder
that holds a text and a small run, and returns the script and the words to run there."""

import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoint_files import opened, save

Attack = tuple[str, list[str]]

LAST = Path("outputs/run/checkpoints/last.safetensors")
BEST = Path("outputs/run/checkpoints/best.safetensors")
RUN = (
    "${oc.create:{_target_: pathlib.Path.touch, _args_: [{_target_: pathlib.Path, _args_: [ran]}]}}"
)

VALUES = [
    *("", "null", "nan", "inf", "-inf", "-1", "0", "1", "3", "1e-308", "1e400", "0.5", "true"),
    *(str(2**63), str(2**70), "-" + "9" * 400, "[1]", "[5]", "[]", "[[[]]]", "{a:1}", "[null]"),
    *("../x", "/dev/zero", "/dev/null", ".", "..", "fifo", "text.txt", "nowhere", "outputs/run"),
    *("${oc.env:HOME}", "${name}", RUN, "'", '"', "\\", "\x01", "é", "名", "a" * 3000, "~", "%s"),
    *("{_target_: os.system, command: touch ran}", "text.txt/x", "auto", "cpu", "cuda:9", "*"),
]
"""Words after key=."""
LARGE = ["100000000", "99999999999"]

ENDLESS = ("max_steps", "max_new_tokens", "num_samples", "windows", "rounds", "steps", "batches")
"""Keys whose large values are work that a person asked for."""

KEYS = {
    "train": [
        *("name", "seed", "resume", "init_from", "store_dir", "experiment", "bogus", "logger"),
        *("data", "data.path", "data.name", "data.column", "tokenizer", "tokenizer.path"),
        *("tokenizer.vocab_size", "optimizer", "optimizer.lr", "optimizer.matrix_lr"),
        *("optimizer.weight_decay", "optimizer.beta1", "optimizer.momentum", "schedule"),
        *("schedule.warmup_steps", "schedule.cooldown", "schedule.final_fraction", "model"),
        *("model.block_size", "model.embed_dim", "model.layers", "model.heads", "model.kv_heads"),
        *(
            "model.head_dim",
            "model.dropout",
            "model.ngrams",
            "model.ngram_buckets",
            "model.logit_cap",
            "model.document_mask",
            "model.bias",
        ),
        *("model/attention", "model/position", "model.attention", "model.attention.scale"),
        *("model.attention._target_", "model.position._partial_", "model/norm", "trainer"),
        *("trainer.batch_size", "trainer.accumulate", "trainer.val_every_steps"),
        *("trainer.val_batch_size", "trainer.log_every_steps", "trainer.gradient_clip"),
        *("trainer.accelerator", "trainer.devices", "trainer.precision", "trainer.compile"),
        *("trainer.loss_chunk_tokens", "trainer.max_steps", "callbacks", "callbacks.attention"),
        *("callbacks.attention.images", "callbacks.attention.text", "callbacks.attention.steps"),
        *("callbacks.heads.every_steps", "callbacks.heads.windows", "callbacks.heads.thresholds"),
        *("callbacks.heads.thresholds.self", "callbacks.samples.prompt", "callbacks.keep_steps"),
        *("callbacks.samples.temperature", "callbacks.samples.top_k", "hydra.run.dir"),
        *("callbacks.save_every_minutes", "callbacks.early_stopping_patience", "hydra"),
    ],
    "sample": [
        *("checkpoint", "prompt", "max_new_tokens", "temperature", "top_k", "top_p", "stop"),
        *("num_samples", "seed", "device", "precision", "compile", "bogus"),
    ],
    "evaluate": [
        *("checkpoint", "data", "data.path", "batch_size", "block_size", "device", "precision"),
    ],
    "analyze": [
        *("checkpoint", "text", "output_dir", "windows", "ablation", "replace_by", "difference"),
        *("ablation_windows", "other", "checkpoints", "thresholds", "thresholds.self", "device"),
    ],
    "compare": ["name", "seeds", "compare.choices", "compare.block_sizes", "speed_rounds", "seed"],
    "benchmark": ["suite", "output", "suite.rounds", "suite.shapes", "suite.memory_gib"],
}
BASE = {
    "train": [
        *("tokenizer=byte", "data.path=text.txt", "model.block_size=16", "model.embed_dim=16"),
        *("model.layers=2", "model.heads=2", "trainer.max_steps=2", "callbacks=plain"),
    ],
    "sample": ["checkpoint=outputs/run", "max_new_tokens=3"],
    "evaluate": ["checkpoint=outputs/run"],
    "analyze": ["checkpoint=outputs/run", "windows=1", "ablation_windows=2"],
    "compare": [
        *("tokenizer=byte", "data.path=text.txt", "model.block_size=16", "model.embed_dim=16"),
        *("model.layers=1", "trainer.max_steps=1", "trainer.val_every_steps=1", "seeds=[1]"),
        *('compare.choices=["model.heads=1"]', "speed_rounds=0", "callbacks=plain"),
    ],
    "benchmark": ["suite=attention", "suite.rounds=1", "suite.shapes=[[8,8,2]]"],
}
WEIGHTS = {"train": 12, "sample": 3, "evaluate": 2, "analyze": 2, "compare": 2, "benchmark": 1}


def command_line(draw: random.Random, folder: Path) -> Attack:
    """One to three hostile words after a command line that works."""
    os.mkfifo(folder / "fifo")
    name = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    words = list(BASE[name])
    for _ in range(draw.randint(1, 3)):
        key = draw.choice(KEYS[name])
        large = [] if key.rpartition(".")[2] in ENDLESS else LARGE
        value = draw.choice(VALUES + large)
        form = draw.choice(["{k}={v}"] * 8 + ["+{k}={v}", "++{k}={v}", "~{k}", "{k}", "-m {k}={v}"])
        word = form.format(k=key, v=value)
        words += word.split(" ", 1) if form.startswith("-m") else [word]
    return name, [word.replace("\0", "") for word in words]


def actions(draw: random.Random) -> Attack:
    """Something that reads the run."""
    return draw.choice(
        [
            ("train", ["resume=outputs/run", "trainer.max_steps=3"]),
            ("train", ["resume=outputs/run", "trainer.max_steps=3", "schedule.warmup_steps=1"]),
            ("train", [*BASE["train"], f"init_from={LAST}"]),
            ("sample", [f"checkpoint={LAST}", "max_new_tokens=3"]),
            ("sample", ["checkpoint=outputs/run", "max_new_tokens=3"]),
            ("evaluate", [f"checkpoint={LAST}"]),
            ("analyze", [f"checkpoint={LAST}", "windows=1"]),
        ]
    )


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def deep(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"x": value}
    return value


STORED: list[Callable[[], Any]] = [
    *(lambda: None, list, dict, lambda: -1, lambda: 2**62, lambda: 2**200, lambda: 1.5),
    *(lambda: True, lambda: "", lambda: RUN, lambda: "../../ran", lambda: "${name}"),
    *(lambda: {"_target_": "os.system", "command": "touch ran"}, lambda: "x" * 10**6),
    *(lambda: deep(150), lambda: 10**8, lambda: [10**8]),
]
TENSORS: list[Callable[[], torch.Tensor]] = [
    *(lambda: torch.zeros(3), lambda: torch.full((2, 2), torch.nan), lambda: torch.zeros(0)),
    *(lambda: torch.tensor(1.0), lambda: torch.zeros(4, dtype=torch.float64)),
]


def checkpoint_content(draw: random.Random, folder: Path) -> Attack:
    """Values or tensors of a checkpoint replaced, removed or added."""
    content = opened(folder / LAST)
    for _ in range(draw.randint(1, 2)):
        node: Any = content["tensors"] if draw.random() < 0.3 else content
        below = node
        while isinstance(below, dict) and below and draw.random() < 0.85:
            key = draw.choice([key for key in below if key != "tensors"])
            node, below = below, below[key]
        change, values = draw.random(), TENSORS if node is content["tensors"] else STORED
        if change < 0.15:
            node.pop(key, None)
        else:
            node[f"{key}x" if change < 0.25 else key] = draw.choice(values)()
    for file in (LAST, BEST)[: draw.randint(1, 2)]:
        save(content, folder / file)
    return actions(draw)


def checkpoint_bytes(draw: random.Random, folder: Path) -> Attack:
    """A checkpoint file cut, overwritten, or of another kind."""
    file = folder / LAST
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    match draw.randrange(9):
        case 0:
            data = data[:place]
        case 1:
            data[place] ^= 1 << draw.randrange(8)
        case 2:
            data[place : place + 4096] = bytes(len(data[place : place + 4096]))
        case 3:
            data = bytearray()
        case 4:
            data += draw.randbytes(1000)
        case 5:
            data = bytearray(draw.randbytes(5000))
        case 6:
            data = bytearray(pickle.dumps(Bomb()))
        case 7:
            torch.save({"headscope": Bomb(), "state_dict": {}}, file)
            data = bytearray(file.read_bytes())
        case 8:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("archive/data.pkl", bytes(10**8))
                archive.writestr("archive/version", "3\n")
            data = bytearray(file.read_bytes())
    file.write_bytes(data)
    if draw.random() < 0.5:
        (folder / BEST).write_bytes(data)
    if draw.random() < 0.2:
        (folder / "outputs/run/summary.json").write_text(draw.choice(["{", "[" * 10**5, "[]", "1"]))
    return actions(draw)


def token_store(draw: random.Random, folder: Path) -> Attack:
    """Files of a token store edited, cut, removed or replaced."""
    [store] = [path.parent for path in (folder / "data").glob("*/store.json")]
    file = store / draw.choice(["store.json", "tokenizer.json", "train.bin", "validation.bin"])
    data = bytearray(file.read_bytes())
    if file.suffix == ".json" and draw.random() < 0.7:
        values = json.loads(data)
        key = draw.choice(list(values))
        hostile = [
            None,
            [],
            {},
            -1,
            2**62,
            1e308,
            "",
            "x" * 10**6,
            RUN,
            "int8",
            "float64",
            "(a+)+$",
        ]
        values[key] = draw.choice(hostile)
        data = bytearray(json.dumps(values).encode())
    else:
        place = draw.randrange(len(data))
        match draw.randrange(6):
            case 0:
                data = data[:place]
            case 1:
                data[place] = 255
                data[place ^ 1 if (place ^ 1) < len(data) else place] = 255
            case 2:
                data = bytearray(b"[" * 10**6)
            case 3:
                data = bytearray(draw.randbytes(len(data)))
            case 4:
                data = bytearray()
            case 5:
                data += b"\xff"
    file.unlink()
    match draw.randrange(12):
        case 0:
            pass
        case 1:
            os.mkfifo(file)
        case 2:
            file.symlink_to(draw.choice(["/dev/zero", "/etc/passwd", "nowhere"]))
        case _:
            file.write_bytes(data)
    words = [word for word in BASE["train"] if not word.startswith("callbacks")]
    return draw.choice([("train", words), ("train", ["resume=outputs/run", "trainer.max_steps=3"])])


TEXTS: list[Callable[[random.Random], bytes]] = [
    lambda draw: b"",
    lambda draw: b" \n\t" * 1000,
    lambda draw: b"\xef\xbb\xbf",
    lambda draw: draw.randbytes(5000),
    lambda draw: ("text 名 " * 500).encode("utf-16"),
    lambda draw: ("text 名 " * 500).encode("utf-16-le"),
    lambda draw: ("text 名 " * 500).encode("utf-32"),
    lambda draw: ("façade über " * 500).encode("latin-1"),
    lambda draw: "名字 ".encode("gb18030") * 500,
    lambda draw: bytes(5000),
    lambda draw: b"\xed\xa0\x80" * 500,
    lambda draw: b"a" * 10**6,
    lambda draw: b"\r" * 5000,
    lambda draw: "".join(chr(draw.randrange(1, 0xD800)) for _ in range(5000)).encode(),
    lambda draw: b"\x1f\x8b\x08" + draw.randbytes(3000),
    lambda draw: b"<|endoftext|>" * 500,
    lambda draw: ("\u202e\u0000\ufeff\u2028" * 500).encode(),
    lambda draw: b" " * 300_000 + b"x",
    lambda draw: b"x",
]


def text_file(draw: random.Random, folder: Path) -> Attack:
    """A text of the user's own that is not text, or not a file."""
    file = folder / "mine.txt"
    match draw.randrange(10):
        case 0:
            os.mkfifo(file)
        case 1:
            file.symlink_to(draw.choice(["/dev/zero", "mine.txt", "nowhere", "/dev/stdin"]))
        case 2:
            file.mkdir()
            for number in range(draw.randint(0, 12)):
                (file / f"{number}.txt").write_bytes(draw.choice(TEXTS)(draw))
        case _:
            file.write_bytes(draw.choice(TEXTS)(draw))
    tokenizer = draw.choice(["byte", "char", "bpe", "gpt2"])
    words = ["data.path=mine.txt", f"tokenizer={tokenizer}", *BASE["train"][2:]]
    if tokenizer == "bpe":
        words.append("tokenizer.vocab_size=260")
    return draw.choice(
        [("train", words), ("train", words), ("evaluate", ["checkpoint=outputs/run", words[0]])]
    )


KINDS = {
    "command line": command_line,
    "checkpoint": checkpoint_content,
    "checkpoint file": checkpoint_bytes,
    "token store": token_store,
    "text": text_file,
}
