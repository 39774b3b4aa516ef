"""The tensors that inspection expects are the very ones that loading reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from draft_pair import FIXTURES
from speculators_folders import VARIANTS, write_drafter

from dspark.engine.models.drafter import Drafter
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.layers import WeightFormat
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.target import Target
from dspark.engine.models.tensor_shapes import drafter_tensors, target_tensors
from dspark.engine.models.weights import Checkpoint

NAMES = ("dspark_vanilla", "dspark_rnn", "dspark_sliding", "spec_dspark_d2t", "zlab_dflash")
FORMAT = WeightFormat.of("float32", torch.device("cpu"))


class Watched(Checkpoint):
    """Notes what is read of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.floats: dict[str, tuple[int, ...]] = {}
        self.whole: dict[str, tuple[int, ...]] = {}

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self.floats[name] = shape
        return super().read(name, shape)

    def read_ids(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self.whole[name] = shape
        return super().read_ids(name, shape)

    @property
    def names(self) -> list[str]:
        return list(self._files)


def check_drafter(folder: Path, target: Path) -> None:
    weights, config = Watched(folder), DrafterConfig.from_folder(folder)
    Drafter(config, weights, FORMAT, target=Target.load(target, device=FORMAT.device, dtype="float32"))
    expected = drafter_tensors(config, weights.names)
    there = {name: shape for name, shape in expected.optional.items() if name in weights}
    assert weights.floats | weights.whole == expected.required | there
    assert set(weights.whole) == {name for name in expected.whole_numbers if name in weights}


@pytest.mark.parametrize("name", NAMES)
def test_drafters_of_the_fixtures(name: str) -> None:
    check_drafter(FIXTURES / name / "draft", FIXTURES / name / "target")


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_drafters_of_every_form(tmp_path: Path, options: dict[str, Any]) -> None:
    check_drafter(write_drafter(tmp_path, **options), FIXTURES / "spec_dspark_d2t" / "target")


def test_targets_of_every_architecture(any_tiny_model: Any) -> None:
    weights, config = Watched(any_tiny_model.folder), ModelConfig.from_folder(any_tiny_model.folder)
    Target(config, weights, FORMAT)
    expected = target_tensors(config)
    there = {name: shape for name, shape in expected.optional.items() if name in weights}
    assert weights.floats == expected.required | there
