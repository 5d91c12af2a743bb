"""The parts of docs/make.py. Each part runs commands of the project, and writes tables and pictures
to its folder."""

import csv
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

QUICK = {
    "train": "trainer.max_steps=20 trainer.val_every_steps=10 model.embed_dim=32 "
    "callbacks.heads.every_steps=10",
    "compare": "trainer.max_steps=2 trainer.val_every_steps=2 seeds=[1,2] speed_rounds=1",
    "training": "suite.rounds=2 suite.steps=2 suite.warmup_steps=1",
    "race": "suite.seeds=[1] suite.max_steps=4 suite.every_steps=2",
    "data": "suite.rounds=2 suite.batches=5 suite.tokens=[20000,30000]",
    "encoding": "suite.megabytes=[1,2]",
    "devices": "suite.rounds=1 suite.steps=2 model.embed_dim=16 model.layers=1",
    "memory": "suite.rounds=1 suite.vocab_size=100 model.embed_dim=24 model.block_size=32",
    "scaling": "suite.rounds=1 suite.tokens_per_step=64 suite.contexts=[16,32] suite.layers=[1,2] "
    "suite.widths=[16,32] suite.vocabularies=[64,128] model.block_size=16 model.embed_dim=16",
    "sampling": "suite.rounds=1 suite.small.tokens=20 suite.large.vocab_size=99 "
    "suite.large.block_size=20 suite.large.layers=2 suite.large.prompt=3 suite.large.tokens=8",
    "attention": "suite.rounds=1 suite.shapes=[[8,24,4]]",
    "estimate": '\'suite.shapes=["model.layers=1","model.layers=2"]\'',
    "watching": "suite.rounds=1 trainer.max_steps=4 trainer.val_every_steps=4",
    "viewer": "suite.rounds=2 suite.steps=4 suite.shapes=[[2,2,8]]",
}
"""Overrides with tiny sizes for --quick, for each script and each suite."""


@dataclass(frozen=True)
class Work:
    """Runs the commands of a part. Their tables are written to <name>.md and their pictures to
    <name>.png in `folder`."""

    folder: Path
    quick: bool

    @property
    def seeds(self) -> list[int]:
        return [1] if self.quick else [1, 2, 3]

    def run(self, script: str, words: str, *, kind: str = "") -> str:
        """Run scripts/<script>.py and return its standard output. `kind` is the key of `QUICK`, by
        default `script`."""
        quick = QUICK.get(kind or script, "") if self.quick else ""
        shakespeare = os.environ.get("SHAKESPEARE")
        if shakespeare and re.search(
            "tinyshakespeare|experiment=(?!heads|best_sotu|induction)", words
        ):
            words += f" data.path={shlex.quote(shakespeare)}"
        command = [sys.executable, f"scripts/{script}.py", *shlex.split(f"{words} {quick}")]
        print(shlex.join(["python", *command[1:]]), flush=True)
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def benchmark(self, name: str, words: str) -> None:
        suite = words.split()[0].removeprefix("suite=")
        self.run("benchmark", f"{words} output={self.folder}/{name}.json", kind=suite)
        text = (self.folder / f"{name}.md").read_text(encoding="utf-8")
        self.write(name, without_paths(text))

    def compare(self, name: str, words: str) -> list[dict[str, Any]]:
        """Run a comparison and return its rows. The best row is the first."""
        words = re.sub(r" name=\S+", "", words)
        folder = Path("outputs") / f"compare_{self.folder.parent.name}_{name}"
        shutil.rmtree(folder, ignore_errors=True)  # otherwise the comparison would continue
        self.run("compare", f"{words} name={self.folder.parent.name}_{name}")
        shutil.copy(folder / "comparison.png", self.folder / f"{name}.png")
        if (folder / "lengths.png").exists():
            shutil.copy(folder / "lengths.png", self.folder / f"{name}_lengths.png")
        rows = read_rows(folder / "comparison.csv", "choice")
        return sorted(rows, key=lambda row: row["bits_per_byte"])

    def table(
        self,
        name: str,
        command: str,
        rows: Sequence[Mapping[str, Any]],
        columns: Mapping[str, str],
        note: str = "",
    ) -> None:
        from headscope.benchmarks.show import table

        parts = [f"```\n{command}\n```", table(rows, columns), note]
        self.write(name, "\n\n".join(part for part in parts if part))

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.md").write_text(text.rstrip() + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Part:
    minutes: int
    makes: list[str]
    run: Callable[[Work], None]


PARTS: dict[str, Part] = {}


def part(*, minutes: int, makes: str) -> Callable[[Callable[[Work], None]], None]:
    """Registers a function as a part that takes about `minutes` on two cores. `makes` lists the
    names of its tables and pictures."""

    def register(run: Callable[[Work], None]) -> None:
        PARTS[run.__name__] = Part(minutes, makes.split(), run)

    return register


@part(minutes=3, makes="default sample precision startup page tab")
def default(work: Work) -> None:
    """The default run: loss, sample, precisions, start-up times, and pictures of its pages."""
    run = work.folder / "runs" / "gpt"
    work.run("train", f"hydra.run.dir={run}")
    summary = {"side": "default", **json.loads((run / "summary.json").read_text())}
    summary["share"] = 100 * summary["watching_seconds"] / summary["wall_seconds"]
    columns = {
        "val_bits_per_byte": "bits per byte",
        "val_loss": "nats per token",
        "parameters": "parameters",
        "train_seconds": "training, s",
        "wall_seconds": "start to exit, s",
        "share": "watching heads, % of start to exit",
    }
    work.table("default", "python scripts/train.py", [summary], columns)
    words = 'prompt="My fellow citizens" max_new_tokens=120'
    sample = work.run("sample", f"checkpoint={run} {words}").strip().splitlines()
    quoted = "\n".join(f"> {line}".rstrip() for line in sample)
    work.write("sample", f"```\npython scripts/sample.py {words}\n```\n\n{quoted}")
    rows = []
    for precision in ("fp32", "bf16", "int8"):
        found = work.run("evaluate", f"checkpoint={run} precision={precision}")
        rows.append({"side": precision, "bits": f"{json.loads(found)['bits_per_byte']:.5f}"})
    precisions = "python scripts/evaluate.py precision=fp32"
    work.table("precision", precisions, rows, {"bits": "bits per byte"})
    commands = {
        f"sample.py checkpoint={run}": "sample.py to its first character",
        f"train.py hydra.run.dir={work.folder}/runs/short trainer.max_steps=20": "train.py to its "
        "first logged step",
    }
    times = [
        {"side": side, **{key: first_output(command) for key in ("first", "second", "third")}}
        for command, side in commands.items()
    ]
    heading = {key: f"{key} time, s" for key in ("first", "second", "third")}
    work.table("startup", "time python scripts/sample.py", times, heading)
    from pages import picture_of_page, picture_of_tab

    work.run("analyze", f"checkpoint={run} output_dir={work.folder}/report")
    picture_of_page(work.folder / "report" / "attention.html", work.folder / "page.png")
    picture_of_tab(work.folder / "runs", work.folder / "tab.png")


@part(minutes=6, makes="race")
def race(work: Work) -> None:
    """Time until the fastest recipe reaches the final loss of nanoGPT's recipe."""
    work.benchmark("race", "suite=race experiment=speedrun_cpu")


@part(minutes=7, makes="race_best")
def race_best(work: Work) -> None:
    """The lowest loss in the training time of nanoGPT's recipe."""
    work.benchmark("race_best", "suite=race experiment=best_cpu suite.target=null")


@part(minutes=8, makes="race_default")
def race_default(work: Work) -> None:
    """The default run against a modern recipe on the same text."""
    sotu = "suite=race experiment=best_sotu suite.against=null suite.target=null"
    work.benchmark("race_default", sotu)


@part(minutes=4, makes="race_nanogpt")
def nanogpt(work: Work) -> None:
    """The race against the original nanoGPT."""
    checkout = shlex.quote(os.environ["NANOGPT"])
    work.benchmark("race_nanogpt", f"suite=race experiment=speedrun_cpu suite.nanogpt={checkout}")


@part(minutes=8, makes="step memory scaling sampling_speed")
def speed(work: Work) -> None:
    """Speed and memory of a training step, and of sampling."""
    work.benchmark("step", "suite=training experiment=nanogpt_cpu suite.steps=20 suite.rounds=30")
    work.benchmark("memory", "suite=memory")
    work.benchmark("scaling", "suite=scaling")
    work.benchmark("sampling_speed", "suite=sampling")


@part(minutes=2, makes="data_speed")
def batches(work: Work) -> None:
    """Time and memory to make a batch from small and large corpora."""
    work.benchmark("data_speed", "suite=data")


@part(minutes=5, makes="encoding")
def encoding(work: Work) -> None:
    """Speed and memory of preparing a large text."""
    work.benchmark("encoding", "suite=encoding")


@part(minutes=17, makes="devices devices_accumulate devices_large")
def devices(work: Work) -> None:
    """Speed and memory of one process and of several processes."""
    work.benchmark("devices", "suite=devices")
    accumulate = "trainer.accumulate=8 suite.steps=15 suite.rounds=3"
    work.benchmark("devices_accumulate", f"suite=devices {accumulate}")
    large = "model.embed_dim=768 model.layers=8 suite.steps=3 suite.rounds=1"
    work.benchmark("devices_large", f"suite=devices {large}")


@part(minutes=4, makes="estimate")
def estimates(work: Work) -> None:
    """The estimated memory of runs, compared with the memory of their processes."""
    work.benchmark("estimate", "suite=estimate")


@part(minutes=2, makes="scaling_memory scaling_watching scaling_time scaling_published")
def on_paper(work: Work) -> None:
    """What large runs need, and what published runs needed, from scripts/estimate.py."""
    from scaling_runs import (
        H100,
        MEMORY,
        MODELS,
        PUBLISHED,
        TOKENS,
        memory_row,
        published_row,
        time_row,
        watching_row,
    )

    def estimate(words: str) -> dict[str, Any]:
        plain = "" if "callbacks=" in words else "callbacks=plain "
        return json.loads(
            work.run("estimate", f"{plain}trainer.val_batch_size=1 {words}", kind="plan")
        )

    command = "python scripts/estimate.py callbacks=plain trainer.val_batch_size=1 "
    rows = [memory_row(estimate, *plan) for plan in MEMORY]
    columns = {
        "batch": "sequences per batch x batches",
        "kept": "kept, GiB",
        "peak": "peak, GiB",
        "fits": "fits in 80 GiB",
        "sent": "sent per step, GB",
        "rate": "sent, GB/s",
        "checkpoint": "checkpoint, GB",
    }
    work.table("scaling_memory", command + MEMORY[-1][1], rows, columns)
    rows = [watching_row(estimate, name) for name in MODELS]
    columns = {"watching": "measuring heads, GiB", "step": "training step of one sequence, GiB"}
    first = "python scripts/estimate.py trainer.val_batch_size=1 trainer.batch_size=1 "
    model = MODELS["124M"].rpartition(" ")[0]
    work.table("scaling_watching", f"{first}{model} {H100}", rows, columns)
    rows = [time_row(estimate, name, tokens) for name in MODELS for tokens in TOKENS]
    columns = {
        "flops": "FLOPs",
        "text": "tokens on disk, GB",
        "one": "1 GPU, days",
        "node": "8 GPUs, days",
        "many": "64 GPUs, days",
    }
    work.table(
        "scaling_time", f"{command}{MODELS['7B']} {H100} estimate.tokens=1e12", rows, columns
    )
    rows = [published_row(estimate, *plan) for plan in PUBLISHED]
    columns = {
        "seconds": "published, s/step",
        "ideal": "estimate at MFU 1, s/step",
        "mfu": "MFU from both",
        "stated": "published MFU",
        "memory": "published memory, GiB",
        "peak": "estimated memory, GiB",
    }
    work.table("scaling_published", command + PUBLISHED[0][1], rows, columns)


@part(minutes=8, makes="watching viewer_speed")
def watching(work: Work) -> None:
    """The cost of watching heads during training, and the speed of the tab Attention."""
    work.benchmark("watching", "suite=watching")
    work.benchmark("viewer_speed", "suite=viewer")


LADDER = (
    *("model.ngrams=5", "model.ngrams=4", "model.ngrams=3", "model.ngrams=2", "model.ngrams=1"),
    *("model.ngram_buckets=4096", "model/norm=layer", "model/activation=gelu"),
    *("model/position=learned", "model.attention.qk_norm=false", "model.logit_cap=null"),
    *("model.tied_head=true", "optimizer.momentum=0.95"),
    "schedule.cooldown=0.3",
    "model.heads=4",
)
"""Each entry changes one key of experiment=speedrun_cpu. Only the first entry keeps the value of
the recipe."""


@part(minutes=4, makes="ladder")
def ladder(work: Work) -> None:
    """How much each part of the fast recipe lowers the loss."""
    words = "experiment=speedrun_cpu compare=own name=ladder speed_rounds=0 "
    words += "trainer.max_steps=80 trainer.val_every_steps=80 "
    words += "compare.choices=" + shlex.quote(json.dumps(LADDER))
    rows = work.compare("ladder", words)
    [whole] = [row for row in rows if row["side"] == LADDER[0].removeprefix("model.")]
    for row in rows:
        row["difference"] = f"{row['bits_per_byte'] - whole['bits_per_byte']:+.4f}"
    whole["side"] += " (the recipe)"
    columns = {"bits_per_byte": "bits per byte", "deviation": "±", "difference": "difference"}
    work.table("ladder", f"python scripts/compare.py {words}", rows, columns)


@part(
    minutes=35,
    makes="compare_attention compare_positions compare_positions_plain lengths attention_speed",
)
def variants(work: Work) -> None:
    """Comparisons of all attention layers and of all position encodings."""
    steps = "trainer.max_steps=400 trainer.val_every_steps=400"
    recipe = f"tokenizer.vocab_size=2048 optimizer=adamw schedule=cosine {steps}"
    columns = {
        "bits_per_byte": "bits per byte",
        "deviation": "±",
        "parameters": "parameters",
        "cache_bytes_per_token": "cache, bytes per token",
        "step_ms": "step, ms",
        "sampled_tokens_per_second": "sampled, tokens/s",
    }
    scaled = f"compare=positions model.scale_embedding=true name=positions_scaled {recipe}"
    commands = {
        "compare_attention": f"compare=attention model/position=learned {recipe}",
        "compare_positions": scaled,
        "compare_positions_plain": "compare=positions model.scale_embedding=false "
        f"name=positions_plain {recipe}",
    }
    for name, words in commands.items():
        rows = work.compare(name, words)
        work.table(name, f"python scripts/compare.py {words}", rows, columns)
        if name == "compare_positions":
            at = "bits_per_byte_at_"
            keys = {key for row in rows for key in row if key.startswith(at)}
            lengths = {
                f"{at}{size}": str(size) for size in sorted(int(key[len(at) :]) for key in keys)
            }
            work.table("lengths", f"python scripts/compare.py {words}", rows, lengths)
    shutil.copy(work.folder / "compare_positions_lengths.png", work.folder / "lengths.png")
    work.benchmark("attention_speed", "suite=attention")


@part(minutes=15, makes="documents_speeches documents_paragraphs")
def documents(work: Work) -> None:
    """The effect of a document mask, for long and for short documents."""
    paragraphs = work.folder / "paragraphs.jsonl"
    write_paragraphs(paragraphs)
    texts = {
        "documents_speeches": "",
        "documents_paragraphs": f"data.path={paragraphs} model.block_size=128 "
        "trainer.max_steps=400 trainer.val_every_steps=400 ",
    }
    choices = json.dumps([f"model.document_mask={mask}" for mask in ("false", "true")])
    columns = {
        "bits_per_byte": "bits per byte",
        "deviation": "±",
        "step_ms": "step, ms",
        "sampled_tokens_per_second": "sampled, tokens/s",
    }
    for name, text in texts.items():
        words = f"compare=own name={name} {text}compare.choices={shlex.quote(choices)}"
        rows = work.compare(name, words)
        (work.folder / f"{name}.png").unlink()  # the docs show only the table
        work.table(name, f"python scripts/compare.py {words}", rows, columns)


def write_paragraphs(file: Path) -> None:
    """Writes a .jsonl file in which every paragraph of the State of the Union speeches is a
    document. The documents are in random order, and no two are equal."""
    from headscope.data.built_in import Sotu

    speeches = ["".join(document.pieces) for document in Sotu().documents()]
    paragraphs = [*dict.fromkeys(part for speech in speeches for part in speech.split("\n\n"))]
    random.Random(1).shuffle(paragraphs)
    lines = (json.dumps({"text": text}) + "\n" for text in paragraphs if text.strip())
    file.write_text("".join(lines), encoding="utf-8")


@part(
    minutes=10,
    makes="heads_names heads_figures heads_history heads_layer_3 heads_ablation heads_similarity",
)
def heads(work: Work) -> None:
    """How the heads of one model develop, and the notebook."""
    from pages import run_notebook

    steps = " callbacks.keep_steps=[0,10,20]" if work.quick else ""
    run, report = work.folder / "run", work.folder / "analysis"
    work.run("train", f"experiment=heads hydra.run.dir={run}{steps}")
    work.run("analyze", f"checkpoints={run} ablation=true output_dir={report}")
    names: dict[str, dict[str, Any]] = {}
    for row in read_rows(report / "history.csv"):
        head = f"L{int(row['layer'])}H{int(row['head'])}"
        names.setdefault(head, {"side": head})[f"step {row['step']}"] = row["type"]
    columns = {step: step for step in next(iter(names.values())) if step != "side"}
    work.table(
        "heads_names", "python scripts/train.py experiment=heads", [*names.values()], columns
    )
    rows = read_rows(report / "heads.csv")
    for row in rows:
        row["side"] = f"L{int(row['layer'])}H{int(row['head'])}"
    figures = {
        "type": "name",
        "previous": "previous",
        "largest": "largest",
        "entropy_share": "entropy share",
        "distance": "distance",
        "induction": "induction",
        "loss_change": "loss change",
        "loss_change_error": "its standard error",
    }
    figures = {key: heading for key, heading in figures.items() if key in rows[0]}
    command = "python scripts/analyze.py checkpoints=outputs/heads ablation=true"
    work.table("heads_figures", command, rows, figures)
    widths = {"history": 1000, "attention_layer_3": 1500, "ablation": 564, "similarity": 1100}
    for name, width in widths.items():
        target = name.replace("attention_", "")
        shrink(report / f"{name}.png", work.folder / f"heads_{target}.png", width)
    run_notebook(ROOT / "docs" / "heads.ipynb", work.folder / "heads.ipynb")


@part(
    minutes=25,
    makes="induction_heads induction_controls induction question_1 question_2 tab_steps",
)
def induction(work: Work) -> None:
    """How induction heads form in half a minute, and in which models they do not."""
    from induction_runs import CHANGES, induction_run
    from pages import pictures_of_induction

    train = "python scripts/train.py experiment=induction"
    controls = []
    for number, changes in enumerate(CHANGES):
        rows = [induction_run(work, changes, seed, number) for seed in work.seeds]
        if not changes:
            columns = {
                "val_loss": "loss, nats per token",
                "halfway": "half of the fall at step",
                "train_seconds": "training, s",
                "names": "names of the heads",
                "largest": "largest induction",
                "removed": "removed head",
                "loss_change": "its loss change",
                "other_induction": "induction of the others",
            }
            command = f"{train}\npython scripts/analyze.py ablation=true"
            work.table("induction_heads", command, rows, columns)
            pictures_of_induction(
                work.folder / "runs" / "0_1", work.folder, step=rows[0]["halfway"]
            )
        controls.append(
            {
                "side": changes or "(the recipe)",
                "loss": ", ".join(f"{row['val_loss']:.2f}" for row in rows),
                "standard": ", ".join(f"{row['standard']:.2f}" for row in rows),
                "largest": ", ".join(f"{row['largest']:.2f}" for row in rows),
                "heads": ", ".join(str(row["heads"]) for row in rows),
            }
        )
    columns = {
        "loss": "loss on its own text",
        "standard": "loss on the text of the recipe",
        "largest": "largest induction",
        "heads": "induction heads",
    }
    work.table("induction_controls", f"{train} <the change>", controls, columns)


@part(minutes=2, makes="patching patching_heads gradients_heads")
def patching(work: Work) -> None:
    """Activation patching and estimates from gradients, on the induction recipe."""
    run, report = work.folder / "run", work.folder / "analysis"
    work.run("train", f"experiment=induction hydra.run.dir={run}")
    patch = "patch.clean=BkTzQaRmBkTz patch.corrupted=BkTxQaRmBkTz patch.answers='[Q,a]'"
    estimate = "ablation=true gradients=true"
    for name, words in {"gradients_heads": estimate, "patching_heads": patch}.items():
        said = work.run("analyze", f"checkpoint={run} output_dir={report} {words}")
        command = f"python scripts/train.py experiment=induction\npython scripts/analyze.py {words}"
        work.write(name, f"```\n{command}\n```\n\n```\n{said.strip()}\n```")
    shrink(report / "patching.png", work.folder / "patching.png", 1100)


def read_rows(file: Path, name: str = "") -> list[dict[str, Any]]:
    """The rows of a CSV file, without empty cells. Texts that are numbers are converted to numbers.
    If `name` is given, the value of this column is also stored under the key `side`."""
    with file.open(newline="", encoding="utf-8") as stream:
        found = [
            {key: number(value) for key, value in row.items() if value}
            for row in csv.DictReader(stream)
        ]
    return [{**row, "side": row[name]} if name else row for row in found]


def without_paths(text: str) -> str:
    """`text` with its commands as a reader types them, without the paths of this machine."""
    text = re.sub(r"'?suite\.nanogpt=\S+", "suite.nanogpt=path/to/nanoGPT", text)
    return re.sub(r" '?data\.path=\S+", "", text)


def number(text: str) -> Any:
    """A cell of a CSV file: an int, a float rounded to what a table needs, or the text."""
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else round(float(text), 4)
    except ValueError:
        return text


def shrink(source: Path, target: Path, width: int) -> None:
    from PIL import Image

    image = Image.open(source).convert("RGB")
    image.thumbnail((width, 10 * width))
    image.save(target, optimize=True)


def first_output(command: str) -> float:
    """Run a script and return the seconds until it prints something, or for train.py, until its
    first logged step."""
    started = time.perf_counter()
    words = [sys.executable, "-u", *shlex.split(f"scripts/{command}")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if command.startswith("train.py"):
            next(line for line in process.stdout if re.search(r"step \d+ of", line))
        else:
            process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.kill()
    if command.startswith("train.py"):
        shutil.rmtree(ROOT / command.split("hydra.run.dir=")[1].split()[0], ignore_errors=True)
    return round(seconds, 1)
