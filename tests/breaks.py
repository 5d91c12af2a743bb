"""Deliberate breaks of the code, and the test that must fail for each: python tests/breaks.py

Each break is applied to a copy of the source in a temporary folder, and its test is run against
that copy. Prints a table, and exits with 1 when a test passes or cannot run, or the old text of a
break does not occur exactly once. With words, `python tests/breaks.py rotary mask`, only the breaks
whose name or file has one of them. When you move or rewrite code, change `file` and `old` of its
breaks.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headscope"


class Break(NamedTuple):
    """`old` in `file`, below src/headscope, becomes `new`; `test`, below tests, must then fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


SIGHT = (
    "nn/attention/test_sight.py"
    "::test_gradient_comes_from_itself_and_all_before_and_never_from_the_future"
)
BF16 = "nn/position/test_rotary.py::test_in_bf16_only_the_result_is_rounded_however_far_out"

WAYS = "conversion/test_classes.py::test_logits_both_ways"
FOLDERS = "conversion/test_folder.py::test_every_class_tied_and_untied"

BREAKS = [
    # --- attention ---
    Break(
        name="the causal mask lets a query see one token more",
        file="nn/attention.py",
        old="dtype=torch.bool).tril()",
        new="dtype=torch.bool).tril(1)",
        test=SIGHT,
    ),
    Break(
        name="the causal mask hides a token from itself",
        file="nn/attention.py",
        old="dtype=torch.bool).tril()",
        new="dtype=torch.bool).tril(-1)",
        test=SIGHT,
    ),
    Break(
        name="fewer queries than keys take the first rows of the mask",
        file="nn/attention.py",
        old="self.mask[keys - queries : keys, :keys]",
        new="self.mask[:queries, :keys]",
        test="nn/attention/test_sight.py"
        "::test_fewer_queries_than_keys_are_the_last_rows_of_the_whole",
    ),
    Break(
        name="the mask is stored in checkpoints",
        file="nn/attention.py",
        old="mask if causal else None, persistent=False",
        new="mask if causal else None",
        test="nn/test_gpt_of_every_pair.py::test_a_state_dict_holds_parameters_alone",
    ),
    Break(
        name="qk_norm forgets the keys",
        file="nn/attention.py",
        old="return self.q_norm(q), self.k_norm(k), v",
        new="return self.q_norm(q), k, v",
        test="nn/attention/test_paths.py"
        "::test_qk_norm_makes_scores_blind_to_the_size_of_queries_and_of_keys",
    ),
    Break(
        name="stacked heads all use the mask of the first",
        file="nn/attention_variants.py",
        old="slice_head(mask, 1, head)",
        new="slice_head(mask, 1, 0)",
        test="nn/attention/test_sight.py"
        "::test_weights_under_a_mask_are_those_without_it_shared_among_what_it_shows",
    ),
    Break(
        name="key heads are repeated in turn, not group by group",
        file="nn/dot_product.py",
        old="x.repeat_interleave(heads // x.size(1), dim=1)",
        new="x.repeat(1, heads // x.size(1), 1, 1)",
        test="nn/attention/test_dot_product.py"
        "::test_a_key_head_serves_the_query_heads_of_its_group_in_a_row",
    ),
    Break(
        name="a fully masked query keeps what it looked at instead",
        file="nn/dot_product.py",
        old="outputs if fully_masked is None else outputs.masked_fill(fully_masked, 0.0)",
        new="outputs",
        test="nn/attention/test_sight.py"
        "::test_a_query_that_may_look_nowhere_gets_zeros_and_disturbs_no_other",
    ),
    Break(
        name="the fused path forgets scale",
        file="nn/dot_product.py",
        old="        scale=scale,\n        enable_gqa",
        new="        enable_gqa",
        test="nn/attention/test_dot_product.py"
        "::test_fused_equals_explicit_in_outputs_and_gradients",
    ),
    Break(
        name="weights are returned after dropout",
        file="nn/dot_product.py",
        old="    with no_autocast(v):\n",
        new="    weights = F.dropout(weights, dropout)\n    with no_autocast(v):\n",
        test="nn/attention/test_paths.py::test_weights_are_those_before_dropout",
    ),
    Break(
        name="skipping blocks forgets the causal mask",
        file="nn/block_sparse.py",
        old="mask if causal is None else causal & mask",
        new="mask",
        test="nn/attention/test_dot_product.py::test_it_computes_what_the_explicit_path_computes",
    ),
    # --- documents ---
    Break(
        name="an end-of-text token belongs to the document before it",
        file="nn/gpt.py",
        old="(tokens == self.end_of_text).cumsum(dim=1)",
        new="(tokens.roll(1, dims=1) == self.end_of_text).cumsum(dim=1)",
        test="nn/test_documents.py::test_after_an_end_of_text_token_a_new_document_is_written",
    ),
    Break(
        name="with a cache, attention crosses documents",
        file="nn/gpt.py",
        old="mask = self.document_mask(all_tokens, start)",
        new="mask = None",
        test="nn/test_documents.py::test_read_in_parts_a_text_has_the_logits_that_it_has_at_once",
    ),
    Break(
        name="n-grams cross the beginning of a document",
        file="nn/ngrams.py",
        old="documents[:, n - 1 :] != documents[:, : 1 - n]",
        new="documents[:, n - 1 :] < 0",
        test="nn/test_documents.py::test_a_changed_token_changes_its_own_document_alone",
    ),
    Break(
        name="after a head is removed, the next layers see all documents",
        file="analysis/head_outputs.py",
        old="y = block(y, model.position, mask=masks)",
        new="y = block(y, model.position)",
        test="nn/test_documents.py::test_a_removed_head_is_removed_from_the_masked_model",
    ),
    Break(
        name="the compiled step of sampling sees all documents",
        file="generation/compiled.py",
        old="pasts, self.model.document_mask(seen, length))",
        new="pasts)",
        test="test_sampling.py"
        "::test_the_exported_step_of_every_model_choice_gives_the_logits_of_next_logits",
    ),
    # --- nn/position ---
    Break(
        name="RoPE rotates in bf16",
        file="nn/position/rotary.py",
        old="    a, b = upcast_to_float32(x).chunk(2, dim=-1)\n",
        new="    a, b = x.chunk(2, dim=-1)\n    cos, sin = cos.to(x.dtype), sin.to(x.dtype)\n",
        test=BF16,
    ),
    Break(
        name="RoPE's tables are rounded by .bfloat16()",
        file="nn/position/base.py",
        old="and new.dtype != old.dtype",
        new="and False",
        test=BF16,
    ),
    Break(
        name="RoPE rotates by the wrong sign",
        file="nn/position/rotary.py",
        old="torch.cat([a * cos - b * sin, b * cos + a * sin]",
        new="torch.cat([a * cos + b * sin, b * cos - a * sin]",
        test="nn/attention/test_oracles.py"
        "::test_equals_the_attention_of_llama_and_with_qk_norm_that_of_qwen3",
    ),
    Break(
        name="RoPE gives the last queries the first positions",
        file="nn/position/rotary.py",
        old="self.rotate_pairs(q, cos[first:], sin[first:])",
        new="self.rotate_pairs(q, cos[: q.size(2)], sin[: q.size(2)])",
        test="nn/position/test_rotary.py::test_the_last_queries_are_turned_by_their_own_places",
    ),
    Break(
        name="angles are computed in float32",
        file="nn/position/base.py",
        old="position * torch.exp(even_dimension * ",
        new="position.float() * torch.exp(even_dimension.float() * ",
        test="nn/position/test_absolute.py::test_the_table_is_exact_far_from_its_beginning",
    ),
    Break(
        name="ALiBi takes the other half of the slopes for the larger power",
        file="nn/position/biases.py",
        old="alibi_slopes(2 * power)[0::2]",
        new="alibi_slopes(2 * power)[1::2]",
        test="nn/position/test_biases.py::test_slopes_are_those_of_bloom_for_any_number_of_heads",
    ),
    Break(
        name="T5's buckets begin one late",
        file="nn/position/biases.py",
        old="exact = buckets // 2",
        new="exact = buckets // 2 + 1",
        test="nn/position/test_biases.py::test_buckets_are_those_of_t5",
    ),
    # --- nn/gpt.py ---
    Break(
        name="only the first block is given the position",
        file="nn/gpt.py",
        old="(x, self.position, pasts",
        new="(x, None if layer else self.position, pasts",
        test="nn/test_gpt_of_every_pair.py::test_every_layer_knows_the_position",
    ),
    # --- conversion ---
    Break(
        name="GPT-NeoX gets all queries, then all keys, then all values",
        file="conversion/classes.py",
        old="weight = weight.unflatten(0, (3, layer.heads, -1)).transpose(0, 1).flatten(0, 2)",
        new="pass",
        test=WAYS,
    ),
    Break(
        name="interleaved queries and keys are not reordered",
        file="conversion/standard_form.py",
        old=".view(-1, 2).T.flatten()",
        new="",
        test=WAYS,
    ),
    Break(
        name="stacked heads are fused head by head",
        file="conversion/standard_form.py",
        old="for part in parts for head in range(heads)]",
        new="for head in range(heads) for part in parts]",
        test=WAYS,
    ),
    Break(
        name="another scale of the scores is ignored",
        file="conversion/standard_form.py",
        old="weights[name][:rows] *= factor",
        new="weights[name][:rows] *= 1",
        test=WAYS,
    ),
    Break(
        name="the proof accepts any logits",
        file="conversion/proof.py",
        old="return 1e-4 *",
        new="return 10 *",
        test="conversion/test_added_part.py"
        "::test_an_attention_that_was_changed_in_place_is_noticed",
    ),
    Break(
        name="the proof reads only the first tokens",
        file="conversion/proof.py",
        old="    tokens = torch.randint(vocab_size",
        new="    length = min(length, 8)\n    tokens = torch.randint(vocab_size",
        test="conversion/test_added_part.py"
        "::test_an_attention_that_was_changed_in_place_is_noticed",
    ),
    Break(
        name="large values are not drawn, so a clip has no effect",
        file="conversion/proof.py",
        old="weight[-gpt.attentions[0].head_dim :: 4] *= 8",
        new="pass",
        test="conversion/test_classes.py::test_random_weights_show_caps_and_clips",
    ),
    Break(
        name="a parameter of theirs that ours does not have is ignored",
        file="conversion/classes.py",
        old="        if rest:\n            raise Unfit",
        new="        if not gpt:\n            raise Unfit",
        test="conversion/test_folder_settings.py::test_the_names_of_all_parameters_must_match",
    ),
    Break(
        name="NanoChat's queries and keys keep the order of their halves",
        file="conversion/classes.py",
        old=".flip(1).flatten(0, 2)",
        new=".flatten(0, 2)",
        test=FOLDERS,
    ),
    Break(
        name="NanoChat's embeddings are not normalized",
        file="conversion/classes.py",
        old="return parts[0] * torch.rsqrt(",
        new="return parts[0] * torch.ones_like(",
        test=FOLDERS,
    ),
    Break(
        name="weights that are NaN are imported",
        file="conversion/folder.py",
        old="if not is_finite(weight):",
        new="if not gpt:",
        test="conversion/test_hostile_folders.py::test_wrong_weights",
    ),
    Break(
        name="the file config.json may name an attention to download",
        file="conversion/classes.py",
        old='"attn_implementation": "eager", ',
        new="",
        test="conversion/test_folder_settings.py::test_no_kernel_is_downloaded",
    ),
    Break(
        name="what a killed export left stays",
        file="conversion/new_folder.py",
        old="shutil.rmtree(old, ignore_errors=True)",
        new="pass",
        test="conversion/test_new_folder.py",
    ),
]


def outcome(tests: list[str], source: Path) -> int:
    """The exit status of pytest, run against the package in `source`."""
    options = ["-q", "-x", "-m", "", "--numprocesses=0", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
    ).returncode


def verdict(broken: Break, source: Path) -> str:
    """Whether the test catches it. `source` holds a copy of the package, unchanged afterwards."""
    file = source / "headscope" / broken.file
    whole = file.read_text(encoding="utf-8") if file.is_file() else ""
    if whole.count(broken.old) != 1:
        return f"NOT APPLIED: its old text occurs {whole.count(broken.old)} times"
    file.write_text(whole.replace(broken.old, broken.new), encoding="utf-8")
    code = outcome([broken.test], source)
    file.write_text(whole, encoding="utf-8")
    return {0: "NOT CAUGHT", 1: "caught"}.get(code, f"NOT RUN: pytest exits with {code}")


def main(words: list[str]) -> int:
    chosen = [
        one for one in BREAKS if not words or any(word in one.name + one.file for word in words)
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "conf", Path(folder) / "conf")
        shutil.copytree(SOURCE, source / "headscope", ignore=shutil.ignore_patterns("__pycache__"))
        if outcome(sorted({one.test for one in chosen}), source):
            print("The tests fail, or cannot run, without any break.")
            return 1
        verdicts = []
        for one in chosen:
            verdicts.append(verdict(one, source))
            print(f"{verdicts[-1]:12} {one.file}: {one.name}\n{'':12} {one.test}", flush=True)
    missed = sum(each != "caught" for each in verdicts)
    print(f"{len(chosen) - missed} of {len(chosen)} breaks are caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
