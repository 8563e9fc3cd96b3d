"""The greedy draft and verify loop without caches, actors or schedules: every round reads its whole text again, with
the head as it is trained. It is checked against DeepSpec's own loop, and made the embedded head's expected_greedy.json:

    python tests/reference_loop.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twinspark.actors.checkpoint.opening import open_head, open_target, target_ids_of_draft
from twinspark.deploy.distill.head_net import HeadNet
from twinspark.deploy.distill.teacher import Teacher, draft_lm_head
from twinspark.deploy.embedded import demo_head_path, demo_model_path
from twinspark.deploy.tokenizer import open_tokenizer

PROMPTS = (
    "What is the capital of France and what is it known for?",
    "Write a Python function that checks whether a string is a palindrome.",
    "Explain in three sentences why the sky is blue.",
    "List five fruits and one use of each.",
)
NUM_TOKENS = 96


@dataclass(frozen=True)
class Reference:
    """A float32 target on the CPU and a head."""

    teacher: Teacher
    net: HeadNet
    target_ids: Tensor | None

    @classmethod
    def open(cls, model: str, head_path: str, length: int) -> Reference:
        head = open_head(head_path)
        teacher = Teacher(open_target(model), precision="float32", length=length, device=torch.device("cpu"))
        target_ids = target_ids_of_draft(head)
        lm_head = draft_lm_head(teacher, target_ids)
        net = HeadNet(head.config, embedding=teacher.embedding, lm_head=lm_head, length=length, seed=0)
        net.load_state_dict({name: head.tensors.load(name).float() for name, _ in net.named_parameters()})
        return cls(teacher, net, target_ids)

    @torch.no_grad()
    def rounds(self, prompt: list[int], num_tokens: int, stop_ids: tuple[int, ...]) -> tuple[list[int], list[Any]]:
        """The answer, and every round of it: anchor, drafts (a whole block), how many were accepted, confidences."""
        ids = [*prompt, self._next(prompt)[-1]]
        rounds = []
        while len(ids) - len(prompt) < num_tokens and ids[-1] not in stop_ids:
            anchor = len(ids) - 1
            drafts, confidence = self._block(ids)
            own = self._next([*ids, *drafts])[anchor:]
            accepted = next((k for k, draft in enumerate(drafts) if draft != own[k]), len(drafts))
            stop = next((k for k, token in enumerate(own[:accepted]) if token in stop_ids), accepted)
            accepted = min(accepted, stop + 1)  # nothing is judged behind the end
            rounds.append(
                {"anchor_position": anchor, "draft_tokens": drafts, "accepted": accepted, "confidence": confidence}
            )
            for token in own[: accepted + 1]:
                ids.append(token)
                if token in stop_ids:
                    break
        return ids[len(prompt) :][:num_tokens], rounds

    def _next(self, ids: list[int]) -> list[int]:
        """The likeliest token behind every one of `ids`."""
        hidden, _ = self.teacher.net.texts(torch.tensor([ids]))
        found: list[int] = self.teacher.net.decoder.logits(hidden[0]).argmax(dim=-1).tolist()
        return found

    def _block(self, ids: list[int]) -> tuple[list[int], list[float]]:
        """Drafts behind the last of `ids`, one after the other: the head is asked again with each as the text."""
        _, taps = self.teacher.net.texts(torch.tensor([ids]), self.net.config.tap_ids)
        assert taps is not None
        size = self.net.config.block_size
        padded = torch.nn.functional.pad(taps, (0, 0, 0, size))
        drafts: list[int] = []
        confidence: list[float] = []
        for k in range(size):
            text = torch.tensor([[*ids, *drafts, *[0] * (size - len(drafts))]])
            blocks = self.net(text, padded, torch.tensor([[len(ids) - 1]]))
            best = int(blocks.logits[0, 0, k].argmax())
            drafts.append(best if self.target_ids is None else int(self.target_ids[best]))
            if blocks.confidence is not None:
                confidence.append(round(float(torch.sigmoid(blocks.confidence[0, 0, k])), 4))
        return drafts, confidence


def main() -> None:
    model = str(demo_model_path(print))
    tokenizer = open_tokenizer(model)
    reference = Reference.open(model, str(demo_head_path()), 256)
    entries = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer.chat([{"role": "user", "content": prompt}])
        ids, rounds = reference.rounds(prompt_ids, NUM_TOKENS, tokenizer.eos_ids)
        entries.append(
            {
                "prompt": prompt,
                "prompt_ids": prompt_ids,
                "greedy_ids": ids,
                "text": tokenizer.decode(ids, skip_special=True),
                "rounds": rounds,
            }
        )
        print(prompt, len(ids), "tokens in", len(rounds), "rounds")
    (demo_head_path() / "expected_greedy.json").write_text(json.dumps(entries), encoding="utf-8")


if __name__ == "__main__":
    main()
