"""Rows of many callers share an engine, and one that breaks it fails alone."""

import threading
import time

import numpy as np
import pytest
from traced_engine import TracedEngine

from dspark.engine.cluster.row_server import DIED, RowServer
from dspark.engine.jobs.round_records import unpack
from dspark.engine.requests import Request

BAD = 3


def asked(*indices):
    return [Request(index, [97 + index] * (index + 1)) for index in indices]


def texts(answers):
    return ["".join(map(chr, answer.completion.token_ids[:-1])) for answer in answers]


def test_answers_come_in_the_order_of_the_rows():
    answers = RowServer(TracedEngine()).answers(asked(2, 0, 1))
    assert [answer.completion.index for answer in answers] == [2, 0, 1]
    assert texts(answers) == ["CCC", "A", "BB"]
    assert all(answer.rounds is None for answer in answers)


def test_rows_of_several_callers_are_decoded_together():
    started, rest = threading.Event(), threading.Event()

    def wait(index):
        started.set()
        assert rest.wait(20)

    engine = TracedEngine(before=wait, concurrency=4)
    server = RowServer(engine)
    results = {}

    def call(*indices):
        results[indices] = texts(server.answers(asked(*indices)))

    first = threading.Thread(target=call, args=(0,))
    first.start()
    assert started.wait(20)
    others = [threading.Thread(target=call, args=(i, i + 1)) for i in (1, 3)]
    for thread in others:
        thread.start()
    while len(server._together) < 4:
        time.sleep(0.001)
    rest.set()
    for thread in (first, *others):
        thread.join(20)
    assert results == {(0,): ["A"], (1, 2): ["BB", "CCC"], (3, 4): ["DDDD", "EEEEE"]}
    assert engine.most_open == 4


def test_a_row_that_comes_late_joins_those_that_still_run():
    first_runs, late_is_there = threading.Event(), threading.Event()
    runs = []

    class CountedEngine(TracedEngine):
        def generate(self, requests):
            runs.append([])
            for completion in super().generate(requests):
                runs[-1].append(completion.index)
                yield completion

    def wait(index):
        first_runs.set()
        assert late_is_there.wait(20)

    server = RowServer(CountedEngine(before=wait, concurrency=4))
    early = threading.Thread(target=server.answers, args=(asked(0, 1),))
    early.start()
    assert first_runs.wait(20)
    late = threading.Thread(target=server.answers, args=(asked(2),))
    late.start()
    while not server._together:
        time.sleep(0.001)
    late_is_there.set()
    for thread in (early, late):
        thread.join(20)
    assert runs == [[1, 2, 0]]


def breaking(index):
    if index == BAD:
        raise ZeroDivisionError("oops")


def test_a_row_that_breaks_the_engine_fails_alone():
    answers = RowServer(TracedEngine(before=breaking, concurrency=8)).answers(asked(*range(6)), record_rounds=True)
    errors = {answer.completion.index: answer.completion.error for answer in answers if answer.completion.error}
    assert errors == {BAD: "decoding failed: ZeroDivisionError: oops"}
    assert texts(answers[:BAD]) == ["A", "BB", "CCC"]
    # Rounds of the attempt that broke are not counted again.
    assert [len(unpack(answer.rounds, 3)) for answer in answers] == [1, 2, 3, 0, 5, 6]


def test_the_server_goes_on_after_a_row_that_broke_the_engine():
    server = RowServer(TracedEngine(before=breaking))
    assert server.answers(asked(BAD))[0].completion.finish_reason == "error"
    assert texts(server.answers(asked(0, 1))) == ["A", "BB"]


def test_rows_that_are_to_be_alone_have_no_other_beside_them():
    engine = TracedEngine(concurrency=8)
    assert texts(RowServer(engine).answers(asked(0, 1, 2), alone=True)) == ["A", "BB", "CCC"]
    assert engine.most_open == 1


def test_a_row_that_has_ended_a_worker_is_not_tried_again():
    engine = TracedEngine()
    answers = RowServer(engine, may_try_alone=lambda index: index != 1).answers(asked(0, 1, 2), alone=True)
    assert [answer.completion.error for answer in answers] == [None, DIED, None]
    assert [request.index for request in engine.asked] == [0, 2]


def test_a_row_that_came_through_alone_is_told_before_the_next_one_is_tried():
    told = []
    server = RowServer(
        TracedEngine(),
        may_try_alone=lambda index: told.append(f"tries {index}") or index != 1,
        came_through=lambda index: told.append(f"{index} came through"),
    )
    server.answers(asked(0, 1, 2), alone=True)
    assert told == ["tries 0", "0 came through", "tries 1", "tries 2", "2 came through"]


def test_a_device_that_is_broken_for_good_ends_the_worker():
    given_up = threading.Event()

    def broken():
        raise RuntimeError("an illegal memory access was encountered")

    server = RowServer(TracedEngine(before=breaking), check_device=broken, give_up=given_up.set)
    server.answers(asked(BAD))
    assert given_up.is_set()


def test_rounds_come_with_their_rows():
    answers = RowServer(TracedEngine()).answers(asked(1, 2), record_rounds=True)
    for answer, index in zip(answers, (1, 2), strict=True):
        rounds = unpack(answer.rounds, 3)
        assert rounds["confidence_logits"][:, 2] == pytest.approx(np.full(index + 1, index))
        assert rounds["text_position"].tolist() == [index + 1 + j for j in range(index + 1)]
