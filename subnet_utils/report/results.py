"""The record of what a notebook makes: its figures and tables, and the manifest that says where they came from.

Everything goes to `figures/<profile>/`: each figure as png and pdf, each table as csv, and last the manifest
`<notebook>.json`. A manifest that exists means that the notebook ran to its end, and that its files are of that run.
"""

import hashlib
import io
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from subnet_utils.core.provenance import checkout_state, processor, provenance
from subnet_utils.core.sections import ROOT
from subnet_utils.core.store import save_json, write_whole
from subnet_utils.report import readable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
Labels = str | Sequence[str]
"""One or several."""
Captions = Mapping[str, tuple[str, Sequence[str]]]
"""Caption and labels in the paper, by the name of a figure or table, or by a pattern such as weight_map_*."""


class Results:
    """Collects the figures and tables of one notebook run; `close()` writes the manifest."""

    def __init__(
        self, study_name: str, notebook: str, *, root: Path | None = None, device: torch.device | None = None,
        captions: Captions = MappingProxyType({}), used: Collection[str] = (),
    ):  # fmt: skip
        """Start the record. The manifest of an earlier run is withdrawn as soon as one of its files is replaced.

        root: the checkout, by default this one; device: the study's, by default the processor; captions: those of the
        notebook's paper; used: what the manifest says that all was made from, as it is when it is written. Raises
        ValueError for a name that would not make a plain file name.
        """
        self.root = Path(root or ROOT)
        self.profile, self.notebook = _checked(study_name), _checked(notebook)
        self.folder = self.root / "figures" / self.profile
        self.items: list[dict[str, Any]] = []
        self.place: Callable[[str], str | None] = str
        """Where the paper shows of this study's network what it shows of its main one there; None if nowhere."""
        self._captions, self._used = captions, used
        self._device = device or torch.device("cpu")
        self._started = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def manifest(self) -> Path:
        """Where `close` writes: `figures/<profile>/<notebook>.json`."""
        return self.folder / f"{self.notebook}.json"

    def figure(self, figure: Figure, name: str, *, caption: str = "", paper: Labels = (), **values: Any) -> None:
        """Save a figure as `<name>.png` and `<name>.pdf`, and show what was saved.

        The same drawing gives the same bytes. Its caption and the paper's figures that it reproduces are those of the
        paper's `captions.csv`; `values` are what stands there in braces. caption, paper: in place of those. Raises
        ValueError for a name that this notebook already used, and for one without a caption.
        """
        said, (png, pdf) = self._said(name, caption, paper, values), _drawn(figure)
        self._add("figure", name, {f"{name}.png": png, f"{name}.pdf": pdf}, said)
        if _is_seen():
            plt.close(figure)  # or else the inline backend would draw it once more
            inches = int.from_bytes(png[16:20], "big") / figure.dpi  # the header has the width in dots
            _show({"image/png": png, "text/plain": repr(figure)}, said, {"image/png": {"width": round(96 * inches)}})

    def table(
        self, frame: pd.DataFrame, name: str, *, caption: str = "", paper: Labels = (), digits: int = 3,
        folded: bool = False, **values: Any,
    ) -> None:  # fmt: skip
        """Save a table in full precision as `<name>.csv`, and show its first rows, rounded.

        digits: decimals; numbers too small to show any keep two significant digits. folded: a reader sees no row before
        a click. An index is not written: make it a column. The manifest counts the verdicts in columns `verdict` and
        `..._verdict`, and has the means of columns `paper` and `ours` for the report's index. Rows with a figure or
        table of the paper in a column `place` are counted there, too. Otherwise as `figure`.
        """
        said, text = self._said(name, caption, paper, values), frame.to_csv(index=False, lineterminator="\n")
        about = {"digits": digits, "rows": len(frame), **_counted(frame)}
        if {"place", "ours", "n_runs"} <= set(frame):
            about["claims"] = {place: _placed(rows) for place, rows in frame.groupby("place", sort=False) if place}
        self._add("table", name, {f"{name}.csv": text.encode()}, said | about)
        if _is_seen():
            html = readable.table(frame.reset_index(drop=True), digits, folded=folded)
            _show({"text/html": html, "text/plain": f"{name}.csv"}, said)

    def close(self) -> None:
        """Write the manifest, and print a line on it."""
        record = {
            "schema": 2,
            "profile": self.profile,
            "notebook": self.notebook,
            "items": self.items,
            "sources": sorted(self._used),
            "git": checkout_state(self.root),
            "versions": provenance()["versions"],
            "device": _device_name(self._device),
            "seconds": round(time.monotonic() - self._started, 1),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        save_json(self.manifest, record)
        facts = provenance_rows(record)
        print("{figures, tables} from {artefacts} artefacts in {seconds} s.".format(**facts), end=" ")
        print(f"They are listed in figures/{self.profile}/{self.manifest.name}.")

    def _said(self, name: str, caption: str, paper: Labels, values: Mapping[str, Any]) -> dict[str, Any]:
        """Caption and labels of a figure or table."""
        labels = [paper] if isinstance(paper, str) else list(paper)
        if not caption:
            known = [said for pattern, said in self._captions.items() if fnmatchcase(name, pattern)]
            if not known:
                raise ValueError(f"'{name}' has no caption; add it to captions.csv of its paper, or give caption='...'")
            caption = known[0][0].format(**values)
            labels = labels or [place for label in known[0][1] if (place := self.place(label))]
        return {"caption": caption, "paper": labels}

    def _add(self, kind: str, name: str, files: dict[str, bytes], about: dict[str, Any]) -> None:
        """Write the files and note them; the manifest of an earlier run goes first."""
        if _checked(name) in {item["name"] for item in self.items}:
            raise ValueError(f"'{name}' is already a figure or table of {self.notebook}; choose another name")
        self.manifest.unlink(missing_ok=True)
        for file, content in files.items():
            write_whole(self.folder / file, content)
        digests = [{"name": file, "sha256": hashlib.sha256(content).hexdigest()} for file, content in files.items()]
        self.items.append({"kind": kind, "name": name, "files": digests} | about)


def provenance_rows(record: dict[str, Any]) -> dict[str, str]:
    """What a reader wants to know of a manifest: profile, what was made from what, code, versions, device, time."""
    sources = {key for item in [record, *record["items"]] for key in item.get("sources", ())}  # before schema 2: items
    kinds = [item["kind"] for item in record["items"]]
    git = record["git"] or {"commit": "not in git", "dirty": False}
    commit = git["commit"][:12] + (" with uncommitted changes" if git["dirty"] else "")
    return {
        "profile": record["profile"],
        "figures, tables": f"{kinds.count('figure')} figures, {kinds.count('table')} tables",
        "artefacts": f"{len(sources):,}",
        "commit": commit,
        "versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        "device": record["device"],
        "seconds": f"{record['seconds']:.1f}",
        "finished": record["finished"],
    }


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"'{name}' does not make a plain file name; use letters, digits, '_' and '-'")
    return name


def _drawn(figure: Figure) -> tuple[bytes, bytes]:
    """The figure as png and as pdf, cut to what is in it. It is laid out once for both."""
    layout = figure.get_layout_engine()
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # leaves everything where it is
    box = figure.get_tightbbox().padded(plt.rcParams["savefig.pad_inches"])
    unsigned = {"png": ("Software",), "pdf": ("CreationDate", "Creator", "Producer")}
    files = []
    for form, names in unsigned.items():
        files.append(io.BytesIO())
        figure.savefig(files[-1], format=form, metadata=dict.fromkeys(names), bbox_inches=box)
    figure.set_layout_engine(layout)
    png, pdf = (file.getvalue() for file in files)
    return png, pdf


def _is_seen() -> bool:
    """Whether a notebook shows figures and tables."""
    return "inline" in matplotlib.get_backend()


def _show(content: dict[str, Any], said: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
    from IPython.display import display  # takes a while to import outside notebooks

    display(content, raw=True, metadata=metadata)
    readable.put_caption(said["caption"], said["paper"])


def _verdicts(frame: pd.DataFrame) -> dict[str, int]:
    """How often each verdict is in the columns that hold verdicts."""
    columns = frame.filter(regex="^(.+_)?verdict$")
    return dict(Counter(value for name in columns for value in columns[name].dropna()))


def _counted(frame: pd.DataFrame) -> dict[str, Any]:
    """What the report's index says of a table, or of some of its rows."""
    return {"verdicts": _verdicts(frame), "summary": _summary(frame)}


def _summary(frame: pd.DataFrame) -> dict[str, float | int | None] | None:
    """Means of `paper` and `ours` over rows with both, and counts; no means where opposite effects would cancel, and
    none of settings, which are in different units."""
    if not {"paper", "ours"} <= set(frame) or "setting" in frame:
        return None
    numbers = frame[["paper", "ours"]].apply(pd.to_numeric, errors="coerce").astype("Float64").astype(float)
    both = np.isfinite(numbers).all(axis=1)
    if not both.any():
        return None
    paper = numbers.loc[both, "paper"]
    means = numbers[both].mean().to_dict() if not paper.min() < 0 < paper.max() else {"paper": None, "ours": None}
    runs = int(frame.loc[both, "n_runs"].sum()) if "n_runs" in frame else None
    return means | {"rows": int(both.sum()), "runs": runs}


def _placed(frame: pd.DataFrame) -> dict[str, Any]:
    """The same of the rows on one figure. Where the paper prints no number, ours is there if it is one."""
    ours = frame["ours"].iloc[0] if len(frame) == 1 and np.isfinite(frame["ours"].iloc[0]) else None
    alone = {"paper": None, "ours": ours, "rows": len(frame), "runs": int(frame["n_runs"].sum())}
    counted = _counted(frame)
    return counted | {"summary": counted["summary"] or alone}


def _device_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's and its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {os.cpu_count()} cores"
