"""`profile.json`: round trip, refusals, and whether it belongs to a run."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields

import numpy as np
import pytest
from damaged_json import damaged_documents
from profile_samples import make_conditions, make_profile
from refusals import assert_reads_well

from dspark.profiles import (
    ModelShape,
    ProfileError,
    Staircase,
    check_conditions,
    load_profile,
    profile_from_dict,
    profile_to_dict,
    save_profile,
    shipped_profiles,
)


def test_round_trip(profile, tmp_path):
    path = tmp_path / "new" / "profile.json"
    save_profile(profile, path)
    assert [p.name for p in path.parent.iterdir()] == ["profile.json"]
    loaded = load_profile(path)
    assert profile_to_dict(loaded) == profile_to_dict(profile)
    assert loaded.conditions == profile.conditions
    assert loaded.measurements == profile.measurements
    np.testing.assert_array_equal(loaded.curve.target.time_s, profile.curve.target.time_s)
    document = json.loads(path.read_text())
    samples = document["measurements"][0]
    assert samples["median_s"] == pytest.approx(np.median(samples["wall_s"]))
    assert samples["p20_s"] == pytest.approx(np.quantile(samples["wall_s"], 0.2))
    assert document["validation"] == {"num_points": 0, "median": None, "p90": None, "largest": None}


def test_names_of_other_bytes_come_back_from_the_file(tmp_path):
    named = make_profile(target=ModelShape("m\udcff", "0123", {}), device_name="\udcfe")
    save_profile(named, tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json").conditions == named.conditions


@pytest.mark.parametrize("name", ["version", "time_s", "kind"])
def test_a_key_that_stands_twice_is_refused_by_name(profile, tmp_path, name):
    text = json.dumps(profile_to_dict(profile)).replace(f'"{name}":', f'"{name}": 1, "{name}":', 1)
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(ProfileError, match=rf"profile\.json is damaged: `{name}` stands twice in one object"):
        load_profile(tmp_path / "profile.json")


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_reader_of_the_file_gets_the_same_times_by_the_documented_law(name):
    profile, rng = load_profile(shipped_profiles()[name]), np.random.default_rng(0)
    document = json.loads(shipped_profiles()[name].read_text())["curve"]
    for _ in range(200):
        requests, context = int(rng.integers(1, 33)), int(rng.integers(0, 4000))
        tokens = int(rng.integers(requests, 8 * requests + 1))
        load, longest = requests * context + tokens, context + -(-tokens // requests)
        stairs = document["target_long" if longest > document["long_context_tokens"] else "target"]
        i = next(i for i, bucket in enumerate(stairs["buckets"]) if bucket >= tokens)
        expected = stairs["time_s"][i]
        for slope, at, size in (
            ("load_s", "reference_load", load),
            ("longest_s", "reference_longest", longest),
            ("request_s", "reference_requests", requests),
        ):
            expected += stairs[slope][i] * (size - stairs[at][i])
        found = profile.curve.step_time_s(tokens, load, num_requests=requests, longest_context=longest)
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_every_column_of_a_staircase_is_in_the_schema():
    schema = inspect.getdoc(sys.modules[profile_to_dict.__module__])
    assert [f.name for f in fields(Staircase) if not re.search(rf"\b{f.name}\b", schema)] == []


def test_a_profile_without_a_drafter(profile, tmp_path):
    document = profile_to_dict(profile)
    document["curve"] |= {"draft": None, "block_width": 0, "tokens_per_request": 1}
    document["conditions"] |= {"drafter": None, "draft_steps": 0}
    curve = profile_from_dict(document).curve
    assert curve.draft_time_s([1, 5]).tolist() == [0, 0]
    # Without a drafter as many requests as tokens are verified.
    np.testing.assert_allclose(curve.round_time_s(4), curve.step_time_s(4) + curve.verification_time_s(4, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("format"), "is no profile"),
        (lambda d: d.update(version=1), "version 1 of the format; this dspark reads 2"),
        (lambda d: d["curve"]["target"].pop("time_s"), "damaged: `curve.target.time_s` is missing"),
        (lambda d: d["curve"]["target"].pop("request_s"), "damaged: `curve.target.request_s` is missing"),
        (lambda d: d["curve"].pop("draft_one"), "damaged: `curve.draft_one` is missing"),
        (
            lambda d: d["curve"]["target"].update(buckets=[3, 2, 1, 4, 5, 6]),
            "`curve.target`: buckets are not incr",
        ),
        (
            lambda d: d["curve"].update(tokens_per_request=0),
            "`curve.tokens_per_request` is 0, not a whole",
        ),
        (lambda d: d["conditions"].pop("dtype"), "damaged: `conditions.dtype` is missing"),
        (
            lambda d: d["measurements"][0].update(wall_s=[]),
            r"`measurements\[0\]`: a measurement has no samples",
        ),
        (lambda d: d.update(curve=[]), r"damaged: `curve` is \[\], not an object"),
        (lambda d: d.update(measurements=None), "damaged: `measurements` is null, not a list"),
        (lambda d: d["curve"].update(draft=None), "damaged: `curve`: `draft` and `block_width` disagree"),
        (lambda d: d["curve"].update(draft=None, block_width=0), r"damaged: only one of `curve\.draft`"),
        (lambda d: d["conditions"].update(drafter=None), r"damaged: only one of `curve\.draft`"),
        (lambda d: d["curve"]["target"]["time_s"].__setitem__(1, True), r"`curve\.target\.time_s\[1\]` is true"),
        (lambda d: d["curve"]["draft"]["load_s"].__setitem__(0, "1"), r"`curve\.draft\.load_s\[0\]` is \"1\""),
        (
            lambda d: d["curve"]["draft"]["buckets"].__setitem__(0, 1.5),
            r"`curve\.draft\.buckets\[0\]` is 1\.5",
        ),
        (lambda d: d["fit"]["target"].update(p90="x"), r"`fit\.target\.p90` is \"x\", not a number"),
        (lambda d: d["conditions"].update(threads=True), r"`conditions\.threads` is true, not a whole number"),
        (
            lambda d: d["conditions"]["target"]["shape"].update(vocab_size=[]),
            r"`conditions\.target\.shape\.vocab_size` ",
        ),
        (lambda d: d["measurements"][2].update(num_requests=0), r"`measurements\[2\]`: a measurement has no tokens"),
        (lambda d: d.update(notes="none"), '`notes` is "none", not a list'),
        (
            lambda d: d["curve"]["target"]["time_s"].__setitem__(3, 1e300),
            r"`curve\.target`: time_s\[3\] is 1e\+300, not",
        ),
        (lambda d: d["curve"]["draft"]["time_s"].__setitem__(0, 1e-300), r"`curve\.draft`: time_s\[0\] is 1e-300, not"),
        (lambda d: d["curve"]["target"]["p20_s"].__setitem__(0, 5.0), r"`curve\.target`: p20_s\[0\] is 5, not"),
        (lambda d: d["curve"]["target"]["p80_s"].__setitem__(1, 0.0), r"`curve\.target`: p80_s\[1\] is 0, not"),
        (lambda d: d["curve"]["target"]["p80_s"].__setitem__(1, 1e9), r"`curve\.target`: p80_s\[1\] is 1e\+09, not"),
        (
            lambda d: d["curve"]["target"]["buckets"].__setitem__(-1, 10**12),
            r"`curve\.target`: buckets\[5\] is 1e\+12, not at most 2147483648",
        ),
        (lambda d: d["curve"]["target"]["load_s"].__setitem__(0, 1e300), r"`curve\.target`: load_s\[0\] is 1e\+300"),
        (lambda d: d["curve"].update(tokens_per_request=2**40), r"`curve\.tokens_per_request` is 1099511627776, not"),
        (lambda d: d["curve"].update(tokens_per_request=2**31), "`curve`: full blocks of all requests are more than"),
        (lambda d: d["curve"].update(tokens_per_request=3), r"`curve\.tokens_per_request` is not 1 \+ `conditions\."),
        (lambda d: d["curve"].update(reference_context_tokens=2**70), r"`curve\.reference_context_tokens` is"),
        (
            lambda d: d["measurements"][0].update(wall_s=[1.0, 1e5]),
            r"`measurements\[0\]`: .* from 1e-09 to 10000 s",
        ),
        (lambda d: d["measurements"][1].update(num_tokens=2**40), r"`measurements\[1\]`: .* more than 2147483648 tok"),
    ],
    ids=range(35),
)
def test_damage_is_one_sentence(profile, change, message):
    document = profile_to_dict(profile)
    change(document)
    with pytest.raises(ProfileError, match=message) as caught:
        profile_from_dict(document)
    assert "dspark profile" in caught.value.remedy


def thinned(document):
    """The same with at most two entries in every list."""
    if isinstance(document, dict):
        return {name: thinned(value) for name, value in document.items()}
    return [thinned(value) for value in document[:2]] if isinstance(document, list) else document


@pytest.mark.parametrize("name", shipped_profiles())
def test_no_value_in_place_of_another_gives_more_than_a_sentence(name):
    whole = json.loads(shipped_profiles()[name].read_text())
    kinds = {measurement["kind"]: measurement for measurement in whole["measurements"]}
    document = thinned(whole | {"measurements": []}) | {
        "measurements": [thinned(measurement) for measurement in kinds.values()]
    }
    profile_from_dict(document)
    tried, refused = 0, 0
    for place, damaged in damaged_documents(document):
        tried += 1
        try:
            assert profile_to_dict(profile_from_dict(damaged)), place
        except ProfileError as error:
            refused += 1
            assert_reads_well(error)
    assert tried > 1000 and refused > tried // 2


@pytest.mark.parametrize(
    "text",
    ["", "[1", "NaN", '{"format": Infinity}', "[" * 100_000, '{"format": "dspark-profile", "version": 1e999}'],
    ids=range(6),
)
def test_not_json(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match="is not strict JSON"):
        load_profile(path)


def test_no_file_and_no_place(profile, tmp_path):
    with pytest.raises(ProfileError, match="cannot be read: No such file"):
        load_profile(tmp_path / "profile.json")
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="cannot be written"):
        save_profile(profile, tmp_path / "file" / "profile.json")


def test_a_failed_write_leaves_the_file_before(profile, tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    save_profile(profile, path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ProfileError, match="No space left"):
        save_profile(profile, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target": ModelShape("big", None, {"hidden_size": 64, "num_layers": 7})},
            "a target of another shape: num_layers 6 in tiny, 7 in big",
        ),
        ({"drafter": ModelShape("other", None, {"block_size": 5})}, "a drafter of another shape: block_size 7"),
        ({"drafter": None}, "the profile has a drafter and the run has none"),
        ({"dtype": "bfloat16"}, "measured with dtype float32, and this is bfloat16"),
        ({"device": "cuda", "device_name": "a GPU"}, "measured with device cpu, and this is cuda"),
        ({"device_name": "another CPU"}, "measured with device a CPU, and this is another CPU"),
    ],
    ids=["target", "drafter", "no drafter", "dtype", "device", "model of device"],
)
def test_another_run_is_refused(changes, message):
    with pytest.raises(ProfileError, match=message) as caught:
        check_conditions(make_conditions(), make_conditions(**changes))
    assert "Run `dspark profile` again" in caught.value.remedy


def test_what_only_warns():
    assert check_conditions(make_conditions(), make_conditions()) == []
    # Other weights of the same shape take the same time.
    others = ModelShape("fine-tune", "ffff", {"hidden_size": 64, "num_layers": 6})
    assert check_conditions(make_conditions(), make_conditions(target=others)) == []
    (warning,) = check_conditions(make_conditions(), make_conditions(threads=8))
    assert warning == "The profile was measured with CPU threads: 2, and this is 8: its times may be off."
