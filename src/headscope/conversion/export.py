"""Writes a checkpoint as a folder that transformers opens: convert.py to=huggingface.

The folder has a class of transformers that computes the same function, if there is one. Otherwise
it has our own class, with its source, so that no one needs headscope to open it. Each export is
opened in a new process and compared before it gets its name.

Shapes: T tokens, P compared positions, V vocab_size.
"""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from headscope.config.parts import Part
from headscope.conversion import proof
from headscope.conversion.classes import HuggingFaceClass
from headscope.conversion.model_card import model_card
from headscope.conversion.proof import NotEqual
from headscope.conversion.settings import quiet_transformers
from headscope.conversion.tokenizer_files import tokenizer_files
from headscope.errors import UserError
from headscope.files import json_text, new_folder, replacing, write_atomically
from headscope.trained import TrainedModel

OWN_CLASS = "HeadscopeForCausalLM"

WRAPPER = "headscope.conversion.modeling_headscope"

OURS = re.compile(r"^( *)from (headscope[\w.]*) import (?:\([^)]*\)|.*)\n", re.MULTILINE)
"""An import from headscope. It is indented if it is for type checkers only."""

NOTICE = '''"""The model of headscope, from the sources of its package `headscope.nn`.

Copyright (c) 2026 The headscope authors. MIT licence: you may use, copy, modify and distribute this
file if you keep this notice. It comes without warranty of any kind.
"""
'''


def export_huggingface(loaded: TrainedModel, output: Path) -> list[str]:
    """Writes `loaded` to the new folder `output`. Returns lines to print.

    Raises UserError if transformers is missing. Raises NotEqual, and leaves no files, if
    transformers computes other logits or another text than our model.
    """
    with quiet_transformers("to=huggingface"):
        if theirs := proof.find_class(loaded.model, loaded.config.model):
            with suppress(NotEqual):  # with these weights, after it was equal with random ones
                return write_and_prove(loaded, output, theirs)
        return write_and_prove(loaded, output, None)


def write_and_prove(
    loaded: TrainedModel, output: Path, theirs: HuggingFaceClass | None
) -> list[str]:
    """Like `export_huggingface`. `theirs` is the class of transformers, or None for our own."""
    with new_folder(output) as folder:
        write_model(loaded, folder, theirs)
        write_tokenizer(loaded, folder)
        sentence, text = prove(folder, loaded, own_class=theirs is None)
        code = loading_code("path/to/this/folder", theirs)
        write_atomically(folder / "README.md", model_card(loaded, load=code, checked=sentence))
    return [
        sentence,
        f"Random tokens and their greedy continuation: {text!r}",
        f"Written: {output}/ ({OWN_CLASS if theirs is None else theirs.name}). To load it:",
        *(f"  {line}" for line in loading_code(str(output), theirs).splitlines()),
    ]


def write_model(loaded: TrainedModel, folder: Path, theirs: HuggingFaceClass | None) -> None:
    """Writes the weights, the configurations and, for our own class, its source to `folder`."""
    model, end = loaded.config.model, loaded.tokenizer.end_of_text
    if theirs is None:
        config = own_config(model, vocab_size=loaded.tokenizer.vocab_size, end_of_text=end)
        state = {f"model.{name}": weight for name, weight in loaded.model.state_dict().items()}
        if model.tied_head:
            del state["model.head.weight"]
        for name, source in source_files().items():
            write_atomically(folder / name, source)
    else:
        config, filled = proof.converted(theirs, loaded.model, model)
        state = theirs.parameters(filled)
    ends = {"bos_token_id": loaded.tokenizer.begin_token, "eos_token_id": end}
    write_atomically(folder / "config.json", json_text(config | ends, indent=2))
    limit = {"max_length": model.block_size}  # the default of a pipeline is 256 further tokens
    # In generated texts, the end also fills up those that have ended (see `tokenizer_files`).
    generation = limit if end is None else limit | ends | {"pad_token_id": end}
    write_atomically(folder / "generation_config.json", json_text(generation))
    with replacing(folder / "model.safetensors") as file:
        file.write(save({name: each.cpu() for name, each in state.items()}, {"format": "pt"}))


def own_config(model: Part, *, vocab_size: int, end_of_text: int | None) -> dict[str, Any]:
    """The config.json for our own class. Raises UserError if a part is not headscope's."""
    for key, value in {"model": model, **{f"model.{key}": model[key] for key in model}}.items():
        if isinstance(value, Part) and value["_target_"].rpartition(".")[0] != "headscope":
            problem = f"to=huggingface: {key} is {value['_target_']}"
            raise UserError(f"{problem}, and other tools do not have its code")
    return {
        "architectures": [OWN_CLASS],
        "auto_map": {
            "AutoConfig": "modeling_headscope.HeadscopeConfig",
            "AutoModelForCausalLM": f"modeling_headscope.{OWN_CLASS}",
        },
        "model_type": "headscope",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "end_of_text": end_of_text,
        "tie_word_embeddings": model.tied_head,
        "model": model,
    }


def write_tokenizer(loaded: TrainedModel, folder: Path) -> None:
    """Writes the tokenizer to `folder`, with the context length, which config.json may lack."""
    files = tokenizer_files(loaded.tokenizer, model_max_length=loaded.model.block_size)
    for name, content in files.items():
        write_atomically(folder / name, content)


def loading_code(folder: str, theirs: HuggingFaceClass | None) -> str:
    """The Python code that opens the folder."""
    path = json.dumps(folder, ensure_ascii=False)
    arguments = path if theirs else f"{path}, trust_remote_code=True"
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"model = AutoModelForCausalLM.from_pretrained({arguments})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({arguments})"
    )


def source_files() -> dict[str, str]:
    """The files of our own class, {file name: source}. The sources of `headscope.nn` become one
    file: a second implementation could differ."""
    wrapper = inspect.getsource(import_module(WRAPPER))
    modules: dict[str, str] = {}
    collect(WRAPPER, modules)
    del modules[WRAPPER]  # it keeps its imports, in its own file
    parts = [f"\n\n# --- {name} ---\n\n{source}" for name, source in modules.items() if source]
    wrapper = re.sub(r"^from headscope[\w.]*", "from .headscope_nn", wrapper, flags=re.MULTILINE)
    return {"modeling_headscope.py": wrapper, "headscope_nn.py": NOTICE + "".join(parts)}


def collect(name: str, modules: dict[str, str]) -> None:
    """Adds the source of a module, without imports from headscope, after what it imports."""
    source = inspect.getsource(import_module(name))
    for indent, other in OURS.findall(source):
        if not indent and other not in modules:
            collect(other, modules)
    modules[name] = OURS.sub(lambda match: f"{match[1]}pass\n" if match[1] else "", source)


def prove(folder: Path, loaded: TrainedModel, *, own_class: bool) -> tuple[str, str]:
    """Opens `folder` with transformers in a new process, and compares it with `loaded`. Only if
    `own_class`, transformers may run the code in the folder. Returns a sentence that says what was
    compared, and the greedy text. Raises NotEqual if the results differ."""
    gpt, tokenizer = loaded.model, loaded.tokenizer
    tokens, positions = proof.probe(gpt.vocab_size, gpt.block_size, tokenizer.end_of_text)
    prompt = tokens[0, : min(8, (tokens.size(1) + 1) // 2)].tolist()
    new_tokens = min(16, gpt.block_size - len(prompt))
    text = tokenizer.decode(tokens[0, :64].tolist())
    request = {"own_class": own_class, "tokens": tokens, "positions": positions, "text": text}
    results = run_reload(folder, request | {"prompt": prompt, "new_tokens": new_tokens})
    if results["problems"]:
        raise NotEqual(f"transformers reports {'; '.join(results['problems'])}")
    difference = proof.compare(proof.logits(gpt, tokens, positions), results["logits"])
    check_greedy(loaded, prompt, results["generated"], new_tokens)
    greedy = tokenizer.decode(results["generated"])
    if results["decoded"] != greedy:
        raise NotEqual(f"the tokenizer decodes {greedy[:80]!r} as {results['decoded'][:80]!r}")
    if results["encoded"] != tokenizer.encode(text).tolist():
        raise NotEqual(f"the tokenizer encodes {text[:80]!r} as {results['encoded'][:20]}...")
    return (
        f"In a new process, {results['class']} of transformers {results['version']} gave the same "
        f"greedy text as headscope, and logits that differ by at most {difference:.1e} at "
        f"{len(positions)} of {tokens.size(1)} random tokens."
    ), greedy


def run_reload(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The results of reload.py in a new process. Raises NotEqual if it fails."""
    work = folder / ".proof"
    work.mkdir()
    torch.save(request, work / "request.pt")
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(work / "modules"),
        "TRANSFORMERS_VERBOSITY": "error",
    }
    program = Path(__file__).with_name("reload.py")  # which must not import headscope
    command = [sys.executable, "-P", str(program), str(folder.absolute()), str(work)]
    done = subprocess.run(command, env=environment, capture_output=True)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise NotEqual(f"transformers cannot open the exported folder: {lines[-1][:500]}")
    results: dict[str, Any] = torch.load(work / "results.pt", weights_only=True)
    shutil.rmtree(work)
    return results


@torch.no_grad()
def check_greedy(
    loaded: TrainedModel, prompt: list[int], generated: list[int], new_tokens: int
) -> None:
    """Raises NotEqual unless each new token in `generated` has the highest logit of our model,
    within the tolerance. The text may end early with an end of text."""
    count = len(generated) - len(prompt)
    ended = count > 0 and generated[-1] == loaded.tokenizer.end_of_text
    if generated[: len(prompt)] != prompt or not (count == new_tokens or ended):
        raise NotEqual(f"greedy sampling gives {count} tokens instead of {new_tokens}")
    if count:
        tokens = torch.tensor([generated], device=loaded.model.device)
        ours = loaded.model(tokens)[0, len(prompt) - 1 : -1]
        chosen = ours.gather(1, tokens[0, len(prompt) :, None])[:, 0]
        gap = (ours.amax(dim=1) - chosen).max().item()
        if not gap <= 2 * proof.tolerance(ours):
            raise NotEqual(f"greedy sampling chooses a logit {gap:.2g} below the highest")
