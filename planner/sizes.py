"""How large a target and a head are: from plain dimensions here, from headers in actors/checkpoint/sizes.py.

Counts elements, never bytes: what an element takes depends on device and dtype, which is footprint.py's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MarkovKind = Literal["none", "vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class LayerSize:
    """One decoder layer. `matrix_rows`: output rows of all its matrices together; vectors are norms and biases."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    matrix_elements: int
    matrix_rows: int
    vector_elements: int

    @classmethod
    def of(
        cls,
        *,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int | None = None,
        qkv_bias: bool = False,
        output_bias: bool = False,
        mlp_bias: bool = False,
        qk_norm: bool = False,
    ) -> LayerSize:
        """From its dimensions; `head_dim` None means that the heads share the hidden size."""
        _positive(hidden_size=hidden_size, intermediate_size=intermediate_size, num_heads=num_heads)
        _positive(num_kv_heads=num_kv_heads, head_dim=1 if head_dim is None else head_dim)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
        head_dim = hidden_size // num_heads if head_dim is None else head_dim
        queries, keys = num_heads * head_dim, num_kv_heads * head_dim
        qkv, inner = queries + 2 * keys, intermediate_size
        biases = (qkv if qkv_bias else 0) + (hidden_size if output_bias else 0)
        biases += 2 * inner + hidden_size if mlp_bias else 0
        return cls(
            hidden_size=hidden_size,
            intermediate_size=inner,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            matrix_elements=hidden_size * (qkv + queries + 3 * inner),
            matrix_rows=qkv + 2 * hidden_size + 2 * inner,
            vector_elements=2 * hidden_size + biases + (2 * head_dim if qk_norm else 0),
        )

    @property
    def group(self) -> int:
        """Query heads that share a key."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class ModelSize:
    """A target. `lm_head_elements` is 0 where the embedding is used; `stored_in_blocks`: a quantised GGUF file."""

    vocab_size: int
    num_layers: int
    layer: LayerSize
    embedding_elements: int
    lm_head_elements: int
    final_norm_elements: int
    stored_in_blocks: bool = False

    @classmethod
    def of(
        cls,
        *,
        hidden_size: int,
        num_layers: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        vocab_size: int,
        head_dim: int | None = None,
        tied: bool = False,
        qkv_bias: bool = False,
        output_bias: bool = False,
        mlp_bias: bool = False,
        qk_norm: bool = False,
        stored_in_blocks: bool = False,
    ) -> ModelSize:
        """From dimensions, for planning without a checkpoint. Raises ValueError for one that cannot be."""
        _positive(num_layers=num_layers, vocab_size=vocab_size)
        layer = LayerSize.of(
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            mlp_bias=mlp_bias,
            qk_norm=qk_norm,
        )
        vocabulary = vocab_size * hidden_size
        return cls(vocab_size, num_layers, layer, vocabulary, 0 if tied else vocabulary, hidden_size, stored_in_blocks)

    @property
    def tied(self) -> bool:
        return self.lm_head_elements == 0

    @property
    def num_parameters(self) -> int:
        """As people count them: every weight once."""
        layers = self.num_layers * (self.layer.matrix_elements + self.layer.vector_elements)
        return layers + self.embedding_elements + self.lm_head_elements + self.final_norm_elements


@dataclass(frozen=True)
class HeadSize:
    """A DSpark head. `embedding_elements` and `lm_head_elements` are 0 where it uses the target's.

    `maps_ids`: a reduced vocabulary with a table of target ids. `causal_windows`: some layer masks within its block.
    """

    vocab_size: int
    draft_vocab_size: int
    num_layers: int
    layer: LayerSize
    block_size: int
    num_taps: int
    num_trunk_layers: int
    fc_elements: int
    norm_elements: int
    embedding_elements: int
    lm_head_elements: int
    markov_rank: int
    markov_w1_elements: int
    markov_w2_elements: int
    markov_inner_elements: int
    confidence_elements: int
    maps_ids: bool
    causal_windows: bool = False

    @classmethod
    def of(
        cls,
        *,
        layer: LayerSize,
        num_layers: int,
        tap_ids: Sequence[int],
        markov_rank: int,
        block_size: int,
        vocab_size: int,
        draft_vocab_size: int | None = None,
        markov_kind: MarkovKind = "vanilla",
        has_confidence: bool = True,
        confidence_uses_markov: bool = True,
        own_embedding: bool = False,
        own_lm_head: bool = False,
        causal_windows: bool = False,
    ) -> HeadSize:
        """From dimensions; `tap_ids` in DeepSpec's convention. A reduced vocabulary always has an lm_head of its own.

        Raises ValueError for a dimension that cannot be.
        """
        draft_vocab_size = vocab_size if draft_vocab_size is None else draft_vocab_size
        _positive(
            num_layers=num_layers, block_size=block_size, vocab_size=vocab_size, draft_vocab_size=draft_vocab_size
        )
        if not tap_ids or min(tap_ids) < -1:
            raise ValueError(f"tap_ids must be layer ids from -1 (the embedding) on, at least one, got {list(tap_ids)}")
        if markov_rank < 0 or draft_vocab_size > vocab_size:
            raise ValueError(
                f"markov_rank must be 0 or more and draft_vocab_size at most {vocab_size}, "
                f"got {markov_rank} and {draft_vocab_size}"
            )
        hidden = layer.hidden_size
        rank = 0 if markov_kind == "none" else markov_rank
        reduced = draft_vocab_size != vocab_size
        seen = hidden + (rank if confidence_uses_markov else 0)
        inner = {"gated": rank * (hidden + rank + 1), "rnn": 3 * rank * (2 * rank + hidden + 1)}
        return cls(
            vocab_size=vocab_size,
            draft_vocab_size=draft_vocab_size,
            num_layers=num_layers,
            layer=layer,
            block_size=block_size,
            num_taps=len(tap_ids),
            num_trunk_layers=max(tap_ids) + 1,
            fc_elements=len(tap_ids) * hidden * hidden,
            norm_elements=2 * hidden,
            embedding_elements=vocab_size * hidden if own_embedding else 0,
            lm_head_elements=draft_vocab_size * hidden if own_lm_head or reduced else 0,
            markov_rank=rank,
            markov_w1_elements=vocab_size * rank,
            markov_w2_elements=draft_vocab_size * rank,
            markov_inner_elements=inner.get(markov_kind, 0),
            confidence_elements=seen + 1 if has_confidence else 0,
            maps_ids=reduced,
            causal_windows=causal_windows,
        )


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
