"""Opens an exported folder with transformers, as its users will: python -P reload.py FOLDER WORK

`export.py` runs this file in a new process. It does not import headscope. WORK/request.pt says what
to compute, and WORK/results.pt has the results.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers


@torch.no_grad()
def answer(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The results that `export.py` compares. `logits` are those at `request["positions"]`."""
    trust = {"trust_remote_code": True} if request["own_class"] else {}
    opened: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **trust
    )
    model, problems = opened
    model.eval()
    tokens, prompt = request["tokens"], torch.tensor([request["prompt"]])
    logits = model(tokens).logits[0, request["positions"]].float()
    generated = request["prompt"]
    if request["new_tokens"]:
        options = {"max_new_tokens": request["new_tokens"], "do_sample": False}
        mask = torch.ones_like(prompt)
        generated = model.generate(prompt, attention_mask=mask, **options)[0].tolist()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **trust)
    encoded = tokenizer(request["text"], add_special_tokens=False, return_tensors="pt")
    if encoded["input_ids"].numel():  # the model takes what the tokenizer returns
        model(**{name: rows[:, : tokens.size(1)] for name, rows in encoded.items()})
    lines = [f"{kind}: {names}" for kind, names in problems.items() if names]
    return {
        "class": type(model).__name__,
        "version": str(transformers.__version__),
        "problems": lines + [name for name in sys.modules if name == "headscope"],
        "logits": logits,
        "generated": generated,
        "encoded": encoded["input_ids"][0].tolist(),
        "decoded": tokenizer.decode(
            generated, skip_special_tokens=True, clean_up_tokenization_spaces=False
        ),
    }


if __name__ == "__main__":
    folder, work = map(Path, sys.argv[1:])
    request = torch.load(work / "request.pt", weights_only=True)
    torch.save(answer(folder, request), work / "results.pt")
