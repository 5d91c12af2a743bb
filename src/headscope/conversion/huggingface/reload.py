"""Opens an exported folder with transformers, as its users will: python -P reload.py FOLDER WORK

`proof.py` runs this file in a new process. It does not import headscope. WORK/request.json says
what to compute. The results are WORK/results.json and WORK/logits.safetensors.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file


def answer(folder: Path, request: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """The results that `proof.py` compares, and the logits of `request["tokens"]`."""
    trust = {"trust_remote_code": True} if request["own_class"] else {}
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **trust
    )
    model, problems = opened
    model.eval()
    tokens = torch.tensor(request["tokens"])
    with torch.no_grad():
        logits = model(tokens).logits
    prompt = torch.tensor([request["prompt"]])
    generated = request["prompt"]
    if request["new_tokens"]:
        options = {"max_new_tokens": request["new_tokens"], "do_sample": False}
        mask = torch.ones_like(prompt)
        generated = model.generate(prompt, attention_mask=mask, **options)[0].tolist()
    results = {
        "class": type(model).__name__,
        "version": transformers.__version__,
        "problems": [f"{kind}: {names}" for kind, names in problems.items() if names],
        "generated": generated,
        "without_headscope": "headscope" not in sys.modules,
    }
    if request["text"] is not None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **trust)
        encoded = tokenizer(request["text"], add_special_tokens=False, return_tensors="pt")
        results["encoded"] = encoded["input_ids"][0].tolist()
        if results["encoded"]:  # the model takes what the tokenizer returns
            length = tokens.size(1)
            model(**{name: rows[:, :length] for name, rows in encoded.items()})
        results["decoded"] = tokenizer.decode(
            generated, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    return results, logits.float()


if __name__ == "__main__":
    folder, work = map(Path, sys.argv[1:])
    results, logits = answer(folder, json.loads((work / "request.json").read_text("utf-8")))
    save_file({"logits": logits.contiguous()}, work / "logits.safetensors")
    (work / "results.json").write_text(json.dumps(results), "utf-8")
