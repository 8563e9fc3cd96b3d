"""Step times as the rounds of a run took them: what was timed beforehand is corrected by them, for the next plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from twinspark.actors.target.request import Report, RoundRecord
from twinspark.planner.placement import Site
from twinspark.planner.predict import Predictor
from twinspark.planner.timings import Cell, Grid, StepKey, Timings

LEAST_ROUNDS = 8  # of one size: fewer say nothing
NEWEST_COUNTS = 0.5  # a run's medians against what was believed before it


def observed(reports: Iterable[Report], site: Site, predictor: Predictor, num_requests: int) -> Timings:
    """What `predictor` believes of the steps at `site`, drawn towards the rounds of `reports` in which `num_requests`
    ran at once and all drafted alike. What there are too few rounds of, and steps it knows nothing of, are left out.
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
    for length, records in alike.items():
        # A draft that is lost or catching up leaves rounds without drafts, which are not those of `off`.
        if len(records) < LEAST_ROUNDS or (length > 0) != (site.placement != "off"):
            continue
        took_us = {predictor.verify_key(site): median(record.verify_us for record in records)}
        if length:
            took_us[predictor.draft_key(site)] = median(record.draft_us for record in records)
        for key, us in took_us.items():
            believed = predictor.timings.steps.get(key)
            if believed is not None and us > 0:
                before = believed.ms(num_requests, length)
                ms = before + NEWEST_COUNTS * (us / 1e3 - before)
                cells[key].append(Cell(num_requests, length, ms))
    return Timings(steps={key: Grid(tuple(found)) for key, found in cells.items()})
