"""What a study consists of: its sections, and the functions that make all that a section's notebooks need."""

from collections.abc import Callable
from itertools import product

from subnet_utils.core.lab import Lab
from subnet_utils.core.study import Study
from subnet_utils.models.classifiers import WeightsError
from subnet_utils.papers.break_it_down import dissection, ledger, mask_sizes, random_controls
from subnet_utils.papers.break_it_down import tables as break_it_down
from subnet_utils.papers.break_it_down.base_models import Network, untrained
from subnet_utils.papers.heuristic_core import tables as unit_pruning
from subnet_utils.papers.heuristic_core.pair_networks import PretrainedError
from subnet_utils.papers.heuristic_core.pair_sets import pair_sets, require_pairs
from subnet_utils.papers.heuristic_core.steps import network_spec, shape
from subnet_utils.papers.heuristic_core.tables import Core
from subnet_utils.papers.heuristic_core.tasks.pair_files import DataError
from subnet_utils.papers.subtask_induction import arithmetic_tables as subtask_induction
from subnet_utils.papers.subtask_induction import images_tables as shape_bias
from subnet_utils.papers.subtask_induction.image_sets import data_spec as image_spec
from subnet_utils.papers.subtask_induction.image_sets import is_prepared
from subnet_utils.papers.subtask_induction.image_steps import ImageBase
from subnet_utils.papers.subtask_induction.images_tables import open_images
from subnet_utils.tasks.images import ImageError


class Lacking(ValueError):
    """What a section needs is not there; the message names it and the remedy."""


def sections_of(study: Study) -> list[str]:
    """Names of the sections that a study has, in the order of the notebooks."""
    there = {"experiments": study.experiments, "pruning": study.to_prune(), "controls": study.experiments}
    return [name for name in MAKERS if there.get(name, getattr(study, name))]


def _experiments(lab: Lab) -> None:
    """Notebooks 01 to 03 and 06."""
    break_it_down.search_vit(lab)
    break_it_down.effects(lab)
    ledger.ledger(lab)


def _pruning(lab: Lab) -> None:
    """The end of notebook 03."""
    break_it_down.effects(lab.pruned())


def _controls(lab: Lab) -> None:
    """Notebook 04."""
    random_controls.random_effects(lab)
    random_controls.null_draws(lab)
    random_controls.ablations(lab)
    mask_sizes.effects_by_size(lab)
    dissection.assembled(lab)


def _pretrained(lab: Lab) -> None:
    """Notebook 05."""
    break_it_down.effects(lab.pretrained())


def _arithmetic(lab: Lab) -> None:
    """Notebook 07."""
    subtask_induction.ablations(lab)
    subtask_induction.transfers(lab)


def _images(lab: Lab) -> None:
    """Notebook 07b."""
    shape_bias.induced(lab)


def _inference(lab: Lab, core: Core | None = None) -> None:
    """Notebook 08. core: the heads that are ablated at once; None: those that pruning finds."""
    unit_pruning.pruned(lab)
    unit_pruning.random_units(lab)
    unit_pruning.grid(lab)
    core = core or unit_pruning.core_of(unit_pruning.frequencies(lab))
    unit_pruning.ablations(lab, core)
    unit_pruning.attention(lab, core)


def _inference_with_a_core(lab: Lab) -> None:
    """A rehearsal's pruned networks are copies of each other; a core of all their heads would leave no others."""
    layers, heads = shape(lab)
    _inference(lab, Core(tuple(product(range(layers), range(heads)))[:2]))


MAKERS: dict[str, Callable[[Lab], None]] = {
    "experiments": _experiments,
    "pruning": _pruning,
    "controls": _controls,
    "pretrained": _pretrained,
    "arithmetic": _arithmetic,
    "images": _images,
    "inference": _inference,
}
"""What makes all of a section, and nothing of it twice."""
REHEARSED = {"arithmetic": _arithmetic, "images": _images, "inference": _inference_with_a_core}
"""Sections whose data are there or quickly made. The others are counted: at the paper's size their images and the
outputs of their frozen layers take longer than one wants to wait for a prediction."""


def require(lab: Lab, section: str) -> None:
    """Raise Lacking for data or published weights that a section needs and that cannot be had."""
    try:
        if section == "pretrained":
            _require_weights(lab)
        if section == "images" and open_images(lab).folders is not None and not is_prepared(lab):
            raise Lacking("its images are not prepared yet; run notebook 07b as far as that first")
        if section == "inference":
            network_spec(lab)
            pair_sets(lab)
    except (DataError, ImageError, PretrainedError, WeightsError) as reason:
        raise Lacking(str(reason)) from None


def require_files(study: Study) -> None:
    """Raise Lacking for image folders, pairs or published weights that a study names and that are not there.

    Before a run that comes to them after days; what is in them is looked at when it is read.
    """
    lab = Lab.open(study)
    try:
        if lab.study.images is not None:
            image_spec(lab)
            for model in lab.study.images.models:
                ImageBase(model, 0).spec(lab)
        if lab.study.inference is not None:
            require_pairs(lab)
            network_spec(lab)
    except (DataError, ImageError, PretrainedError, WeightsError) as reason:
        raise Lacking(str(reason)) from None
    _require_weights(lab)


def _require_weights(lab: Lab) -> None:
    """Raise Lacking for pretrained experiments whose published weights cannot be had."""
    for experiment in lab.study.pretrained:
        if getattr(experiment.architecture, "pretrained", None) is not None:
            try:
                untrained(Network(experiment, experiment.tasks[0], experiment.base, experiment.base.seeds[0]))
            except ValueError as reason:
                raise Lacking(str(reason)) from None
