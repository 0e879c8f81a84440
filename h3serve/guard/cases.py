"""Guard cases: what is generated, how, and which checks with which limits it must pass. Data, validated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from h3serve.core.errors import RequestError
from h3serve.core.limits import PARTITION_OF, Partition, Quality
from h3serve.core.request import GenerationRequest, dotted
from h3serve.core.settings import DType, Residency
from h3serve.guard.thresholds import Thresholds

Check = Literal["frames", "sound", "container", "memory", "time"]
METERS: frozenset[Check] = frozenset({"memory", "time"})
SHIPPED = ("demo", "demo-gpu", "demo-2gpu", "full")
Model = TypeVar("Model", bound=BaseModel)


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineChoice(_Value):
    """How the engine of a case is started; the case's `gpus` says on how many devices."""

    dtype: DType = "auto"
    quality: Quality = "lossless"
    residency: Residency = "auto"
    ulysses: int | None = Field(default=None, ge=1)
    tp: int | None = Field(default=None, ge=1)


class Case(_Value):
    """One generation with its checks.

    `gpus` 0 is the CPU. `model` None is the one that the run names. A uri `sample:NAME` in the
    request is a picture, clip or sound that samples.py draws. `estimate_s` is the expected time of
    the whole case in seconds; it decides which machine runs it.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    request: GenerationRequest
    partition: Partition
    gpus: int = Field(ge=0, le=64)
    model: str | None = None
    settings: EngineChoice = EngineChoice()
    checks: tuple[Check, ...] = Field(min_length=1)
    frames: Literal["ends", "all"] = "ends"
    thresholds: Thresholds = Thresholds()
    estimate_s: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Case:
        if self.gpus == 0 and (meters := METERS & set(self.checks)):
            raise ValueError(f"{', '.join(sorted(meters))} can be checked on CUDA only: leave it out or set gpus")
        if max(1, self.gpus) % ((self.settings.ulysses or 1) * (self.settings.tp or 1)):
            raise ValueError("gpus must be ulysses times tp, where the settings name them")
        if self.partition != PARTITION_OF[self.request.task]:
            raise ValueError(f"task {self.request.task} needs partition {PARTITION_OF[self.request.task]}")
        return self

    @property
    def platform_kind(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.gpus else "cpu"


class _CaseFile(_Value):
    """`defaults` are laid under every case, folder by folder."""

    defaults: dict[str, Any] = {}
    cases: list[dict[str, Any]] = Field(min_length=1)


def load_cases(names: Iterable[str | Path] = ("demo",)) -> list[Case]:
    """Cases of shipped sets (`SHIPPED`) and of YAML files, in order.

    Raises RequestError naming file and field for anything unknown or wrong, and for an id used twice.
    """
    cases = [case for name in names for case in _read(_path(name))]
    for case_id, uses in Counter(case.id for case in cases).items():
        if uses > 1:
            raise RequestError("cases", case_id, f"an id names one case, this one names {uses}")
    return cases


def _path(name: str | Path) -> Path:
    if name in SHIPPED:
        return Path(__file__).parent / f"cases_{str(name).replace('-', '_')}.yaml"
    return Path(name)


def _read(path: Path) -> list[Case]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        allowed = f"{', '.join(SHIPPED)} or a readable YAML file ({error})"
        raise RequestError("cases", str(path), allowed) from None
    except yaml.YAMLError as error:
        raise RequestError("cases", str(path), f"it is not YAML: {' '.join(str(error).split())}") from None
    file = _validated(_CaseFile, content, path.name)
    return [
        _validated(Case, _laid_over(file.defaults, case), f"{path.name}: {case.get('id', f'case {index}')}")
        for index, case in enumerate(file.cases)
    ]


def _validated(model: type[Model], content: Any, where: str) -> Model:
    try:
        return model.model_validate(content)
    except RequestError as error:
        raise RequestError(f"{where}: request.{error.field}", error.value, error.allowed) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = dotted(first["loc"]) or "case"
        raise RequestError(f"{where}: {field}", first["input"], first["msg"]) from None


def _laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = {**under, **over}
    for key in under.keys() & over.keys():
        if isinstance(under[key], dict) and isinstance(over[key], dict):
            merged[key] = _laid_over(under[key], over[key])
    return merged
