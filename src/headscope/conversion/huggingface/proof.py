"""Proves that an exported folder gives the same logits and the same text as our model.

Shapes: B batch, T tokens, V vocab_size.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from headscope.checkpoint import Checkpoint
from headscope.conversion.proof import TOLERANCE, NotEqual, compare_logits, probe
from headscope.errors import UserError
from headscope.stop import on_stop, temporary_folder

NEW_TOKENS = 16
"""The most tokens that both models generate."""


RELOAD = Path(__file__).with_name("reload.py")
"""Is run in a new process, and never imported, because it imports transformers."""


@dataclass(frozen=True)
class Proof:
    """What was compared. `difference` is the largest absolute difference of two logits, `tokens`
    the number of tokens whose logits were compared, `text` the greedy continuation that both models
    gave."""

    class_name: str
    version: str
    difference: float
    tokens: int
    text: str

    def sentence(self) -> str:
        return (
            f"In a new process, {self.class_name} of transformers {self.version} gave the same "
            f"greedy text as headscope, and logits that differ by at most {self.difference:.1e} "
            f"on {self.tokens} tokens."
        )


def check_transformers(key: str = "to=huggingface") -> None:
    """Raises UserError if transformers, which `key` needs, is not installed."""
    if find_spec("transformers") is None:
        raise UserError(f"{key} needs the package transformers: pip install -e '.[huggingface]'")


def prove(folder: Path, loaded: Checkpoint, *, own_class: bool, with_tokenizer: bool) -> Proof:
    """Opens `folder` with transformers in a new process, and compares it with `loaded`. Only if
    `own_class`, transformers may run the code in the folder.

    Raises NotEqual if the folder cannot be opened, or if the results differ.
    """
    request = request_for(loaded, own_class=own_class, with_tokenizer=with_tokenizer)
    with temporary_folder() as work:
        (work / "request.json").write_text(json.dumps(request), encoding="utf-8")
        run_reload(folder, work)
        return compare(loaded, request, work)


def request_for(loaded: Checkpoint, *, own_class: bool, with_tokenizer: bool) -> dict[str, Any]:
    """What reload.py computes."""
    tokens, prompt = probe(loaded)
    return {
        "own_class": own_class,
        "tokens": tokens.tolist(),
        "prompt": prompt,
        "new_tokens": min(NEW_TOKENS, loaded.model.block_size - len(prompt)),
        "text": loaded.tokenizer.decode(tokens[0].tolist()) if with_tokenizer else None,
    }


def compare(loaded: Checkpoint, request: dict[str, Any], work: Path) -> Proof:
    """Compares the results of reload.py in the folder `work` with our model. Raises NotEqual if
    they differ."""
    results = json.loads((work / "results.json").read_text(encoding="utf-8"))
    theirs = load_file(work / "logits.safetensors")["logits"]
    if results["problems"] or not results["without_headscope"]:
        raise NotEqual(f"transformers reports {'; '.join(results['problems']) or 'headscope'}")
    tokens = torch.tensor(request["tokens"], device=loaded.model.device)
    with torch.no_grad():
        ours = loaded.model(tokens).cpu()
    difference = compare_logits(ours, theirs)
    compare_greedy(loaded, request["prompt"], results["generated"], request["new_tokens"])
    if request["text"] is not None:
        compare_text(loaded, request["text"], results)
    return Proof(
        class_name=results["class"],
        version=results["version"],
        difference=difference,
        tokens=tokens.numel(),
        text=loaded.tokenizer.decode(results["generated"]),
    )


def run_reload(folder: Path, work: Path) -> None:
    """Runs reload.py in a new process. Raises NotEqual if it fails."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(work / "modules"),
        "PYTHONIOENCODING": "utf-8",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    command = [sys.executable, "-P", str(RELOAD), str(folder.absolute()), str(work)]
    with (
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process,
        on_stop(process.kill),
    ):
        try:
            _, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        raise NotEqual(f"transformers cannot open the exported folder: {lines[-1][:500]}")


@torch.no_grad()
def compare_greedy(
    loaded: Checkpoint, prompt: list[int], generated: list[int], new_tokens: int
) -> None:
    """Raises NotEqual unless each new token in `generated` has the highest logit of our model. Of
    two logits that are equal within the tolerance, either may be chosen. The text may end early
    with an end of text."""
    count = len(generated) - len(prompt)
    ended = count > 0 and generated[-1] == loaded.tokenizer.end_of_text
    if generated[: len(prompt)] != prompt or not (count == new_tokens or ended):
        raise NotEqual(f"greedy sampling gives {count} tokens instead of {new_tokens}")
    if not count:
        return
    tokens = torch.tensor([generated], device=loaded.model.device)
    logits = loaded.model(tokens)[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, tokens[0, len(prompt) :, None])[:, 0]
    gap = (logits.amax(dim=1) - chosen).max().item()
    if not gap <= 2 * TOLERANCE * max(1.0, logits.abs().max().item() / 10):
        raise NotEqual(
            f"greedy sampling chooses a token whose logit is {gap:.2g} below the highest"
        )


def compare_text(loaded: Checkpoint, text: str, results: dict[str, Any]) -> None:
    """Raises NotEqual if the exported tokenizer encodes a text or decodes the generated tokens
    differently."""
    ours = loaded.tokenizer.decode(results["generated"])
    if results["decoded"] != ours:
        raise NotEqual(f"the tokenizer decodes {ours[:80]!r} as {results['decoded'][:80]!r}")
    if results["encoded"] != loaded.tokenizer.encode(text).tolist():
        raise NotEqual(f"the tokenizer encodes {text[:80]!r} as {results['encoded'][:20]}...")
