"""The DSpark head as a module that learns. Parameters have the names of DeepSpec's checkpoint; what is frozen (the
target's embedding and lm_head) is handed in. Same conventions as `actors/nets/head.py`, which runs the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from twinspark.actors.checkpoint.configs import DecoderConfig, HeadConfig
from twinspark.actors.nets.rope import rope_tables, rotate
from twinspark.deploy.distill.anchors import block_places, tokens_at

INIT_STD = 0.02


@dataclass(frozen=True)
class Blocks:
    """What a head makes of the anchors of some texts, all `[texts, anchors, block, ...]`: logits over the draft
    vocabulary and the confidence logits (None without a confidence head).
    """

    logits: Tensor
    confidence: Tensor | None


class _Attention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """`[texts, kv_heads, rows, head_dim]` each, of `x` [texts, rows, hidden]."""
        keys = self.k_norm(self._heads(self.k_proj(x)))
        return rotate(keys, cos, sin).transpose(1, 2), self._heads(self.v_proj(x)).transpose(1, 2)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor, own: _Turn, before: _Turn) -> Tensor:
        queries = rotate(self.q_norm(self._heads(self.q_proj(x))), own.cos, own.sin).transpose(1, 2)
        keys, values = (
            torch.cat(parts, dim=2)
            for parts in zip(
                self.keys_values(context, before.cos, before.sin), self.keys_values(x, own.cos, own.sin), strict=True
            )
        )
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        out: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.config.head_dim)


@dataclass(frozen=True)
class _Turn:
    """Rotary tables of some rows, `[texts or 1, rows, 1, head_dim]`."""

    cos: Tensor
    sin: Tensor


class _Mlp(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = _Mlp(config)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor, own: _Turn, before: _Turn) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, mask, own, before)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Markov(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        decoder, rank = config.decoder, config.markov_rank
        self.kind = config.markov_kind
        self.markov_w1 = nn.Embedding(decoder.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(decoder.hidden_size + rank, rank)
        if self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + decoder.hidden_size, 3 * rank)

    def forward(self, prev: Tensor, hidden: Tensor) -> Tensor:
        """Features `[..., block, rank]` that `markov_w2` makes the bias of; `prev` [..., block] are ids."""
        row: Tensor = self.markov_w1(prev)
        if self.kind == "gated":
            return row * torch.sigmoid(self.gate_proj(torch.cat((hidden, row), dim=-1)))
        if self.kind == "rnn":
            state = torch.zeros_like(row[..., 0, :])
            outs = []
            for k in range(row.shape[-2]):
                joint = self.joint_proj(torch.cat((state, row[..., k, :], hidden[..., k, :]), dim=-1))
                gate, candidate, out = joint.chunk(3, dim=-1)
                outs.append(torch.tanh(out))
                gate = torch.sigmoid(gate)
                state = gate * state + (1 - gate) * torch.tanh(candidate)
            return torch.stack(outs, dim=-2)
        return row


class _Confidence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.proj(features).squeeze(-1)
        return out


class HeadNet(nn.Module):
    """`embedding` [vocab, hidden] and `lm_head` [draft_vocab, hidden] are the target's, and stay as they are."""

    def __init__(self, config: HeadConfig, *, embedding: Tensor, lm_head: Tensor, length: int, seed: int) -> None:
        super().__init__()
        self.config = config
        decoder = config.decoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.fc = nn.Linear(len(config.tap_ids) * decoder.hidden_size, decoder.hidden_size, bias=False)
            self.layers = nn.ModuleList(_Layer(decoder) for _ in range(decoder.num_layers))
            self.markov_head = _Markov(config) if config.markov_kind != "none" else None
            width = decoder.hidden_size + (config.markov_rank if config.confidence_uses_markov else 0)
            self.confidence_head = _Confidence(width) if config.has_confidence else None
            self._initialise()
        self.hidden_norm = nn.RMSNorm(decoder.hidden_size, eps=decoder.rms_norm_eps)
        self.norm = nn.RMSNorm(decoder.hidden_size, eps=decoder.rms_norm_eps)
        cos, sin = rope_tables(decoder.rope, decoder.head_dim, length + config.block_size, torch.device("cpu"))
        for name, value in (("embedding", embedding), ("lm_head", lm_head), ("cos", cos), ("sin", sin)):
            self.register_buffer(name, value, persistent=False)

    embedding: Tensor
    lm_head: Tensor
    cos: Tensor
    sin: Tensor

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if self.markov_head is not None:
            # The bias begins as nothing, not as noise over the target's own logits.
            nn.init.zeros_(self.markov_head.markov_w2.weight)

    def forward(self, ids: Tensor, taps: Tensor, anchors: Tensor) -> Blocks:
        """Blocks after `anchors` [texts, anchors] of `ids` [texts, positions], the text's own tokens being the previous
        ones; `taps` [texts, positions, taps * hidden]. An anchor needs `block_size` tokens of the text behind it.
        """
        hidden = self._hidden(ids, taps, anchors)
        prev = tokens_at(ids, block_places(anchors, self.config.block_size))
        logits = functional.linear(hidden, self.lm_head.to(hidden.dtype))
        if self.markov_head is not None:
            logits = logits + self.markov_head.markov_w2(self.markov_head(prev, hidden))
        if self.confidence_head is None:
            return Blocks(logits, None)
        features = hidden.detach()
        if self.config.confidence_uses_markov and self.markov_head is not None:
            features = torch.cat((features, self.markov_head.markov_w1(prev).detach()), dim=-1)
        return Blocks(logits, self.confidence_head(features))

    def _hidden(self, ids: Tensor, taps: Tensor, anchors: Tensor) -> Tensor:
        """After the final norm, `[texts, anchors, block, hidden]`."""
        size = self.config.block_size
        num_texts, length = ids.shape
        num_anchors = anchors.shape[1]
        places = block_places(anchors, size).flatten(1)
        inputs = torch.full(places.shape, self.config.mask_token_id, dtype=torch.int64, device=ids.device)
        inputs[:, ::size] = ids.gather(1, anchors)
        x = functional.embedding(inputs, self.embedding).to(self.fc.weight.dtype)
        context = self.hidden_norm(self.fc(taps.to(x.dtype)))
        own = _Turn(self.cos[places][:, :, None], self.sin[places][:, :, None])
        before = _Turn(self.cos[None, :length, None], self.sin[None, :length, None])
        block_of = torch.arange(num_anchors, device=ids.device).repeat_interleave(size)
        sees_context = torch.arange(length, device=ids.device) < anchors.repeat_interleave(size, dim=1)[:, :, None]
        sees_block = (block_of[:, None] == block_of).expand(num_texts, -1, -1)
        mask = torch.cat((sees_context, sees_block), dim=-1)[:, None]
        for layer in self.layers:
            x = layer(x, context, mask, own, before)
        out: Tensor = self.norm(x).view(num_texts, num_anchors, size, -1)
        return out
