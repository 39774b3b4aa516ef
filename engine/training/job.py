"""`dspark train` as one function: text, training, and the folder that a drafter is loaded from."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from dspark.engine.cluster.cluster_engine import ClusterEngine
from dspark.engine.config import EngineConfig
from dspark.engine.device import choose_device, choose_dtype
from dspark.engine.engine import Engine
from dspark.engine.errors import UsageError
from dspark.engine.jobs.input_file import check_readable
from dspark.engine.jobs.manifest import manifest
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.aliases import NO_DRAFTER
from dspark.engine.models.fingerprint import checkpoint_fingerprint
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.resolve import resolve_target
from dspark.engine.models.target import Target
from dspark.engine.training.batches import Batches
from dspark.engine.training.card import CardFacts, TextSummary, model_card
from dspark.engine.training.checkpoint import RunFolder, RunState, num_parameters
from dspark.engine.training.draft_model import TrainableDrafter
from dspark.engine.training.generate import TextBudget, TextProgress, write_texts
from dspark.engine.training.material import Material, read_material
from dspark.engine.training.settings import PAGE_TOKENS, TrainJob
from dspark.engine.training.shape import choose_mask_token, drafter_config
from dspark.engine.training.step import DistillationStep
from dspark.engine.training.text_source import TextSource, read_prompts, user_turns
from dspark.engine.training.trainer import Trainer, TrainListener

# Of the memory of a GPU; training begins when the engine has given it back.
_TEXT_MEMORY = 0.5


class TrainJobListener(TrainListener, Protocol):
    """Is told how the whole job goes."""

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """A step of the preparation begins or goes on."""

    def wrote(self, progress: TextProgress) -> None:
        """The target has written more text."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Where a finished run stands, and what it used."""

    state: RunState
    text: TextSummary
    parameters: int
    device: str


class RunInterrupted(KeyboardInterrupt):
    """Asked to stop while a run was under way; `kept` says what drafter there is of it."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.kept = kept


def train_drafter(job: TrainJob, reporter: TrainJobListener) -> TrainResult:
    """Generate text unless there is some, train on it, and leave the best drafter in `job.output`.

    Raises:
        UsageError: settings, files and folders do not fit together, the device is not here, or another process writes
            to the folder.
        CheckpointError: the target cannot be loaded.
        EngineError: the loss is no number any more.
        RunInterrupted: asked to stop; `--resume` goes on.
        KeyboardInterrupt: asked to stop before anything was changed.
    """
    # Before anything that a run left is forgotten.
    device = choose_device(job.device)
    folder = RunFolder(job.output)
    with folder.locked():
        model_folder = resolve_target(job.target, progress=reporter.step)
        _check_fit(job, model_folder)
        reporter.step("Loading the tokenizer")
        tokenizer = Tokenizer.load(model_folder)
        try:
            if not job.resume:
                _forget_run(job, folder, reporter)
            target = _target_with_text(job, model_folder, device, tokenizer=tokenizer, reporter=reporter)
            reporter.step("Reading the text")
            material = read_material(job.data, row_tokens=job.settings.row_tokens, vocab_size=target.config.vocab_size)
            if material.documents.share_prompt:
                reporter.note("All texts stand behind one prompt, so texts and not prompts are held out.")
            trainer, parameters = _trainer(
                job, target, material, folder=folder, model_folder=model_folder, tokenizer=tokenizer, reporter=reporter
            )
            if job.resume:
                trainer.resume()
            reporter.step("Training")
            state = trainer.run()
        except KeyboardInterrupt:
            raise RunInterrupted(folder.best_so_far) from None
    return TrainResult(state, material.summary, parameters, target.device.type)


def _check_fit(job: TrainJob, model_folder: Path) -> None:
    """Refuse what the target's config.json rules out, before text is written for it."""
    config, row_tokens = ModelConfig.from_folder(model_folder), job.settings.row_tokens
    limit = config.max_position_embeddings
    if row_tokens > limit:
        raise UsageError(
            f"row_tokens is {row_tokens}, beyond the target's context limit of {limit} tokens",
            f"Give a multiple of {PAGE_TOKENS} up to {limit}.",
        )
    drafter_config(job.shape, config, mask_token_id=job.shape.mask_token_id or 0)
    if job.text.prompts is not None and not (job.data.exists() and (job.resume or job.text.data is not None)):
        check_readable(job.text.prompts, flag="--prompts")


def _forget_run(job: TrainJob, folder: RunFolder, reporter: TrainJobListener) -> None:
    """Drop what an earlier run left, and say so; its drafter stays for now."""
    if folder.has_earlier_run:
        dropped = "its text and state are" if job.text.data is None else "its state is"
        later = ", its drafter when this run has measured one of its own" if folder.has_drafter else ""
        reporter.note(f"{job.output} holds an earlier run: {dropped} dropped now{later}.")
    folder.forget_run()
    if job.text.data is None:
        job.data.unlink(missing_ok=True)


def _target_with_text(
    job: TrainJob, model_folder: Path, device: torch.device, *, tokenizer: Tokenizer | None, reporter: TrainJobListener
) -> Target:
    """The target, which has written the text unless there was some."""
    target = None
    if not job.data.exists() and job.workers is not None:
        reporter.step("Starting workers")
        with closing(ClusterEngine(_text_config(job, model_folder), job.workers)) as workers:
            _write(job, workers, tokenizer, reporter)
    elif not job.data.exists():
        reporter.step("Loading the target")
        engine = _text_engine(job, model_folder, tokenizer, reporter)
        _write(job, engine, tokenizer, reporter)
        target = engine.target
        # What it held of the device's memory is training's now.
        del engine
    if target is None:
        target = Target.load(model_folder, device=device, dtype=choose_dtype(job.dtype, device))
    _release(device)
    return target


def _text_config(job: TrainJob, model_folder: Path) -> EngineConfig:
    limit = ModelConfig.from_folder(model_folder).max_position_embeddings
    here = job.workers is None or job.workers.address is None
    return EngineConfig(
        # Another machine has not this one's folder of a model that goes by name.
        target=str(model_folder.resolve()) if here or os.path.isdir(job.target) else job.target,
        drafter=NO_DRAFTER,
        device=job.device,
        dtype=job.dtype,
        policy="none",
        concurrency=job.text.concurrency,
        seed=job.settings.seed,
        max_context=min(job.settings.row_tokens, limit),
        gpu_memory_utilization=_TEXT_MEMORY,
    )


def _text_engine(job: TrainJob, model_folder: Path, tokenizer: Tokenizer | None, reporter: TrainJobListener) -> Engine:
    return Engine(
        _text_config(job, model_folder),
        detokenizer=tokenizer,
        progress=lambda graph, done, total: reporter.step("Capturing CUDA graphs", done, total),
    )


def _write(
    job: TrainJob, engine: Engine | ClusterEngine, tokenizer: Tokenizer | None, reporter: TrainJobListener
) -> None:
    room = engine.max_context
    prompts: list[list[int]] = []
    if job.text.prompts is not None:
        # A prompt that fills a row leaves nothing to write.
        read = read_prompts(job.text.prompts, tokenizer, most_tokens=room // 2)
        prompts = read.token_ids
        if read.unused:
            why = f"no prompt, or longer than {room // 2} tokens"
            reporter.note(f"{read.unused} rows of {job.text.prompts} cannot be used: {why}.")
    turns = user_turns(tokenizer, eos_token_id=next(iter(engine.stop_ids), None))

    def source(done: frozenset[int]) -> TextSource:
        return TextSource(
            prompts,
            turns,
            temperatures=job.text.temperatures,
            max_tokens=job.text.max_tokens,
            row_tokens=room,
            stop_ids=engine.stop_ids,
            seed=job.settings.seed,
            done=done,
        )

    reporter.step("Writing text")
    time_s = None if job.text.minutes is None else 60 * job.text.minutes
    budget = TextBudget(time_s, job.text.tokens)
    write_texts(engine, source, job.data, budget=budget, resume=job.resume, report=reporter.wrote)


def _release(device: torch.device) -> None:
    # An engine holds its graphs in a ring of references.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _trainer(
    job: TrainJob,
    target: Target,
    material: Material,
    *,
    folder: RunFolder,
    model_folder: Path,
    tokenizer: Tokenizer | None,
    reporter: TrainJobListener,
) -> tuple[Trainer, int]:
    settings, documents = job.settings, material.documents
    mask = job.shape.mask_token_id
    if mask is None:
        mask = choose_mask_token(target.config.vocab_size, tokenizer, set(np.unique(documents.tokens).tolist()))
    config = drafter_config(job.shape, target.config, mask_token_id=mask)

    def batches(chosen: np.ndarray) -> Batches:
        return Batches(
            documents,
            chosen,
            rows=settings.rows,
            row_tokens=settings.row_tokens,
            anchors=settings.anchors,
            block_size=config.block_size,
            decay=settings.position_decay,
            seed=settings.seed,
        )

    training, measuring = batches(~material.held_out), batches(material.held_out)
    torch.manual_seed(settings.seed)
    model = TrainableDrafter(
        config, embed=target.embed, dtype=target.dtype, num_positions=settings.row_tokens + config.block_size
    )
    step = DistillationStep(model, target, settings, num_pages=max(training.num_pages, measuring.num_pages))
    parameters = num_parameters(model)
    fingerprint = checkpoint_fingerprint(model_folder)
    identity = {
        "target": fingerprint,
        "text": material.summary.sha256,
        "shape": asdict(job.shape) | {"mask_token_id": mask},
        "settings": asdict(settings),
        "dtype": str(target.dtype),
    }
    facts = CardFacts(
        name=job.output.resolve().name,
        target=job.target,
        target_fingerprint=fingerprint,
        config=config,
        parameters=parameters,
        settings=settings,
        text=material.summary,
        command=job.command,
        manifest=manifest(target.device.type),
        license=job.license,
    )
    trainer = Trainer(
        step,
        training,
        measuring,
        folder,
        identity=identity,
        card=lambda state: model_card(facts, state),
        reporter=reporter,
    )
    return trainer, parameters
