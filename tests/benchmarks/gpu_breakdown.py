"""What a GPU decode is made of, and what transformers takes for the same: sections of `gpu_decode.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from gpu_engines import Result, gpu_ms, make_engine, release, staged
from gpu_timing import MachineRates

sys.path.insert(0, str(Path(__file__).parents[1]))
from staged_batch import fill_caches


def kernels(rates: MachineRates) -> list[Result]:
    """Where a replay's time goes, by kernel."""
    from torch.profiler import ProfilerActivity, profile

    results = []
    for requests in (1, 256):
        engine = make_engine(concurrency=requests)
        fill_caches(engine)
        batch = staged(engine, requests, 256)
        gpu_ms(batch.target)
        with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(10):
                batch.target()
            torch.cuda.synchronize()
        rows = sorted(recorded.key_averages(), key=lambda row: -row.self_device_time_total)
        for row in rows[:12]:
            note = f"{row.count / 10:.0f} launches of {row.self_device_time_total / max(row.count, 1):.2f} µs"
            name = row.key if len(row.key) <= 44 else f"{row.key[:41]}..."
            results.append(Result("kernels", f"{requests}: {name}", row.self_device_time_total / 10 / 1e3, note=note))
        del engine
        release()
    return results


def peers(rates: MachineRates) -> list[Result]:
    """transformers on the same shape: compiled with a static cache at batch 1, eager at batch 64."""
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    results = []
    for batch, compiled, factor in ((1, True, 3.5), (64, False, 15)):
        engine = make_engine(concurrency=batch)
        fill_caches(engine)
        inputs = staged(engine, batch, 256)
        own = gpu_ms(lambda b=inputs: (b.place(), b.target(), b.verification()))  # type: ignore[arg-type, return-value]
        del engine, inputs
        release()
        cache = StaticCache(config=config, max_cache_len=512)
        token = torch.ones(batch, 1, dtype=torch.int64, device="cuda")
        position = torch.tensor([256], device="cuda")
        forward = torch.compile(model, mode="reduce-overhead", fullgraph=True) if compiled else model

        def step(run=forward, ids=token, past=cache, at=position) -> None:  # type: ignore[no-untyped-def]
            logits = run(input_ids=ids, past_key_values=past, cache_position=at, use_cache=True).logits
            logits[:, -1].argmax(dim=-1)

        with torch.no_grad():
            prompt = torch.ones(batch, 256, dtype=torch.int64, device="cuda")
            model(input_ids=prompt, past_key_values=cache, cache_position=torch.arange(256, device="cuda"))
            theirs = gpu_ms(step)
        kind = "static cache, compiled" if compiled else "eager"
        note = f"ours {own:.3f} ms, {theirs / own:.1f} times faster; wanted {factor}"
        case = f"transformers {kind}, {batch} x 256"
        results.append(Result("peers", case, theirs, "ours", own / theirs, 1 / factor, note))
    return results
