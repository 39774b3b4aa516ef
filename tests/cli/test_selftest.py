"""The self-test passes on pairs that are right, and says what is wrong where a fault is planted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixture_engine import FIXTURES

from dspark.cli.main import main
from dspark.engine import eager
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.target import Target
from dspark.kernels import NO_STOP, Verdict

QUICK = ["--texts", "3", "--text-tokens", "32", "--contexts", "4", "--samples", "80"]
# Random models are certain of most tokens and know nothing of the others, so it takes many draws to see a distribution.
SAMPLED = ["--texts", "1", "--text-tokens", "8", "--contexts", "12", "--samples", "150", "--policy", "fixed:7"]
ONE_POLICY = [*QUICK, "--policy", "fixed:7"]


def pair(name: str) -> list[str]:
    return ["--target", str(FIXTURES / name / "target"), "--drafter", str(FIXTURES / name / "draft"), "--device", "cpu"]


@pytest.fixture(autouse=True)
def one_thread(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    # Models this small only lose by being shared out.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def selftest(capsys, *flags: str, expected: int) -> tuple[dict, str]:
    """The document and what is told to people."""
    capsys.readouterr()
    assert main(["selftest", "--json", *flags]) == expected
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def failed(document: dict) -> set[str]:
    return {check["name"] for check in document["checks"] if not check["passed"]}


def test_drafts_that_are_looked_up_pass_too(capsys):
    document, _ = selftest(capsys, *pair("dspark_rnn")[:2], "--drafter", "ngram", *QUICK, expected=0)
    assert document["passed"] and not failed(document)


def finding(document: dict, name: str) -> str:
    return next(check["finding"] for check in document["checks"] if check["name"] == name and not check["passed"])


@pytest.mark.parametrize("name", ["dspark_rnn", "dspark_vanilla", "dspark_sliding", "spec_dspark_d2t", "zlab_dflash"])
def test_a_pair_that_is_right_passes(capsys, name):
    document, told = selftest(capsys, *pair(name), *QUICK, expected=0)
    assert document["passed"] and not failed(document)
    assert [check["policy"] for check in document["checks"]] == ["none"] + ["fixed:7"] * 4 + ["threshold:0.5"] * 4
    assert "Speculation leaves the text as it is: all 9 checks passed." in told
    steps = [line for line in told.splitlines() if line.endswith("of 10)")]
    assert steps[0] == "Decoding plainly (1 of 10)" and steps[-1] == "Sampling with threshold:0.5 (10 of 10)"
    assert len(steps) == 10
    numbers = {(check["policy"], check["name"]): check["numbers"] for check in document["checks"]}
    for (policy, kind), found in numbers.items():
        if kind == "ends of texts":
            assert found["stop"] > 0 and found["length"] > 0
        if kind == "caches":
            assert found["compared"] > 16 and found["rollbacks"] > 0, policy
        if kind == "sampled tokens":
            assert found["positions"] > 0
    assert not Path("dspark-out").exists()


def test_a_verification_that_accepts_too_much_is_found(capsys, monkeypatch):
    own = eager.verify

    def generous(*args, lengths, **kwargs):
        verdict = own(*args, lengths=lengths, **kwargs)
        return Verdict(torch.minimum(verdict.accepted + 1, lengths.clamp(min=0)), verdict.next_token)

    monkeypatch.setattr(eager, "verify", generous)
    document, told = selftest(capsys, *pair("dspark_rnn"), *ONE_POLICY, expected=1)
    assert {"greedy text", "ends of texts", "sampled tokens"} <= failed(document)
    assert "hold a token that the target would not choose" in finding(document, "greedy text")
    assert "do not fit the target's distribution" in finding(document, "sampled tokens")
    assert "dspark: Speculation changes the text:" in told and "greedy text with fixed:7" in told
    # Plain decoding has no part in it.
    assert all(check["passed"] for check in document["checks"] if check["policy"] == "none")


def test_a_verification_that_accepts_too_much_of_sampled_text_alone_is_found(capsys, monkeypatch):
    from dspark.kernels.verification import reference

    monkeypatch.setattr(reference, "accept_draft", lambda log_p, log_q, uniforms: uniforms.log() - 1 < log_p - log_q)
    document, _ = selftest(capsys, *pair("dspark_rnn"), *SAMPLED, expected=1)
    assert failed(document) == {"sampled tokens"}


def test_a_drafter_whose_q_is_misreported_is_found(capsys, monkeypatch):
    own = Drafter.draft

    def misreported(self, block, cache):
        output = own(self, block, cache)
        return replace(output, logits=None if output.logits is None else 0.25 * output.logits)

    monkeypatch.setattr(Drafter, "draft", misreported)
    document, told = selftest(capsys, *pair("dspark_rnn"), *SAMPLED, expected=1)
    # Greedy drafts are certain whatever their logits.
    assert failed(document) == {"sampled tokens"}
    assert "sampled tokens with fixed:7" in told


@pytest.mark.parametrize("model", ["drafter", "target"])
def test_an_overwritten_cache_row_is_found(capsys, monkeypatch, model):
    kind, method = (Drafter, "write_context") if model == "drafter" else (Target, "forward")
    own = getattr(kind, method)

    def overwriting(self, *args, **kwargs):
        result = own(self, *args, **kwargs)
        batch, cache = (args[1], args[2]) if model == "drafter" else args
        # In rounds alone, which never begin at the start of a text: the row of position 1.
        if int(batch.positions.min()) > 1:
            rows = batch.attention.block_tables[:, 0].long() * cache.page_size + 1
            cache.v[-1, rows] = 0.0
        return result

    monkeypatch.setattr(kind, method, overwriting)
    document, _ = selftest(capsys, *pair("dspark_rnn"), *ONE_POLICY, expected=1)
    assert "caches" in failed(document)
    assert f"the {model}'s row of position 1 of request" in finding(document, "caches")
    if model == "drafter":
        # It costs acceptance, and no text.
        assert failed(document) == {"caches"}


def test_a_text_that_goes_on_behind_its_stop_token_is_found(capsys, monkeypatch):
    own = eager.commit_round

    def deaf(*args, stop_ids, **kwargs):
        own(*args, stop_ids=torch.full_like(stop_ids, NO_STOP), **kwargs)

    monkeypatch.setattr(eager, "commit_round", deaf)
    document, _ = selftest(capsys, *pair("dspark_rnn"), *ONE_POLICY, expected=1)
    assert failed(document) == {"ends of texts"}
    assert "goes on behind a stop token" in finding(document, "ends of texts")


def test_drafts_from_few_tokens_pass(capsys):
    document, _ = selftest(capsys, *pair("dspark_rnn"), *ONE_POLICY, "--draft-top-k", "2", expected=0)
    assert document["passed"]


def test_decode_offers_the_same_test(capsys):
    assert main(["decode", "--selftest", *pair("dspark_rnn"), "--policy", "fixed:3", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["command"] == "selftest" and document["passed"]
    assert [check["policy"] for check in document["checks"]] == ["none"] + ["fixed:3"] * 4
    assert "no file is read or written" in captured.err and not Path("dspark-out").exists()


def test_a_profile_in_the_work_directory_brings_async_in(capsys):
    models = pair("dspark_rnn")
    profile = ["--concurrency", "4", "--context-tokens", "16,32", "--repeats", "2", "--quiet"]
    assert main(["profile", *models, *profile]) == 0
    document, told = selftest(capsys, *models, *QUICK, expected=0)
    assert {check["policy"] for check in document["checks"]} == {"none", "fixed:7", "threshold:0.5", "async"}
    assert "plans rounds by dspark-out/profile.json" in told


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--drafter", "none"], "nothing is drafted"),
        (["--policy", "none"], "nothing is drafted"),
        (["--policy", "async"], "no dspark-out/profile.json"),
        (["--samples", "3"], "--samples is 3"),
        (["--text-tokens", "999"], "texts of 999 tokens"),
    ],
    ids=["no-drafter", "no-policy", "no-profile", "few-samples", "long-texts"],
)
def test_what_cannot_be_tested_is_refused(capsys, flags, sentence):
    assert main(["selftest", *pair("dspark_rnn"), *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_all_that_is_wrong_is_told_at_once(capsys):
    assert main(["selftest", "--dtype", "int3", "--samples", "3", "--policy", "lucky"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[::2] == ["dspark: --dtype is 'int3'", "dspark: --samples is 3", "dspark: --policy 'lucky' is unknown"]
    assert told[1].startswith("  Choose one of: auto, float32") and told[3] == "  Give a whole number of at least 32."
