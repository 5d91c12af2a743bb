"""Make the tables and pictures of the docs: python docs/make.py [--quick] [part ...]

If no part is named, all parts run; --help lists them. A part writes its results to
outputs/docs/<part>/. Then its pictures replace the pictures in docs/, and its tables replace the
text between `<!-- figures: name -->` and `<!-- end -->` in README.md and docs/*.md. If a part
fails, the other parts continue.

--quick runs every command with tiny sizes. It changes only a copy of the docs, in
outputs/docs_quick/. The environment variable SHAKESPEARE=input.txt names a local copy of
tiny-shakespeare. NANOGPT=folder names a nanoGPT checkout; the part `nanogpt` runs only with it.
Install the packages with pip install -e '.[dev]', which includes transformers. The pictures of
pages also need chromium and chromedriver.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from parts import PARTS, Part, Work

ROOT = Path(__file__).resolve().parents[1]


def replace_figures(text: str, name: str, figures: str) -> str:
    """Returns a copy of `text` in which `figures` replaces what stands between the comments
    `<!-- figures: name -->` and `<!-- end -->`."""
    begin, end = f"<!-- figures: {name} -->", "<!-- end -->"
    pattern = re.compile(rf"({re.escape(begin)}\n).*?({end})", re.S)
    return pattern.sub(lambda found: f"{found[1]}\n{figures.strip()}\n\n{found[2]}", text)


def publish(made: Part, folder: Path, docs: Path) -> None:
    """Copy the pictures of a part to docs/, and its tables into the pages.

    Raises FileNotFoundError when the part has not made all of its tables and pictures.
    """
    for name in made.makes:
        if not any((folder / f"{name}.{suffix}").exists() for suffix in ("md", "png", "gif")):
            raise FileNotFoundError(f"{name}.md, {name}.png or {name}.gif was not made")
    shown = "".join(page.read_text(encoding="utf-8") for page in pages_in(docs))
    for file in sorted(folder.iterdir()):
        if file.suffix == ".md":
            for page in pages_in(docs):
                text = page.read_text(encoding="utf-8")
                figures = file.read_text(encoding="utf-8")
                page.write_text(replace_figures(text, file.stem, figures), encoding="utf-8")
        elif f"{file.name})" in shown:
            shutil.copy(file, docs)


def pages_in(docs: Path) -> list[Path]:
    return [docs.parent / "README.md", *sorted(docs.glob("*.md"))]


def record(docs: Path, name: str, commit: str, minutes: float) -> None:
    """Update the row of a part in docs/performance.md: the commit, the date and the machine."""
    import torch

    page = docs / "performance.md"
    text = page.read_text(encoding="utf-8")
    record = text.partition("<!-- figures: record -->")[2].partition("<!-- end -->")[0]
    rows = dict(re.findall(rf"^\| ({'|'.join(PARTS)}) +(\|.*\|)$", record, re.M))
    date = time.strftime("%Y-%m-%d")
    machine = f"{os.cpu_count()} cores, {cpu_name()}, PyTorch {torch.__version__}"
    rows[name] = f"| {commit} | {date} | {minutes:.0f} | {machine} |"
    head = "| part | commit | date | minutes | machine |\n| --- | --- | --- | ---: | --- |"
    lines = [head, *(f"| {key} {rows[key]}" for key in PARTS if key in rows)]
    page.write_text(replace_figures(text, "record", "\n".join(lines)), encoding="utf-8")


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.machine()


def main() -> None:
    listed = "\n".join(
        f"  {name:10} {each.minutes:3} min  {each.run.__doc__}" for name, each in PARTS.items()
    )
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nParts, with minutes on two cores:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="part", help="all if none is given")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    names = given.parts or [name for name in PARTS if name != "nanogpt" or "NANOGPT" in os.environ]
    if unknown := sorted({*names} - {*PARTS}):
        parser.error(f"{unknown[0]} is not one of: {', '.join(PARTS)}")
    docs, work = ROOT / "docs", ROOT / "outputs" / "docs"
    if given.quick:
        work = ROOT / "outputs" / "docs_quick"
        shutil.rmtree(work, ignore_errors=True)
        docs = Path(shutil.copytree(docs, work / "copy" / "docs"))
        shutil.copy(ROOT / "README.md", docs.parent)
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    failed = []
    for name in names:
        folder, started = work / name, time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            PARTS[name].run(Work(folder.relative_to(ROOT), given.quick))
            publish(PARTS[name], folder, docs)
            record(docs, name, commit, (time.monotonic() - started) / 60)
        except Exception as error:  # the other parts continue
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"made: {', '.join(name for name in names if name not in failed) or 'nothing'}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
