#!/usr/bin/env bash
# Every model of the table on the graphs that no choice has seen, once, as one registered round.
# Not run yet. The claim is in rounds/ before anything is shown; the table is told as it falls.
set -euo pipefail
OUT=${OUT:-runs/test-graphs}
graphs=$(python -m studies.held_out_graphs build test-rulers test-electron test-patches | paste -sd,)
words=(3-shot 1-shot 2-shot --datasets "$graphs" --seeds 5 --out "$OUT")
metatkgr reproduce "${words[@]}" --list \
  --claim "With its defaults, evidence has a higher MRR than every rule and baseline on each test graph"
metatkgr reproduce "${words[@]}"
python -m studies.collect "$OUT/cells" results
