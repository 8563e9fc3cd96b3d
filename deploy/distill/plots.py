"""Pictures of a run: how loss and acceptance went, and how honest the confidence is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from twinspark.deploy.distill.calibration import curve
from twinspark.deploy.distill.judge import Judged

DPI = 110


def plot_training(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Loss, and the chance that a slot's draft is kept, over the steps."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in history]
    left.plot(steps, [row["loss"] for row in history], marker=".")
    left.set(xlabel="step", ylabel="loss on held-out texts", title="loss")
    for slot in range(len(history[0]["kept"]) if history else 0):
        right.plot(steps, [row["kept"][slot] for row in history], label=f"draft {slot + 1}")
    right.set(xlabel="step", ylabel="1 - TV", title="chance that a draft token is kept (text before it given)")
    right.legend(fontsize="small", ncols=2)
    _save(figure, path)


def plot_reliability(judged: Mapping[str, tuple[Judged, Any]], path: Path) -> None:
    """For each of `judged` (what was judged, told survival after scaling) told against what came, slot by slot."""
    figure = Figure(figsize=(5 * len(judged), 5), layout="constrained")
    axes = figure.subplots(1, len(judged), squeeze=False)[0]
    for axis, (name, (found, survival)) in zip(axes, judged.items(), strict=True):
        axis.plot([0, 1], [0, 1], color="grey", linewidth=1)
        for k in range(survival.shape[1]):
            points = curve(survival[:, k], found.survived[:, k])
            axis.plot([told for told, _, _ in points], [came for _, came, _ in points], marker=".", label=f"{k + 1}")
        axis.set(xlabel="told survival of the prefix", ylabel="share that survived", title=name)
        axis.legend(title="drafts", fontsize="small")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})  # type: ignore[no-untyped-call]
