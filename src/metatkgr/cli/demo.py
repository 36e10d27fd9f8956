"""``metatkgr demo``: the whole story on the simulated world."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from metatkgr.cli import options
from metatkgr.cli.output import console_for, emit_json, plain_table

__all__ = ["demo"]


def demo(
    facts: Annotated[int, typer.Option(min=2000, help="Size of the world.")] = 20_000,
    shots: Annotated[
        int, typer.Option(min=1, help="K: how many first facts of an entity are known.")
    ] = 3,
    seed: options.Seed = 0,
    json_out: options.JsonOut = None,
) -> None:
    """Simulate a world, forecast its newcomers with every model, and tell one forecast in words."""
    from metatkgr.data.world import simulate
    from metatkgr.demo import newcomer_of, story_of, tell

    console = console_for(json_out)
    begin = time.perf_counter()

    def progress(line: dict[str, Any]) -> None:
        if "validation_mrr" in line:
            console.print(
                f"  {line['phase']} {line['epoch']}/{line['epochs']}: loss {line['loss']:.3f}, "
                f"validation MRR {line['validation_mrr']:.3f} ({line['seconds']:.0f} s)"
            )

    world = simulate(facts=facts, seed=seed)
    first, last = world.calendar.label(0), world.calendar.label(world.steps - 1)
    console.print(
        f"A simulated world: {len(world):,} facts, {len(world.entities):,} leagues, clubs, players "
        f"and sponsors, {first} to {last}."
    )
    console.print("Training MetaTKGR on what was known before them …")
    tellers = tell(world, shots=shots, seed=seed, progress=progress)
    evaluations = {name: teller.evaluation for name, teller in tellers.items()}
    tasks = next(iter(evaluations.values())).tasks
    console.print(
        f"In its last quarter {tasks.count} newcomers have more than {shots} facts; from their "
        f"first {shots} we forecast the other {len(tasks.answers):,}."
    )
    rows = []
    for name, evaluation in evaluations.items():
        all_, novel = evaluation.summary(), evaluation.summary(subset="novel")
        low, high = all_.mrr_ci95 or (0.0, 0.0)
        rows.append(
            [
                name,
                f"{all_.mrr:.3f}",
                f"{low:.3f}-{high:.3f}",
                *(f"{all_.hits[k]:.3f}" for k in (1, 3, 10)),
                "-" if novel.mrr is None else f"{novel.mrr:.3f}",
            ]
        )
    title = f"{shots}-shot, meta-test, visibility entity-split, filter static"
    columns = ["model", "MRR", "95 % interval", "H@1", "H@3", "H@10", "novel MRR"]
    console.print(plain_table(title, columns, rows))
    console.print(
        "recurrency and paths are rules without training; metatkgr has learned how to learn about "
        "newcomers; evidence has learned on other graphs what speaks for an answer, and is used as "
        "it is; the oracle knows the world's law and its "
        "whole past: the upper bound.\n"
    )
    story = story_of(tellers)
    console.print(f"[bold]{story.entity}[/bold] has just appeared. All we know:", markup=True)
    for subject, relation, other, date in story.support:
        console.print(f"  {date}: {subject} {relation} {other}")
    console.print(f"The question: [bold]{story.question}[/bold]", markup=True)
    for name, names in story.forecasts.items():
        console.print(f"  {name:10} says {', '.join(names)}")
    console.print(f"What happened: {', '.join(story.truth)}.")
    observed, forecasts = newcomer_of(world, story)
    console.print(
        f"\nNow somebody whom no simulation knows: [bold]{forecasts.query['label']}[/bold]. "
        "We observe, and train nothing:",
        markup=True,
    )
    for fact in observed:
        console.print(f"  {fact.time}: {fact.subject} {fact.relation} {fact.object}")
    console.print(forecasts)
    console.print(
        "\nNext, the same on a page, where you can type in newcomers of your own:\n"
        f"  [bold]metatkgr serve world:{facts}:{seed}[/bold]\n"
        "or with a file of yours: [bold]metatkgr predict events.csv --entity NAME --explain[/bold]",
        markup=True,
        soft_wrap=True,
    )
    emit_json(
        json_out,
        {
            "world": {"facts": len(world), "entities": len(world.entities), "seed": seed},
            "seconds": round(time.perf_counter() - begin, 1),
            "models": {name: e.to_json() for name, e in evaluations.items()},
            "forecast": asdict(story),
            "newcomer": forecasts.to_json(),
        },
    )
