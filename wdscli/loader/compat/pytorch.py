"""webdataset's module ``pytorch``: its names for classes of torch. Torch is imported when one of them is used."""

from __future__ import annotations

from typing import Any

__all__ = ["DataLoader", "IterableDataset", "TorchTensor"]  # noqa: F822


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch
    import torch.utils.data

    return torch.Tensor if name == "TorchTensor" else getattr(torch.utils.data, name)
