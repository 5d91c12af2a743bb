"""The command analyze: writes a report on the attention heads of a checkpoint."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from headscope.analysis.headers import TAB
from headscope.config.parse import Positive, Texts
from headscope.config.parts import Part, build_part
from headscope.errors import UserError
from headscope.terminal import note, printable, read_standard_input, step_name

if TYPE_CHECKING:
    from headscope.show.report.tables import ReportInput
    from headscope.trained import TrainedModel


@dataclass(kw_only=True)
class PatchConfig:
    clean: str | None
    corrupted: str | None
    answers: list[str] | None
    continuation: str | None
    position: int | None


def analyze(
    *,
    parts: Texts,
    checkpoint: str | None,
    text: str | None,
    begin: bool | None,
    special: bool,
    corpus: str | None,
    output_dir: str | None,
    windows: Positive | None,
    ablation: bool,
    gradients: bool,
    replace_by: Literal["zero", "mean"],
    ablation_windows: Annotated[int, 2],  # for a standard error
    patch: PatchConfig,
    checkpoints: list[str] | None,
    tensorboard: bool,
    runs: list[str] | None,
    thresholds: Part,
    metrics: dict[str, Part] | None,
    device: str,
) -> None:
    """Write tables, pictures and an HTML page about all heads. Print the type of each head."""
    from rich.console import Console
    from rich.progress import track

    from headscope.analysis.head_types import Thresholds
    from headscope.analysis.own_metrics import own_metrics
    from headscope.show.report.console import print_report
    from headscope.show.report.patch_texts import patch_texts
    from headscope.show.report.write import write_report
    from headscope.trained.ablations import measure_ablation

    named = build_part(thresholds, "thresholds")
    changed = None if named == Thresholds() else named  # otherwise, those of the run
    patches = [value for value in vars(patch).values() if value is not None]
    if runs is not None:
        of_one_run = [checkpoint, checkpoints, text, corpus, windows, changed, metrics, begin]
        given = any(key is not None for key in of_one_run)
        if given or special or ablation or gradients or tensorboard or patches:
            advice = "leave out all other keys but output_dir= and device="
            raise UserError(f"runs= compares the metrics of heads in several runs: {advice}")
        align_runs(runs, output_dir, device)
        return
    if tensorboard:  # needs the package tensorboard
        from headscope.training.snapshot_events import event_file
    loaded, history = select(checkpoint, checkpoints, device)
    loaded = loaded.typed(begin=begin, special=special)
    loaded = loaded.on_text(corpus) if corpus else loaded
    folder = report_folder(output_dir, loaded.path, "analysis")
    patching = patch_texts(loaded, **asdict(patch)) if patches else None
    report = report_input(loaded, text, windows, with_corpus=corpus is not None)
    removal = None
    if ablation or gradients:
        options: Any = {"removes": ablation, "gradients": gradients, "replace_by": replace_by}
        options |= {"windows": ablation_windows, "text": loaded.validation}
        removal = partial(measure_ablation, **options)
    console = Console(stderr=True)
    progress = partial(track, console=console, description="analyzing", transient=True)
    measured: dict[str, Any] = {"metrics": own_metrics(metrics), "windows": windows}
    if corpus:
        measured |= {"text": loaded.validation, "source": Path(corpus).name}
    heads, deciders, shown = write_report(
        report,
        folder,
        thresholds=changed,
        ablation=removal,
        patching=patching,
        history=history,
        measuring={key: value for key, value in measured.items() if value},
        event_file=event_file if tensorboard else None,
        track=progress if console.is_terminal else iter,
    )
    print_report(heads, deciders, patching, len(report.tokens), shown)
    note(f"Written: {folder}/attention.html, heads.csv and pictures")
    if tensorboard:
        note(f"See the tab Attention, {TAB}: tensorboard --logdir {folder}")


def report_input(
    loaded: "TrainedModel", text: str | None, windows: int | None, *, with_corpus: bool
) -> "ReportInput":
    """The text of a report: `text`, or that of standard input for `-`, or the validation split."""
    from headscope.show.report.tables import ReportInput

    if text is None:
        return ReportInput.of_validation(loaded, windows)
    if os.path.isfile(text):
        note(f"text={text} is analyzed as it is; to analyze this file: text=- < {quote(text)}")
    text = read_standard_input() if text == "-" else text
    report = ReportInput.of_text(loaded, text, with_corpus=with_corpus)
    length = loaded.model.block_size
    if (tokens := len(loaded.tokenizer.encode_prompt(text))) > length:
        note(f"Only the first {length} of {tokens} tokens are analyzed (the block_size)")
    return report


def align_runs(runs: Sequence[str], output_dir: str | None, device: str) -> None:
    from headscope.cli.sweeps import print_table
    from headscope.show.report.roles import align, write_roles
    from headscope.trained.checkpoint import find

    def noted(names: Iterable[str]) -> Iterator[str]:
        for number, name in enumerate(names, 1):
            note(f"Assigning the heads of {name}, {number} of {len(runs) - 1}")
            yield name

    table = align(runs, device=device, track=noted)
    folder = report_folder(output_dir, find(runs[0]), "roles")
    rows = write_roles(table, folder)
    print_table(rows, {title: (title, "") for title in rows[0]}, wide=100)
    print(f"{table['same name'].sum()} of {len(table)} roles have the same name in all runs")
    steps = map(step_name, table.attrs["steps"])
    of = ", ".join(f"{run} ({step})" for run, step in zip(table.attrs["runs"], steps, strict=True))
    print(f"heads of: {printable(of)}; the first is the reference")
    note(f"Written: {folder}/roles.csv. Runs on different texts may also differ by their texts")


def report_folder(output_dir: str | None, path: Path, name: str) -> Path:
    """The folder of a report: by default, `name` in the run folder of the checkpoint `path`, next
    to a checkpoint that is not in a run folder, in the folder of a model, or for a file of another
    tool, such as model.gguf, in outputs/model."""
    from headscope.trained.checkpoint.file import SUFFIX

    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    if path.suffix != SUFFIX:
        run = path if path.is_dir() else Path("outputs") / path.stem
    folder = Path(output_dir) if output_dir else run / name
    if folder.is_symlink() and not output_dir:
        raise UserError(f"{folder} is a symbolic link: name a folder with output_dir=")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output_dir={folder} is a file: name a folder")
    return folder


def select(
    checkpoint: str | None, checkpoints: Sequence[str] | None, device: str
) -> tuple["TrainedModel", dict[int, Path]]:
    """Loads the checkpoint of a report. Also returns the files of the same run at other steps, by
    step: those of `checkpoints`, by default the kept steps of the run. Each is loaded, one after
    another. Raises UserError if one cannot be loaded, or is not from the same run, or if two are
    from one step."""
    from headscope.conversion.load import load
    from headscope.trained.checkpoint import read, steps_of

    files = sorted(checkpoint_files(checkpoints or ()), key=lambda file: read(file).step)
    newest = files[-1] if files and checkpoint is None else None
    loaded = load(newest or checkpoint, device=device)
    history: dict[int, Path] = {}
    fixed = ("model", "data", "seed", "init_from")  # in all checkpoints of a run
    for file in files if checkpoints is not None else steps_of(loaded.path).values():
        try:
            one = load(file, device=device)
            same = all(getattr(one.config, key) == getattr(loaded.config, key) for key in fixed)
            if not same or one.tokenizer.state() != loaded.tokenizer.state():
                both = f"{file} and {loaded.path} are not from one run"
                raise UserError(f"{both}: checkpoints= and checkpoint= need files of one")
        except UserError as error:  # damaged, or put there by the user
            if checkpoints is not None:
                raise
            note(f"{error}; this step is left out")
            continue
        if one.step in history:
            problem = f"two files are from step {one.step:,}"
            raise UserError(f"checkpoints=: {problem}; leave out {history[one.step]} or {file}")
        history[one.step] = file
        del one  # before the next one is loaded
    return loaded, history


def checkpoint_files(paths: Iterable[str]) -> list[Path]:
    """The checkpoint files for all `paths`. A run folder, or its folder `checkpoints`, stands for
    all its kept steps. Raises UserError if there is none."""
    from headscope.trained.checkpoint import find, steps_of

    files: list[Path] = []
    for name in paths:
        folder = name and Path(name).is_dir()
        steps = [*steps_of(Path(name)).values()] if folder else [find(name, key="checkpoints")]
        if not steps:
            problem = f"checkpoints={name} has no kept steps (step_*.safetensors)"
            advice = "name files, or a run with callbacks.saving.keep_steps=[0,100,300,850]"
            raise UserError(f"{problem}: {advice}")
        files += steps
    return files
