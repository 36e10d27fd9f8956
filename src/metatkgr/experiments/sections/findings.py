"""Sentences about the results, made from the numbers: what holds, what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from metatkgr.data.answers import FILTERS
from metatkgr.experiments.cells import RULES, Row, row_order
from metatkgr.experiments.published import METRICS, PUBLISHED
from metatkgr.experiments.records import FloatArray
from metatkgr.experiments.results import EVIDENCE, METATKGR, WALKS, Results, values_of
from metatkgr.experiments.rounds import changed_settings
from metatkgr.experiments.sections import section
from metatkgr.experiments.sections.comparisons import ablation_means, ablation_rows
from metatkgr.experiments.sections.figures import bound_curve
from metatkgr.experiments.sections.tables import BETTER, WITHIN, WORSE, mark, number
from metatkgr.experiments.significance import ALPHA, Comparison

__all__ = ["STALE", "bound_findings", "evidence_findings", "leader_findings", "leaders"]

STALE = "Stale"
"""The first word of sentences about rows that are not run with the settings of today."""


@section("findings", place=20)
def _findings(results: Results) -> list[str]:
    said = leader_findings(results) + _published_findings(results) + _rule_findings(results)
    said += evidence_findings(results, results.against_ablations(EVIDENCE))
    said += bound_findings(results) + _stale_findings(results)
    return ["", "## What the numbers say", "", *(f"- {sentence}" for sentence in said)]


@section("parts", place=69, page="ablations")
def _parts(results: Results) -> list[str]:
    said = [
        sentence
        for full in (METATKGR, WALKS, EVIDENCE)
        for sentence in _ablation_findings(results, full)
    ]
    return ["", "## What each part is worth", "", *(f"- {text}" for text in said)] if said else []


def _stale_findings(results: Results) -> list[str]:
    """Which records are of models as they were before a setting changed or came.

    A record says with which settings its model ran; such a record is not to be compared with the
    others to the last digit.
    """
    stale: dict[str, Counter[str]] = {}
    names: dict[str, set[str]] = {}
    for record in results.records:
        cell = record.cell
        if changed := changed_settings(record):
            names.setdefault(cell.model, set()).update(changed)
            where = f"{cell.visibility} {cell.shots}-shot"
            if str(cell.test_shots) != str(cell.shots):
                where += " tested with other shots"
            where += ", ablations" if cell.row.variant else ""
            stale.setdefault(cell.model, Counter())[where] += 1
    return [
        f"{STALE} (†) since `{model}` changed ({', '.join(sorted(names[model]))}): "
        + "; ".join(f"{where} ({count})" for where, count in sorted(counts.items()))
        + "."
        for model, counts in sorted(stale.items())
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
    counts = {row: count for row in rows if (count := _against_published(results, row)).total()}
    reached = [row.label for row, count in counts.items() if not count[WORSE]]
    for row, count in counts.items():
        if count[WORSE]:
            sentences.append(
                f"{row.label} against its own published numbers: better in {count[BETTER]}, within "
                f"their standard deviation in {count[WITHIN]}, worse in {count[WORSE]} of "
                f"{count.total()} cells."
            )
    if reached:
        sentences.append(f"In no cell below their own published numbers: {', '.join(reached)}.")
    return sentences


def _against_published(results: Results, row: Row) -> Counter[str]:
    counts: Counter[str] = Counter()
    for shots in results.shots:
        for dataset in results.datasets:
            printed = PUBLISHED.get((row.model, dataset, shots))
            values = results.values(dataset, row, shots)
            if printed is None or values is None:
                continue
            mean = values.mean(0)
            for metric, published in enumerate(printed.mean):
                if published is not None:
                    std = printed.std[metric] if printed.std else None
                    counts[mark(mean[metric], published, std)] += 1
    return counts


def leaders(
    results: Results,
    shots: int,
    instead: Mapping[tuple[str, int, str], FloatArray] | None = None,
) -> Counter[str]:
    """In how many cells each row has the highest number, of all and (static) the published model.

    Args:
        results: all results.
        shots: K.
        instead: (4,) other means of ``evidence``, by dataset, K and filter.
    """
    leads: Counter[str] = Counter()
    for dataset in results.datasets:
        for kind in FILTERS:
            means = {
                row.label: values.mean(0)
                for row in results.rows(shots)
                if (values := values_of(results.of(dataset, row, shots), kind)) is not None
            }
            if (other := (instead or {}).get((dataset, shots, kind))) is not None:
                means[EVIDENCE.label] = other
            printed = PUBLISHED.get(("metatkgr", dataset, shots))
            for metric in range(len(METRICS)):
                scores = {name: float(mean[metric]) for name, mean in means.items()}
                if kind == "static" and printed and printed.mean[metric] is not None:
                    scores["the published MetaTKGR"] = float(printed.mean[metric] or 0)
                if len(scores) > 1:
                    leads[max(scores, key=lambda name: scores[name])] += 1
    return leads


def leader_findings(results: Results) -> list[str]:
    """Who has the highest number, for each K."""
    sentences = []
    for shots in results.shots:
        if leads := leaders(results, shots):
            listed = ", ".join(f"{name} in {count}" for name, count in leads.most_common())
            sentences.append(
                f"{shots}-shot, the highest number of all rows, of {leads.total()} cells "
                f"(datasets, metrics, both filters): {listed}."
            )
    return sentences


def _rule_findings(results: Results) -> list[str]:
    """Where a rule that learns nothing beats models that do; 3-shot."""
    sentences = []
    for dataset in results.datasets:
        scores = results.mrr(dataset, 3)
        rules = {row: score for row, score in scores.items() if row.model in RULES}
        learned = {row: score for row, score in scores.items() if row.model not in RULES}
        if not rules or not learned:
            continue
        best = max(rules, key=lambda row: rules[row])
        above = sorted((r for r in learned if learned[r] > rules[best]), key=lambda r: -learned[r])
        text = (
            f"{dataset}, 3-shot: the better rule, {best.label}, has the MRR {number(rules[best])}; "
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


def _ablation_findings(results: Results, full_row: Row) -> list[str]:
    """What leaving out a part of a model changes; 3-shot."""
    sentences = []
    tested = results.against_ablations(full_row)
    compared = {(c.dataset, c.other): c for c in tested if c.shots == 3}
    for name, row in ablation_rows(results, full_row)[1:]:
        parts = []
        for dataset in results.datasets:
            full, ablated = results.common(dataset, full_row, row, 3)
            if full is None or ablated is None:
                continue
            change = ablated[:, 0].mean() - full[:, 0].mean()
            comparison = compared.get((dataset, row))
            verdict = "not tested"
            if comparison is not None:
                same = f"not significant, the same within ±{number(comparison.equivalence)}"
                verdict = "significant" if comparison.significant else same
            parts.append(f"{change:+.3f} on {dataset} ({verdict}, {_seeds(len(full))})")
        if parts:
            of = "" if full_row == METATKGR else f" of {full_row.label}"
            sentences.append(
                f"`{name}` instead of the whole{of} changes the MRR by {', '.join(parts)}."
            )
    return sentences


def evidence_findings(results: Results, tested: Sequence[Comparison]) -> list[str]:
    """Which parts of the evidence model are worth having."""
    sentences = []
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
