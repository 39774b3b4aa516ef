"""How far a self-test is, as it is told."""

from dspark.engine.selftest.phases import Phases


def test_phases_are_numbered_and_their_work_is_counted():
    told = []
    phases = Phases(lambda *step: told.append(step), 2)
    phases.begin("Decoding")
    assert list(phases.counted("ab", 2)) == ["a", "b"]
    phases.begin("Sampling")
    assert told == [
        ("Decoding (1 of 2)", 0, 0),
        ("Decoding (1 of 2)", 0, 2),
        ("Decoding (1 of 2)", 1, 2),
        ("Sampling (2 of 2)", 0, 0),
    ]
