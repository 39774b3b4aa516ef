"""Where tests run `decode` without a model."""

import importlib.resources
import json
from pathlib import Path

import pytest
from fake_engine import CharCodec, FakeEngine


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with an input, and an engine that needs no model: `made` is the next to be given out."""
    import dspark.engine
    import dspark.engine.jobs.tokenizer
    import dspark.engine.models.resolve
    from dspark.engine.jobs.finished import known_settings

    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    engines = []

    def engine(config, *, detokenizer):
        engines.append(config)
        drafter = None if config.drafter == "none" else Path(config.drafter)
        engine.made.settings = known_settings(config, Path(config.target), drafter)
        return engine.made

    engine.made = FakeEngine()
    engine.configs = engines
    monkeypatch.setattr(dspark.engine, "Engine", engine, raising=False)
    monkeypatch.setattr(dspark.engine.jobs.tokenizer.Tokenizer, "load", lambda folder: CharCodec())
    (tmp_path / "model").mkdir()
    shapes = importlib.resources.files("dspark.engine.models") / "shapes"
    (tmp_path / "model" / "config.json").write_text((shapes / "smollm2-135m.json").read_text())

    def resolve(spec, *, progress):
        engine.resolved.append(spec)
        return tmp_path / "model"

    engine.resolved = []
    engine.folder = tmp_path
    monkeypatch.setattr(dspark.engine.models.resolve, "resolve_target", resolve)
    return engine


def texts(path="dspark-out/decode.jsonl"):
    """The answers in an output file."""
    return [json.loads(line)["text"] for line in Path(path).read_text().splitlines()]
