"""One-off questions with their scripts: ``python -m studies.NAME``, from the repository's folder.

Their answers lie in ``results/`` and are told in ``docs/experiments.md``; nothing of the package
imports them.
"""
