"""Check profiles before anything is run: `python -m subnet_utils.check tiny`."""

import argparse
import csv
import json
import sys

from subnet_utils.core.downloads import external, table
from subnet_utils.core.papers import Notebook, Paper, notebooks
from subnet_utils.core.sections import ROOT
from subnet_utils.core.study import Study


def main(arguments: list[str]) -> int:
    """Check profiles, and that the data and published weights that they name are there.

    These are listed on stdout; then, without --list, the missing ones are fetched, and the profile is called valid. One
    line on stderr for each error, and for each notebook that cannot run. Exit status 2 for a profile that is not valid,
    or of which no notebook can run: what one paper lacks stops no other.
    """
    parser = argparse.ArgumentParser(prog="python -m subnet_utils.check", description=__doc__)
    parser.add_argument("profile", nargs="+", help="a name, such as laptop, or a YAML file")
    parser.add_argument("--list", action="store_true", help="list what comes from elsewhere, and fetch nothing")
    chosen = parser.parse_args(arguments)
    try:
        for given in chosen.profile:
            study = Study.load(given)
            print(table(external(study)) or "nothing comes from elsewhere", flush=True)
            if not chosen.list:
                for line in require(study):
                    print(line, file=sys.stderr)
                print(f"{given}: valid, {duration(study, given)}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def require(study: Study) -> list[str]:
    """A line for each notebook of a study that cannot run. Raises ValueError with these lines if none can."""
    lines = [f"{name} cannot run: {why}" for name, why in cannot_run(study).items()]
    if len(lines) == len(_notebooks_of(study)):
        raise ValueError("\n".join(lines))
    return lines


def duration(study: Study, given: str) -> str:
    """How long a study takes, as far as that is known without computing: on CPUs by the whole run that `cost` has noted
    last, whatever is made already; on GPUs by the rehearsal. Else what will tell."""
    from subnet_utils.core.devices import resolve_device  # imports torch
    from subnet_utils.core.jobs import worker_count

    file = ROOT / "figures" / "rehearsals" / f"{study.name}.json"
    if file.is_file():
        about = json.loads(file.read_text(encoding="utf-8"))
        return f"about {about['gpu_hours']:g} hours of a GPU at {about['rate_tflop_s']:g} TFLOP/s, by its rehearsal"
    with open(ROOT / "params" / "cost.csv", encoding="utf-8", newline="") as file:
        row = next((row for row in csv.DictReader(file) if row["profile"] == study.name), None)
    if row is None or resolve_device(study.compute).type != "cpu":
        return f"`make cost PROFILE={given}` says how long it takes here"
    jobs = worker_count(study.compute)
    where = f"by a run in {row['precision']} on {row['device']}"
    return f"about {float(row['minutes']) / jobs:.0f} minutes here, {jobs} jobs at a time ({where})"


def cannot_run(study: Study) -> dict[str, str]:
    """Name of a notebook -> what it needs, or one that it waits for, and what is not there, in one line."""
    from subnet_utils.core.lab import Lab  # imports torch

    lab, found = Lab.open(study), {}
    for name, (paper, notebook) in _notebooks_of(study).items():
        try:
            paper.require(notebook, lab)
        except ValueError as error:
            found[name] = " ".join(str(error).split())
        for before in found.keys() & notebook.after:
            found.setdefault(name, found[before])
    return found


def _notebooks_of(study: Study) -> dict[str, tuple[Paper, Notebook]]:
    return {name: both for name, both in notebooks().items() if both[1].is_about(both[0].section_of(study))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
