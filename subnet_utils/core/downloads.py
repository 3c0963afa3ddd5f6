"""What a study takes from elsewhere, published weights and data: listed before anything is fetched.

Sizes are those of the file that is read, licenses those that its page names. What is not known is said to be so.
"""

import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from subnet_utils.core.sections import ROOT, Section, elsewhere_in

KNOWN = {
    "prajjwal1/bert-small": ("115 MB", "MIT"),
    "google-bert/bert-base-cased": ("436 MB", "Apache-2.0"),
    "FacebookAI/roberta-base": ("499 MB", "MIT"),
    "openai-community/gpt2": ("548 MB", "MIT"),
    "google/vit-base-patch16-224-in21k": ("413 MB", "Apache-2.0"),
    "torchvision": ("45 MB", ""),
    "data/imagenet16/train": ("213,555 images", "ImageNet's terms"),
    "data/imagenet16/validation": ("", "ImageNet's terms"),
    "data/cue-conflict": ("1,280 images", "its page names none"),
    "all-minilm-l6-v2": ("83 MB", "Apache-2.0"),
    "data/cifar10": ("170 MB", "its page names none"),
    "data/mnist": ("12 MB", "CC BY-SA 3.0"),
    "nyu-mll/multi_nli": ("227 MB", "CC BY 3.0, CC BY-SA 3.0, MIT, other"),
    "jhu-cogsci/hans": ("31 MB", "MIT"),
    "nyu-mll/glue": ("404,276 labelled pairs", "Quora's terms"),
    "data/paws_qqp.tsv": ("12,675 pairs", "Quora's terms"),
}
"""Name on a hub, folder of the profile `paper`, or a folder's own name -> size and license, '' if not known."""
RESNET18 = "resnet18-f37072fd.pth"
"""What torchvision calls the file of the weights that it publishes."""


@dataclass(frozen=True)
class External:
    """Weights or data that a study names. place: where they lie or will lie; fetched: whether they are downloaded where
    they are missing. What is not has to be put there."""

    name: str
    place: Path
    fetched: bool

    @property
    def is_here(self) -> bool:
        """Whether they are on this machine: a file, or a folder with something in it."""
        return self.place.is_file() or (self.place.is_dir() and any(self.place.iterdir()))

    def row(self) -> dict[str, str]:
        """As columns of a table."""
        size, terms = KNOWN.get(self.name, KNOWN.get(Path(self.name).name, ("", "")))
        state = "here" if self.is_here else "to be downloaded" if self.fetched else "missing: put it there"
        return {"name": self.name, "size": size or "not known", "license": terms or "not known", "state": state,
                "place": str(self.place)}  # fmt: skip


def external(study: Section) -> Iterator[External]:
    """The weights and data that a study takes from elsewhere, each once. Nothing is fetched."""
    yield from dict.fromkeys(map(_external, elsewhere_in(study)))


def table(found: Iterable[External]) -> str:
    """In columns; '' for none."""
    rows = [one.row() for one in found]
    lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def go_offline_without_network() -> None:
    """Tell the hub's client, before it is imported, where there is no network. It would try each file six times, for
    minutes in all."""
    if "HF_HUB_OFFLINE" in os.environ:
        return
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"


def _external(name: str) -> External:
    """A file or folder as it is; `hub:name[:configuration]:split` a data set; two words with a / between a model. What
    begins with data/ is a folder, there or not."""
    own = ROOT / Path(name).expanduser()
    if name == "torchvision":
        return External(name, _torch_hub() / RESNET18, fetched=True)
    if name.startswith("hub:"):
        return _on_hub("datasets", name.split(":")[1])
    if name.count("/") == 1 and not name.startswith((".", "/", "~", "data/")) and not own.exists():
        return _on_hub("models", name)
    return External(name, own, fetched=False)


def _torch_hub() -> Path:
    import torch

    return Path(torch.hub.get_dir()) / "checkpoints"


def _on_hub(kind: str, name: str) -> External:
    """A name on the hub, and where its client keeps it. The client itself takes a second to import."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    place = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    return External(name, place / f"{kind}--{name.replace('/', '--')}" / "snapshots", fetched=True)
