"""Note in `params/cost.csv` what profiles have cost, after a run on CPUs: `python -m subnet_utils.cost tiny`.

A row is a profile: minutes of processor time of its steps, and of its notebooks by the clock, together; and where that
was. `python -m subnet_utils.check tiny` divides them by the jobs at a time.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from subnet_utils.core.devices import precision_name
from subnet_utils.core.lab import Lab
from subnet_utils.core.papers import notebooks
from subnet_utils.core.sections import ROOT
from subnet_utils.cost.estimate import spent


def main(arguments: list[str]) -> int:
    """Add or replace rows; 2 and one line on stderr for a profile that is not finished."""
    path = ROOT / "params" / "cost.csv"
    try:
        rows = [row_of(Lab.open(name), ROOT / "figures" / name) for name in arguments]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    others = pd.read_csv(path).query("profile not in @arguments") if path.exists() else None
    pd.concat([others, pd.DataFrame(rows)]).to_csv(path, index=False)
    return 0


def row_of(lab: Lab, figures: Path) -> dict[str, Any]:
    """The row of a profile whose notebooks have left their manifests in a folder; one without it counts nothing.
    Raises ValueError if steps are missing, or all manifests."""
    steps, files = spent(lab), [figures / f"{name}.json" for name in notebooks()]
    manifests = [json.loads(file.read_text()) for file in files if file.is_file()]
    if steps["done"].sum() < steps["steps"].sum() or not manifests:
        name = lab.study.name
        raise ValueError(f"{name}: there are steps or notebooks to be made; first `make reproduce PROFILE={name}`")
    seconds = steps["spent_cpu_s"].sum() + sum(one["seconds"] for one in manifests)
    return {
        "profile": lab.study.name,
        "minutes": round(seconds / 60, 1),
        "precision": precision_name(lab.study.compute, lab.device),
        "device": manifests[0]["device"],
        "commit": (manifests[0]["git"] or {}).get("commit", "")[:12],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
