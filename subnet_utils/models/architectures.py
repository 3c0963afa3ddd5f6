"""The architectures of networks that embed items, as a profile names them: of *Break It Down*, and of notebook 10a."""

from typing import Annotated, ClassVar, Literal

from pydantic import Strict, model_validator

from subnet_utils.core.messages import invalid
from subnet_utils.core.sections import Layers, Place, PositiveFloat, PositiveInt, Section, heads_divide_width


class Bert(Section):
    """A BERT encoder; the paper's BERT-small is 4 layers, width 512, 8 heads, MLP width 2048."""

    modality: ClassVar = "language"
    family: Literal["bert"]
    layers: Layers = 4
    width: PositiveInt = 512
    heads: PositiveInt = 8
    mlp_width: PositiveInt = 2048
    pretrained: Place | None = None
    """Folder (or hub name) to take weights and tokenizer from."""
    deviation: PositiveFloat | None = None
    """Of the weights as they are drawn; None: transformers' .02, whatever the width. What a layer passes on grows with
    the deviation times the root of the width, so .02 at BERT-small's width of 512 is .04 at 128."""

    _widths = model_validator(mode="after")(heads_divide_width)

    @model_validator(mode="after")
    def _drawn_or_taken(self):
        if self.deviation is not None and self.pretrained is not None:
            raise invalid("deviation", "pretrained weights are not drawn; remove deviation or pretrained")
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return (*(f"layer_{i}" for i in range(1, self.layers + 1)), "pooler")


class ResNet(Section):
    """A four-stage ResNet, instance-normalized, with an embedding MLP; in the paper bottleneck 3-4-6-3, width 64."""

    modality: ClassVar = "vision"
    family: Literal["resnet"]
    block: Literal["basic", "bottleneck"] = "bottleneck"
    depths: Annotated[tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt], Strict(False)] = (3, 4, 6, 3)
    width: PositiveInt = 64
    width_factor: PositiveInt = 1
    head_width: PositiveInt = 2048
    embedding: PositiveInt = 128
    small_stem: bool = False
    """A 3x3 stem without pooling instead of the 7x7 one, for small images."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("stem", "stage_1", "stage_2", "stage_3", "stage_4", "head")

    @model_validator(mode="after")
    def _wide_bottlenecks(self):
        if self.block == "basic" and self.width_factor != 1:
            raise invalid("width_factor", f"{self.width_factor} needs block bottleneck; basic ones have no inner width")
        return self


class ViT(Section):
    """A vision transformer with an embedding MLP; the paper's are 6 and 12 layers, width 768, 12 heads, patch 16."""

    modality: ClassVar = "vision"
    family: Literal["vit"]
    layers: Layers = 6
    width: PositiveInt = 768
    heads: PositiveInt = 12
    mlp_width: PositiveInt = 3072
    patch: PositiveInt = 16
    head_width: PositiveInt = 2048
    embedding: PositiveInt = 128

    _widths = model_validator(mode="after")(heads_divide_width)

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which masking may start."""
        return ("patches", *(f"layer_{i}" for i in range(1, self.layers + 1)), "head")
