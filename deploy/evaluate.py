"""`twinspark eval`: how a head's drafts are accepted over sets of prompts, greedy and at temperature 1.

In this process, without Ray: the head sits beside the target, and every placement gives the same drafts but for
rounding. At a temperature the share kept under shared noise stands beside the most that any rule could keep, 1 - TV,
and what shared noise guarantees, (1 - TV) / (1 + TV).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twinspark.actors.draft.proposer import Proposer
from twinspark.actors.loading import Progress, load_colocated
from twinspark.actors.sampling.noise import derived_seed
from twinspark.actors.sampling.settings import Sampling
from twinspark.actors.specs import ActorSpec, Device, DraftSettings, TargetSpec
from twinspark.actors.target.counts import RoundCounts
from twinspark.actors.target.host import TargetHost
from twinspark.actors.target.request import Report, Request, requests_for
from twinspark.cluster.probe import probe_node
from twinspark.deploy.acceptance import Acceptance, Tally, tally_text
from twinspark.deploy.devices import device_of
from twinspark.deploy.forced_text import forced_logits
from twinspark.deploy.opening import Opened, open_pair
from twinspark.deploy.options import Options
from twinspark.deploy.progress import note, share_bar
from twinspark.deploy.prompts import encode_prompts, prompts_from_file
from twinspark.deploy.tokenizer import open_tokenizer

TEMPERATURES = (0.0, 1.0)
NOISES = 4  # fresh ones a position, for the share that is kept


@dataclass(frozen=True)
class Evaluated:
    """A set of prompts at a temperature. `slots` (None where greedy) are the bounds by draft slot."""

    name: str
    temperature: float
    num_prompts: int
    num_tokens: int
    acceptance_length: float
    conditional: tuple[float, ...]
    slots: tuple[Acceptance, ...] | None

    def row(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {
            "set": self.name,
            "temperature": self.temperature,
            "num_prompts": self.num_prompts,
            "num_tokens": self.num_tokens,
            "acceptance_length": round(self.acceptance_length, 4),
            "conditional_acceptance": [round(value, 4) for value in self.conditional],
        }
        if self.slots is not None:
            for name in ("measured", "optimal", "bound"):
                found[f"{name}_by_position"] = [round(getattr(slot, name), 4) for slot in self.slots]
        return found


async def evaluate(options: Options, files: Sequence[Path], *, device: str, limit: int, as_json: bool) -> None:
    """Evaluates and prints. Raises ValueError (one line) for what cannot be."""
    place: Device = "cuda" if device_of(device).type == "cuda" else "cpu"
    opened = open_pair(options.model_copy(update={"dspark_place": "colocated"}), note)
    tokenizer = open_tokenizer(opened.target.path)
    sets = {}
    for file in files:
        prompts = encode_prompts(tokenizer, prompts_from_file(file), False)
        sets[file.stem] = prompts[:limit] if limit else prompts
    found = await _evaluated(options, opened, place, sets, tokenizer.eos_ids)
    if as_json:
        print(json.dumps([one.row() for one in found]))
    else:
        _print(found)


async def _evaluated(
    options: Options,
    opened: Opened,
    place: Device,
    sets: dict[str, list[list[int]]],
    stop_ids: tuple[int, ...],
) -> list[Evaluated]:
    if opened.head is None:
        raise ValueError("eval needs a draft head, got --dspark-model none")
    length = options.dspark_verify_len or opened.head.config.num_draft_tokens
    longest = max(len(ids) for prompts in sets.values() for ids in prompts) + options.max_new_tokens
    dtype = "float32" if options.dtype == "auto" else options.dtype
    threads = options.threads or probe_node().node("here").num_cpus
    actor = ActorSpec(opened.target.path, place, longest, options.max_seqs, threads)
    draft_dtype = dtype if options.dspark_dtype == "auto" else options.dspark_dtype
    settings = DraftSettings(opened.head.path, draft_dtype, length, options.dspark_min_confidence)
    host = TargetHost(TargetSpec(actor, dtype, options.numerics))
    note("loading target and head")
    await host.load()
    await host.colocate(settings)
    proposer = await host.compute(lambda: load_colocated(actor, host.engine.target, settings, Progress()))
    runs = [(name, prompts, t) for name, prompts in sets.items() for t in TEMPERATURES]
    found = []
    with share_bar("evaluating") as on_share:
        for name, prompts, temperature in runs:
            samplings = [
                Sampling.of(temperature=temperature, seed=derived_seed(options.seed or 0, n * (1 + NOISES)))
                for n in range(len(prompts))
            ]
            requests = requests_for(prompts, samplings, max_new_tokens=options.max_new_tokens, stop_token_ids=stop_ids)
            reports, counts = await _answers(host, requests)
            tallies = [Tally() for _ in range(length)]
            if temperature:
                await host.compute(partial(_tally, host, proposer, tallies, requests, reports))
            found.append(_evaluation(name, temperature, reports, counts, tallies))
            on_share(len(found) / len(runs))
    return found


async def _answers(host: TargetHost, requests: Sequence[Request]) -> tuple[list[Report], RoundCounts]:
    """Run to their ends, as many at once as the target has slots."""
    await host.counts()  # to be forgotten
    await host.submit(requests)
    reports: dict[int, Report] = {}
    while len(reports) < len(requests):
        for commit in await host.commits():
            if commit.finish_reason is not None:
                reports[commit.number] = await host.collect(commit.number)
    return [reports[request.number] for request in requests], await host.counts()


def _tally(
    host: TargetHost,
    proposer: Proposer,
    tallies: Sequence[Tally],
    requests: Sequence[Request],
    reports: Sequence[Report],
) -> None:
    """Both sides' logits along every answer, into one tally a draft slot."""
    engine = host.engine
    texts = [[*request.prompt, *report.token_ids] for request, report in zip(requests, reports, strict=True)]
    starts = [len(request.prompt) for request in requests]
    logits = forced_logits(engine.target, proposer, texts, starts, num_slots=len(tallies))
    for request, forced in zip(requests, logits, strict=True):
        if forced is not None:
            fresh = [derived_seed(request.sampling.seed, 1 + j) for j in range(NOISES)]
            tally_text(tallies, forced, request.sampling, fresh, engine.noise, proposer.noise)


def _evaluation(
    name: str, temperature: float, reports: Sequence[Report], counts: RoundCounts, tallies: Sequence[Tally]
) -> Evaluated:
    rounds = [record for report in reports for record in report.rounds]
    return Evaluated(
        name=name,
        temperature=temperature,
        num_prompts=len(reports),
        num_tokens=sum(len(report.token_ids) for report in reports),
        acceptance_length=sum(record.num_committed for record in rounds) / max(1, len(rounds)),
        conditional=counts.survival(1) or (),
        slots=tuple(tally.acceptance() for tally in tallies) if all(t.num_draws for t in tallies) else None,
    )


def _print(found: Sequence[Evaluated]) -> None:
    table = Table(title="acceptance (by draft token: kept, given that those before it were)")
    for column in ("set", "temperature", "prompts", "tokens", "acceptance length", "by draft token"):
        table.add_column(column)
    for one in found:
        table.add_row(
            one.name,
            f"{one.temperature:g}",
            str(one.num_prompts),
            str(one.num_tokens),
            f"{one.acceptance_length:.3f}",
            " ".join(f"{value:.3f}" for value in one.conditional),
        )
    bounds = Table(title="chance that a draft token is kept, the text before it given")
    for column in ("set", "temperature", "", "by draft token"):
        bounds.add_column(column)
    for one in found:
        for label, name in (("optimal, 1-TV", "optimal"), ("shared noise", "measured"), ("bound", "bound")):
            if one.slots is not None:
                values = " ".join(f"{getattr(slot, name):.3f}" for slot in one.slots)
                bounds.add_row(one.name, f"{one.temperature:g}", label, values)
    Console().print(table)
    if bounds.row_count:
        Console().print(bounds)
