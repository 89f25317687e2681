"""Where the parts of a transformer run: the ranks of every stage and of every group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_models.options import TransformerOptions

ROLES = ("tensor", "data", "expert", "expert data", "embedding")


def stage_ranks(options: TransformerOptions, stage: int) -> npt.NDArray[np.int64]:
    """The ranks of a stage: tensor-parallel ones are neighbours, stages are farthest apart."""
    count = options.data * options.tensor
    return np.arange(stage * count, (stage + 1) * count, dtype=np.int64)


def role_groups(options: TransformerOptions) -> dict[str, npt.NDArray[np.int64]]:
    """The groups of every role, one a row: int64[groups, members]."""
    cube = (options.pipeline, options.data // options.expert, options.expert, options.tensor)
    ranks = np.arange(np.prod(cube), dtype=np.int64).reshape(cube)
    by_data = ranks.reshape(options.pipeline, options.data, options.tensor)
    # The first and the last stage hold the embeddings of the vocabulary both.
    ends = by_data[[0, -1]].reshape(2, -1).T
    tables = (
        ranks.reshape(-1, options.tensor),
        by_data.transpose(0, 2, 1).reshape(-1, options.data),
        ranks.transpose(0, 1, 3, 2).reshape(-1, options.expert),
        ranks.transpose(0, 2, 3, 1).reshape(-1, cube[1]),
        ends,
    )
    return dict(zip(ROLES, tables, strict=True))
