"""Convolutions that obey autocast, and those with a 3 x 3 kernel on small maps by products of matrices."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from subnet_utils.models.packing import is_vectorized

FEW = 2
"""Places to a side of a map of results up to which each of them is a product of its own, on a CPU."""
SMALL, WIDE = 4, 256
"""Places to a side of a map up to which, and channels from which on, the gradient of a kernel in bfloat16 is computed
entry by entry, on a CPU."""


class Convolution(nn.Conv2d):
    """torch's, in the precision of autocast within torch.vmap, too, which takes a convolution apart before autocast has
    seen it."""

    @classmethod
    def of(cls, conv: nn.Conv2d) -> "Convolution":
        """The convolution itself, as one of these."""
        conv.__class__ = cls
        return conv

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if is_vectorized(x) or is_vectorized(weight):
            dtype = _precision(x)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return super()._conv_forward(x, weight, bias)


class Conv3x3(Convolution):
    """A convolution with a 3 x 3 kernel and a margin of one place, with the weights of `conv`.

    The same numbers as torch's, about twice as fast on a CPU where the results are a map of 2 x 2 places: most of the
    kernel then lies on the margin, and oneDNN multiplies its zeros, too. Where many channels meet on a map of 4 x 4, it
    takes two to three times as long for the kernel's gradient in bfloat16 as for the maps; products need half of that.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        sizes = {"kernel_size": 3, "stride": conv.stride, "padding": 1, "bias": False}
        super().__init__(conv.in_channels, conv.out_channels, **sizes, device="meta")  # draws no weights of its own
        self.weight = conv.weight

    def forward(self, x: Tensor) -> Tensor:
        """Maps [m, in, H, W] -> [m, out, H / stride, W / stride]."""
        if x.is_cuda or is_vectorized(x) or is_vectorized(self.weight):
            return super().forward(x)
        weight, dtype = self.weight, _precision(x)
        if max(_results(side, stride) for side, stride in zip(x.shape[-2:], self.stride, strict=True)) <= FEW:
            return PlaceByPlace.apply(x.to(dtype), weight.to(dtype), self.stride)
        small = max(x.shape[-2:]) <= SMALL and self.stride == (1, 1)
        if small and min(weight.shape[:2]) >= WIDE and dtype == torch.bfloat16:
            return TapByTap.apply(x.to(dtype), weight.to(dtype))
        return super().forward(x)


def with_conv3x3(block: nn.Module) -> nn.Module:
    """The block with its 3 x 3 convolutions replaced by `Conv3x3`, the others by `Convolution`, their weights kept."""
    for name, module in block.named_children():
        if not isinstance(module, nn.Conv2d):
            with_conv3x3(module)
        elif module.kernel_size == (3, 3):
            setattr(block, name, Conv3x3(module))
        else:
            Convolution.of(module)
    return block


class PlaceByPlace(torch.autograd.Function):
    """A convolution with a 3 x 3 kernel and a margin of one place: for each place of the result, the product of the
    places that its kernel covers with the part of the kernel that lies on them."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
        """x: [m, in, H, W]; weight: [out, in, 3, 3]."""
        x, weight = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1).contiguous()
        rows, columns = (_covered(side, step) for side, step in zip(x.shape[1:3], stride, strict=True))
        result = x.new_empty(len(x), len(rows), len(columns), len(weight))
        factors = []
        for i, (row, above) in enumerate(rows):
            for j, (column, beside) in enumerate(columns):
                seen, part = x[:, row, column].flatten(1), weight[:, above, beside].flatten(1)
                result[:, i, j] = seen @ part.T
                factors += [seen, part]
        ctx.save_for_backward(*factors)
        ctx.covered, ctx.shapes = (rows, columns), (x.shape, weight.shape)
        return result.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        """The sum over all places of both products' gradients."""
        of_x = gradient.new_zeros(ctx.shapes[0]) if ctx.needs_input_grad[0] else None
        of_weight = gradient.new_zeros(ctx.shapes[1], dtype=torch.promote_types(gradient.dtype, torch.float32))
        factors = iter(ctx.saved_tensors)
        rows, columns = ctx.covered
        for i, (row, above) in enumerate(rows):
            for j, (column, beside) in enumerate(columns):
                seen, part, own = next(factors), next(factors), gradient[:, :, i, j].contiguous()
                if of_x is not None:
                    target = of_x[:, row, column]
                    target += (own @ part).view(target.shape)
                target = of_weight[:, above, beside]
                target += (own.T @ seen).view(target.shape)
        of_x = of_x if of_x is None else of_x.permute(0, 3, 1, 2)
        return of_x, of_weight.to(gradient.dtype).permute(0, 3, 1, 2).contiguous(), None


class TapByTap(torch.autograd.Function):
    """torch's convolution with a 3 x 3 kernel, a stride of 1 and a margin of one place. The gradient of its kernel is
    computed by one product for each of its nine entries, over the places where the entry does not lie on the margin."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        """x: [m, in, H, W]; weight: [out, in, 3, 3]; [m, out, H, W]."""
        ctx.save_for_backward(x, weight)
        return functional.conv2d(x, weight, padding=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        """The maps' gradient is torch's."""
        x, weight = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            sizes = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
            only_maps = [True, False, False]
            of_x, _, _ = torch.ops.aten.convolution_backward(gradient, x, weight, None, *sizes, only_maps)
        of_weight = weight.new_empty(3, 3, *weight.shape[:2])
        places, own = (maps.permute(2, 3, 0, 1).contiguous() for maps in (x, gradient))
        rows, columns = (_met(side) for side in x.shape[-2:])
        for i, (to_row, from_row) in enumerate(rows):
            for j, (to_column, from_column) in enumerate(columns):
                seen = places[from_row, from_column].flatten(0, 2)
                torch.mm(own[to_row, to_column].flatten(0, 2).T, seen, out=of_weight[i, j])
        return of_x, of_weight.permute(2, 3, 0, 1).contiguous()


def _precision(x: Tensor) -> torch.dtype:
    """Type of the numbers that maps are convolved with."""
    kind = x.device.type
    narrowed = torch.is_autocast_enabled(kind) and x.dtype != torch.float64  # which autocast leaves alone
    return torch.get_autocast_dtype(kind) if narrowed else x.dtype


def _results(side: int, stride: int) -> int:
    """Places to a side of the result for a map with so many."""
    return (side - 1) // stride + 1


def _covered(side: int, stride: int) -> list[tuple[slice, slice]]:
    """For each place of the result, along one side: which places of the map its kernel covers, by which of its own."""
    first = [stride * place - 1 for place in range(_results(side, stride))]
    return [(slice(max(at, 0), min(at + 3, side)), slice(max(-at, 0), min(3, side - at))) for at in first]


def _met(side: int) -> list[tuple[slice, slice]]:
    """For each entry of the kernel, along one side: the results that it contributes to, and the places it lies on for
    them."""
    return [(slice(max(-at, 0), side - max(at, 0)), slice(max(at, 0), side - max(-at, 0))) for at in (-1, 0, 1)]
