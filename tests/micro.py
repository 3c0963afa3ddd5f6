"""The smallest study that still walks every path: one language and one vision task, seconds in all."""

from subnet_utils.core.lab import Lab
from subnet_utils.masks.subnetwork import Subnetwork

SIZES = {"train": 24, "validation": 12, "test": 16}
DATA = {"base": SIZES, "mask": SIZES, "probe": {"validation": 12, "test": 16}}
BASE = {"learning_rate": 0.001, "batch_size": 8, "epochs": 2, "patience": 2, "seeds": [0, 1]}


def study(**compute) -> dict:
    """A study as a mapping, for `Study.load`; keyword arguments go to its compute section."""
    bert = {
        "model": "bert_micro", "paper_model": "bert_small", "tasks": ["sv-agreement-singular"],
        "data": DATA, "base": BASE,
        "architecture": {"family": "bert", "layers": 2, "width": 16, "heads": 2, "mlp_width": 32},
        "masks": {"learning_rates": [0.01], "inits": [0.05, 0.0], "starts": ["layer_1", "layer_2"], "epochs": 3,
                  "seeds": [0, 1], "batch_size": 12},
    }  # fmt: skip
    resnet = {
        "model": "resnet_micro", "paper_model": "resnet50", "tasks": ["number-contact"], "base": BASE | {"flips": True},
        "data": DATA | {"resolution": 48},
        "architecture": {"family": "resnet", "block": "basic", "depths": [1, 1, 1, 1], "width": 4, "head_width": 8,
                         "embedding": 8},
        "masks": {"learning_rates": [0.01], "inits": [0.05], "starts": ["stem", "stage_3"], "epochs": 3,
                  "seeds": [0, 1], "batch_size": 12, "as_printed": True},
    }  # fmt: skip
    sweep = {
        "model": "vit_micro", "data": DATA | {"resolution": 32}, "base": BASE | {"seeds": [0]}, "layers": [1],
        "tasks": ["number-contact"], "learning_rates": [0.001], "batch_sizes": [8, 16],
        "architecture": {"family": "vit", "width": 16, "heads": 2, "mlp_width": 32, "patch": 8, "head_width": 8,
                         "embedding": 8},
    }  # fmt: skip
    section = {"experiments": [bert, resnet], "vit_search": sweep}
    return {"name": "micro", "compute": {"workers": 1, **compute}, "break_it_down": section}


def but(study: dict, **changes) -> dict:
    """A study with other parts of its section on *Break It Down*."""
    return study | {"break_it_down": study["break_it_down"] | changes}


def language(masks: dict | None = None, seeds: tuple[int, ...] = (0,), **compute) -> dict:
    """The language networks of `study` alone. masks: other settings of them; seeds: of the base models."""
    made = study(**compute)
    bert = made["break_it_down"]["experiments"][0]
    bert = bert | {"base": BASE | {"seeds": list(seeds)}, "masks": bert["masks"] | (masks or {})}
    return but(made, experiments=[bert], vit_search=None)


def whole_study(**compute) -> dict:
    """`study` with all that the later notebooks ask for: pretrained and pruned networks, and controls."""
    made = study(**compute)
    one = BASE | {"seeds": [0]}
    bert, resnet = (experiment | {"base": one} for experiment in made["break_it_down"]["experiments"])
    last = ({"inits": [0.05], "starts": one["masks"]["starts"][-1:]} for one in (bert, resnet))
    lm, simclr = (one | {"masks": one["masks"] | few} for one, few in zip((bert, resnet), last, strict=True))
    language = {"method": "masked_language_model", "epochs": 1, "batch_size": 8, "sentences": 40}
    contrastive = {"method": "simclr", "epochs": 1, "batch_size": 16, "tasks": ["number-contact"]}
    return but(
        made,
        pretrained=[
            lm | {"model": "bert_micro_lm", "paper_model": "bert_small_lm", "pretraining": language},
            simclr | {"model": "resnet_micro_simclr", "paper_model": "resnet50_simclr", "pretraining": contrastive},
        ],
        pruning={"models": ["resnet_micro"], "tasks": ["number-contact"], "inits": [0.05, 0.0], "epochs": 2,
                 "batch_size": 8, "learning_rates": [0.01]},
        controls={"draws": 4, "seeds": [0], "l0_factors": [100.0]},
    )  # fmt: skip


def few(study: dict) -> dict:
    """A study with one base model of each kind and one mask of each."""

    def one(model: dict) -> dict:
        masks = {"inits": [0.05], "starts": model["masks"]["starts"][-1:], "seeds": [0]}
        return model | {"base": model["base"] | {"seeds": [0]}, "masks": model["masks"] | masks}

    section = study["break_it_down"]
    return but(study, **{part: [one(model) for model in section[part]] for part in ("experiments", "pretrained")})


def masks_on_disk(lab: Lab) -> dict[str, Subnetwork]:
    """Every subnetwork of a store, by key: `==` compares them bit for bit."""
    found = lab.store.root.glob("break_it_down-mask/*/subnetwork.safetensors")
    return {path.parent.name: Subnetwork.load(path) for path in found}
