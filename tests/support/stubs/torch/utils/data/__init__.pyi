from typing import Any, Generic, TypeVar

_T_co = TypeVar("_T_co", covariant=True)

class Dataset(Generic[_T_co]):
    def __getitem__(self, index: Any) -> _T_co: ...

class DataLoader(Generic[_T_co]):
    def __init__(
        self, dataset: Dataset[_T_co], batch_size: int | None = 1, *, num_workers: int = 0
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
