"""Head configs in both formats: conventions converted, unknown keys refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from twinspark.actors.checkpoint.head_config import head_config
from twinspark.actors.errors import CheckpointError

BACKBONE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "use_sliding_window": True}
HEAD: dict[str, Any] = {
    "block_size": 7,
    "mask_token_id": 511,
    "markov_rank": 16,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
DEEPSPEC = (
    BACKBONE
    | HEAD
    | {
        "architectures": ["Qwen3DSparkModel"],
        "num_target_layers": 6,
        "target_layer_ids": [-1, 0, 4],
        "num_anchors": 16,
    }
)
SPECULATORS = HEAD | {
    "architectures": ["DSparkDraftModel"],
    "speculators_model_type": "dspark",
    "aux_hidden_state_layer_ids": [0, 1, 5],
    "draft_vocab_size": 128,
    "sample_from_anchor": True,
    "transformer_layer_config": BACKBONE,
}


def read(config: dict[str, Any]) -> Any:
    return head_config(config, "config.json")


def test_deepspec() -> None:
    head = read(DEEPSPEC)
    assert (head.format, head.block_size, head.num_draft_tokens, head.anchor_predicts) == ("deepspec", 7, 7, True)
    assert (head.tap_ids, head.num_trunk_layers, head.num_target_layers) == ((-1, 0, 4), 5, 6)
    assert (head.markov_kind, head.markov_rank, head.mask_token_id) == ("vanilla", 16, 511)
    assert (head.has_confidence, head.confidence_uses_markov) == (True, True)
    assert (head.reduced_vocab, head.layer_windows, head.windows_are_causal) == (False, (None, None), False)
    assert (head.decoder.family, head.decoder.head_dim, head.decoder.qk_norm) == ("qwen3", 32, True)


def test_speculators_ids_are_one_less_in_deepspec() -> None:
    head = read(SPECULATORS)
    assert (head.format, head.tap_ids, head.num_target_layers) == ("speculators", (-1, 0, 4), None)
    assert (head.draft_vocab_size, head.reduced_vocab, head.num_draft_tokens) == (128, True, 7)
    assert read(SPECULATORS | {"sample_from_anchor": False}).num_draft_tokens == 6


def test_windows_and_their_causality() -> None:
    sliding = SPECULATORS | {"transformer_layer_config": BACKBONE | SLIDING}
    assert read(sliding).layer_windows == (8, None)
    assert read(sliding).windows_are_causal
    assert not read(sliding | {"sliding_window_non_causal": True}).windows_are_causal
    head = read(DEEPSPEC | SLIDING)
    assert (head.layer_windows, head.windows_are_causal) == ((8, None), False)


@pytest.mark.parametrize("config", [DEEPSPEC, SPECULATORS])
def test_rank_0_has_neither_a_markov_head_nor_its_row_in_the_confidence(config: dict[str, Any]) -> None:
    head = read(config | {"markov_rank": 0})
    assert (head.markov_kind, head.confidence_uses_markov, head.has_confidence) == ("none", False, True)
    del (without := copy.deepcopy(config | {"markov_rank": 0}))["markov_head_type"]
    assert read(without) == head


def test_no_confidence_head_needs_no_flag_for_it() -> None:
    config = {key: value for key, value in DEEPSPEC.items() if key != "confidence_head_with_markov"}
    head = read(config | {"enable_confidence_head": False})
    assert (head.has_confidence, head.confidence_uses_markov) == (False, False)
    with pytest.raises(CheckpointError, match="confidence_head_with_markov must be"):
        read(config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (DEEPSPEC | {"temperature_shift": 1}, "unknown temperature_shift"),
        (DEEPSPEC | {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"}, "Gemma heads"),
        (DEEPSPEC | {"model_type": "gemma4_text"}, "Gemma heads"),
        (DEEPSPEC | {"architectures": ["Qwen3ForCausalLM"]}, "architectures must be Qwen3DSparkModel"),
        (DEEPSPEC | {"model_type": "llama"}, "model_type must be qwen3"),
        (DEEPSPEC | {"target_layer_ids": [1, 1]}, "distinct"),
        (DEEPSPEC | {"target_layer_ids": []}, "distinct"),
        (DEEPSPEC | {"target_layer_ids": [-2]}, "target_layer_ids must be"),
        (DEEPSPEC | {"target_layer_ids": [1, 5]}, "below the last layer of the 6"),
        (DEEPSPEC | {"mask_token_id": 512}, "mask_token_id must be an integer from 0 to 511"),
        (DEEPSPEC | {"markov_head_type": "lstm"}, "markov_head_type must be one of"),
        (DEEPSPEC | {"markov_head_type": None}, "markov_head_type must be"),
        (DEEPSPEC | {"block_size": 0}, "block_size must be"),
        (DEEPSPEC | {"tie_word_embeddings": True}, "tie_word_embeddings must be false"),
        (DEEPSPEC | {"quantization_config": {"quant_method": "awq"}}, "awq"),
        (DEEPSPEC | {"rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        (SPECULATORS | {"speculators_model_type": "eagle3"}, "speculators_model_type must be dspark"),
        (SPECULATORS | {"projector_type": "domino"}, "projector_type must be dflash"),
        (SPECULATORS | {"shift_label": True}, "shift_label must be false"),
        (SPECULATORS | {"novelty": 1}, "unknown novelty"),
        (SPECULATORS | {"transformer_layer_config": BACKBONE | {"softcap": 30}}, "transformer_layer_config.*softcap"),
        (SPECULATORS | {"transformer_layer_config": None}, "transformer_layer_config must be"),
        (SPECULATORS | {"sample_from_anchor": None}, "sample_from_anchor must be"),
        (SPECULATORS | {"sample_from_anchor": False, "block_size": 1}, "block_size must be"),
        (SPECULATORS | {"draft_vocab_size": 513}, "draft_vocab_size must be"),
        (SPECULATORS | {"aux_hidden_state_layer_ids": [-1]}, "aux_hidden_state_layer_ids must be"),
        (SPECULATORS | {"mask_token_id": None}, "mask_token_id must be"),
        (SPECULATORS | {"target_hidden_size": 128}, "target_hidden_size must be"),
    ],
)
def test_what_is_unknown_or_cannot_be_is_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(config)


def test_rope_and_eps_of_the_heads_own_config_are_used() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
    for config in (
        DEEPSPEC | {"rope_parameters": yarn, "rms_norm_eps": 1e-3},
        SPECULATORS | {"transformer_layer_config": BACKBONE | {"rope_parameters": yarn, "rms_norm_eps": 1e-3}},
    ):
        decoder = read(config).decoder
        assert (decoder.rope.kind, decoder.rope.factor, decoder.rms_norm_eps) == ("yarn", 4.0, 1e-3)


def test_every_head_in_the_reference_data_is_read(shared: Path) -> None:
    found = sorted([*shared.glob("golden/*/*/draft/config.json"), *shared.glob("heads/*/config.json")])
    assert len(found) >= 10
    for path in found:
        head = read(json.loads(path.read_text()))
        wanted = (-1, 0, 1, 2) if "smollm2" in str(path) else (-1, 0, 1) if "shallow" in str(path) else (1, 2, 4)
        assert head.tap_ids == wanted, path
        assert head.num_draft_tokens == (4 if "b4" in str(path) else 7)
        assert head.layer_windows == ((8, None) if "sliding" in str(path) else (None,) * head.decoder.num_layers)
