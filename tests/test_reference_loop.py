"""The tests' own loop against DeepSpec's, on the head that DeepSpec's ran with."""

from __future__ import annotations

import json
from pathlib import Path

from reference_loop import Reference

from twinspark.deploy.tokenizer import open_tokenizer


def test_its_rounds_are_those_of_deepspec(shared: Path, demo_model: Path) -> None:
    folder = shared / "heads/smollm2-135m-dspark"
    known = json.loads((folder / "expected_greedy.json").read_text(encoding="utf-8"))[0]
    reference = Reference.open(str(demo_model), str(folder), 256)
    ids, rounds = reference.rounds(known["prompt_ids"], 16, open_tokenizer(str(demo_model)).eos_ids)
    assert ids == known["greedy_ids"][:16]
    assert len(rounds) > 5
    theirs_rounds = known["rounds"][: len(rounds)]  # (all 36 were compared once: it takes a minute)
    assert [(r["anchor_position"], r["draft_tokens"], r["accepted"]) for r in rounds] == [
        (r["anchor_position"], r["draft_tokens"], r["accepted"]) for r in theirs_rounds
    ]
    for ours, theirs in zip(rounds, theirs_rounds, strict=True):
        assert max(abs(a - b) for a, b in zip(ours["confidence"], theirs["confidence"], strict=True)) < 2e-3
