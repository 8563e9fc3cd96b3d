"""Step times as the rounds of a run took them, for the next plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from twinspark.actors.target.request import Report, RoundRecord
from twinspark.planner.placement import Site
from twinspark.planner.predict import Predictor
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

LEAST_ROUNDS = 8  # of one size: fewer say nothing


def observed(reports: Iterable[Report], site: Site, predictor: Predictor, num_requests: int) -> Timings:
    """What steps and link took at `site`: medians over the rounds of `reports` in which `num_requests` ran at once
    and all drafted alike. What there are too few rounds of is left out.
    """
    rounds: defaultdict[int, list[RoundRecord]] = defaultdict(list)
    for report in reports:
        for record in report.rounds:
            rounds[record.round].append(record)
    alike: defaultdict[int, list[RoundRecord]] = defaultdict(list)
    for records in rounds.values():
        lengths = {len(record.draft_tokens) for record in records}
        if len(records) == num_requests and len(lengths) == 1:
            alike[lengths.pop()].append(records[0])  # times are of the whole round
    cells: defaultdict[StepKey, list[Cell]] = defaultdict(list)
    link_us: list[int] = []
    for length, records in alike.items():
        # A draft that is lost or catching up leaves rounds without drafts, which are not those of `off`.
        if len(records) < LEAST_ROUNDS or (length > 0) != (site.placement != "off"):
            continue
        took_us = {predictor.verify_key(site): median(record.verify_us for record in records)}
        if length:
            took_us[predictor.draft_key(site)] = median(record.draft_us for record in records)
        for key, us in took_us.items():
            if us > 0:
                cells[key].append(Cell(num_requests, length, us / 1e3))
        link_us += [record.link_us for record in records]
    links = {(site.target.node, site.draft.node): median(link_us) / 1e3} if link_us and site.draft is not None else {}
    return Timings(steps={key: Grid(tuple(found)) for key, found in cells.items()}, link_ms=links)
