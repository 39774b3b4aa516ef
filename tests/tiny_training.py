"""What the training tests share: the fixtures' tiny target, made-up texts, and everything between them and a step."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from byte_tokenizer import save_byte_tokenizer

from dspark.engine.models.target import Target
from dspark.engine.training.batches import Batches
from dspark.engine.training.documents import Documents
from dspark.engine.training.draft_model import TrainableDrafter
from dspark.engine.training.settings import DrafterShape, TrainSettings
from dspark.engine.training.shape import drafter_config
from dspark.engine.training.step import DistillationStep
from dspark.engine.training.text_file import Text

TARGET = Path(__file__).parent / "fixtures" / "dspark_vanilla" / "target"
SHAPE = DrafterShape(layers=2, markov_rank=16, feature_layers=(0, 2, 4))
MASK = 255
CPU = torch.device("cpu")


def chat_target(folder: Path) -> Path:
    """The fixtures' target with a tokenizer and a chat template."""
    shutil.copytree(TARGET, folder, copy_function=shutil.copyfile)
    save_byte_tokenizer(folder)
    return folder


def load_target(dtype: str = "float32") -> Target:
    return Target.load(TARGET, device=CPU, dtype=dtype)


def made_up_texts(count: int, *, seed: int = 0, temperatures: tuple[float, ...] = (1.0, 0.0)) -> list[Text]:
    draw = np.random.default_rng(seed)
    lengths = zip(draw.integers(1, 9, count), draw.integers(3, 40, count), strict=True)
    return [
        Text(
            draw.integers(3, 250, prompt).tolist(),
            draw.integers(3, 250, answer).tolist(),
            temperatures[index % len(temperatures)],
            index=index,
        )
        for index, (prompt, answer) in enumerate(lengths)
    ]


def make_batches(documents: Documents, settings: TrainSettings, *, block_size: int = 7, chosen=None) -> Batches:
    return Batches(
        documents,
        np.ones(len(documents), dtype=bool) if chosen is None else chosen,
        rows=settings.rows,
        row_tokens=settings.row_tokens,
        anchors=settings.anchors,
        block_size=block_size,
        decay=settings.position_decay,
        seed=settings.seed,
    )


def make_step(
    settings: TrainSettings, *batches: Batches, shape: DrafterShape = SHAPE, target: Target | None = None
) -> DistillationStep:
    target = target or load_target()
    config = drafter_config(shape, target.config, mask_token_id=MASK)
    torch.manual_seed(settings.seed)
    positions = settings.row_tokens + config.block_size
    model = TrainableDrafter(config, embed=target.embed, dtype=target.dtype, num_positions=positions)
    return DistillationStep(model, target, settings, num_pages=max(each.num_pages for each in batches))
