"""An AdaLN adapter of full width on a base whose AdaLN is pruned to a curve of a few coordinates.

There the activated time embedding is u(t) = mean + c(t) @ basis, and the base's weights take c. So factors that take u
become factors that take c, and a constant output offset for what the mean contributes: without it shapes fit and the
result is wrong.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from h3serve.core.errors import CheckpointError
from h3serve.weights.adapters.updates import Difference, LowRank

ORTHONORMAL = 1e-3  # largest entry that basis @ basis^T may differ by from the identity


def on_curve(update: LowRank, basis: torch.Tensor, mean: torch.Tensor) -> tuple[LowRank, Difference]:
    """The update for curve coordinates, and the offset of the layer's bias; sums in float64, results float32.

    `basis` [coordinates, width] and `mean` [width] are those that the base was pruned with, of the same partition.
    CheckpointError if they are no basis of this width.
    """
    width = update.a.shape[1]
    if basis.ndim != 2 or basis.shape[1] != width or mean.shape != (width,):
        found = f"a basis {list(basis.shape)} and a mean {list(mean.shape)}"
        raise CheckpointError(f"{update.target}: {found} do not fit an adapter of width {width}")
    wide = basis.double()
    error = float((wide @ wide.T - torch.eye(len(wide), dtype=torch.float64, device=wide.device)).abs().max())
    if not error <= ORTHONORMAL:
        raise CheckpointError(f"{update.target}: the rows of adaln_basis are not orthonormal (off by {error:.1g})")
    a, b = update.a.double(), update.b.double()
    offset = update.scale.value * (b @ (a @ mean.double()))
    bias = update.target.removesuffix(".weight") + ".bias"
    return replace(update, a=(a @ wide.T).float()), Difference(bias, update.first, update.rows, offset.float())
