"""Sentences about the results, made from the numbers: what holds, what does not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from metatkgr.experiments.cells import RULES, Row, row_order
from metatkgr.experiments.published import PUBLISHED
from metatkgr.experiments.results import EVIDENCE, METATKGR, Results, values_of
from metatkgr.experiments.sections import section
from metatkgr.experiments.sections.ablations import ablation_means, ablation_rows
from metatkgr.experiments.sections.figures import bound_curve
from metatkgr.experiments.sections.tables import BETTER, WITHIN, WORSE, mark, number
from metatkgr.experiments.significance import ALPHA, Comparison
from metatkgr.models import available

__all__ = ["bound_findings", "evidence_findings", "leader_findings"]

_NAMES = ("MRR", "H@1", "H@3", "H@10")


@section("findings", place=10)
def _findings(results: Results) -> list[str]:
    ablated = results.against_ablations(METATKGR)
    said = leader_findings(results) + _published_findings(results) + _rule_findings(results)
    said += _significance_findings(results.against_others)
    said += _ablation_findings(results, ablated) + bound_findings(results)
    said += evidence_findings(results, results.against_ablations(EVIDENCE))
    said += _older_findings(results)
    return ["", "## What the numbers say", "", *(f"- {sentence}" for sentence in said)]


def _older_findings(results: Results) -> list[str]:
    """Which records are of models as they were before a setting came that they have now.

    A record says with which settings its model ran; one that lacks a setting of today is of an
    earlier form of the model, and is not to be compared with the others to the last digit.
    """
    older: dict[str, Counter[str]] = {}
    for record in results.records:
        cell = record.cell
        model = available().get(cell.model)
        if model is None or cell.tiny:
            continue
        today = {field.name for field in dataclasses.fields(model.settings_type)}
        if record.settings and today - set(record.settings):
            where = f"{cell.visibility} {cell.shots}-shot"
            if str(cell.test_shots) != str(cell.shots):
                where += " tested with other shots"
            where += ", ablations" if cell.settings else ""
            older.setdefault(cell.model, Counter())[where] += 1
    return [
        f"Not run again since `{model}` took its present form: "
        + "; ".join(f"{where} ({count})" for where, count in sorted(counts.items()))
        + ". These records are compared with the others only roughly."
        for model, counts in sorted(older.items())
    ]


def _published_findings(results: Results) -> list[str]:
    """How each row stands to its own published numbers, and where those were not reached."""
    sentences = []
    better = total = 0
    for (model, dataset, shots), printed in PUBLISHED.items():
        values = results.values(dataset, Row("paths"), shots)
        if model == "metatkgr" and values is not None:
            pairs = zip(values.mean(0), printed.mean, strict=True)
            better += sum(ours > published for ours, published in pairs if published is not None)
            total += len(printed.mean)
    if total:
        sentences.append(
            f"The untrained rule `paths` is above the published model in {better} of {total} cells."
        )
    rows = sorted({row for k in results.shots for row in results.rows(k)}, key=row_order)
    for row in rows:
        sentence = _against_published(results, row)
        if sentence:
            sentences.append(sentence)
    return sentences


def _against_published(results: Results, row: Row) -> str:
    counts = dict.fromkeys((BETTER, WITHIN, WORSE), 0)
    missed: list[str] = []
    for shots in results.shots:
        for dataset in results.datasets:
            printed = PUBLISHED.get((row.model, dataset, shots))
            values = results.values(dataset, row, shots)
            if printed is None or values is None:
                continue
            mean = values.mean(0)
            texts = []
            for metric, published in enumerate(printed.mean):
                if published is None:
                    continue
                sign = mark(mean[metric], published, printed.std[metric] if printed.std else None)
                counts[sign] += 1
                if sign == WORSE:
                    texts.append(
                        f"{_NAMES[metric]} {number(mean[metric])} against {number(published)}"
                    )
            if texts:
                missed.append(f"{dataset} {shots}-shot ({', '.join(texts)})")
    total = sum(counts.values())
    if not total:
        return ""
    text = (
        f"{row.label} against its own published numbers: better in {counts[BETTER]}, within their "
        f"standard deviation in {counts[WITHIN]}, worse in {counts[WORSE]} of {total} cells."
    )
    return text + (f" Not reached: {'; '.join(missed)}." if missed else "")


def leader_findings(results: Results, filters: Sequence[str] = ("static", "time")) -> list[str]:
    """Who has the highest number in each cell, of all rows and (static) the published model."""
    sentences = []
    for shots in results.shots:
        leads: Counter[str] = Counter()
        for dataset in results.datasets:
            for kind in filters:
                means = {
                    row.label: values.mean(0)
                    for row in results.rows(shots)
                    if (values := values_of(results.of(dataset, row, shots), kind)) is not None
                }
                printed = PUBLISHED.get(("metatkgr", dataset, shots))
                for metric in range(len(_NAMES)):
                    scores = {name: float(mean[metric]) for name, mean in means.items()}
                    if kind == "static" and printed and printed.mean[metric] is not None:
                        scores["the published MetaTKGR"] = float(printed.mean[metric] or 0)
                    if len(scores) > 1:
                        leads[max(scores, key=lambda name: scores[name])] += 1
        if leads:
            listed = ", ".join(f"{name} in {count}" for name, count in leads.most_common())
            sentences.append(
                f"{shots}-shot, the highest number of all rows, of {leads.total()} cells "
                f"(datasets, metrics, both filters): {listed}."
            )
    return sentences


def _rule_findings(results: Results, shots: int = 3) -> list[str]:
    """Where a rule that learns nothing beats models that do."""
    sentences = []
    for dataset in results.datasets:
        scores = {
            row: float(values[:, 0].mean())
            for row in results.rows(shots)
            if (values := results.values(dataset, row, shots)) is not None
        }
        rules = {row: score for row, score in scores.items() if row.model in RULES}
        learned = {row: score for row, score in scores.items() if row.model not in RULES}
        if not rules or not learned:
            continue
        best = max(rules, key=lambda row: rules[row])
        above = sorted((r for r in learned if learned[r] > rules[best]), key=lambda r: -learned[r])
        text = (
            f"{dataset}, {shots}-shot: the better rule, {best.label}, has the MRR "
            f"{number(rules[best])}; "
        )
        if above:
            listed = ", ".join(f"{row.label} ({number(learned[row])})" for row in above)
            text += f"of {len(learned)} learned models {len(above)} are above it: {listed}."
        else:
            top = max(learned, key=lambda row: learned[row])
            text += (
                f"no learned model (of {len(learned)}) is above it; the best of them is "
                f"{top.label} ({number(learned[top])})."
            )
        sentences.append(text)
    return sentences


def _ablation_findings(
    results: Results, tested: Sequence[Comparison], shots: int = 3, *, full_row: Row = METATKGR
) -> list[str]:
    """What leaving out a part changes; ``tested`` compares the full model with each ablation."""
    sentences = []
    compared = {(c.dataset, c.other): c for c in tested if c.shots == shots}
    for name, row in ablation_rows(results, full_row)[1:]:
        parts = []
        for dataset in results.datasets:
            full, ablated = results.common(dataset, full_row, row, shots)
            if full is None or ablated is None:
                continue
            change = ablated[:, 0].mean() - full[:, 0].mean()
            comparison = compared.get((dataset, row))
            verdict = "not tested"
            if comparison is not None:
                verdict = "significant" if comparison.significant else "not significant"
            parts.append(f"{change:+.3f} on {dataset} ({verdict}, {_seeds(len(full))})")
        if parts:
            of = "" if full_row == METATKGR else f" of {full_row.label}"
            sentences.append(
                f"`{name}` instead of the whole{of} changes the MRR by {', '.join(parts)}."
            )
    return sentences


def evidence_findings(results: Results, tested: Sequence[Comparison]) -> list[str]:
    """Which parts of the evidence model are worth having."""
    sentences = _ablation_findings(results, tested, full_row=EVIDENCE)
    if tested:
        worse = sum(c.significant and c.difference > 0 for c in tested)
        better = sum(c.significant and c.difference < 0 for c in tested)
        sentences.append(
            f"Of {len(tested)} comparisons of {EVIDENCE.label} with an ablation of it, {worse} "
            f"show the ablation significantly worse and {better} significantly better (corrected "
            f"p < {ALPHA})."
        )
    means, cells = ablation_means(results, EVIDENCE)
    if len(means) > 1 and len(cells) > len(results.datasets):
        (_, full), *others = means.items()
        change = sorted((float(mean[0] - full[0]), name) for name, mean in others)
        pays = sum(by < 0 for by, _ in change)
        lowest, highest = (f"{by:+.4f} (`{name}`)" for by, name in (change[0], change[-1]))
        sentences.append(
            f"In the mean over {len(cells)} cells (datasets and K), {pays} of {len(change)} "
            f"ablations of {EVIDENCE.label} lower the MRR; they change it by {lowest} to {highest}."
        )
    return sentences


def bound_findings(results: Results) -> list[str]:
    """Whether the regulariser's bound held on tasks that came later."""
    parts = []
    for dataset in results.datasets:
        curve = bound_curve(results, dataset)
        if curve is None:
            continue
        pairs = zip(curve["bound"], curve["true_loss"], strict=True)
        known = [(high, true) for high, true in pairs if high is not None and true is not None]
        held = sum(true <= high for high, true in known)
        parts.append(f"in {held} of {len(known)} epochs on {dataset}")
    if not parts:
        return []
    return [
        "The regulariser's bound on meta-train tasks was above the loss of the meta-validation "
        f"tasks, which come later, {', '.join(parts)} (first seed)."
    ]


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def _significance_findings(tested: Sequence[Comparison]) -> list[str]:
    """How many comparisons stand after the correction."""
    if not tested:
        return []
    higher = [c for c in tested if c.significant and c.difference > 0]
    lower = [c for c in tested if c.significant and c.difference < 0]
    return [
        f"Of {len(tested)} comparisons of {tested[0].one.label} with another model, {len(higher)} "
        f"show it significantly better and {len(lower)} significantly worse (corrected p < "
        f"{ALPHA}); in the other {len(tested) - len(higher) - len(lower)} nothing can be said."
    ]
