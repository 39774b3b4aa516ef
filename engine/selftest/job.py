"""The self-test of one pair: every policy that a run may use, one engine after the other."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from dspark.engine.artefacts import loaded_profile
from dspark.engine.config import EngineConfig
from dspark.engine.device import choose_device
from dspark.engine.engine import Engine
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import NGRAM_DRAFTER, NO_DRAFTER
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.progress import Progress
from dspark.engine.scheduler.policies import Planned, parse_policy
from dspark.engine.selftest.ends import EndToken, check_ends, end_token
from dspark.engine.selftest.greedy import check_greedy, greedy_texts
from dspark.engine.selftest.noise import logit_noise
from dspark.engine.selftest.phases import Counted, Phases
from dspark.engine.selftest.plain import PlainForward
from dspark.engine.selftest.prompts import selftest_prompts
from dspark.engine.selftest.report import Check, SelftestReport
from dspark.engine.selftest.sampled import check_sampled
from dspark.engine.selftest.settings import CONTEXT_TOKENS, PROMPT_TOKENS, SelftestSettings

if TYPE_CHECKING:
    from dspark.engine.jobs.dialogue import TextCodec

_CONCURRENCY = {"cpu": 16, "cuda": 64}
_SAMPLES = {"cpu": 80, "cuda": 256}
_NOISE_TEXTS = 3
_PLAIN_PHASES, _POLICY_PHASES = 2, 4


class _Judged(TypedDict):
    """What every check of one policy is given."""

    policy: str
    noise: float
    counted: Counted


def selftest_policies(config: EngineConfig, gamma: int) -> list[str]:
    """The policy that `config` names, or one of each kind that can run with it."""
    if config.policy is not None:
        return [config.policy]
    return [f"fixed:{gamma}", "threshold:0.5", *(["async"] if config.profile is not None else [])]


def run_selftest(
    config: EngineConfig, settings: SelftestSettings, *, tokenizer: TextCodec | None, step: Progress
) -> SelftestReport:
    """Check that speculation with `config` leaves the target's text and distribution alone.

    Args:
        config: names local folders of a target and its drafter; `profile`, where it is given, is read already.
        tokenizer: the target's; None: prompts are made-up tokens.
        step: told what comes next, and how far that is.

    Raises:
        UsageError: nothing is drafted, or the models see less than the texts take.
        EngineError, CheckpointError, ProfileError, CalibrationError: as when the pair decodes.
    """
    config, gamma = _sized(config, settings)
    asked = selftest_prompts(
        tokenizer,
        vocab_size=ModelConfig.from_folder(Path(config.target)).vocab_size,
        count=max(settings.texts, settings.contexts),
        seed=settings.seed,
    )
    prompts = asked[: settings.texts]
    contexts = [prompt[:CONTEXT_TOKENS] for prompt in asked[: settings.contexts]]
    most = max(settings.text_tokens // 2, 2)
    samples = settings.samples or _SAMPLES[choose_device(config.device).type]
    policies = selftest_policies(config, gamma)
    phases = Phases(step, _PLAIN_PHASES + _POLICY_PHASES * len(policies))
    reference, noise, plain_check = _plain(config, settings, prompts, step=1 + gamma, phases=phases)
    end = end_token([text[:most] for text in reference])
    checks, notes = [plain_check], dict.fromkeys(() if tokenizer else ("no tokenizer: prompts are made-up tokens",))
    for policy in policies:
        phases.begin(f"Decoding with {policy}")
        # What the engine before held has to be gone first.
        gc.collect()
        engine = Engine(_for_policy(config, policy), detokenizer=EndToken(end))
        notes |= dict.fromkeys(engine.notes)
        plain = PlainForward(engine)
        judged: _Judged = {"policy": policy, "noise": noise, "counted": phases.counted}
        texts = greedy_texts(engine, prompts, settings.text_tokens, counted=phases.counted)
        phases.begin(f"Comparing the texts of {policy}")
        checks.append(check_greedy(plain, prompts, texts, reference=reference, **judged))
        phases.begin(f"Ending texts with {policy}")
        checks += check_ends(engine, plain, prompts, most=most, **judged)
        phases.begin(f"Sampling with {policy}")
        checks.append(check_sampled(engine, plain, contexts, samples=samples, **judged))
        del engine, plain
    return SelftestReport(tuple(checks), noise, tuple(notes))


def _sized(config: EngineConfig, settings: SelftestSettings) -> tuple[EngineConfig, int]:
    """The configuration with a batch and a context of this test's size, and its drafter's block size."""
    limits, gamma = [ModelConfig.from_folder(Path(config.target)).max_position_embeddings], 0
    if config.drafter == NGRAM_DRAFTER:
        gamma = NgramDrafter().block_size
    elif config.drafter not in (None, NO_DRAFTER):
        drafter = DrafterConfig.from_folder(Path(str(config.drafter)))
        limits.append(drafter.backbone.max_position_embeddings)
        gamma = drafter.block_size
    if not gamma or (config.policy is not None and not parse_policy(config.policy, gamma).drafts):
        raise UsageError(
            "a self-test compares decoding with and without drafts, and nothing is drafted",
            "Give a --drafter, and a policy that uses it.",
        )
    limit = min(limits)
    if settings.most_context > limit:
        raise UsageError(
            f"texts of {settings.text_tokens} tokens behind prompts of {PROMPT_TOKENS} are beyond what the models "
            f"can see ({limit} tokens)",
            "Give shorter texts.",
        )
    concurrency = config.concurrency or _CONCURRENCY[choose_device(config.device).type]
    if config.concurrency is None and config.profile is not None:
        concurrency = min(concurrency, loaded_profile(config.profile).curve.max_requests)
    sized = replace(config, concurrency=concurrency, max_context=settings.most_context, seed=settings.seed)
    return sized, gamma


def _for_policy(config: EngineConfig, policy: str) -> EngineConfig:
    planned = isinstance(parse_policy(policy, None), Planned)
    return replace(config, policy=policy, profile=config.profile if planned else None)


def _plain(
    config: EngineConfig, settings: SelftestSettings, prompts: list[list[int]], *, step: int, phases: Phases
) -> tuple[list[list[int]], float, Check]:
    """Texts of plain decoding, the noise of the target's logits, and what the target says of these texts."""
    phases.begin("Decoding plainly")
    engine = Engine(replace(config, policy="none", draft_top_k=None, profile=None, calibration=None))
    plain = PlainForward(engine)
    texts = greedy_texts(engine, prompts, settings.text_tokens, counted=phases.counted)
    phases.begin("Reading the plain texts")
    noise = logit_noise(plain, prompts[:_NOISE_TEXTS], texts[:_NOISE_TEXTS], step=step)
    check = check_greedy(plain, prompts, texts, policy="none", noise=noise, counted=phases.counted)
    return texts, noise, check
