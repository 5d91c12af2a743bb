"""Opens an exported folder with transformers, as its users will: python -P reload.py FOLDER WORK

`export.py` runs this file in a new process. It does not import headscope. WORK/request.json says
what to compute. The results are WORK/results.json and WORK/logits.safetensors.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file


def answer(folder: Path, request: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """The results that `export.py` compares, and the logits at `request["positions"]`."""
    trust = {"trust_remote_code": True} if request["own_class"] else {}
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **trust
    )
    model, problems = opened
    model.eval()
    tokens = torch.tensor(request["tokens"])
    with torch.no_grad():
        logits = model(tokens).logits[0, request["positions"]]
    prompt = torch.tensor([request["prompt"]])
    generated = request["prompt"]
    if request["new_tokens"]:
        options = {"max_new_tokens": request["new_tokens"], "do_sample": False}
        mask = torch.ones_like(prompt)
        generated = model.generate(prompt, attention_mask=mask, **options)[0].tolist()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **trust)
    encoded = tokenizer(request["text"], add_special_tokens=False, return_tensors="pt")
    found = [f"{kind}: {names}" for kind, names in problems.items() if names]
    results = {
        "class": type(model).__name__,
        "version": transformers.__version__,
        "problems": found + [name for name in sys.modules if name == "headscope"],
        "generated": generated,
        "encoded": encoded["input_ids"][0].tolist(),
        "decoded": tokenizer.decode(
            generated, skip_special_tokens=True, clean_up_tokenization_spaces=False
        ),
    }
    if results["encoded"]:  # the model takes what the tokenizer returns
        model(**{name: rows[:, : tokens.size(1)] for name, rows in encoded.items()})
    return results, logits.float()


def end_with_parent() -> None:
    """Ends this process when the process that started it ends, which closes standard input."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    folder, work = map(Path, sys.argv[1:])
    results, logits = answer(folder, json.loads((work / "request.json").read_text("utf-8")))
    save_file({"logits": logits.contiguous()}, work / "logits.safetensors")
    (work / "results.json").write_text(json.dumps(results), "utf-8")
